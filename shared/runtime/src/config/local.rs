//! `[local]`: the in-process tier.

use serde::Deserialize;

use super::check::Checker;

/// `[local]`: the in-process tier of done records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalConfig {
    /// `bytes`: memory for cached records, bytes, 0..=1,099,511,627,776, 0 = off. Default 67,108,864 (64 MiB).
    pub bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLocal {
    bytes: Option<i64>,
}

impl RawLocal {
    pub fn check(self, check: &mut Checker) -> LocalConfig {
        LocalConfig { bytes: check.number("local.bytes", self.bytes, 64 << 20, 0..=1 << 40) }
    }
}
