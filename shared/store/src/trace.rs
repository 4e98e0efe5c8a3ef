//! Spans of traced requests. Where none is traced, each call here is one look at a thread-local.
//!
//! No span says anything of a key: homes, tiers, counts and outcomes only.

use std::borrow::Cow;

use opentelemetry::trace::{Link, Span, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};

/// Links of one call's span; a call may carry 512 questions.
const LINKS_MAX: usize = 64;

/// The traced request whose work this is.
pub(crate) fn current() -> Option<SpanContext> {
    Context::map_current(|cx| {
        if !cx.has_active_span() {
            return None;
        }
        Some(cx.span().span_context().clone()).filter(SpanContext::is_sampled)
    })
}

/// A span under way, or nothing; ends when dropped.
pub(crate) struct Traced(Option<global::BoxedSpan>);

impl Traced {
    /// The look into one tier on behalf of the current request.
    pub fn tier(name: &'static str, home: &str, items: usize) -> Self {
        if current().is_none() {
            return Self(None);
        }
        let builder = global::tracer("dedup")
            .span_builder(name)
            .with_kind(SpanKind::Internal)
            .with_attributes([KeyValue::new("dedup.home_region", home.to_owned()), KeyValue::new("dedup.items", count(items))]);
        Self(Some(builder.start(&global::tracer("dedup"))))
    }

    /// One call to a home, for all who share it: a child of the first traced request, with links to each.
    pub fn call(home: &str, operation: &'static str, keys: usize, requests: impl Iterator<Item = SpanContext>) -> Self {
        let mut links: Vec<Link> = Vec::new();
        for request in requests {
            if links.len() < LINKS_MAX && !links.iter().any(|l| l.span_context == request) {
                links.push(Link::with_context(request));
            }
        }
        let Some(first) = links.first().map(|l| l.span_context.clone()) else { return Self(None) };
        let tracer = global::tracer("dedup");
        let builder = tracer.span_builder("home call").with_kind(SpanKind::Client).with_links(links).with_attributes([
            KeyValue::new("db.system.name", "postgresql"),
            KeyValue::new("db.operation.name", operation),
            KeyValue::new("dedup.home_region", home.to_owned()),
            KeyValue::new("dedup.batch_size", count(keys)),
        ]);
        Self(Some(builder.start_with_context(&tracer, &Context::new().with_remote_span_context(first))))
    }

    /// How many of the items the tier answered.
    pub fn answered(&mut self, items: usize) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new("dedup.answered", count(items)));
        }
    }

    /// It did not work. `why` must be free of keys.
    pub fn failed(&mut self, why: impl Into<Cow<'static, str>>) {
        if let Some(span) = &mut self.0 {
            span.set_status(Status::error(why));
        }
    }

    /// A log span that carries the trace's id to the lines written meanwhile.
    pub fn log_span(&self) -> tracing::Span {
        self.0.as_ref().map_or_else(tracing::Span::none, |span| {
            let cx = span.span_context();
            tracing::info_span!("home call", trace_id = %cx.trace_id(), span_id = %cx.span_id())
        })
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(span) = &mut self.0 {
            span.end();
        }
    }
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
