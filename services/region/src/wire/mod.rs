//! The shape of the JSON, in and out. Wire types only: nothing here is a domain type.

mod answer;
mod ends;
mod operators;
mod problem;
mod questions;
mod records;
mod topics;

pub use answer::{AnswerBody, Asked, BatchBody, BatchItem, Counts, ResultBody};
pub use ends::{
    CompleteBatch, CompleteRequest, EndBatchBody, EndItem, ExtendBatch, ExtendRequest, OutcomeWord, ReleaseBatch, ReleaseRequest,
    ResultRequest, SettledBody,
};
pub use operators::{AuditBody, DeedBody, ForceReleaseRequest, ForceReleasedBody, OpenClaimBody, OpenClaimsBody, StatsBody, TallyBody};
pub use problem::ProblemBody;
pub use questions::{CheckBatch, CheckItem, ClaimBatch, ClaimItem, Detail, WindowWord};
pub use records::{CacheBody, ForgetBody, ForgetRequest, HomeBody, LookupBody, LookupRequest, RecordBody};
pub use topics::{TopicBody, TopicDeletedBody, TopicPut, TopicPutBody, TopicsBody};

use time::OffsetDateTime;
use time::macros::format_description;

/// RFC 3339 in UTC with milliseconds; `None` for "never".
pub fn time_text(ms: i64) -> Option<String> {
    if ms == dedup_core::FOREVER_MS {
        return None;
    }
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok().and_then(|t| t.format(format).ok())
}
