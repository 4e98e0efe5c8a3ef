//! The ends of a claim: complete, release, extend, each by its token alone.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::StoredResult;
use crate::open_enum::open_enum;

open_enum! {
    /// How the work ended.
    Outcome {
        /// Well.
        Succeeded = "succeeded",
        /// For good, not to be tried again.
        Failed = "failed",
    }
}

/// The work is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CompleteRequest {
    /// From the granted claim.
    pub claim_token: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What to replay to duplicates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<StoredResult>,
}

/// The work was not done; the key may be claimed again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReleaseRequest {
    /// From the granted claim.
    pub claim_token: String,
    /// What the next attempt should know, at most 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The work takes longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExtendRequest {
    /// From the granted claim.
    pub claim_token: String,
    /// The lease from now on, milliseconds; absent = the topic's lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// What the next attempt should know if this one dies, at most 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How a claim stands after complete, release or extend.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Settled {
    /// `done`, `released` or `in_progress`.
    pub state: Option<String>,
    /// Whether the very same call had been made before.
    pub replayed: bool,
    /// Whether the result was kept (a large one is not).
    pub result_stored: Option<bool>,
    /// When the lease ends, RFC 3339 UTC in the home's time.
    pub lease_expires_at: Option<String>,
    /// What is left of the lease, milliseconds.
    pub lease_ms_left: Option<u64>,
    /// When the key is forgotten, RFC 3339 UTC in the home's time.
    pub expires_at: Option<String>,
    /// Whatever else came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
