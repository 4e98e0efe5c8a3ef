//! Look-ups and forgets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ResultBody;

/// Which record to read.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LookupRequest {
    /// The key.
    pub key: String,
    /// Its group; `default` if absent.
    pub group: Option<String>,
}

/// Which record to forget.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetRequest {
    /// The key.
    pub key: String,
    /// Its group; `default` if absent.
    pub group: Option<String>,
    /// Why, for the audit trail.
    pub reason: String,
}

/// What each tier knows of a key.
#[derive(Debug, Serialize, ToSchema)]
pub struct LookupBody {
    /// The full key.
    pub key: String,
    /// Its group.
    pub group: String,
    /// Its home.
    pub home_region: String,
    /// Instance that answers.
    pub served_by: String,
    /// The caches of this instance and region.
    pub caches: Vec<CacheBody>,
    /// The home: the truth.
    pub home: HomeBody,
}

/// What one cache holds.
#[derive(Debug, Serialize, ToSchema)]
pub struct CacheBody {
    /// `local` or `hot`.
    pub tier: &'static str,
    /// `absent`, `believed`, or why it would not be.
    pub state: &'static str,
    /// Fence of the record it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
}

/// What the home holds.
#[derive(Debug, Serialize, ToSchema)]
pub struct HomeBody {
    /// `absent`, `in_progress`, `in_doubt`, `done`, `released`, `issued`, or `expired`: a row is there and counts no more.
    pub state: &'static str,
    /// Home time of the look-up.
    pub at: Option<String>,
    /// The record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordBody>,
}

/// A record.
#[derive(Debug, Serialize, ToSchema)]
pub struct RecordBody {
    /// Segment or archive it lies in, and its state. Of an archived record only `outcome`, `expires_at` and `first_seen_between` are known.
    pub segment: String,
    /// Fence of its grant; absent: archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
    /// Its attempt; absent: archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// Made by a one-shot check; absent: archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_shot: Option<bool>,
    /// When the key was first seen; absent: archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<String>,
    /// Of an archived record: the times between which it was first seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen_between: Option<[Option<String>; 2]>,
    /// When it will be forgotten; null: never.
    pub expires_at: Option<String>,
    /// End of the lease, completion or release, by state; absent: archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    /// When done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// A fingerprint was given with it; absent: archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_fingerprint: Option<bool>,
    /// Who.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What duplicates get back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultBody>,
}

/// What was forgotten.
#[derive(Debug, Serialize, ToSchema)]
pub struct ForgetBody {
    /// A live record was removed.
    pub removed: bool,
    /// Per region: `done` once every instance of it that the home hears of has read the forget, and where no process is that could
    /// remember the key; otherwise `pending`: each drops the key as soon as it hears, within 1 s while it is connected to the home.
    pub regions: BTreeMap<String, &'static str>,
    /// Per region: instances the home has not heard of for 10 s and which did not end in good order. Those that are down hold nothing;
    /// one that is cut off from the home may say `duplicate` from memory until it is connected again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unheard: BTreeMap<String, Vec<String>>,
}
