//! Completions, releases and extensions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::body::Object;

/// How the work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeWord {
    /// It was done.
    Succeeded,
    /// It failed for good: retries get this answer. (To have it tried again, release instead.)
    Failed,
}

/// What duplicates get back, byte for byte.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultRequest {
    /// Media type of the body.
    pub media_type: Option<String>,
    /// Status your own API answered with, 100–599.
    pub status: Option<i16>,
    /// Headers to replay.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Body as text.
    pub body: Option<String>,
    /// Body as bytes (standard base64).
    pub body_base64: Option<String>,
}

/// Ends a claim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteRequest {
    /// From the `first`.
    pub claim_token: String,
    /// How it ended.
    pub outcome: OutcomeWord,
    /// What duplicates get back.
    #[schema(value_type = Option<ResultRequest>)]
    pub result: Option<Object<ResultRequest>>,
}

/// Gives a claim back: the next claim is `first` at once.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// From the `first`.
    pub claim_token: String,
    /// For the next owner, at most 4 KiB.
    pub note: Option<String>,
}

/// Prolongs a lease, from now.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// From the `first`.
    pub claim_token: String,
    /// From now; the topic's lease if absent.
    pub lease_ms: Option<u64>,
    /// For a later owner, at most 4 KiB.
    pub note: Option<String>,
}

macro_rules! batches {
    ($($(#[$doc:meta])* $name:ident of $item:ident),+) => {
        $($(#[$doc])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// At most 1,000. Parsed one by one: a bad item is that item's problem.
            #[schema(value_type = Vec<$item>)]
            pub items: Vec<Box<RawValue>>,
        })+
    };
}

batches! {
    /// Many completions.
    CompleteBatch of CompleteRequest,
    /// Many releases.
    ReleaseBatch of ReleaseRequest,
    /// Many extensions.
    ExtendBatch of ExtendRequest
}

/// What became of a claim.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct SettledBody {
    /// `done`, `released` or `in_progress`.
    pub state: &'static str,
    /// The very same call had succeeded before.
    pub replayed: bool,
    /// Complete: whether the result is kept (false: none given, or not kept).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_stored: Option<bool>,
    /// Complete: why a given result is not kept: `too-large`, `window-ended`, or `not-kept` (the topic's `keep_results_ms` is 0, or over already).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_reason: Option<&'static str>,
    /// Complete, `false`: the window had ended, so nothing of it is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remembered: Option<bool>,
    /// Extend: end of the lease, home time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<String>,
    /// Extend: what is left of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms_left: Option<i64>,
    /// Extend: the lease asked for was longer than the window and was cut to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_cut: Option<bool>,
    /// When the key will be forgotten; null: never. In the past: the window had ended, nothing is remembered.
    pub expires_at: Option<String>,
}

/// Answers of a batch, in request order: each as of a single call, or `{"problem": …}`.
#[derive(Debug, Serialize, ToSchema)]
pub struct EndBatchBody {
    /// One per item.
    pub results: Vec<EndItem>,
}

/// One item's answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EndItem {
    /// As of a single call.
    Settled(SettledBody),
    /// Not settled.
    Problem {
        /// As of a single call.
        #[schema(value_type = Object)]
        problem: Value,
    },
}
