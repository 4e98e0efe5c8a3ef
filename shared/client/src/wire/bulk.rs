//! Forgetting much at once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What to forget of a topic.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ForgetAll {
    /// Only this consumer group; `None`: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Why, for the audit.
    pub reason: String,
}

/// What was forgotten.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ForgottenAll {
    /// The generation that counts now, of the topic or of the group.
    pub generation: i64,
    /// Per home: `applied`, or `pending` (kept trying).
    pub homes: BTreeMap<String, String>,
    /// Per region: `done`, or `pending` where its caches are not reached yet.
    pub regions: BTreeMap<String, String>,
    /// Per region: instances the homes have not heard of, down or cut off.
    pub unheard: BTreeMap<String, Vec<String>>,
}

/// What to forget by the time at which it was first seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ForgetJob {
    /// A UUID; the same one again is the same job. `None`: made by the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// Only this consumer group; `None`: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// First seen from here on, RFC 3339; `None`: from the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// And before this; `None`: until the job is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Only count.
    pub dry_run: bool,
    /// Why, for the audit.
    pub reason: String,
}

/// A job that was made.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct JobStarted {
    /// Its id.
    pub job_id: String,
    /// Per home: `queued`, or `unreached` (ask again with the same id).
    pub homes: BTreeMap<String, String>,
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Its id.
    pub job_id: String,
    /// Done wherever it is.
    pub done: bool,
    /// Per home.
    pub homes: BTreeMap<String, JobInHome>,
}

/// How far a job is in one home.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct JobInHome {
    /// `queued`, `running`, `done`, `absent` or `unreached`.
    pub state: String,
    /// Records looked at.
    pub looked: u64,
    /// Of them, those that were meant and, unless it is a dry run, forgotten.
    pub matched: u64,
}
