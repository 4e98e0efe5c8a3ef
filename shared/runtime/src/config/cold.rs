//! `[filters]`: what an instance keeps of the cold tier. `[janitor]`: the life of segments.

use secrecy::SecretString;
use serde::Deserialize;

use super::check::Checker;

/// `[filters]`: bloom filters of all homes' sealed segments and archives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FiltersConfig {
    /// `bytes`: memory for them, bytes, 0..=1,099,511,627,776, 0 = none are loaded. Of what does not fit, the filters of other regions'
    /// homes stay away first, the largest of them before the others. Default 1,073,741,824 (1 GiB; it is taken only as needed).
    pub bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawFilters {
    bytes: Option<i64>,
}

impl RawFilters {
    pub fn check(self, check: &mut Checker) -> FiltersConfig {
        FiltersConfig { bytes: check.number("filters.bytes", self.bytes, 1 << 30, 0..=1 << 40) }
    }
}

/// `[janitor]`: what `dedup janitor` is told about the homes of its region.
#[derive(Clone, Debug)]
pub struct JanitorConfig {
    /// `user`: login with the role `dedup_janitor`, used at each home in place of the user of `postgres`. Default `dedup_jan`.
    pub user: String,
    /// From the environment variable [`JANITOR_PASSWORD_ENV`]; `None` = Postgres asks for none.
    pub password: Option<SecretString>,
    /// `segment_ms`: age at which a segment is rotated, and what windows' ends are rounded up to in the archive, milliseconds,
    /// 1,000..=604,800,000. Default 86,400,000 (a day).
    pub segment_ms: u64,
    /// `segment_rows`: rows at which it is rotated before that, 1,000..=1,000,000,000. Default 4,000,000.
    pub segment_rows: u64,
    /// `segments_ahead`: segments made ahead, 1..=32. Default 3.
    pub segments_ahead: u64,
    /// `warm_ms`: how long a sealed segment stays warm before it is archived, milliseconds, 0..=31,536,000,000. Default 604,800,000 (7 days).
    pub warm_ms: u64,
    /// `filter_fpr_ppm`: false positives of filters, in a million, 10..=500,000. Default 10,000 (1 %).
    pub filter_fpr_ppm: u64,
    /// `filter_build_bytes`: memory for a filter under construction, bytes, 1,048,576..=1,099,511,627,776. Default 67,108,864 (64 MiB).
    pub filter_build_bytes: u64,
    /// `drop_margin_ms`: how long an archive outlives its last window, milliseconds, 0..=31,536,000,000. Default 86,400,000 (a day).
    pub drop_margin_ms: u64,
    /// `pause_ms`: between two looks at what is due, milliseconds, 10..=3,600,000. Default 5,000.
    pub pause_ms: u64,
    /// `layout_pause_ms`: between two attempts to change the layout, for each of which claims may wait up to 50 ms, milliseconds,
    /// 20..=60,000. Default 1,000.
    pub layout_pause_ms: u64,
    /// `clock_hold_ms`: how long the janitor only makes segments ahead after it saw the home's clock step by more than 5 s, milliseconds,
    /// 0..=604,800,000, 0 = it goes on. Default 3,600,000 (an hour).
    pub clock_hold_ms: u64,
}

/// The environment variable with the password of `janitor.user`.
pub const JANITOR_PASSWORD_ENV: &str = "DEDUP_JANITOR_PASSWORD";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawJanitor {
    user: Option<String>,
    segment_ms: Option<i64>,
    segment_rows: Option<i64>,
    segments_ahead: Option<i64>,
    warm_ms: Option<i64>,
    filter_fpr_ppm: Option<i64>,
    filter_build_bytes: Option<i64>,
    drop_margin_ms: Option<i64>,
    pause_ms: Option<i64>,
    layout_pause_ms: Option<i64>,
    clock_hold_ms: Option<i64>,
}

impl RawJanitor {
    pub fn check(self, env: &impl Fn(&str) -> Option<String>, check: &mut Checker) -> JanitorConfig {
        const DAY: u64 = 86_400_000;
        let user = self.user.unwrap_or_else(|| "dedup_jan".into());
        if user.is_empty() || user.len() > 63 {
            check.note("janitor.user", "must be 1 to 63 bytes");
        }
        JanitorConfig {
            user,
            password: env(JANITOR_PASSWORD_ENV).map(SecretString::from),
            segment_ms: check.number("janitor.segment_ms", self.segment_ms, DAY, 1_000..=7 * DAY),
            segment_rows: check.number("janitor.segment_rows", self.segment_rows, 4_000_000, 1_000..=1_000_000_000),
            segments_ahead: check.number("janitor.segments_ahead", self.segments_ahead, 3, 1..=32),
            warm_ms: check.number("janitor.warm_ms", self.warm_ms, 7 * DAY, 0..=365 * DAY),
            filter_fpr_ppm: check.number("janitor.filter_fpr_ppm", self.filter_fpr_ppm, 10_000, 10..=500_000),
            filter_build_bytes: check.number("janitor.filter_build_bytes", self.filter_build_bytes, 64 << 20, 1 << 20..=1 << 40),
            drop_margin_ms: check.number("janitor.drop_margin_ms", self.drop_margin_ms, DAY, 0..=365 * DAY),
            pause_ms: check.number("janitor.pause_ms", self.pause_ms, 5_000, 10..=3_600_000),
            layout_pause_ms: check.number("janitor.layout_pause_ms", self.layout_pause_ms, 1_000, 20..=60_000),
            clock_hold_ms: check.number("janitor.clock_hold_ms", self.clock_hold_ms, 3_600_000, 0..=7 * DAY),
        }
    }
}
