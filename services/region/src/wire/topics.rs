//! Topics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::questions::WindowWord;

/// A topic's policy.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TopicPut {
    /// How long keys are remembered: milliseconds or `"forever"`. Required: nobody should get one by accident.
    pub window_ms: WindowWord,
    /// Lease of a claim that names none; 30,000 if absent.
    pub lease_ms: Option<u64>,
    /// Longest lease a claim may ask for; 86,400,000 if absent.
    pub lease_max_ms: Option<u64>,
    /// Whether key texts are kept beside records: `open` (default), `always`, `never`.
    pub keep_key: Option<String>,
    /// A key without a known prefix is taken as `<default_region>:<key>`.
    pub default_region: Option<String>,
    /// How long a stored result is kept after its completion, ms; at most the window, 0: never. Absent: as long as the record is warm.
    pub keep_results_ms: Option<u64>,
}

/// A topic.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopicBody {
    /// Name.
    pub topic: String,
    /// Rises with every change; for `If-Match`.
    pub version: i64,
    /// Milliseconds or `"forever"`.
    pub window_ms: serde_json::Value,
    /// Default lease.
    pub lease_ms: i64,
    /// Longest lease.
    pub lease_max_ms: i64,
    /// `open`, `always` or `never`.
    pub keep_key: &'static str,
    /// Prefix of keys without a known one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_region: Option<String>,
    /// How long results are kept, ms; absent: as long as the record is warm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_results_ms: Option<i64>,
    /// Version in each home; 0: none yet.
    pub homes: BTreeMap<String, i64>,
}

/// All topics.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopicsBody {
    /// By name.
    pub topics: Vec<TopicBody>,
}

/// What a PUT did.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopicPutBody {
    /// The new version.
    pub version: i64,
    /// Per home `applied`, or `pending`: kept trying.
    pub homes: BTreeMap<String, &'static str>,
}

/// What a DELETE did.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopicDeletedBody {
    /// Version of the tombstone.
    pub version: i64,
    /// Per home `applied`, or `pending`: kept trying.
    pub homes: BTreeMap<String, &'static str>,
}
