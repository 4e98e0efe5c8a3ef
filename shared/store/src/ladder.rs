//! The ladder: local, then hot, then the home. The one place that orders the tiers.

mod operate;

use std::sync::Arc;
use std::time::Instant;

use dedup_core::{
    ClaimToken, Digest, DigestScope, Fingerprint, Group, HomeId, HomeTable, Key, Question, Record, RequestHash, RequestId, Secret, State,
    Tier, Topic, TopicPolicy, Window,
};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::cached::Cached;
use crate::home::{Home, Homes};
use crate::hot::HotTier;
use crate::local::LocalTier;
use crate::topics::Topics;
use crate::trace::Traced;
use crate::{Answer, Ask, Basis, Finish, FinishAnswer, FinishOp, Looked, Refusal, RefusalKind, Texts, sabotage};

/// One question, parsed, not yet tied to a home's copy of its topic.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    /// Claim rather than check.
    pub claim: bool,
    /// Group.
    pub group: Group<'a>,
    /// Key; names the home.
    pub key: Key<'a>,
    /// Request id.
    pub request: Request,
    /// Payload.
    pub fingerprint: Option<Fingerprint>,
    /// Window of this question.
    pub window: Option<Window>,
    /// Lease of this claim, ms.
    pub lease_ms: Option<i64>,
    /// Who claims.
    pub owner: Option<String>,
}

/// The request id of a question.
#[derive(Debug, Clone)]
pub enum Request {
    /// The caller's.
    Given(RequestId, RequestHash),
    /// The service's: a random number that is written out and hashed only where it is needed.
    Made(u128),
}

impl Request {
    /// What a record would store of it.
    fn hash(&self, secret: &Secret) -> RequestHash {
        match self {
            Self::Given(_, hash) => *hash,
            Self::Made(number) => RequestId::made(*number).hash(secret),
        }
    }

    /// Its text.
    pub fn text(&self) -> RequestId {
        match self {
            Self::Given(id, _) => id.clone(),
            Self::Made(number) => RequestId::made(*number),
        }
    }
}

impl Query<'_> {
    fn question(&self) -> Question {
        // An id that the service has just made equals nobody's.
        let request = if let Request::Given(_, hash) = self.request { Some(hash) } else { None };
        Question { claim: self.claim, request, fingerprint: self.fingerprint }
    }
}

/// What one cache knows of a key.
#[derive(Debug, Clone)]
pub struct TierReport {
    /// Which.
    pub tier: Tier,
    /// The record it holds.
    pub record: Option<Arc<Record>>,
    /// Whether it would be believed, or why not.
    pub state: &'static str,
}

/// What every tier knows of a key.
#[derive(Debug, Clone)]
pub struct LookedUp {
    /// Local and hot.
    pub caches: Vec<TierReport>,
    /// The home: the truth.
    pub home: Result<Looked, Refusal>,
}

/// All tiers in order.
#[derive(Clone)]
pub struct Ladder {
    inner: Arc<Inner>,
}

struct Inner {
    homes: Homes,
    topics: Topics,
    local: LocalTier,
    hot: Option<HotTier>,
    secret: Secret,
}

/// What decides whether cached values of a home may be believed right now.
struct Belief<'a> {
    home: &'a Home,
    identity: Option<(Uuid, i32)>,
    /// Upper bound of home time; the end of time before the home was first heard of.
    now_ms: i64,
}

impl<'a> Belief<'a> {
    fn of(home: &'a Home) -> Self {
        Self { home, identity: home.cache_identity(), now_ms: home.clock.cache_bound_ms().unwrap_or(i64::MAX) }
    }

    /// Why a value is not believed.
    fn doubt(&self, digest: &Digest, cached: &Cached) -> Option<&'static str> {
        if self.identity != Some((cached.home_id, cached.incarnation)) {
            Some("from another home or incarnation")
        } else if !self.home.forgets.allows(digest, cached.as_of) && !sabotage::is("back-fill-after-forget") {
            Some("forgotten since, or the forget log is not loaded")
        } else if self.now_ms >= cached.record.expires_ms {
            Some("past its window")
        } else if cached.record.result.as_ref().and_then(|r| r.keep_until_ms).is_some_and(|until| self.now_ms >= until) {
            Some("its result is kept no longer")
        } else {
            None
        }
    }
}

/// How often a question follows a topic that changes under it.
const STALE_ROUNDS: usize = 3;

impl Ladder {
    /// Puts the tiers together.
    pub fn new(homes: Homes, topics: Topics, local: LocalTier, hot: Option<HotTier>, secret: Secret) -> Self {
        Self { inner: Arc::new(Inner { homes, topics, local, hot, secret }) }
    }

    /// The homes.
    pub fn homes(&self) -> &Homes {
        &self.inner.homes
    }

    /// The table of homes.
    pub fn table(&self) -> &Arc<HomeTable> {
        self.inner.homes.table()
    }

    /// The topics.
    pub fn topics(&self) -> &Topics {
        &self.inner.topics
    }

    /// The local tier.
    pub fn local(&self) -> &LocalTier {
        &self.inner.local
    }

    /// The hot tier, if there is one.
    pub fn hot(&self) -> Option<&HotTier> {
        self.inner.hot.as_ref()
    }

    /// The secret.
    pub fn secret(&self) -> &Secret {
        &self.inner.secret
    }

    fn cached_answer(&self, belief: &Belief<'_>, digest: Digest, cached: &Cached, question: &Question, tier: Tier) -> Option<Answer> {
        belief.doubt(&digest, cached).is_none().then(|| cached.answer(digest, question, belief.now_ms, tier)).flatten()
    }

    /// Answers questions of one topic, in order. Equal (group, key) in `queries` are the caller's business to fold.
    pub async fn ask(&self, topic: &Topic, queries: &[&Query<'_>], deadline: Instant) -> Vec<Result<Answer, Refusal>> {
        let mut answers: Vec<Option<Result<Answer, Refusal>>> = vec![None; queries.len()];
        let mut by_home: Vec<(HomeId, Vec<usize>)> = Vec::new();
        for (i, query) in queries.iter().enumerate() {
            let home = query.key.home();
            match by_home.iter_mut().find(|(h, _)| *h == home) {
                Some((_, items)) => items.push(i),
                None => by_home.push((home, vec![i])),
            }
        }
        if let [(home, items)] = by_home.as_slice() {
            return self.ask_home(*home, topic, queries, items, deadline).await;
        }
        let asked = by_home.iter().map(|(home, items)| self.ask_home(*home, topic, queries, items, deadline));
        for ((_, items), found) in by_home.iter().zip(join_all(asked).await) {
            for (i, answer) in items.iter().zip(found) {
                answers[*i] = Some(answer);
            }
        }
        answers.into_iter().map(|a| a.unwrap_or(Err(Refusal::not_applied(RefusalKind::StoreUnavailable)))).collect()
    }

    async fn ask_home(
        &self,
        id: HomeId,
        topic: &Topic,
        queries: &[&Query<'_>],
        items: &[usize],
        deadline: Instant,
    ) -> Vec<Result<Answer, Refusal>> {
        let home = self.inner.homes.get(id);
        let mut answers: Vec<Result<Answer, Refusal>> = vec![Err(Refusal::not_applied(RefusalKind::TopicUnknown)); items.len()];
        let mut left: Vec<usize> = (0..items.len()).collect();
        for round in 0..STALE_ROUNDS {
            let refusal = home.refusal();
            let Some(policy) = self.home_topic(home, topic, round > 0).await else {
                let refusal = refusal.unwrap_or(Refusal::not_applied(RefusalKind::TopicUnknown));
                left.iter().for_each(|at| answers[*at] = Err(refusal));
                return answers;
            };
            let asks: Vec<&Query<'_>> = left.iter().map(|at| queries[items[*at]]).collect();
            let found = self.climb(home, &policy, &asks, deadline).await;
            let mut stale = Vec::new();
            for (at, answer) in left.iter().zip(found) {
                if matches!(answer, Err(Refusal { kind: RefusalKind::TopicUnknown, .. })) {
                    stale.push(*at);
                }
                answers[*at] = answer;
            }
            left = stale;
            if left.is_empty() {
                return answers;
            }
        }
        // The topic is there and changes faster than it can be followed.
        left.iter().for_each(|at| answers[*at] = Err(Refusal::not_applied(RefusalKind::Overloaded)));
        answers
    }

    /// The home's own copy of the topic.
    async fn home_topic(&self, home: &Home, topic: &Topic, just_reloaded: bool) -> Option<Arc<TopicPolicy>> {
        let live = || home.topic(topic).filter(|c| !c.row.deleted).map(|c| c.policy);
        if live().is_none() && !just_reloaded && home.refusal().is_none() {
            home.topics_as_of(Instant::now()).await;
        }
        live()
    }

    /// Tier by tier, for one home.
    async fn climb(
        &self,
        home: &Arc<Home>,
        policy: &Arc<TopicPolicy>,
        queries: &[&Query<'_>],
        deadline: Instant,
    ) -> Vec<Result<Answer, Refusal>> {
        let digests = self.digests(policy, queries);
        let mut answers: Vec<Option<Result<Answer, Refusal>>> = vec![None; queries.len()];
        let mut misses = Vec::new();
        let belief = Belief::of(home);
        let name = &home.spec.name;
        let mut span = Traced::tier("local", name, queries.len());
        for (i, digest) in digests.iter().enumerate() {
            let cached = self.inner.local.get(digest);
            let hit = cached.and_then(|c| self.cached_answer(&belief, *digest, &c, &queries[i].question(), Tier::Local));
            match hit {
                Some(answer) => answers[i] = Some(Ok(answer)),
                None => misses.push(i),
            }
        }
        span.answered(queries.len() - misses.len());
        drop(span);
        // What Redis hardly ever finds is asked of a near home at once; a distant one, or one that is away, is worth every look.
        if let Some(hot) = &self.inner.hot
            && !misses.is_empty()
            && (home.is_remote() || home.refusal().is_some() || hot.is_worth_asking())
        {
            let asked: Vec<Digest> = misses.iter().map(|i| digests[*i]).collect();
            let mut span = Traced::tier("hot", name, asked.len());
            let found = hot.get(asked).await;
            span.answered(found.iter().flatten().count());
            drop(span);
            let belief = Belief::of(home);
            let mut still = Vec::with_capacity(misses.len());
            for (i, cached) in misses.into_iter().zip(found) {
                let hit =
                    cached.and_then(|c| self.cached_answer(&belief, digests[i], &c, &queries[i].question(), Tier::Hot).map(|a| (a, c)));
                match hit {
                    Some((answer, cached)) => {
                        self.inner.local.put(digests[i], cached);
                        answers[i] = Some(Ok(answer));
                    }
                    None => still.push(i),
                }
            }
            misses = still;
        }
        if !misses.is_empty() {
            let asks = misses.iter().map(|i| self.ask_of(policy, digests[*i], queries[*i])).collect();
            let mut span = Traced::tier("home", name, misses.len());
            let found = home.decide(asks, deadline).await;
            span.answered(found.iter().flatten().count());
            drop(span);
            for (i, answer) in misses.into_iter().zip(found) {
                // What the archive tells lacks what caches compare and repeat; it is asked for again.
                if let Ok(answer) = &answer
                    && answer.tier != Tier::Cold
                {
                    self.keep(home, digests[i], &answer.record, answer.basis);
                }
                answers[i] = Some(answer);
            }
        }
        answers.into_iter().map(|a| a.unwrap_or(Err(Refusal::not_applied(RefusalKind::StoreUnavailable)))).collect()
    }

    /// Digests of the questions; what questions of one group share is hashed once.
    fn digests(&self, policy: &TopicPolicy, queries: &[&Query<'_>]) -> Vec<Digest> {
        let mut digests = Vec::with_capacity(queries.len());
        let mut current: Option<(&Group<'_>, DigestScope)> = None;
        for query in queries {
            if current.as_ref().is_none_or(|(group, _)| **group != query.group) {
                current = Some((&query.group, policy.scope(&self.inner.secret, &query.group)));
            }
            if let Some((_, scope)) = &current {
                digests.push(scope.digest(&query.key));
            }
        }
        digests
    }

    fn ask_of(&self, policy: &Arc<TopicPolicy>, digest: Digest, query: &Query<'_>) -> Ask {
        let texts = query.claim || policy.keep_key == dedup_core::KeepKey::Always;
        Ask {
            digest,
            topic: Arc::clone(policy),
            claim: query.claim,
            request: query.request.hash(&self.inner.secret),
            fingerprint: query.fingerprint,
            window: query.window,
            lease_ms: query.lease_ms,
            texts: texts.then(|| {
                Box::new(Texts { group: query.group.clone().into_owned(), key: query.key.clone().into_owned(), owner: query.owner.clone() })
            }),
        }
    }

    /// After the commit: a done record goes up the ladder.
    fn keep(&self, home: &Home, digest: Digest, record: &Arc<Record>, basis: Basis) {
        let (Some((home_id, _)), Some(now_ms)) = (home.cache_identity(), home.clock.cache_bound_ms()) else { return };
        let Some(cached) = Cached::of(record, basis, home_id) else { return };
        if now_ms >= record.expires_ms {
            return;
        }
        if let (Some(hot), State::Done) = (&self.inner.hot, record.state) {
            hot.put(digest, cached.clone(), now_ms);
        }
        self.inner.local.put(digest, cached);
    }

    /// Completes, releases or extends, in order. Equal tokens in one call are folded by the batcher into later calls.
    pub async fn finish(&self, ends: Vec<(ClaimToken, FinishOp)>, deadline: Instant) -> Vec<Result<FinishAnswer, Refusal>> {
        let mut by_home: Vec<(HomeId, Vec<usize>, Vec<Finish>)> = Vec::new();
        let n = ends.len();
        for (i, (token, op)) in ends.into_iter().enumerate() {
            let home = token.home;
            let topic_lease_ms = self.inner.homes.get(home).topic(&token.topic).map_or(30_000, |c| c.policy.lease_ms);
            let finish = Finish { token, op, topic_lease_ms };
            match by_home.iter_mut().find(|(h, ..)| *h == home) {
                Some((_, items, finishes)) => {
                    items.push(i);
                    finishes.push(finish);
                }
                None => by_home.push((home, vec![i], vec![finish])),
            }
        }
        let mut answers: Vec<Option<Result<FinishAnswer, Refusal>>> = vec![None; n];
        let asked = by_home.into_iter().map(|(id, items, finishes)| async move {
            let home = self.inner.homes.get(id);
            let digests: Vec<Digest> = finishes.iter().map(|f| f.token.digest).collect();
            let mut span = Traced::tier("home", &home.spec.name, finishes.len());
            let found = home.finish(finishes, deadline).await;
            span.answered(found.iter().flatten().count());
            drop(span);
            for (digest, answer) in digests.iter().zip(&found) {
                if let Ok(FinishAnswer::Applied { record, basis, bounded: false, .. }) = answer {
                    self.keep(home, *digest, record, *basis);
                }
            }
            (items, found)
        });
        for (items, found) in join_all(asked).await {
            for (i, answer) in items.into_iter().zip(found) {
                answers[i] = Some(answer);
            }
        }
        answers.into_iter().map(|a| a.unwrap_or(Err(Refusal::not_applied(RefusalKind::StoreUnavailable)))).collect()
    }

    /// Reads a key in every tier without claiming; `Err` only where the home knows no such topic.
    pub async fn lookup(&self, topic: &Topic, group: &Group<'_>, key: &Key<'_>, deadline: Instant) -> Result<LookedUp, Refusal> {
        let home = self.inner.homes.get(key.home());
        let policy = self.policy_for(home, topic).await?;
        let digest = policy.scope(&self.inner.secret, group).digest(key);
        let mut caches = Vec::new();
        let belief = Belief::of(home);
        let report = |tier, cached: Option<Cached>| {
            let state = cached.as_ref().map_or("absent", |c| belief.doubt(&digest, c).unwrap_or("believed"));
            TierReport { tier, record: cached.map(|c| c.record), state }
        };
        caches.push(report(Tier::Local, self.inner.local.get(&digest)));
        if let Some(hot) = &self.inner.hot {
            caches.push(report(Tier::Hot, hot.peek(digest).await));
        }
        Ok(LookedUp { caches, home: home.lookup(digest, deadline).await })
    }

    async fn policy_for(&self, home: &Home, topic: &Topic) -> Result<Arc<TopicPolicy>, Refusal> {
        let refusal = home.refusal();
        let found = self.home_topic(home, topic, false).await;
        found.ok_or_else(|| refusal.unwrap_or(Refusal::not_applied(RefusalKind::TopicUnknown)))
    }
}
