//! Open claims, forced releases, the audit.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Which open claims to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimFilter {
    /// Of this topic; of all granted ones if absent.
    pub topic: Option<String>,
    /// `in_progress`, `lapsed` or `released`; the first two if absent.
    pub state: Option<String>,
    /// Most entries of one page, 1–1,000; 100 if absent.
    pub limit: Option<u32>,
    /// [`OpenClaims::next_cursor`] of the page before.
    pub cursor: Option<String>,
}

/// A claim that is not done.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OpenClaim {
    /// Its home.
    pub home_region: String,
    /// Its topic.
    pub topic: String,
    /// Its group.
    pub group: String,
    /// The key; absent where the topic keeps none.
    pub key: Option<String>,
    /// `in_progress`, `lapsed` or `released`.
    pub state: String,
    /// Who claimed.
    pub owner: Option<String>,
    /// Note of the last extension or release.
    pub note: Option<String>,
    /// Its number.
    pub attempt: i64,
    /// Fence of the grant.
    pub fence: String,
    /// Milliseconds since the grant.
    pub age_ms: i64,
    /// What is left of the lease, milliseconds.
    pub lease_ms_left: Option<i64>,
    /// Whatever else came: times.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A page of open claims.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OpenClaims {
    /// The claims.
    pub claims: Vec<OpenClaim>,
    /// For the next page; absent: that was all.
    pub next_cursor: Option<String>,
    /// Homes that could not be asked: what they hold is missing.
    pub incomplete: Vec<String>,
}

/// A claim that was ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ForceReleased {
    /// The full key.
    pub key: String,
    /// Its home.
    pub home_region: String,
    /// Number of the attempt that was ended.
    pub attempt: i64,
    /// Its fence, which is no longer current.
    pub fence: String,
    /// Who held it.
    pub owner: Option<String>,
    /// Whatever else came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A deed that was written down.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AuditEntry {
    /// Home that was acted upon.
    pub home_region: String,
    /// When, by the home's clock.
    pub at: Option<String>,
    /// Caller.
    pub actor: String,
    /// `forget`, `force-release`.
    pub action: String,
    /// Topic.
    pub topic: String,
    /// Group.
    pub group: String,
    /// Why.
    pub reason: String,
    /// Whatever else came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A page of deeds, newest first.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Audit {
    /// The deeds.
    pub entries: Vec<AuditEntry>,
    /// For the next page; absent: that was all.
    pub next_cursor: Option<String>,
    /// Homes that could not be asked: what they hold is missing.
    pub incomplete: Vec<String>,
}
