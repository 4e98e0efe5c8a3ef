//! `[limits]`: a limit on everything a caller can send.

use serde::Deserialize;

use super::check::Checker;

const DAY_MS: u64 = 86_400_000;

/// `[limits]`: a limit on everything a caller can send. Every setting has a default; the upper ends are what the stores are laid out for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Longest full key, bytes of UTF-8, 1..=512. Default 512.
    pub key_bytes: usize,
    /// Longest request id, bytes, 1..=128. Default 128.
    pub request_id_bytes: usize,
    /// Longest owner, bytes, 1..=128. Default 128.
    pub owner_bytes: usize,
    /// Most items in one batch, 1..=1,000. Default 1,000.
    pub batch_items: usize,
    /// Largest request body, bytes, 1,024..=67,108,864. Default 1,048,576.
    pub body_bytes: usize,
    /// Largest stored result, raw bytes, 0..=1,048,576; a larger one is left out and the answer says so. Default 65,536.
    pub result_bytes: usize,
    /// Longest note of a release or extend, bytes, 0..=4,096. Default 4,096.
    pub note_bytes: usize,
    /// Deepest nesting of a JSON body, 4..=128. Default 16.
    pub json_depth: usize,
    /// Shortest lease, milliseconds, 1..=86,400,000. Default 1,000.
    pub lease_ms_min: u64,
    /// Longest lease, milliseconds, 1..=86,400,000 and not below `lease_ms_min`. Default 86,400,000 (24 hours).
    pub lease_ms_max: u64,
    /// Shortest window, milliseconds, 1..=31,536,000,000. Default 1,000.
    pub window_ms_min: u64,
    /// Longest window that is not `forever`, milliseconds, 1..=31,536,000,000 and not below `window_ms_min`. Default the latter (365 days).
    pub window_ms_max: u64,
    /// Most connections open at once, 1..=1,000,000. Default 25,000.
    pub open_connections: usize,
    /// How long a client may take to send its request's head, milliseconds, 100..=60,000. Default 5,000.
    pub header_timeout_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLimits {
    key_bytes: Option<i64>,
    request_id_bytes: Option<i64>,
    owner_bytes: Option<i64>,
    batch_items: Option<i64>,
    body_bytes: Option<i64>,
    result_bytes: Option<i64>,
    note_bytes: Option<i64>,
    json_depth: Option<i64>,
    lease_ms_min: Option<i64>,
    lease_ms_max: Option<i64>,
    window_ms_min: Option<i64>,
    window_ms_max: Option<i64>,
    open_connections: Option<i64>,
    header_timeout_ms: Option<i64>,
}

impl RawLimits {
    pub fn check(self, check: &mut Checker) -> LimitsConfig {
        let limits = LimitsConfig {
            key_bytes: check.number("limits.key_bytes", self.key_bytes, 512, 1..=512),
            request_id_bytes: check.number("limits.request_id_bytes", self.request_id_bytes, 128, 1..=128),
            owner_bytes: check.number("limits.owner_bytes", self.owner_bytes, 128, 1..=128),
            batch_items: check.number("limits.batch_items", self.batch_items, 1_000, 1..=1_000),
            body_bytes: check.number("limits.body_bytes", self.body_bytes, 1 << 20, 1_024..=1 << 26),
            result_bytes: check.number("limits.result_bytes", self.result_bytes, 1 << 16, 0..=1 << 20),
            note_bytes: check.number("limits.note_bytes", self.note_bytes, 4_096, 0..=4_096),
            json_depth: check.number("limits.json_depth", self.json_depth, 16, 4..=128),
            lease_ms_min: check.number("limits.lease_ms_min", self.lease_ms_min, 1_000, 1..=DAY_MS),
            lease_ms_max: check.number("limits.lease_ms_max", self.lease_ms_max, DAY_MS, 1..=DAY_MS),
            window_ms_min: check.number("limits.window_ms_min", self.window_ms_min, 1_000, 1..=365 * DAY_MS),
            window_ms_max: check.number("limits.window_ms_max", self.window_ms_max, 365 * DAY_MS, 1..=365 * DAY_MS),
            open_connections: check.number("limits.open_connections", self.open_connections, 25_000, 1..=1_000_000),
            header_timeout_ms: check.number("limits.header_timeout_ms", self.header_timeout_ms, 5_000, 100..=60_000),
        };
        in_order(check, "lease_ms", limits.lease_ms_min, limits.lease_ms_max);
        in_order(check, "window_ms", limits.window_ms_min, limits.window_ms_max);
        limits
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        // One truth for the defaults: those the file leaves out. They need no judgement.
        RawLimits::default().check(&mut Checker::default())
    }
}

fn in_order(check: &mut Checker, name: &str, min: u64, max: u64) {
    if min > max {
        check.note(format!("limits.{name}_min"), format!("{min} is above limits.{name}_max, which is {max}"));
    }
}
