//! Metrics: one OpenTelemetry provider, read by a Prometheus scrape, pushed by OTLP, both or neither.
//!
//! Crates take a [`Meter`] and may spell an instrument's name as Prometheus will show it (`dedup_decisions_total`) or as OpenTelemetry
//! does (`dedup.decisions`): the text adds `_total` to counters and the unit's suffix, and a view takes away what would then stand
//! twice. Give times the unit `s` and sizes `By`.

mod buckets;
mod process;
mod text;
mod view;

use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_otlp::{MetricExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, ManualReader, PeriodicReader, Pipeline, SdkMeterProvider, Temporality};

use crate::config::TelemetryConfig;

/// Content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Least `series_max`: room for 900 topics × 2 homes × 32 series of decisions.
pub const SERIES_MAX_DEFAULT: usize = 60_000;

/// Longest one push may take. A collector that is slower costs samples, never a question: pushing has a thread of its own.
pub(crate) const PUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Who measures: `target_info` for a scrape, the resource for OTLP.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The serving region (`cloud_region`).
    pub region: &'a str,
    /// The instance's label (`service_instance_id`).
    pub instance: &'a str,
    /// The program's version (`service_version`).
    pub version: &'a str,
}

impl Identity<'_> {
    pub(crate) fn resource(self) -> Resource {
        Resource::builder_empty()
            .with_service_name("dedup")
            .with_attributes([
                KeyValue::new("service.version", self.version.to_owned()),
                KeyValue::new("service.instance.id", self.instance.to_owned()),
                KeyValue::new("cloud.region", self.region.to_owned()),
            ])
            .build()
    }
}

/// The process's metrics. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    provider: SdkMeterProvider,
    scraped: Scraped,
}

/// Read when somebody scrapes.
#[derive(Clone, Debug, Default)]
struct Scraped(Arc<ManualReader>);

/// Metrics could not be set up, read or closed.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The provider could not be read or closed.
    #[error("the metrics provider failed")]
    Provider(#[from] OTelSdkError),
    /// The exporter to a collector could not be made.
    #[error("the OTLP exporter cannot be made")]
    Otlp(#[from] opentelemetry_otlp::ExporterBuildError),
}

impl Metrics {
    /// A provider of its own, so that several may live in one process (tests). With neither a scrape nor OTLP nothing is
    /// aggregated, and recording costs next to nothing.
    ///
    /// `series_max`: series one instrument may have (see [`SERIES_MAX_DEFAULT`]); what comes later is summed up in one series labelled
    /// `otel_metric_overflow="true"`.
    ///
    /// # Errors
    /// An exporter cannot be made.
    pub fn new(identity: Identity<'_>, config: &TelemetryConfig, series_max: usize) -> Result<Self, MetricsError> {
        let scraped = Scraped::default();
        let mut provider = SdkMeterProvider::builder()
            .with_resource(identity.resource())
            .with_view(move |instrument| view::stream(instrument, series_max));
        if config.prometheus {
            provider = provider.with_reader(scraped.clone());
        }
        if let Some(otlp) = config.otlp.as_ref().filter(|otlp| otlp.metrics) {
            let endpoint = format!("{}/v1/metrics", otlp.endpoint);
            let exporter = MetricExporter::builder().with_http().with_endpoint(endpoint).with_timeout(PUSH_TIMEOUT).build()?;
            provider = provider.with_reader(PeriodicReader::builder(exporter).with_interval(otlp.interval).build());
        }
        let provider = provider.build();
        process::watch(&provider.meter("dedup-runtime"), identity.region);
        Ok(Self { provider, scraped })
    }

    /// The meter of one crate, named after it.
    #[must_use]
    pub fn meter(&self, name: &'static str) -> Meter {
        self.provider.meter(name)
    }

    /// All metrics in Prometheus' text format ([`CONTENT_TYPE`]).
    ///
    /// # Errors
    /// There is no scrape (by configuration), or the provider is closed.
    pub fn render(&self) -> Result<String, MetricsError> {
        let mut metrics = ResourceMetrics::default();
        self.scraped.collect(&mut metrics)?;
        Ok(text::encode(&metrics))
    }

    /// Pushes once more, if pushing is configured, and closes the provider; later measurements are dropped. May take as long as one push.
    ///
    /// # Errors
    /// It was closed before.
    pub fn shutdown(&self) -> Result<(), MetricsError> {
        Ok(self.provider.shutdown()?)
    }
}

impl MetricReader for Scraped {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
