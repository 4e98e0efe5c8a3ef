//! Topics over all homes: every home keeps a copy and decides by it; the higher (version, stamp) wins everywhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup_core::{KeepKey, Topic, TopicPolicy, Window};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::home::{Home, Homes};
use crate::postgres::{TopicRow, call_put_topic, call_topic_in_use};
use crate::{Refusal, RefusalKind};

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
    /// There was no such topic before.
    pub created: bool,
}

/// What a DELETE did.
#[derive(Debug, Clone)]
pub struct DeleteOutcome {
    /// Version of the tombstone.
    pub version: i64,
    /// Home name → applied (else: kept trying).
    pub homes: Vec<(String, bool)>,
}

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

    /// The newest copy any reachable home has, tombstones too.
    fn newest(&self, topic: &Topic) -> Option<Arc<TopicRow>> {
        self.homes.iter().filter_map(|h| h.topic(topic)).map(|c| c.row).max_by_key(|row| row.rank())
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

    async fn refresh(&self) {
        let asked = Instant::now();
        join_all(self.homes.iter().filter(|h| h.refusal().is_none()).map(|h| h.topics_as_of(asked))).await;
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
            .filter_map(|name| self.newest(name).filter(|r| !r.deleted).map(|r| (Arc::new(r.policy.clone()), self.versions(name))))
            .collect()
    }

    /// Version of a topic in each home (0: none).
    pub fn versions(&self, topic: &Topic) -> Vec<(String, i64)> {
        self.homes.iter().map(|h| (h.spec.name.clone(), h.topic(topic).map_or(0, |c| c.policy.version))).collect()
    }

    /// Sets a topic in all homes that can be reached; the others get it as soon as they can.
    pub async fn put(&self, put: PutTopic, deadline: Instant) -> Result<PutOutcome, TopicsError> {
        self.refresh().await;
        let old = self.newest(&put.topic);
        let live_version = old.as_ref().filter(|r| !r.deleted).map_or(0, |r| r.policy.version);
        if let Some(wanted) = put.if_version
            && wanted != live_version
        {
            return Err(TopicsError::VersionDiffers { current: live_version });
        }
        let policy = TopicPolicy {
            topic: put.topic,
            version: old.as_ref().map_or(0, |r| r.policy.version) + 1,
            // A topic put again after its deletion knows nothing of the keys from before.
            generation: old.as_ref().map_or(0, |r| r.policy.generation + i64::from(r.deleted)),
            window: put.spec.window,
            lease_ms: put.spec.lease_ms,
            lease_max_ms: put.spec.lease_max_ms,
            keep_key: put.spec.keep_key,
            default_region: put.spec.default_region,
        };
        let row = TopicRow { policy: policy.clone(), stamp: Uuid::new_v4(), deleted: false, changed_ms: 0 };
        let homes = self.offer_all(&row, deadline).await;
        if homes.iter().all(|(_, applied)| !applied) {
            return Err(Refusal::not_applied(RefusalKind::HomeUnavailable).into());
        }
        Ok(PutOutcome { policy, homes, created: live_version == 0 })
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
        let homes = self.offer_all(&row, deadline).await;
        Ok(DeleteOutcome { version: row.policy.version, homes })
    }

    async fn offer_all(&self, row: &TopicRow, deadline: Instant) -> Vec<(String, bool)> {
        join_all(self.homes.iter().map(|h| async move { (h.spec.name.clone(), offer(h, row, deadline).await) })).await
    }

    /// Gives every home that can be reached the newest copy of every topic: what a PUT could not reach then is reached now.
    async fn repair(&self) {
        let mut names: Vec<Topic> = self.homes.iter().flat_map(|h| h.topics().keys().cloned().collect::<Vec<_>>()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let Some(newest) = self.newest(&name) else { continue };
            for home in self.homes.iter() {
                let lags = home.topic(&name).is_none_or(|c| c.row.rank() < newest.rank());
                if lags && home.refusal().is_none() && home.topics_loaded() {
                    let applied = offer(home, &newest, Instant::now() + Duration::from_secs(2)).await;
                    tracing::info!(home = %home.spec.name, topic = %name, version = newest.policy.version, applied, "repaired a topic that lagged");
                }
            }
        }
    }
}

async fn offer(home: &Home, row: &TopicRow, deadline: Instant) -> bool {
    let applied = home.direct(deadline, async |client, _| call_put_topic(client, row).await).await.unwrap_or(false);
    if applied {
        home.topics_as_of(Instant::now()).await;
    }
    applied
}
