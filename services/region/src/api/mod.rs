//! Handlers: each reads a request, asks the ladder, shapes an answer.

mod audit;
mod bulk;
mod docs;
mod ends;
mod force_release;
mod meta;
mod open_claims;
mod opening;
mod questions;
mod records;
mod segments;
mod stats;
mod topics;

pub use audit::{__path_audit, audit};
pub use bulk::{__path_forget_all, __path_job, __path_start_job, forget_all, job, start_job};
pub use docs::{docs, openapi, page};
pub use ends::{__path_complete, __path_complete_batch, __path_extend, __path_extend_batch, __path_release, __path_release_batch};
pub use ends::{complete, complete_batch, extend, extend_batch, release, release_batch};
pub use force_release::{__path_force_release, force_release};
pub use meta::{__path_healthz, __path_metrics, __path_readyz, __path_regions};
pub use meta::{healthz, metrics, not_found, problem, problems, readyz, regions};
pub use open_claims::{__path_open_claims, open_claims};
pub use questions::{__path_check, __path_check_batch, __path_claim, __path_claim_batch};
pub use questions::{check, check_batch, claim, claim_batch};
pub use records::{__path_forget, __path_lookup};
pub use records::{forget, lookup};
pub use segments::{__path_segments, segments};
pub use stats::{__path_stats, stats};
pub use topics::{__path_delete, __path_get, __path_list, __path_put};
pub use topics::{delete, get, list, put};

use actix_web::HttpResponse;
use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

/// 200 with a JSON body.
fn ok(body: &impl Serialize) -> HttpResponse {
    json(HttpResponse::Ok(), body)
}

fn json(mut response: actix_web::HttpResponseBuilder, body: &impl Serialize) -> HttpResponse {
    // Room for the answer to a single question.
    let mut bytes = Vec::with_capacity(512);
    match serde_json::to_writer(&mut bytes, body) {
        Ok(()) => response.insert_header((CONTENT_TYPE, HeaderValue::from_static("application/json"))).body(bytes),
        Err(error) => {
            tracing::error!(error = %error, "an answer could not be written");
            HttpResponse::InternalServerError().finish()
        }
    }
}
