//! Segments and archives of every home.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use dedup_runtime::config::Role;

use super::ok;
use crate::problem::Problem;
use crate::query::Params;
use crate::service::Service;
use crate::wire::{SegmentBody, SegmentsBody};

/// Segments and archives of every home: state, from and to, keys, bytes, filter, and whether this instance has the filter loaded.
#[utoipa::path(get, path = "/v1/segments", tag = "operators", responses((status = 200, body = SegmentsBody), (status = "4XX", description = "a caller's mistake (problem+json)")))]
pub async fn segments(request: HttpRequest, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Operate)?;
    Params::read(&request, &[])?;
    let deadline = service.deadline_of(&request)?;
    let mut body = SegmentsBody { segments: Vec::new(), incomplete: Vec::new() };
    for (home, found) in service.ladder.homes().segments(deadline).await {
        match found {
            Ok(found) => body.segments.extend(found.into_iter().map(|(segment, loaded)| SegmentBody::new(&home, &segment, loaded))),
            Err(_) => body.incomplete.push(home),
        }
    }
    Ok(ok(&body))
}
