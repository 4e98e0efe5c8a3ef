//! The shape of the JSON, in and out. Wire types only: nothing here is a domain type.

mod answer;
mod bulk;
mod ends;
mod operators;
mod questions;
mod records;
mod segments;
mod topics;

pub use answer::{AnswerBody, Asked, BatchBody, BatchItem, Counts, ResultBody};
pub use bulk::{ForgetAllBody, ForgetAllRequest, ForgetJobBody, ForgetJobRequest, JobBody, JobInHome};
pub use ends::{
    CompleteBatch, CompleteRequest, EndBatchBody, EndItem, ExtendBatch, ExtendRequest, OutcomeWord, ReleaseBatch, ReleaseRequest,
    ResultRequest, SettledBody,
};
pub use operators::{AuditBody, DeedBody, ForceReleaseRequest, ForceReleasedBody, OpenClaimBody, OpenClaimsBody, StatsBody, TallyBody};
pub use questions::{CheckBatch, CheckItem, ClaimBatch, ClaimItem, Detail, Text, WindowWord};
pub use records::{CacheBody, ForgetBody, ForgetRequest, HomeBody, LookupBody, LookupRequest, RecordBody};
pub use segments::{SegmentBody, SegmentsBody};
pub use topics::{TopicBody, TopicDeletedBody, TopicPut, TopicPutBody, TopicsBody};

/// RFC 3339 in UTC with milliseconds; `None` for "never". Written by hand: every answer carries up to four of them.
pub fn time_text(ms: i64) -> Option<String> {
    if ms == dedup_core::FOREVER_MS {
        return None;
    }
    let (days, of_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let (year, month, day) = civil(days);
    let (hour, minute, second, milli) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60, of_day % 1000);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    for (at, width, mut value) in
        [(0, 4, year), (5, 2, month), (8, 2, day), (11, 2, hour), (14, 2, minute), (17, 2, second), (20, 3, milli)]
    {
        for digit in text[at..at + width].iter_mut().rev() {
            *digit = b'0' + u8::try_from(value.rem_euclid(10)).unwrap_or(0);
            value /= 10;
        }
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Year, month and day of a number of days since 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, of_year - (153 * shifted_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::time_text;
    use time::OffsetDateTime;
    use time::macros::format_description;

    #[test]
    fn times_agree_with_the_library() {
        let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
        for i in 0..200_000_i64 {
            let ms = i * 86_399_123 + i % 1000;
            let want = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).expect("in range");
            if want.year() > 9999 {
                break;
            }
            assert_eq!(time_text(ms), want.format(&format).ok(), "{ms}");
        }
        assert_eq!(time_text(dedup_core::FOREVER_MS), None);
    }
}
