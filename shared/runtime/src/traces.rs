//! Traces: which requests are traced, and where their spans go.
//!
//! The decision comes before any span exists, so a request that is not traced costs a look at one header and a random number. A caller's
//! sampled `traceparent` is followed, a caller's "not sampled" too; both kinds together stay below a number per second, so that no caller
//! can make the service or the collector work harder than its operator wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider};

use crate::config::TelemetryConfig;
use crate::metrics::{Identity, PUSH_TIMEOUT};

/// Spans that wait for the collector; beyond that they are dropped.
const SPANS_WAITING: usize = 4096;
const PUSH_EVERY: Duration = Duration::from_secs(1);

/// The process's traces. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Traces {
    inner: Arc<Inner>,
}

struct Inner {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    ratio: f64,
    per_second_max: u32,
    base: Instant,
    /// The second since `base` (high half) and the traces begun in it (low half).
    second: AtomicU64,
}

impl Traces {
    /// Starts pushing spans, also those of other crates, which take the global tracer; `None` where no traces are configured.
    ///
    /// # Errors
    /// The exporter cannot be made.
    pub fn start(identity: Identity<'_>, config: &TelemetryConfig) -> Result<Option<Self>, opentelemetry_otlp::ExporterBuildError> {
        let Some(otlp) = config.otlp.as_ref().filter(|otlp| otlp.traces) else { return Ok(None) };
        let endpoint = format!("{}/v1/traces", otlp.endpoint);
        let exporter = SpanExporter::builder().with_http().with_endpoint(endpoint).with_timeout(PUSH_TIMEOUT).build()?;
        let batches = BatchConfigBuilder::default().with_max_queue_size(SPANS_WAITING).with_scheduled_delay(PUSH_EVERY).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
            // Whoever makes a span has decided already.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(identity.resource())
            .build();
        global::set_tracer_provider(provider.clone());
        let tracer = provider.tracer("dedup");
        let inner = Inner {
            provider,
            tracer,
            ratio: otlp.trace_ratio,
            per_second_max: otlp.traces_per_second_max,
            base: Instant::now(),
            second: AtomicU64::new(0),
        };
        Ok(Some(Self { inner: Arc::new(inner) }))
    }

    /// Begins the span of a request, if it is to be traced. The answer is the context its work belongs to.
    pub fn begin(&self, headers: &dyn Extractor, name: &'static str) -> Option<Context> {
        let parent = headers.get("traceparent").map(|_| TraceContextPropagator::new().extract_with_context(&Context::new(), headers));
        let parent = parent.filter(|cx| cx.span().span_context().is_valid());
        let wanted = match &parent {
            Some(cx) => cx.span().span_context().is_sampled(),
            None => self.inner.ratio > 0.0 && rand::random::<f64>() < self.inner.ratio,
        };
        if !wanted || !self.inner.has_room() {
            return None;
        }
        let parent = parent.unwrap_or_default();
        let span = self.inner.tracer.span_builder(name).with_kind(SpanKind::Server).start_with_context(&self.inner.tracer, &parent);
        Some(parent.with_span(span))
    }

    /// Pushes what waits and ends; spans are dropped from now on. Takes at most `within`.
    pub fn shutdown(&self, within: Duration) {
        // A collector that is away is no reason for a bad exit code.
        if let Err(error) = self.inner.provider.shutdown_with_timeout(within) {
            tracing::warn!(error = %error, "the last spans could not be pushed");
        }
    }
}

impl Inner {
    fn has_room(&self) -> bool {
        let now = self.base.elapsed().as_secs() << 32;
        let begun = |old: u64| if old & !0xffff_ffff == now { old + 1 } else { now + 1 };
        let counted = self.second.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(begun(old)));
        let in_this_second = counted.map_or(0, |old| begun(old) & 0xffff_ffff);
        in_this_second <= u64::from(self.per_second_max)
    }
}

/// The `traceparent` by which others can go on in this context's trace.
pub fn traceparent(cx: &Context) -> Option<String> {
    struct One(Option<String>);
    impl Injector for One {
        fn set(&mut self, key: &str, value: String) {
            if key == "traceparent" {
                self.0 = Some(value);
            }
        }
    }
    let mut one = One(None);
    TraceContextPropagator::new().inject_context(cx, &mut one);
    one.0
}

/// Notes something on the span of the current context.
pub fn note(attributes: impl IntoIterator<Item = KeyValue>) {
    Context::map_current(|cx| attributes.into_iter().for_each(|attribute| cx.span().set_attribute(attribute)));
}

/// Whether the current context is of a traced request.
pub fn is_traced() -> bool {
    Context::map_current(|cx| cx.has_active_span() && cx.span().span_context().is_sampled())
}
