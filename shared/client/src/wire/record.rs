//! Looking at a record, and forgetting it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Names one record of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordRef {
    /// `<region>:<rest>`.
    pub key: String,
    /// Consumer group; absent = the service's `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Why; needed to forget, and audited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl RecordRef {
    /// The record of `key` in the default group.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }
}

/// What is known of a record; nothing was claimed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Lookup {
    /// `absent`, `issued`, `in_progress`, `in_doubt` or `done`.
    pub state: Option<String>,
    /// The full key.
    pub key: Option<String>,
    /// The home that owns it.
    pub home_region: Option<String>,
    /// Everything else: times, fence, owner, result, and what each tier knows.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What a forget reached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Forgotten {
    /// Whether there was a record.
    pub removed: bool,
    /// Per region: `done`, or `pending` where its caches are not reached yet.
    pub regions: BTreeMap<String, String>,
    /// Per region: instances the home has not heard of, down or cut off.
    pub unheard: BTreeMap<String, Vec<String>>,
    /// Whatever else came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
