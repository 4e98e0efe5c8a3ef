//! The authoritative record of a key, as facts.

use std::sync::Arc;

use crate::{FOREVER_MS, Fence, Fingerprint, RequestHash, StoredResult};

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A claim holds it.
    InProgress,
    /// Its lease lapsed and the topic wants a person to decide.
    InDoubt,
    /// Final.
    Done,
    /// Given back; absent, but it remembers its attempt.
    Released,
    /// An issued token that nobody used yet.
    Issued,
}

/// How finished work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Succeeded,
    /// It failed for good; retries get this answer instead of a new attempt.
    Failed,
}

impl Outcome {
    /// Its word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// Facts of one committed record. Times are milliseconds of home time since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Fence of the grant it stands for.
    pub fence: Fence,
    /// Request that was granted.
    pub request: Option<RequestHash>,
    /// Payload fingerprint it was granted with.
    pub fingerprint: Option<Fingerprint>,
    /// What it is.
    pub state: State,
    /// Meaningful when done.
    pub outcome: Outcome,
    /// Made by a one-shot check, not by a claim.
    pub one_shot: bool,
    /// 1 for the first grant in a window, +1 after a release or lapse.
    pub attempt: i32,
    /// Home time of the accepted `first`.
    pub first_seen_ms: i64,
    /// End of the window; [`FOREVER_MS`] for none.
    pub expires_ms: i64,
    /// In progress: end of the lease. Done: when completed. Released: when released.
    pub ends_ms: i64,
    /// Stored result, if the completion gave one.
    pub result: Option<Arc<StoredResult>>,
}

const FAILED: i32 = 8;
const ONE_SHOT: i32 = 16;
const HAS_RESULT: i32 = 32;

impl Record {
    /// Whether a lease of so many milliseconds is longer than its window, to which the home cuts it.
    pub fn cuts(&self, lease_ms: i64) -> bool {
        self.expires_ms != FOREVER_MS && lease_ms > self.expires_ms - self.first_seen_ms
    }

    /// Unpacks `meta` of `dedup.claims`: (state, outcome, one_shot, has_result, attempt).
    pub fn unpack_meta(meta: i32) -> Option<(State, Outcome, bool, bool, i32)> {
        let state = match meta & 7 {
            1 => State::InProgress,
            2 => State::InDoubt,
            3 => State::Done,
            4 => State::Released,
            5 => State::Issued,
            _ => return None,
        };
        let outcome = if meta & FAILED == 0 { Outcome::Succeeded } else { Outcome::Failed };
        Some((state, outcome, meta & ONE_SHOT != 0, meta & HAS_RESULT != 0, meta >> 8))
    }

    /// Packs the same bits.
    pub fn pack_meta(&self) -> i32 {
        let state = match self.state {
            State::InProgress => 1,
            State::InDoubt => 2,
            State::Done => 3,
            State::Released => 4,
            State::Issued => 5,
        };
        let bit = |on: bool, bit: i32| if on { bit } else { 0 };
        state
            | bit(self.outcome == Outcome::Failed, FAILED)
            | bit(self.one_shot, ONE_SHOT)
            | bit(self.result.is_some(), HAS_RESULT)
            | (self.attempt << 8)
    }

    /// When the key is forgotten: an open claim counts as present until the later of its window's and its lease's end.
    pub fn present_until_ms(&self) -> i64 {
        match self.state {
            State::InProgress | State::InDoubt => self.expires_ms.max(self.ends_ms),
            State::Done | State::Released | State::Issued => self.expires_ms,
        }
    }

    /// Whether the window has no end.
    pub fn is_forever(&self) -> bool {
        self.expires_ms == FOREVER_MS
    }
}
