//! The OpenAPI 3.1 document, generated from the handlers and wire types.

use serde_json::{Value, json};
use utoipa::OpenApi;

use crate::api;
use crate::problem::Code;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "dedup",
        description = "Am I the first to handle this key? A decided question is 200 with a verdict; problems are application/problem+json."
    ),
    paths(
        api::check,
        api::check_batch,
        api::claim,
        api::claim_batch,
        api::complete,
        api::complete_batch,
        api::release,
        api::release_batch,
        api::extend,
        api::extend_batch,
        api::lookup,
        api::forget,
        api::forget_all,
        api::start_job,
        api::job,
        api::force_release,
        api::put,
        api::get,
        api::list,
        api::delete,
        api::open_claims,
        api::audit,
        api::stats,
        api::segments,
        api::regions,
        api::healthz,
        api::readyz,
        api::metrics,
    )
)]
struct Document;

/// The document as JSON.
pub fn openapi_json() -> String {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    add_headers(&mut document);
    add_problems(&mut document);
    add_security(&mut document);
    serde_json::to_string_pretty(&document).unwrap_or_else(|_| "{}".into())
}

/// Every answer that is not a success has one and the same body.
fn add_problems(document: &mut Value) {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    document["components"]["schemas"]["Problem"] = json!({
        "type": "object",
        "description": "RFC 9457. Some codes have members of their own.",
        "required": ["type", "title", "status", "code"],
        "properties": {
            "type": { "type": "string", "description": "where the problem is explained" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "code": { "type": "string", "enum": codes },
            "pointer": { "type": "string", "description": "JSON pointer to the field that is wrong" },
            "applied": { "type": "string", "enum": ["no", "unknown"], "description": "503: whether the call took effect" },
            "retry": { "type": "string", "enum": ["any", "same_request_id"], "description": "503: how to ask again" },
            "retry_after_ms": { "type": "integer", "description": "503: when to ask again, ms" },
        },
    });
    for responses in operations(document).filter_map(|operation| operation["responses"].as_object_mut()) {
        responses.entry("4XX").or_insert_with(|| json!({ "description": "a caller's mistake (problem+json)" }));
        for (status, response) in responses {
            if (status.starts_with('4') || status.starts_with('5')) && response.get("content").is_none() {
                response["content"] = json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
            }
        }
    }
}

/// A bearer token wherever callers are configured; without any the service is open to the loopback interface alone.
fn add_security(document: &mut Value) {
    document["components"]["securitySchemes"] = json!({ "bearer": { "type": "http", "scheme": "bearer" } });
    document["security"] = json!([{ "bearer": [] }, {}]);
}

/// Headers that handlers read by themselves.
fn add_headers(document: &mut Value) {
    let deadline = json!({ "name": "Dedup-Deadline-Ms", "in": "header", "required": false, "schema": { "type": "integer", "minimum": 1 },
        "description": "bounds the time the service may take for an answer, `wait_ms` included; given once" });
    let key = json!({ "name": "Idempotency-Key", "in": "header", "required": false, "schema": { "type": "string" },
        "description": "the key, raw or in quotes, where the body has none; given once" });
    for (path, methods) in document["paths"].as_object_mut().into_iter().flatten() {
        let question = path.ends_with("/checks") || path.ends_with("/claims") && path.contains("{topic}");
        let headers: Vec<Value> = [&deadline].into_iter().chain(question.then_some(&key)).cloned().collect();
        let asks_homes = path.starts_with("/v1/topics/{topic}/")
            || path.starts_with("/v1/claims")
            || ["/v1/segments", "/v1/audit", "/v1/jobs/{job}"].contains(&path.as_str());
        for operation in methods.as_object_mut().into_iter().flat_map(|methods| methods.values_mut()).filter(|_| asks_homes) {
            if let Some(responses) = operation["responses"].as_object_mut() {
                responses.entry("503").or_insert_with(|| json!({ "description": "cannot decide, or not in time (problem+json)" }));
            }
            match operation["parameters"].as_array_mut() {
                Some(parameters) => parameters.extend(headers.clone()),
                None => operation["parameters"] = headers.clone().into(),
            }
        }
    }
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    paths.filter_map(Value::as_object_mut).flat_map(|methods| methods.values_mut())
}
