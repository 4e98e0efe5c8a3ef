//! What operators do about a key in all tiers, and ask of one home after the other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dedup_core::{Digest, HomeId, Key, Topic};
use futures_util::future::join_all;
use uuid::Uuid;

use super::Ladder;
use crate::home::Home;
use crate::operators::{
    AuditEntry, Deed, ForceReleased, Forgotten, ForgottenAll, JobSpec, JobStarted, JobView, OpenAt, OpenPage, OpenState, Spread,
};
use crate::postgres::FeedRow;
use crate::{Refusal, TopicsError};

/// Longest a forget waits for the instances of all regions to hear of it: they do in milliseconds while they are connected.
const SPREAD_WAIT: Duration = Duration::from_millis(300);

impl Ladder {
    /// Forgets a key in its home and in every cache of every instance, and waits a moment for these.
    pub async fn forget(&self, key: &Key<'_>, deed: &Deed<'_>, deadline: Instant) -> Result<Forgotten, Refusal> {
        let home = self.inner.homes.get(key.home());
        let digest = self.digest_of(home, key, deed).await?;
        let (removed, pos) = home.forget(digest, deed, deadline).await?;
        self.inner.local.forget(&digest);
        let rows = home.await_spread(pos, deadline.min(Instant::now() + SPREAD_WAIT)).await;
        let regions = self.table().iter().map(|(_, home)| home.region.clone());
        Ok(Forgotten { removed, regions: spread(regions, rows.as_deref()) })
    }

    /// Forgets all keys of a topic or of one of its groups, in all homes and caches, and waits a moment for these.
    pub async fn forget_all(
        &self,
        topic: &Topic,
        group: Option<&str>,
        actor: &str,
        reason: &str,
        deadline: Instant,
    ) -> Result<ForgottenAll, TopicsError> {
        let done = self.topics().forget_all(topic, group, actor, reason, deadline).await?;
        let until = deadline.min(Instant::now() + SPREAD_WAIT);
        let raised = done.homes.iter().zip(self.inner.homes.iter()).filter_map(|((_, pos), home)| Some((home, (*pos)?)));
        let rows = join_all(raised.map(|(home, pos)| home.await_spread(pos, until))).await;
        let mut regions: Vec<Spread> = Vec::new();
        for rows in rows {
            let names = self.table().iter().map(|(_, home)| home.region.clone());
            for one in spread(names, rows.as_deref()) {
                match regions.iter_mut().find(|other| other.region == one.region) {
                    None => regions.push(one),
                    Some(other) => {
                        other.done &= one.done;
                        other.unheard.extend(one.unheard);
                        other.unheard.sort();
                        other.unheard.dedup();
                    }
                }
            }
        }
        let homes = done.homes.into_iter().map(|(name, pos)| (name, pos.is_some())).collect();
        Ok(ForgottenAll { generation: done.generation, homes, regions })
    }

    /// Begins a job in every home.
    pub async fn start_job(
        &self,
        job: &JobSpec,
        actor: &str,
        reason: &str,
        deadline: Instant,
    ) -> Vec<(String, Result<JobStarted, Refusal>)> {
        join_all(
            self.inner.homes.iter().map(|home| async move { (home.spec.name.clone(), home.start_job(job, actor, reason, deadline).await) }),
        )
        .await
    }

    /// A job in every home; `None`: the home has none of this id.
    pub async fn job(&self, id: Uuid, deadline: Instant) -> Vec<(String, Result<Option<JobView>, Refusal>)> {
        join_all(self.inner.homes.iter().map(|home| async move { (home.spec.name.clone(), home.job(id, deadline).await) })).await
    }

    /// Ends an open claim of whoever holds it: the next claim anywhere is `first`.
    pub async fn force_release(&self, key: &Key<'_>, deed: &Deed<'_>, deadline: Instant) -> Result<ForceReleased, Refusal> {
        let home = self.inner.homes.get(key.home());
        let digest = self.digest_of(home, key, deed).await?;
        home.force_release(digest, deed, deadline).await
    }

    async fn digest_of(&self, home: &Home, key: &Key<'_>, deed: &Deed<'_>) -> Result<Digest, Refusal> {
        // A key that is forgotten must be named by the topic's generation of now.
        home.topics_as_of(Instant::now()).await;
        let policy = self.policy_for(home, deed.topic).await?;
        Ok(policy.scope(&self.inner.secret, deed.group).digest(key))
    }

    /// Open claims of one home; see [`OpenPage`].
    pub async fn open_claims(
        &self,
        home: HomeId,
        topics: &[Topic],
        states: &[OpenState],
        after: OpenAt,
        limit: i32,
        deadline: Instant,
    ) -> Result<OpenPage, Refusal> {
        let names: Vec<&str> = topics.iter().map(Topic::as_str).collect();
        self.inner.homes.get(home).open_claims(&names, states, after, limit, deadline).await
    }

    /// Deeds of one home before an id, newest first.
    pub async fn audit(
        &self,
        home: HomeId,
        topic: Option<&Topic>,
        before: i64,
        limit: i32,
        deadline: Instant,
    ) -> Result<Vec<AuditEntry>, Refusal> {
        self.inner.homes.get(home).audit(topic.map(Topic::as_str), before, limit, deadline).await
    }
}

/// What the rows of a home's readers mean for each region. A region whose processes all ended in good order (or that never had one
/// connected to this home) has no cache that could answer: done. One whose processes are all unheard may have: pending.
fn spread(regions: impl Iterator<Item = String>, rows: Option<&[FeedRow]>) -> Vec<Spread> {
    let mut by_region: BTreeMap<String, Vec<&FeedRow>> = regions.map(|name| (name, Vec::new())).collect();
    for row in rows.unwrap_or_default() {
        by_region.entry(row.region.clone()).or_default().push(row);
    }
    let one = |(region, mine): (String, Vec<&FeedRow>)| {
        let live = || mine.iter().filter(|row| row.live);
        let done = rows.is_some() && (mine.is_empty() || live().next().is_some()) && live().all(|row| row.passed);
        let lost = mine.iter().filter(|row| !row.live && !row.passed);
        // A restarted process has the name of the one before it.
        let lost = lost.filter(|row| live().all(|other| other.instance != row.instance));
        let mut unheard: Vec<String> = lost.map(|row| row.instance.clone()).collect();
        unheard.sort();
        unheard.dedup();
        Spread { region, done, unheard }
    };
    by_region.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(rows: Option<&[FeedRow]>) -> Vec<(bool, Vec<String>)> {
        spread(["ap", "eu"].map(String::from).into_iter(), rows).into_iter().map(|s| (s.done, s.unheard)).collect()
    }

    #[test]
    fn done_is_said_only_of_what_is_known() {
        let row = |region: &str, instance: &str, live, passed| FeedRow { region: region.into(), instance: instance.into(), live, passed };
        assert_eq!(states(None), [(false, vec![]), (false, vec![])], "nothing is known");
        assert_eq!(states(Some(&[])), [(true, vec![]), (true, vec![])], "nobody was ever connected, or all ended in good order");
        let rows = [row("ap", "ap-1", false, false), row("eu", "eu-1", true, true), row("eu", "eu-2", true, false)];
        assert_eq!(states(Some(&rows)), [(false, vec!["ap-1".to_owned()]), (false, vec![])]);
        let rows = [
            row("ap", "ap-1", false, false),
            row("ap", "ap-1", true, true),
            row("eu", "eu-1", true, true),
            row("eu", "eu-2", false, false),
        ];
        assert_eq!(states(Some(&rows)), [(true, vec![]), (true, vec!["eu-2".to_owned()])]);
    }
}
