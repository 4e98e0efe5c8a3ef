//! What operators ask of one home: open claims, forced releases, the audit, and how far a forget has spread.

use std::time::{Duration, Instant};

use dedup_core::Digest;
use uuid::Uuid;

use super::Home;
use crate::operators::{AuditEntry, Deed, ForceReleased, JobSpec, JobStarted, JobView, OpenAt, OpenPage, OpenState};
use crate::postgres::{
    FeedRow, OpenQuery, call_audit, call_feeds, call_force_release, call_forget, call_job, call_open_claims, call_start_job,
};
use crate::{Refusal, RefusalKind};

/// Texts one call looks at, at most: a few milliseconds of the home's time, so that claims on the same line do not notice.
const SCAN_A_CALL: i32 = 1000;
/// Pauses between two looks at how far a forget has spread.
const SPREAD_PAUSE_MIN: Duration = Duration::from_millis(5);
const SPREAD_PAUSE_MAX: Duration = Duration::from_millis(40);

impl Home {
    fn other_home(&self) -> Refusal {
        self.not_this_home("wrong-home");
        Refusal::not_applied(RefusalKind::HomeUnavailable)
    }

    /// Up to `limit` open claims of the topics after a place. The page may hold fewer, even none, and yet have a next one.
    pub async fn open_claims(
        &self,
        topics: &[&str],
        states: &[OpenState],
        after: OpenAt,
        limit: i32,
        deadline: Instant,
    ) -> Result<OpenPage, Refusal> {
        let query = OpenQuery { topics, states, after, limit, scan: SCAN_A_CALL };
        let page = self.direct(deadline, async |client, who| call_open_claims(client, who, &query).await).await?;
        page.ok_or_else(|| self.other_home())
    }

    /// Ends an open claim of whoever holds it. No cache holds open claims, so it is free everywhere when this returns.
    pub async fn force_release(&self, digest: Digest, deed: &Deed<'_>, deadline: Instant) -> Result<ForceReleased, Refusal> {
        let done = self.direct(deadline, async |client, who| call_force_release(client, who, digest, deed).await).await?;
        done.ok_or_else(|| self.other_home())
    }

    /// Deeds before an id, newest first.
    pub async fn audit(&self, topic: Option<&str>, before: i64, limit: i32, deadline: Instant) -> Result<Vec<AuditEntry>, Refusal> {
        self.direct(deadline, async |client, who| call_audit(client, who, topic, before, limit).await).await
    }

    /// Forgets one record in the home; its log carries it to every cache. Answers whether there was a live one, and the log's position.
    pub async fn forget(&self, digest: Digest, deed: &Deed<'_>, deadline: Instant) -> Result<(bool, i64), Refusal> {
        let Deed { actor, reason, topic, group } = *deed;
        let call = async |client: &_, who: &_| call_forget(client, who, digest, actor, topic.as_str(), group.as_str(), reason).await;
        let (removed, pos) = self.direct(deadline, call).await?.ok_or_else(|| self.other_home())?;
        // This instance hears its own forget at once; the others through their feeds.
        self.forgets.note(pos, digest, self.clock.bound_ms().unwrap_or_default());
        self.look_now.notify_one();
        Ok((removed, pos))
    }

    /// Begins a job of the home's janitor, or finds it begun.
    pub async fn start_job(&self, job: &JobSpec, actor: &str, reason: &str, deadline: Instant) -> Result<JobStarted, Refusal> {
        let started = self.direct(deadline, async |client, who| call_start_job(client, who, job, actor, reason).await).await?;
        started.ok_or_else(|| self.other_home())
    }

    /// A job; `None`: the home has none of this id.
    pub async fn job(&self, id: Uuid, deadline: Instant) -> Result<Option<JobView>, Refusal> {
        let found = self.direct(deadline, async |client, who| call_job(client, who, id).await).await?;
        found.ok_or_else(|| self.other_home())
    }

    /// Watches until every process the home hears of has read the forget log as far as `pos`, or until `until`. `None`: cannot be told.
    pub async fn await_spread(&self, pos: i64, until: Instant) -> Option<Vec<FeedRow>> {
        let mut pause = SPREAD_PAUSE_MIN;
        let mut last = None;
        loop {
            match self.direct(until, async |client, _| call_feeds(client, pos).await).await {
                Ok(rows) => last = Some(rows),
                Err(_) => return last,
            }
            let waiting = last.iter().flatten().any(|row| row.live && !row.passed);
            if !waiting || Instant::now() + pause >= until {
                return last;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SPREAD_PAUSE_MAX);
        }
    }
}
