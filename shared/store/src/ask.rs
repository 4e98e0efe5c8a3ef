//! Questions to a home and what it answers.

use std::sync::Arc;

use dedup_core::{
    ClaimToken, Digest, Fingerprint, Group, Key, Outcome, Question, Record, RequestHash, StoredResult, Tier, TopicPolicy, Verdict, Window,
};

/// A check or claim on its way to the home.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Identity.
    pub digest: Digest,
    /// The home's own copy of the topic.
    pub topic: Arc<TopicPolicy>,
    /// Claim rather than one-shot check.
    pub claim: bool,
    /// The request; made by the service where the caller gave none.
    pub request: RequestHash,
    /// Payload, if given.
    pub fingerprint: Option<Fingerprint>,
    /// Window of this question; the topic's if `None`.
    pub window: Option<Window>,
    /// Lease of this claim in ms; the topic's if `None`.
    pub lease_ms: Option<i64>,
    /// What to keep beside the record, if anything.
    pub texts: Option<Box<Texts>>,
}

/// Texts kept beside open claims.
#[derive(Debug, Clone)]
pub struct Texts {
    /// Consumer group.
    pub group: Group<'static>,
    /// The key.
    pub key: Key<'static>,
    /// Who claims.
    pub owner: Option<String>,
}

impl Ask {
    /// What the rule of judgement needs of it.
    pub fn question(&self) -> Question {
        Question { claim: self.claim, request: Some(self.request), fingerprint: self.fingerprint }
    }
}

/// What became of the attempt before the one granted now.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Previous {
    /// Its number.
    pub attempt: i32,
    /// `lapsed` or `released`.
    pub ended: String,
    /// Who it was.
    pub owner: Option<String>,
    /// What it left.
    pub note: Option<String>,
    /// Home time of its end, ms.
    #[serde(rename = "at")]
    pub at_ms: i64,
}

/// When a fact was read: what a cache needs to know whether it still counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Basis {
    /// The home's forget position, read no later than the record.
    pub as_of: i64,
    /// The home's incarnation: its epoch and Postgres timeline.
    pub incarnation: i32,
}

/// A verdict with the facts it rests on.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The verdict.
    pub verdict: Verdict,
    /// The same request was granted before.
    pub replayed: bool,
    /// Where it was found.
    pub tier: Tier,
    /// The committed record.
    pub record: Arc<Record>,
    /// Fingerprints on both sides were compared.
    pub fingerprint_checked: bool,
    /// With a `first` after a release or lapse.
    pub previous: Option<Box<Previous>>,
    /// Owner of an open claim.
    pub owner: Option<Box<str>>,
    /// Home time of the judgement, ms (an upper bound in the cached tiers).
    pub at_ms: i64,
    /// When the record was read.
    pub basis: Basis,
    /// Identity the question had in its home.
    pub digest: Digest,
}

/// What ends or prolongs a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishOp {
    /// Stores the outcome.
    Complete {
        /// How it ended.
        outcome: Outcome,
        /// What duplicates get back.
        result: Option<Arc<StoredResult>>,
        /// [`StoredResult::hash`] of the whole result, its body included even where that is too large to keep.
        result_hash: Option<uuid::Uuid>,
    },
    /// Gives the claim back.
    Release {
        /// For the next owner.
        note: Option<String>,
    },
    /// Prolongs the lease.
    Extend {
        /// From now, ms; the topic's if `None`.
        lease_ms: Option<i64>,
        /// For a later owner.
        note: Option<String>,
    },
}

/// A completion, release or extension on its way to the home.
#[derive(Debug, Clone)]
pub struct Finish {
    /// Who may.
    pub token: ClaimToken,
    /// What.
    pub op: FinishOp,
    /// Lease of the topic in ms, used where an extension names none.
    pub topic_lease_ms: i64,
}

/// What the home did with it. `Record`s are as of afterwards.
#[derive(Debug, Clone)]
pub enum FinishAnswer {
    /// Done as asked (`replayed`: it had been before).
    Applied {
        /// The record now.
        record: Arc<Record>,
        /// The very same call had succeeded before.
        replayed: bool,
        /// Home time, ms.
        at_ms: i64,
        /// When the record was read.
        basis: Basis,
        /// Its result is kept until a time that is not in the record here, so it is not for caches.
        bounded: bool,
    },
    /// Completed before with another outcome or result.
    AlreadyCompleted {
        /// The record as it stands.
        record: Arc<Record>,
    },
    /// The fence is not the current one; nothing changed.
    LeaseLost {
        /// The record as it stands; `None`: there is none.
        record: Option<Arc<Record>>,
        /// There is none because somebody had it forgotten.
        forgotten: bool,
    },
}

/// What the home knows of a key.
#[derive(Debug, Clone)]
pub struct Looked {
    /// The record, if any (past ones too).
    pub record: Option<Arc<Record>>,
    /// Its segment and the segment's state.
    pub segment: Option<(i32, String)>,
    /// Owner and note kept beside it.
    pub owner: Option<String>,
    /// Note of a release or extension.
    pub note: Option<String>,
    /// Home time, ms.
    pub home_ms: i64,
}
