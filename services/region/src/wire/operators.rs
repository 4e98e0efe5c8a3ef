//! Open claims, forced releases, the audit, statistics.

use dedup_store::{AuditEntry, OpenClaim, OpenState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time_text;

/// A claim that is not done.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenClaimBody {
    /// Its home.
    pub home_region: String,
    /// Its topic.
    pub topic: String,
    /// Its group.
    pub group: String,
    /// The full key; absent where the topic keeps none (`keep_key: never`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `in_progress`: its lease is alive. `lapsed`: it is over, and nobody has taken over. `released`: given back.
    #[schema(example = "in_progress")]
    pub state: &'static str,
    /// Who claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Note of the last extension or release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// 1, or one more after a release or lapse.
    pub attempt: i32,
    /// Fence of the grant.
    pub fence: String,
    /// When it was granted, home time.
    pub first_seen_at: Option<String>,
    /// How long ago that was.
    pub age_ms: i64,
    /// End of the lease, home time. Not of released ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<String>,
    /// What is left of it: 0 when lapsed. Not of released ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms_left: Option<i64>,
    /// When it was released, home time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_at: Option<String>,
    /// When the key will be forgotten; null: never.
    pub expires_at: Option<String>,
}

impl OpenClaimBody {
    /// Shapes one.
    pub fn new(home: &str, claim: OpenClaim) -> Self {
        let released = claim.state == OpenState::Released;
        Self {
            home_region: home.to_owned(),
            topic: claim.topic,
            group: claim.group,
            key: claim.key,
            state: claim.state.as_str(),
            owner: claim.owner,
            note: claim.note,
            attempt: claim.attempt,
            fence: claim.fence.to_string(),
            first_seen_at: time_text(claim.first_seen_ms),
            age_ms: (claim.at_ms - claim.first_seen_ms).max(0),
            lease_expires_at: if released { None } else { time_text(claim.ends_ms) },
            lease_ms_left: (!released).then(|| (claim.ends_ms - claim.at_ms).max(0)),
            released_at: if released { time_text(claim.ends_ms) } else { None },
            expires_at: time_text(claim.expires_ms),
        }
    }
}

/// Some open claims: homes in the order of their table, in each in an order of its own.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenClaimsBody {
    /// At most `limit`; may be fewer, even none, while there is a `next_cursor`.
    pub claims: Vec<OpenClaimBody>,
    /// For the next page; absent: that was all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Homes that could not be asked, on this page or an earlier one of this list: what they hold is missing.
    pub incomplete: Vec<String>,
}

/// Whose claim to end.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForceReleaseRequest {
    /// The key.
    #[schema(example = "eu:order-123")]
    pub key: String,
    /// Its group; `default` if absent.
    pub group: Option<String>,
    /// Why, for the audit trail; 1–1,024 bytes.
    #[schema(min_length = 1)]
    pub reason: String,
}

/// A claim that was ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct ForceReleasedBody {
    /// `released`: the next claim is `first`, with the next attempt.
    pub state: &'static str,
    /// The full key.
    pub key: String,
    /// Its group.
    pub group: String,
    /// Its home.
    pub home_region: String,
    /// Number of the attempt that was ended.
    pub attempt: i32,
    /// Its fence, which is no longer current: its token is `lease-lost`.
    pub fence: String,
    /// Who held it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// A deed that was written down.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeedBody {
    /// Home that was acted upon.
    pub home_region: String,
    /// Number in that home; rises.
    pub id: i64,
    /// When, by the home's clock.
    pub at: Option<String>,
    /// Caller, by the name in the configuration.
    pub actor: String,
    /// `forget`, `forget-group`, `forget-topic`, `forget-job`, `force-release` or `raise-epoch`.
    pub action: String,
    /// Topic.
    pub topic: String,
    /// Group.
    pub group: String,
    /// Names the record without telling its key.
    pub record: String,
    /// Why.
    pub reason: String,
}

impl DeedBody {
    /// Shapes one.
    pub fn new(home: &str, entry: AuditEntry) -> Self {
        Self {
            home_region: home.to_owned(),
            id: entry.id,
            at: time_text(entry.at_ms),
            actor: entry.actor,
            action: entry.action,
            topic: entry.topic,
            group: entry.group,
            record: entry.digest.to_string(),
            reason: entry.reason,
        }
    }
}

/// Some deeds of all homes, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuditBody {
    /// At most `limit`; may be fewer, even none, while there is a `next_cursor`.
    pub entries: Vec<DeedBody>,
    /// For the next page; absent: that was all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Homes that could not be asked, on this page or an earlier one of this list: what they hold is missing.
    pub incomplete: Vec<String>,
}

/// Checks and claims this instance has answered since its start, of one home and topic.
#[derive(Debug, Serialize, ToSchema)]
pub struct TallyBody {
    /// Home of the keys.
    pub home_region: String,
    /// Topic.
    pub topic: String,
    /// New keys.
    pub first: u64,
    /// Done before.
    pub duplicate: u64,
    /// Somebody was at it.
    pub in_progress: u64,
    /// Another payload.
    pub mismatch: u64,
    /// Answers repeated to their own request.
    pub replayed: u64,
    /// 503s.
    pub undecided: u64,
    /// duplicate / (first + duplicate); null while there is neither.
    pub duplicate_rate: Option<f64>,
}

/// What this instance has answered since its start.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatsBody {
    /// Serving region.
    pub region: String,
    /// Instance.
    pub instance: String,
    /// Milliseconds since it started.
    pub since_ms: u64,
    /// By topic and home; those without any question yet are left out.
    pub stats: Vec<TallyBody>,
}
