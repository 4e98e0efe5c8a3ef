//! What this instance has answered since its start.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use dedup_runtime::config::Role;

use super::ok;
use crate::problem::Problem;
use crate::query::Params;
use crate::service::Service;
use crate::wire::{StatsBody, TallyBody};

/// Counts and duplicate rate of checks and claims per home and topic, of this instance since its start. Metrics have the same over time.
#[utoipa::path(get, path = "/v1/stats", tag = "operators", responses((status = 200, body = StatsBody), (status = "4XX", description = "a caller's mistake (problem+json)")))]
pub async fn stats(request: HttpRequest, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Operate)?;
    Params::read(&request, &[])?;
    let tallies = service.decisions.tallies().into_iter().filter(|tally| caller.may_use(&tally.topic));
    let stats = tallies.map(|tally| TallyBody {
        home_region: service.ladder.table().get(tally.home).name.clone(),
        duplicate_rate: tally.duplicate_rate(),
        topic: tally.topic.to_string(),
        first: tally.first,
        duplicate: tally.duplicate,
        in_progress: tally.in_progress,
        mismatch: tally.mismatch,
        replayed: tally.replayed,
        undecided: tally.undecided,
    });
    Ok(ok(&StatsBody {
        region: service.region.clone(),
        instance: service.instance.clone(),
        since_ms: u64::try_from(service.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        stats: stats.collect(),
    }))
}
