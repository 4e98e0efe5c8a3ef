//! Topics and the state of the service.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Window;

/// A topic's policy. What is absent keeps the service's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopicPolicy {
    /// How long keys are remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<Window>,
    /// The lease of a claim that asks for none, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The longest lease a claim may ask for, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_max_ms: Option<u64>,
    /// The region whose prefix a key without one is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_region: Option<String>,
    /// When key texts are kept beside records: `open`, `always` or `never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_key: Option<String>,
    /// How long a stored result is kept after its completion, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_results_ms: Option<u64>,
    /// Any other setting of the topic.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A topic as the service tells it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TopicView {
    /// Its name.
    #[serde(alias = "name")]
    pub topic: Option<String>,
    /// Its version; the highest wins.
    pub version: Option<u64>,
    /// Its policy, with whatever else came.
    #[serde(flatten)]
    pub policy: TopicPolicy,
}

/// All topics the caller may see.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Topics {
    /// The topics.
    pub topics: Vec<TopicView>,
}

/// Where a change of a topic has arrived.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PutTopic {
    /// The version it was given.
    pub version: u64,
    /// Per home: `applied`, or `pending` (kept trying).
    pub homes: BTreeMap<String, String>,
    /// Whatever else came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl PutTopic {
    /// Whether every home has it.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        self.homes.values().all(|state| state == "applied")
    }
}

/// Whether an instance can answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Readiness {
    /// False while it starts or drains.
    pub ready: bool,
    /// Per home and tier: up or degraded, why, since when.
    pub report: Value,
}
