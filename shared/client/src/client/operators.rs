//! What operators do and ask.

use reqwest::Method;
use serde_json::Value;

use super::Client;
use super::send::Repeat;
use crate::{Audit, ClaimFilter, ForceReleased, ForgetAll, ForgetJob, ForgottenAll, Job, JobStarted, OpenClaims, RecordRef, Result};

impl Client {
    /// A page of claims that are not done, over all homes.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn open_claims(&self, filter: &ClaimFilter) -> Result<OpenClaims> {
        let limit = filter.limit.map(|limit| limit.to_string());
        let query = [
            ("topic", filter.topic.as_deref()),
            ("state", filter.state.as_deref()),
            ("limit", limit.as_deref()),
            ("cursor", filter.cursor.as_deref()),
        ];
        self.answer(self.call(Method::GET, &["v1", "claims"], Repeat::Always)?.query(&query)).await
    }

    /// Ends an open claim of whoever holds it; [`RecordRef::reason`] must be given.
    ///
    /// # Errors
    /// Code `record-not-found` if the key has no open claim; see [`Error`](crate::Error).
    pub async fn force_release(&self, topic: &str, record: &RecordRef) -> Result<ForceReleased> {
        let call = self.post(&["v1", "topics", topic, "records", "force-release"], record, Repeat::IfNotApplied)?;
        self.answer(call).await
    }

    /// Forgets all keys of a topic or of one of its groups, in every home, tier and region.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn forget_all(&self, topic: &str, what: &ForgetAll) -> Result<ForgottenAll> {
        self.answer(self.post(&["v1", "topics", topic, "records", "forget-all"], what, Repeat::IfNotApplied)?).await
    }

    /// Begins a job that forgets by time range. With an id of its own it may be begun again at will.
    ///
    /// # Errors
    /// Code `keys-not-kept` where the topic does not keep its keys; see [`Error`](crate::Error).
    pub async fn start_forget_job(&self, topic: &str, what: &ForgetJob) -> Result<JobStarted> {
        let repeat = if what.job_id.is_some() { Repeat::Always } else { Repeat::IfNotApplied };
        self.answer(self.post(&["v1", "topics", topic, "forget-jobs"], what, repeat)?).await
    }

    /// How far a job is.
    ///
    /// # Errors
    /// Code `job-not-found`; see [`Error`](crate::Error).
    pub async fn job(&self, id: &str) -> Result<Job> {
        self.answer(self.call(Method::GET, &["v1", "jobs", id], Repeat::Always)?).await
    }

    /// A page of what operators did, newest first. `cursor`: [`Audit::next_cursor`] of the page before.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn audit(&self, topic: Option<&str>, cursor: Option<&str>) -> Result<Audit> {
        let query = [("topic", topic), ("cursor", cursor)];
        self.answer(self.call(Method::GET, &["v1", "audit"], Repeat::Always)?.query(&query)).await
    }

    /// Segments and archives of every home, as the service tells them.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn segments(&self) -> Result<Value> {
        self.answer(self.call(Method::GET, &["v1", "segments"], Repeat::Always)?).await
    }

    /// Counts and duplicate rates of this instance since its start, as the service tells them.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn stats(&self) -> Result<Value> {
        self.answer(self.call(Method::GET, &["v1", "stats"], Repeat::Always)?).await
    }
}
