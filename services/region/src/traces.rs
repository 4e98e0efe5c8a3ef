//! What every request passes: its answer is counted, and where it is traced, its work belongs to a span.
//!
//! A request that is not traced pays for one look at its headers.

use actix_web::Error;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::web::Data;
use dedup_runtime::traces;
use opentelemetry::propagation::Extractor;
use opentelemetry::trace::{FutureExt as _, Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use tracing::Instrument;

use crate::service::Service;

/// The answer's header by which a caller finds the trace; the same form as the request's.
const TRACEPARENT: &str = "traceparent";

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// What is known of a request before it is answered.
pub struct Begun {
    /// It asks something, rather than for health or metrics.
    counts: bool,
    trace: Option<(Context, Method)>,
}

impl Begun {
    /// Looks at a request's head.
    pub fn new(request: &ServiceRequest, service: &Service) -> Self {
        let counts = request.path().starts_with("/v1/");
        let traces = service.traces.as_ref().filter(|_| counts);
        let cx = traces.and_then(|traces| traces.begin(&Headers(request.headers()), "request"));
        Self { counts, trace: cx.map(|cx| (cx, request.method().clone())) }
    }

    /// Has it answered.
    pub async fn answer<B>(self, service: Data<Service>, answer: impl Answering<B>) -> Result<ServiceResponse<B>, Error> {
        let answered = match self.trace {
            None => answer.await,
            Some((cx, method)) => traced(cx, &method, answer).await,
        };
        if let (true, Ok(response)) = (self.counts, &answered) {
            service.decisions.responded(response.status().as_u16());
        }
        answered
    }
}

/// An answer under way.
pub trait Answering<B>: Future<Output = Result<ServiceResponse<B>, Error>> {}

impl<B, F: Future<Output = Result<ServiceResponse<B>, Error>>> Answering<B> for F {}

async fn traced<B>(cx: Context, method: &Method, answer: impl Answering<B>) -> Result<ServiceResponse<B>, Error> {
    let span = cx.span().span_context().clone();
    let log = tracing::info_span!("request", trace_id = %span.trace_id(), span_id = %span.span_id());
    let mut answered = answer.with_context(cx.clone()).instrument(log).await;
    let span = cx.span();
    match &mut answered {
        Ok(response) => {
            // The route's pattern, not the path: that has a topic in it, which may be made up.
            let route = response.request().match_pattern().unwrap_or_else(|| "unknown".to_owned());
            span.update_name(format!("{method} {route}"));
            span.set_attribute(KeyValue::new("http.route", route));
            let status = response.status();
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
            if status.is_server_error() {
                span.set_status(Status::error("not decided"));
            }
            if let Some(value) = traces::traceparent(&cx).and_then(|text| HeaderValue::from_str(&text).ok()) {
                response.headers_mut().insert(HeaderName::from_static(TRACEPARENT), value);
            }
        }
        Err(_) => span.set_status(Status::error("no answer")),
    }
    span.set_attribute(KeyValue::new("http.request.method", method.as_str().to_owned()));
    span.set_attribute(KeyValue::new("url.scheme", "http"));
    span.end();
    answered
}

/// Notes on the current request's span what was asked, if it is traced. Only topics that exist get here.
pub fn note(topic: &str, op: &'static str, items: usize) {
    if traces::is_traced() {
        traces::note([
            KeyValue::new("dedup.topic", topic.to_owned()),
            KeyValue::new("dedup.op", op),
            KeyValue::new("dedup.items", i64::try_from(items).unwrap_or(i64::MAX)),
        ]);
    }
}
