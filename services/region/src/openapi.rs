//! The OpenAPI 3.1 document, generated from the handlers and wire types.

use utoipa::OpenApi;

use crate::api;

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
    Document::openapi().to_pretty_json().unwrap_or_else(|_| "{}".into())
}
