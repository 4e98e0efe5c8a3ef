//! Problems (RFC 9457): what the service says where it gives no verdict.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::open_enum::open_enum;

open_enum! {
    /// Whether the call changed anything.
    Applied {
        /// It did not.
        No = "no",
        /// It may have; asking again with the same request id tells.
        Unknown = "unknown",
    }
}

/// A problem, of a whole call or of one item of a batch.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// A page that explains the code: `/problems/<code>`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The stable name to branch on; empty if the reply was no problem of the service (a proxy's page).
    pub code: String,
    /// One line for people.
    pub title: Option<String>,
    /// The HTTP status; 0 in a batch item that does not say.
    pub status: u16,
    /// What is wrong in this case.
    pub detail: Option<String>,
    /// Whether the call changed anything.
    pub applied: Option<Applied>,
    /// How a repeat may be made: `same_request_id`, or that none helps.
    pub retry: Option<String>,
    /// When to ask again, milliseconds.
    pub retry_after_ms: Option<u64>,
    /// JSON pointer to the member that is wrong.
    pub pointer: Option<String>,
    /// Whatever else came: `request_id`, `state`, `fence`, `min`, `max`, …
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Problem {
    /// Whether asking again, with the same request id, may get an answer.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        let refused = matches!(self.retry.as_deref(), Some("no" | "never" | "none"));
        self.status == 503 && !refused
    }
}
