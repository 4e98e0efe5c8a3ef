//! Topics over all homes: every home keeps a copy and decides by it; the higher (version, stamp) wins everywhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup_core::{KeepKey, Topic, TopicPolicy, Window};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::home::{Home, Homes};
use crate::postgres::{Raised, TopicRow, call_put_topic, call_raise_generation, call_topic_in_use};
use crate::{Applied, Refusal, RefusalKind};

/// What a PUT sets.
#[derive(Debug, Clone)]
pub struct TopicSpec {
    /// Window.
    pub window: Window,
    /// Default lease, ms.
    pub lease_ms: i64,
    /// Longest lease, ms.
    pub lease_max_ms: i64,
    /// Key texts.
    pub keep_key: KeepKey,
    /// Prefix for keys without a known one.
    pub default_region: Option<String>,
    /// How long results are kept, ms; `None`: as long as the record is warm.
    pub keep_results_ms: Option<i64>,
}

impl TopicSpec {
    /// Whether a policy says just this.
    fn is_of(&self, policy: &TopicPolicy) -> bool {
        let Self { window, lease_ms, lease_max_ms, keep_key, default_region, keep_results_ms } = self;
        (*window, *lease_ms, *lease_max_ms, *keep_key) == (policy.window, policy.lease_ms, policy.lease_max_ms, policy.keep_key)
            && (default_region, *keep_results_ms) == (&policy.default_region, policy.keep_results_ms)
    }
}

/// A PUT.
#[derive(Debug, Clone)]
pub struct PutTopic {
    /// Name.
    pub topic: Topic,
    /// What it sets.
    pub spec: TopicSpec,
    /// `If-Match`: only if this is the version now.
    pub if_version: Option<i64>,
}

/// What a PUT did: per home, whether it has the new version.
#[derive(Debug, Clone)]
pub struct PutOutcome {
    /// The policy as put.
    pub policy: TopicPolicy,
    /// Home name → applied (else: kept trying).
    pub homes: Vec<(String, bool)>,
}

/// What a DELETE did.
#[derive(Debug, Clone)]
pub struct DeleteOutcome {
    /// Version of the tombstone.
    pub version: i64,
    /// Home name → applied (else: kept trying).
    pub homes: Vec<(String, bool)>,
}

/// What forgetting a topic or group did.
#[derive(Debug, Clone)]
pub struct ForgotAll {
    /// The generation that counts now, of the topic or of the group.
    pub generation: i64,
    /// Home name → its position in the home's forget log, where it was raised; else: kept trying.
    pub homes: Vec<(String, Option<i64>)>,
}

/// Groups of one topic that can be forgotten by themselves.
pub const GROUPS_MAX: usize = 1000;

/// Why a topic was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TopicsError {
    /// No such topic.
    #[error("there is no such topic")]
    NotFound,
    /// `If-Match` names another version.
    #[error("the version is {current}")]
    VersionDiffers {
        /// Version now; 0 = no such topic.
        current: i64,
    },
    /// Records of it may still live.
    #[error("records may still live in {homes:?}")]
    InUse {
        /// Where.
        homes: Vec<String>,
    },
    /// So many groups were forgotten that only the whole topic can be.
    #[error("{GROUPS_MAX} groups of the topic were forgotten before")]
    TooManyGroups,
    /// Not enough homes could be reached.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Topics over all homes.
#[derive(Clone)]
pub struct Topics {
    homes: Homes,
}

const REPAIR_EVERY: Duration = Duration::from_secs(2);

impl Topics {
    /// Topics of the homes, with a task that repairs homes that lag behind.
    pub fn start(homes: Homes, stop: CancellationToken) -> Self {
        let this = Self { homes };
        let repairing = this.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(REPAIR_EVERY.mul_f64(rand::random_range(0.75..1.25))) => repairing.repair().await,
                    () = stop.cancelled() => return,
                }
            }
        });
        this
    }

    /// The newest copy any reachable home has, tombstones too, with the highest generations of all.
    fn newest(&self, topic: &Topic) -> Option<TopicRow> {
        let copies: Vec<Arc<TopicRow>> = self.homes.iter().filter_map(|h| h.topic(topic)).map(|c| c.row).collect();
        let mut newest = TopicRow::clone(copies.iter().max_by_key(|row| row.rank())?);
        copies.iter().for_each(|row| newest.policy.catch_up(&row.policy));
        Some(newest)
    }

    /// A topic's policy for reading questions: the newest known copy. Looks anew before saying that there is none; `Err` while no home
    /// that could know was ever reached.
    pub async fn find(&self, topic: &Topic) -> Result<Option<Arc<TopicPolicy>>, Refusal> {
        if let Some(policy) = self.known(topic) {
            return Ok(Some(policy));
        }
        let any_loaded = self.homes.iter().any(|h| h.topics_loaded());
        self.refresh().await;
        match self.known(topic) {
            None if !any_loaded => Err(Refusal::not_applied(RefusalKind::HomeUnavailable)),
            found => Ok(found),
        }
    }

    /// A topic's policy as known right now.
    pub fn known(&self, topic: &Topic) -> Option<Arc<TopicPolicy>> {
        self.homes.iter().filter_map(|h| h.topic(topic)).max_by_key(|c| c.row.rank()).filter(|c| !c.row.deleted).map(|c| c.policy)
    }

    /// Reads the topics of all homes; of each in turn, whether that worked.
    async fn refresh(&self) -> Vec<bool> {
        let asked = Instant::now();
        join_all(self.homes.iter().map(|h| async move { h.refusal().is_none() && h.topics_as_of(asked).await })).await
    }

    /// Names of all live topics: those that every home that answers has by now.
    pub async fn names_now(&self) -> Vec<Topic> {
        self.refresh().await;
        self.names()
    }

    /// Names of all live topics known here; one made elsewhere a moment ago may be missing.
    pub fn names(&self) -> Vec<Topic> {
        let mut names: Vec<Topic> = self
            .homes
            .iter()
            .flat_map(|h| h.topics().values().filter(|c| !c.row.deleted).map(|c| c.policy.topic.clone()).collect::<Vec<_>>())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// All live topics with the version each home has (0: none).
    pub async fn list(&self) -> Vec<(Arc<TopicPolicy>, Vec<(String, i64)>)> {
        self.refresh().await;
        let mut names: Vec<Topic> = self.homes.iter().flat_map(|h| h.topics().keys().cloned().collect::<Vec<_>>()).collect();
        names.sort();
        names.dedup();
        names
            .iter()
            .filter_map(|name| self.newest(name).filter(|r| !r.deleted).map(|r| (Arc::new(r.policy), self.versions(name))))
            .collect()
    }

    /// Version of a topic in each home (0: none).
    pub fn versions(&self, topic: &Topic) -> Vec<(String, i64)> {
        self.homes.iter().map(|h| (h.spec.name.clone(), h.topic(topic).map_or(0, |c| c.policy.version))).collect()
    }

    /// Sets a topic in all homes that can be reached; the others get it as soon as they can.
    pub async fn put(&self, put: PutTopic, deadline: Instant) -> Result<PutOutcome, TopicsError> {
        for _ in 0..SETTLE_TRIES {
            self.refresh().await;
            let old = self.newest(&put.topic);
            let live_version = old.as_ref().filter(|r| !r.deleted).map_or(0, |r| r.policy.version);
            if let Some(wanted) = put.if_version
                && wanted != live_version
            {
                return Err(TopicsError::VersionDiffers { current: live_version });
            }
            // The same again changes nothing; homes that lag get it now.
            if let Some(row) = old.as_ref().filter(|row| !row.deleted && put.spec.is_of(&row.policy)) {
                let kept = self.offer_all(row, deadline).await;
                // It is not the newest any more, or was read before a home was lost sight of.
                if kept.iter().any(|(_, rank)| rank.is_some_and(|rank| rank > row.rank())) {
                    continue;
                }
                return Ok(PutOutcome { policy: row.policy.clone(), homes: applied(kept, row) });
            }
            let row = next(old.as_ref(), &put);
            if self.settle(&row, deadline).await? {
                let homes = applied(self.offer_all(&row, deadline).await, &row);
                return Ok(PutOutcome { policy: row.policy, homes });
            }
        }
        Err(Refusal::not_applied(RefusalKind::Overloaded).into())
    }

    /// Has one home decide between changes that were made of the same version: the first by name that can be reached. False: another was first.
    /// A home that may have taken it ends it: asking the next one then could have both decide.
    async fn settle(&self, row: &TopicRow, deadline: Instant) -> Result<bool, TopicsError> {
        let mut homes: Vec<&Arc<Home>> = self.homes.iter().collect();
        homes.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        for home in homes {
            match offer(home, row, true, deadline).await {
                Ok(kept) => return Ok(kept == row.rank()),
                Err(refusal) if refusal.applied == Applied::Unknown => return Err(refusal.into()),
                Err(_) => {}
            }
        }
        Err(Refusal::not_applied(RefusalKind::HomeUnavailable).into())
    }

    /// Deletes a topic whose records are all past their windows. Every home must be asked, so every home must be there.
    pub async fn delete(&self, topic: &Topic, if_version: Option<i64>, deadline: Instant) -> Result<DeleteOutcome, TopicsError> {
        self.refresh().await;
        let old = self.newest(topic).filter(|r| !r.deleted).ok_or(TopicsError::NotFound)?;
        if let Some(wanted) = if_version
            && wanted != old.policy.version
        {
            return Err(TopicsError::VersionDiffers { current: old.policy.version });
        }
        let asked = join_all(self.homes.iter().map(|h| async move {
            let used = h.direct(deadline, async |client, _| call_topic_in_use(client, topic).await).await;
            used.map(|used| (h.spec.name.clone(), used))
        }))
        .await;
        let asked: Vec<(String, bool)> = asked.into_iter().collect::<Result<_, _>>()?;
        let homes: Vec<String> = asked.into_iter().filter(|(_, used)| *used).map(|(name, _)| name).collect();
        if !homes.is_empty() {
            return Err(TopicsError::InUse { homes });
        }
        let policy = TopicPolicy { version: old.policy.version + 1, ..old.policy.clone() };
        let row = TopicRow { stamp: Uuid::new_v4(), deleted: true, changed_ms: 0, policy };
        if !self.settle(&row, deadline).await? {
            self.refresh().await;
            return Err(TopicsError::VersionDiffers { current: self.newest(topic).map_or(0, |r| r.policy.version) });
        }
        let homes = applied(self.offer_all(&row, deadline).await, &row);
        Ok(DeleteOutcome { version: row.policy.version, homes })
    }

    /// Forgets all keys of a topic, or of one of its groups (`None`: all of them), in all homes that can be reached; the others follow as soon
    /// as they can.
    pub async fn forget_all(
        &self,
        topic: &Topic,
        group: Option<&str>,
        actor: &str,
        reason: &str,
        deadline: Instant,
    ) -> Result<ForgotAll, TopicsError> {
        let fresh = self.refresh().await;
        let mut policy = self.newest(topic).filter(|r| !r.deleted).ok_or(TopicsError::NotFound)?.policy;
        let generation = match group {
            None => {
                policy.generation += 1;
                policy.generation
            }
            Some(group) => {
                if policy.groups.len() >= GROUPS_MAX && !policy.groups.contains_key(group) {
                    return Err(TopicsError::TooManyGroups);
                }
                let generation = policy.groups.entry(group.to_owned()).or_default();
                *generation += 1;
                *generation
            }
        };
        let (policy, group) = (&policy, group.unwrap_or_default());
        let raised = join_all(self.homes.iter().zip(fresh).map(|(home, fresh)| async move {
            // A home whose copy could not be read may have this generation already, and would forget nothing: it is left to the repair.
            if fresh { raise(home, policy, actor, group, reason, deadline).await } else { Err(AWAY) }
        }))
        .await;
        if raised.iter().all(Result::is_err) {
            let unknown = raised.iter().filter_map(|r| r.err()).find(|refusal| refusal.applied == Applied::Unknown);
            return Err(unknown.unwrap_or(AWAY).into());
        }
        let names = self.homes.iter().map(|h| h.spec.name.clone());
        Ok(ForgotAll { generation, homes: names.zip(raised.into_iter().map(Result::ok)).collect() })
    }

    /// Gives every home a copy; what each has afterwards, as (version, stamp), where it could be asked.
    async fn offer_all(&self, row: &TopicRow, deadline: Instant) -> Vec<(String, Option<(i64, Uuid)>)> {
        join_all(self.homes.iter().map(|h| async move { (h.spec.name.clone(), offer(h, row, false, deadline).await.ok()) })).await
    }

    /// Gives every home that can be reached the newest copy of every topic: what a PUT could not reach then is reached now.
    async fn repair(&self) {
        let mut names: Vec<Topic> = self.homes.iter().flat_map(|h| h.topics().keys().cloned().collect::<Vec<_>>()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let Some(newest) = self.newest(&name) else { continue };
            for home in self.homes.iter() {
                let lags = home.topic(&name).is_none_or(|c| c.row.rank() < newest.rank() || c.policy.is_behind(&newest.policy));
                if lags && home.refusal().is_none() && home.topics_loaded() {
                    let kept = offer(home, &newest, false, Instant::now() + Duration::from_secs(2)).await;
                    let applied = kept.is_ok_and(|kept| kept >= newest.rank());
                    tracing::info!(home = %home.spec.name, topic = %name, version = newest.policy.version, applied, "repaired a topic that lagged");
                }
            }
        }
    }
}

/// What a PUT makes of a topic.
fn next(old: Option<&TopicRow>, put: &PutTopic) -> TopicRow {
    let spec = &put.spec;
    let policy = TopicPolicy {
        topic: put.topic.clone(),
        version: old.map_or(0, |r| r.policy.version) + 1,
        // A topic put again after its deletion knows nothing of the keys from before.
        generation: old.map_or(0, |r| r.policy.generation + i64::from(r.deleted)),
        groups: old.map(|r| r.policy.groups.clone()).unwrap_or_default(),
        revision: 0,
        window: spec.window,
        lease_ms: spec.lease_ms,
        lease_max_ms: spec.lease_max_ms,
        keep_key: spec.keep_key,
        default_region: spec.default_region.clone(),
        keep_results_ms: spec.keep_results_ms,
    };
    TopicRow { policy, stamp: Uuid::new_v4(), deleted: false, changed_ms: 0 }
}

/// What is said of a home that cannot be asked.
const AWAY: Refusal = Refusal { kind: RefusalKind::HomeUnavailable, applied: Applied::No };
/// Most changes of others that one change gives way to.
const SETTLE_TRIES: usize = 50;
/// Between two tries to raise a generation: each may make claims wait.
const RAISE_PAUSE: Duration = Duration::from_secs(1);
/// What the audit of a home says that heard of it later.
const LATER: (&str, &str) = ("repair", "forgotten while this home was away");

/// Raises the generations in one home; its position in the forget log.
async fn raise(home: &Home, policy: &TopicPolicy, actor: &str, group: &str, reason: &str, deadline: Instant) -> Result<i64, Refusal> {
    loop {
        let raised = home.direct(deadline, async |client, who| call_raise_generation(client, who, policy, actor, group, reason).await);
        match raised.await? {
            Raised::Done(pos) => {
                home.topics_as_of(Instant::now()).await;
                return Ok(pos);
            }
            Raised::Busy if Instant::now() + RAISE_PAUSE < deadline => tokio::time::sleep(RAISE_PAUSE).await,
            Raised::Busy => return Err(Refusal::not_applied(RefusalKind::Overloaded)),
            Raised::NoTopic | Raised::WrongHome => return Err(AWAY),
        }
    }
}

/// Gives a home a copy; what it has afterwards, as (version, stamp). `next`: it shall take it only if its version is higher.
async fn offer(home: &Home, row: &TopicRow, next: bool, deadline: Instant) -> Result<(i64, Uuid), Refusal> {
    // What was forgotten elsewhere is forgotten here by its own call, which sees to the claims under way.
    let here = home.topic(&row.policy.topic).filter(|c| !c.row.deleted && !row.deleted);
    if here.as_ref().is_some_and(|c| c.policy.is_behind(&row.policy)) {
        let (actor, reason) = LATER;
        raise(home, &row.policy, actor, "", reason, deadline).await?;
    }
    if let Some(rank) = here.map(|c| c.row.rank()).filter(|rank| *rank >= row.rank()) {
        return Ok(rank);
    }
    let kept = home.direct(deadline, async |client, _| call_put_topic(client, row, next).await).await?;
    home.topics_as_of(Instant::now()).await;
    Ok(kept)
}

/// Which homes have this copy now, or a newer one.
fn applied(kept: Vec<(String, Option<(i64, Uuid)>)>, row: &TopicRow) -> Vec<(String, bool)> {
    kept.into_iter().map(|(home, rank)| (home, rank.is_some_and(|rank| rank >= row.rank()))).collect()
}
