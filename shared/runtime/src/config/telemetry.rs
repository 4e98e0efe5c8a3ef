//! `[telemetry]`: what is exported, and how.

use std::time::Duration;

use serde::Deserialize;

use super::check::Checker;

/// `[telemetry]`: what is exported, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct TelemetryConfig {
    /// `prometheus`: serve `/metrics`. Default true.
    pub prometheus: bool,
    /// `topics_max`: topics that get a label of their own, 1..=100,000; later ones share one. Default 1,000.
    pub topics_max: usize,
    /// `otlp_endpoint`: a collector to push to; `None` (default) = nothing is pushed.
    pub otlp: Option<OtlpConfig>,
}

/// Pushing to a collector, OTLP over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// `otlp_endpoint`: base URL; `/v1/metrics` and `/v1/traces` are added.
    pub endpoint: String,
    /// `otlp_metrics`: push metrics. Default true.
    pub metrics: bool,
    /// `otlp_interval_ms`: how often metrics are pushed, 1,000..=600,000. Default 15,000.
    pub interval: Duration,
    /// `otlp_traces`: push traces. Default true.
    pub traces: bool,
    /// `trace_ratio`: share of the requests without a caller's `traceparent` that are traced, 0..=1. Default 0.
    pub trace_ratio: f64,
    /// `traces_per_second_max`: traced requests a second, those that callers ask for included, 1..=10,000. Default 50.
    pub traces_per_second_max: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTelemetry {
    prometheus: Option<bool>,
    topics_max: Option<i64>,
    otlp_endpoint: Option<String>,
    otlp_metrics: Option<bool>,
    otlp_interval_ms: Option<i64>,
    otlp_traces: Option<bool>,
    trace_ratio: Option<f64>,
    traces_per_second_max: Option<i64>,
}

impl RawTelemetry {
    pub fn check(self, check: &mut Checker) -> TelemetryConfig {
        let trace_ratio = self.trace_ratio.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&trace_ratio) {
            check.note("telemetry.trace_ratio", format!("{trace_ratio} is out of range; allowed is 0.0..=1.0"));
        }
        let interval_ms: u64 = check.number("telemetry.otlp_interval_ms", self.otlp_interval_ms, 15_000, 1_000..=600_000);
        let traces_per_second_max = check.number("telemetry.traces_per_second_max", self.traces_per_second_max, 50, 1..=10_000);
        let otlp = self.otlp_endpoint.map(|endpoint| {
            if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
                check.note("telemetry.otlp_endpoint", format!("{endpoint:?} is no URL; write for example http://127.0.0.1:4318"));
            }
            OtlpConfig {
                endpoint: endpoint.trim_end_matches('/').to_owned(),
                metrics: self.otlp_metrics.unwrap_or(true),
                interval: Duration::from_millis(interval_ms),
                traces: self.otlp_traces.unwrap_or(true),
                trace_ratio,
                traces_per_second_max,
            }
        });
        TelemetryConfig {
            prometheus: self.prometheus.unwrap_or(true),
            topics_max: check.number("telemetry.topics_max", self.topics_max, 1_000, 1..=100_000),
            otlp,
        }
    }
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self { prometheus: true, topics_max: 1_000, otlp: None }
    }
}
