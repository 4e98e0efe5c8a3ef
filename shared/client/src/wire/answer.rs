//! Answers: a verdict and what is known about the key.

use serde::Deserialize;

use crate::StoredResult;
use crate::open_enum::open_enum;

open_enum! {
    /// What the service says about a key.
    Verdict {
        /// Nobody handled it: it is yours.
        First = "first",
        /// It was handled.
        Duplicate = "duplicate",
        /// Somebody holds it.
        InProgress = "in_progress",
        /// The same key with another fingerprint.
        Mismatch = "mismatch",
        /// By topic policy: whether it was handled is for an operator to say.
        InDoubt = "in_doubt",
        /// By topic policy: too many attempts.
        Exhausted = "exhausted",
        /// By topic policy: the message is older than the window.
        OutsideWindow = "outside_window",
    }
}

open_enum! {
    /// Whether a verdict holds everywhere.
    Certainty {
        /// Decided in the home.
        Exact = "exact",
        /// Decided in the serving region while the home was out of reach.
        Provisional = "provisional",
    }
}

open_enum! {
    /// What knew the answer.
    Tier {
        /// The instance's memory.
        Local = "local",
        /// The region's Redis.
        Hot = "hot",
        /// The home's live rows.
        Warm = "warm",
        /// The home's archive.
        Cold = "cold",
    }
}

/// The answer to one question. With `detail: verdict` only [`Answer::verdict`] is set; times are RFC 3339 UTC in the home's time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Answer {
    /// What is said of the key.
    pub verdict: Verdict,
    /// Whether this repeats what the same request id was told before.
    #[serde(default)]
    pub replayed: bool,
    /// Whether the verdict holds everywhere.
    pub certainty: Option<Certainty>,
    /// What knew the answer.
    pub tier: Option<Tier>,
    /// The home that owns the key.
    pub home_region: Option<String>,
    /// The instance that answered.
    pub served_by: Option<String>,
    /// The region that decided a provisional answer.
    pub decided_in: Option<String>,
    /// The full key.
    pub key: Option<String>,
    /// The consumer group.
    pub group: Option<String>,
    /// The id this question went by.
    pub request_id: Option<String>,
    /// Completes, releases or extends the claim; only with a granted one.
    pub claim_token: Option<String>,
    /// Rises with every change of owner and sorts as text: let other stores refuse an older one.
    pub fence: Option<String>,
    /// 1 at first; one more after each release or lapse.
    pub attempt: Option<u64>,
    /// Who holds, or held, the claim.
    pub owner: Option<String>,
    /// When the lease ends.
    pub lease_expires_at: Option<String>,
    /// What is left of the lease, milliseconds.
    pub lease_ms_left: Option<u64>,
    /// When the key was first seen.
    pub first_seen_at: Option<String>,
    /// When it was done.
    pub completed_at: Option<String>,
    /// When it is forgotten; absent for a window that is `forever`.
    pub expires_at: Option<String>,
    /// How it ended, of a duplicate.
    pub outcome: Option<crate::Outcome>,
    /// What it ended with, if kept.
    pub result: Option<StoredResult>,
    /// Whether a result exists that was left out of this answer.
    #[serde(default)]
    pub result_omitted: bool,
    /// Whether fingerprints were there on both sides.
    pub fingerprint_checked: Option<bool>,
    /// The attempt before this one.
    pub previous: Option<Previous>,
    /// When to ask again, milliseconds.
    pub retry_after_ms: Option<u64>,
    /// In a batch: the index of the equal item that asked.
    pub of_index: Option<usize>,
}

impl Answer {
    /// Whether the key is yours to handle.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.verdict == Verdict::First
    }
}

/// How the attempt before this one ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Previous {
    /// Its number.
    pub attempt: Option<u64>,
    /// `lapsed` or `released`.
    pub ended: Option<String>,
    /// Who worked.
    pub owner: Option<String>,
    /// What it left behind.
    pub note: Option<String>,
    /// When it ended.
    pub at: Option<String>,
}
