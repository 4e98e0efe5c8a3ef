//! `[telemetry]`: what is exported.

use serde::Deserialize;

use super::check::Checker;

/// `[telemetry]`: what is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// `prometheus`: serve `/metrics`. Default true.
    pub prometheus: bool,
    /// `topics_max`: topics that get a label of their own, 1..=100,000; later ones share one. Default 1,000.
    pub topics_max: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTelemetry {
    prometheus: Option<bool>,
    topics_max: Option<i64>,
}

impl RawTelemetry {
    pub fn check(self, check: &mut Checker) -> TelemetryConfig {
        TelemetryConfig {
            prometheus: self.prometheus.unwrap_or(true),
            topics_max: check.number("telemetry.topics_max", self.topics_max, 1_000, 1..=100_000),
        }
    }
}
