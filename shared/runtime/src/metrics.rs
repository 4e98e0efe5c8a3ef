//! Metrics: one OpenTelemetry provider, read by a Prometheus scrape.
//!
//! Crates take a [`Meter`] and may spell an instrument's name as Prometheus will show it (`dedup_decisions_total`) or as OpenTelemetry
//! does (`dedup.decisions`): the exporter adds `_total` to counters and the unit's suffix, and a view takes away what would then stand
//! twice. Give times the unit `s` and sizes `By`.

mod buckets;
mod view;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

/// Content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Default of `series_max`: room for 1,000 topics × 2 homes × 22 pairs of verdict and tier, with some left.
pub const SERIES_MAX_DEFAULT: usize = 60_000;

/// Who measures; shown once, in `target_info`.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The serving region (`cloud_region`).
    pub region: &'a str,
    /// The instance's label (`service_instance_id`).
    pub instance: &'a str,
    /// The program's version (`service_version`).
    pub version: &'a str,
}

/// The process's metrics. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    provider: SdkMeterProvider,
    registry: Registry,
}

/// Metrics could not be set up, read or closed.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The exporter could not be registered, or the provider closed.
    #[error("the metrics provider failed")]
    Provider(#[from] opentelemetry_sdk::error::OTelSdkError),
    /// The text could not be written.
    #[error("the metrics text could not be written")]
    Render(#[from] prometheus::Error),
}

impl Metrics {
    /// A provider with a registry of its own, so that several may live in one process (tests).
    ///
    /// `series_max`: series one instrument may have (default [`SERIES_MAX_DEFAULT`]); what comes later is summed up in one series
    /// labelled `otel_metric_overflow="true"`.
    ///
    /// # Errors
    /// The exporter cannot be registered.
    pub fn new(identity: Identity<'_>, series_max: usize) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        // Scope labels would stand on every series and say nothing a name does not say.
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).scope_info_enabled(false).build()?;
        let resource = Resource::builder_empty()
            .with_service_name("dedup")
            .with_attributes([
                KeyValue::new("service.version", identity.version.to_owned()),
                KeyValue::new("service.instance.id", identity.instance.to_owned()),
                KeyValue::new("cloud.region", identity.region.to_owned()),
            ])
            .build();
        let provider = SdkMeterProvider::builder()
            .with_reader(exporter)
            .with_resource(resource)
            .with_view(move |instrument| view::stream(instrument, series_max))
            .build();
        Ok(Self { provider, registry })
    }

    /// The meter of one crate, named after it.
    #[must_use]
    pub fn meter(&self, name: &'static str) -> Meter {
        self.provider.meter(name)
    }

    /// All metrics in Prometheus' text format ([`CONTENT_TYPE`]).
    ///
    /// # Errors
    /// A metric cannot be written as text.
    pub fn render(&self) -> Result<String, MetricsError> {
        Ok(TextEncoder::new().encode_to_string(&self.registry.gather())?)
    }

    /// Closes the provider; later measurements are dropped.
    ///
    /// # Errors
    /// It was closed before.
    pub fn shutdown(&self) -> Result<(), MetricsError> {
        Ok(self.provider.shutdown()?)
    }
}
