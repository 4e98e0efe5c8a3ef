//! Forgetting much at once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What to forget of a topic.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetAllRequest {
    /// Only this consumer group; all of them if absent.
    pub group: Option<String>,
    /// Why, for the audit trail.
    pub reason: String,
}

/// What was forgotten.
#[derive(Debug, Serialize, ToSchema)]
pub struct ForgetAllBody {
    /// The generation that counts from now on, of the topic or of the group.
    pub generation: i64,
    /// Per home `applied`, or `pending`: kept trying.
    pub homes: BTreeMap<String, &'static str>,
    /// Per region, as of `/records/forget`: whether its caches have heard of it, for the homes where it is applied.
    pub regions: BTreeMap<String, &'static str>,
    /// As of `/records/forget`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unheard: BTreeMap<String, Vec<String>>,
}

/// What to forget by the time at which it was first seen. Only of topics with `keep_key: always`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetJobRequest {
    /// Chosen by the caller (a UUID), so that a repetition does not begin another job; made by the service if absent.
    pub job_id: Option<String>,
    /// Only this consumer group; all of them if absent.
    pub group: Option<String>,
    /// First seen from here on (RFC 3339); from the beginning if absent. Either this or `to` must be given.
    pub from: Option<String>,
    /// First seen before this (RFC 3339); until the job is made if absent.
    pub to: Option<String>,
    /// Only counts.
    #[serde(default)]
    pub dry_run: bool,
    /// Why, for the audit trail.
    pub reason: String,
}

/// A job that was made.
#[derive(Debug, Serialize, ToSchema)]
pub struct ForgetJobBody {
    /// Its id.
    pub job_id: String,
    /// Per home `queued`, or `unreached`: repeat the call with the same `job_id`.
    pub homes: BTreeMap<String, &'static str>,
}

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobBody {
    /// Its id.
    pub job_id: String,
    /// Topic.
    pub topic: String,
    /// Its group; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// First seen from here on; null: from the beginning.
    pub from: Option<String>,
    /// First seen before this.
    pub to: Option<String>,
    /// It only counts.
    pub dry_run: bool,
    /// Done in all homes. One that was not reached when the job was made (`absent`) does not get it by itself: make the job again with its id.
    pub done: bool,
    /// Per home.
    pub homes: BTreeMap<String, JobInHome>,
}

/// How far a job is in one home.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct JobInHome {
    /// `queued`, `running`, `done`, `absent` (it was not reached when the job was made), or `unreached` (it cannot be asked now).
    pub state: String,
    /// Records with kept keys that were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked: Option<i64>,
    /// Of them, those that were meant and, unless it is a dry run, forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<i64>,
    /// Home time of its making.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Home time of its latest step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<String>,
}
