//! What is not about keys: health, metrics, documents, regions.

use actix_web::http::header::ContentType;
use actix_web::web::{self, Data, Path};
use actix_web::{HttpRequest, HttpResponse};
use dedup_runtime::config::Role;
use serde_json::{Value, json};

use super::{json as respond, ok};
use crate::problem::{Code, Problem};
use crate::problem_pages;
use crate::service::{Phase, Service};

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "alive")))]
pub async fn healthz() -> HttpResponse {
    ok(&json!({ "status": "alive" }))
}

/// The process takes questions; the body says how each home and tier is. 503 only while starting or draining.
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Object, description = "takes questions"), (status = 503, body = Object, description = "starting or draining")))]
pub async fn readyz(service: Data<Service>) -> HttpResponse {
    let (status, word) = match service.phase() {
        Phase::Starting => (HttpResponse::ServiceUnavailable(), "starting"),
        Phase::Serving => (HttpResponse::Ok(), "ready"),
        Phase::Draining => (HttpResponse::ServiceUnavailable(), "draining"),
    };
    respond(
        status,
        &json!({ "status": word, "region": service.region, "instance": service.instance, "homes": homes(&service, false), "tiers": tiers(&service) }),
    )
}

/// Health of every home and tier, with why and since when.
#[utoipa::path(get, path = "/v1/regions", tag = "operators", responses((status = 200, description = "homes and tiers")))]
pub async fn regions(request: HttpRequest, service: Data<Service>) -> Result<HttpResponse, Problem> {
    service.callers.identify(&request)?.needs(Role::Operate)?;
    Ok(ok(&json!({ "region": service.region, "instance": service.instance, "homes": homes(&service, true), "tiers": tiers(&service) })))
}

fn homes(service: &Service, why: bool) -> Value {
    let table = service.ladder.table();
    let homes = service.ladder.homes().health().into_iter().zip(table.iter()).map(|(health, (_, spec))| {
        let mut home = json!({
            "name": health.name,
            "region": spec.region,
            "prefixes": spec.prefixes,
            "state": if health.up { "up" } else { "down" },
            "since_ms": u64::try_from(health.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            "queued": health.queued,
            "filters_loaded": health.filters.0,
            "filter_bytes": health.filters.1,
            "round_trip_ms": health.round_trip.map(|d| d.as_secs_f64() * 1000.0),
        });
        // The reason may name hosts: for operators, not for everybody who may ask for readiness.
        if let (true, Some(text), Value::Object(members)) = (why, health.why, &mut home) {
            members.insert("why".into(), text.into());
        }
        home
    });
    Value::Array(homes.collect())
}

fn tiers(service: &Service) -> Value {
    let local = service
        .ladder
        .local()
        .health()
        .map_or_else(|| json!({ "state": "off" }), |h| json!({ "state": "up", "entries": h.entries, "bytes": h.bytes }));
    let hot = service.ladder.hot().map_or("off", |h| if h.health().up { "up" } else { "down" });
    json!({ "local": local, "hot": { "state": hot } })
}

/// Prometheus text.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, content_type = "text/plain")))]
pub async fn metrics(request: HttpRequest, service: Data<Service>) -> Result<HttpResponse, Problem> {
    if !service.metrics_on {
        return Err(Problem::new(Code::NotFound, "metrics are switched off (telemetry.prometheus)"));
    }
    if !service.metrics_open {
        service.callers.identify(&request)?.needs(Role::Operate)?;
    }
    // Thousands of series take some 20 ms, for which this worker's questions shall not wait.
    let rendered = web::block(move || {
        for topic in service.ladder.topics().names() {
            service.decisions.know(&topic);
        }
        service.metrics.render().map_err(|error| error.to_string())
    });
    let text = rendered.await.map_err(|error| error.to_string()).flatten().map_err(|error| {
        tracing::error!(error, "metrics could not be written");
        Problem::new(Code::Internal, "metrics could not be written")
    })?;
    Ok(HttpResponse::Ok().content_type(dedup_runtime::metrics::CONTENT_TYPE).body(text))
}

/// One problem explained.
pub async fn problem(path: Path<String>) -> Result<HttpResponse, Problem> {
    let code =
        Code::ALL.iter().find(|c| c.as_str() == path.as_str()).ok_or_else(|| Problem::new(Code::NotFound, "there is no such problem"))?;
    Ok(HttpResponse::Ok().content_type(ContentType::html()).body(problem_pages::page(*code)))
}

/// All problems.
pub async fn problems() -> HttpResponse {
    let list: Vec<Value> = Code::ALL
        .iter()
        .map(|c| json!({ "code": c.as_str(), "status": c.status(), "title": c.title(), "advice": problem_pages::advice(*c) }))
        .collect();
    ok(&json!({ "problems": list }))
}

/// No such path, or not with this method.
pub async fn not_found() -> Result<HttpResponse, Problem> {
    Err(Problem::new(Code::NotFound, "there is nothing at this path; see /docs"))
}
