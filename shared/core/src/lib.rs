//! Words and rules of deduplication; no I/O, no async, no clock.
//!
//! Every word of the API exists here once as a parsed type: what has such a type was checked, and nothing is checked twice. The one
//! rule that decides ([`judge`]) is a pure function over a record and a question.

mod claim_token;
mod cold;
mod digest;
mod fence;
mod fingerprint;
mod group;
mod judge;
mod key;
mod limits;
mod policy;
mod record;
mod request;
mod result;
mod routing;
mod secret;
mod segment_time;
mod topic;
mod verdict;
mod window;

pub use claim_token::{ClaimToken, ClaimTokenError};
pub use cold::{
    BLOCK_BYTES_MAX, BlockBuilder, BlockError, BlockRow, FILTER_BLOCK_BYTES, FILTER_HEAD_BYTES, Filter, FilterError, FilterHead,
    FilterLoad, FilterPart, Key72, block_sum, filter_blocks, filter_fpr, read_block,
};
pub use digest::{Digest, DigestScope};
pub use fence::{Fence, FenceError};
pub use fingerprint::Fingerprint;
pub use group::Group;
pub use judge::{Judgement, Question, judge};
pub use key::{Key, KeyError};
pub use limits::Limits;
pub use policy::{KeepKey, TopicPolicy};
pub use record::{Outcome, Record, State};
pub use request::{RequestHash, RequestId};
pub use result::StoredResult;
pub use routing::{HomeId, HomeSpec, HomeTable, RouteError};
pub use secret::Secret;
pub use segment_time::{FOREVER_MS, decode_time, encode_time};
pub use topic::Topic;
pub use verdict::{Op, Tier, Verdict};
pub use window::{Window, WindowError};

/// Why a short text of the API (topic, group, request id, fingerprint, owner) is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Nothing there.
    #[error("must not be empty")]
    Empty,
    /// Longer than the stated number of bytes.
    #[error("must be at most {max} bytes, has {len}")]
    TooLong {
        /// Most bytes allowed.
        max: usize,
        /// Bytes given.
        len: usize,
    },
    /// A character that is not allowed there.
    #[error("must be {allowed}; the character at byte {at} is not")]
    Character {
        /// Byte position of the first offender.
        at: usize,
        /// What would have been allowed.
        allowed: &'static str,
    },
    /// A name that means something else.
    #[error("must not be {0:?}")]
    Reserved(&'static str),
}

/// Checks length and characters of a short text; the one place that does.
pub(crate) fn check_text(text: &str, max: usize, allowed: &'static str, ok: impl Fn(char) -> bool) -> Result<(), TextError> {
    if text.is_empty() {
        return Err(TextError::Empty);
    }
    if text.len() > max {
        return Err(TextError::TooLong { max, len: text.len() });
    }
    match text.char_indices().find(|(_, c)| !ok(*c)) {
        Some((at, _)) => Err(TextError::Character { at, allowed }),
        None => Ok(()),
    }
}

/// Checks a free text (owner, note): not longer than `max` bytes, no control characters (`char::is_control`: C0, DEL, C1).
pub fn check_free_text(text: &str, max: usize) -> Result<(), TextError> {
    if text.is_empty() {
        return Ok(());
    }
    check_text(text, max, "without control characters", |c| !c.is_control())
}
