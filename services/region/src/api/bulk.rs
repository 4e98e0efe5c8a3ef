//! Forgetting much at once: a whole topic or group, or what was first seen within a range of time.

use std::collections::BTreeMap;

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};
use dedup_runtime::config::Role;
use dedup_store::{JobSpec, JobStarted, JobView, Spread};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::opening::{Opened, open};
use super::topics::{applied, topics_problem};
use super::{json, ok};
use crate::parse::{check_reason, parse_group};
use crate::problem::{Code, Problem};
use crate::service::Service;
use crate::wire::{ForgetAllBody, ForgetAllRequest, ForgetJobBody, ForgetJobRequest, JobBody, JobInHome, time_text};

/// Regions and unheard instances as answers tell them.
pub fn spread_body(regions: Vec<Spread>) -> (BTreeMap<String, &'static str>, BTreeMap<String, Vec<String>>) {
    let (mut states, mut unheard) = (BTreeMap::new(), BTreeMap::new());
    for spread in regions {
        states.insert(spread.region.clone(), if spread.done { "done" } else { "pending" });
        if !spread.unheard.is_empty() {
            unheard.insert(spread.region, spread.unheard);
        }
    }
    (states, unheard)
}

/// Forgets all keys of a topic, or of one of its groups, at once, in every home and every cache. Claims that are open lose their leases. Audited.
#[utoipa::path(post, path = "/v1/topics/{topic}/records/forget-all", tag = "records", params(("topic" = String, Path,)), request_body = ForgetAllRequest,
    responses((status = 200, body = ForgetAllBody, description = "applied in all homes"), (status = 202, body = ForgetAllBody, description = "applied in some; the others are kept trying")))]
pub async fn forget_all(
    request: HttpRequest,
    path: Path<String>,
    payload: Payload,
    service: Data<Service>,
) -> Result<HttpResponse, Problem> {
    let Opened { caller, deadline, asked, policy } = open::<ForgetAllRequest>(&service, &request, payload, &path, Role::Operate).await?;
    let group = asked.group.as_deref().map(|group| parse_group(Some(group))).transpose()?;
    let reason = check_reason(&asked.reason)?;
    let group = group.as_ref().map(|g| g.as_str());
    let done = service.ladder.forget_all(&policy.topic, group, &caller.name, reason, deadline).await.map_err(|e| topics_problem(&e))?;
    let (regions, unheard) = spread_body(done.regions);
    let homes = applied(done.homes);
    let all = homes.values().all(|state| *state == "applied");
    let body = ForgetAllBody { generation: done.generation, homes, regions, unheard };
    Ok(json(if all { HttpResponse::Ok() } else { HttpResponse::Accepted() }, &body))
}

/// Has the janitors forget what was first seen within a range of time, or only count it. Of topics with `keep_key: always`, and of what is warm. Audited.
#[utoipa::path(post, path = "/v1/topics/{topic}/forget-jobs", tag = "records", params(("topic" = String, Path,)), request_body = ForgetJobRequest,
    responses((status = 202, body = ForgetJobBody, description = "queued; `GET /v1/jobs/{job_id}` tells how far it is"), (status = 409, description = "keys-not-kept (problem+json)")))]
pub async fn start_job(
    request: HttpRequest,
    path: Path<String>,
    payload: Payload,
    service: Data<Service>,
) -> Result<HttpResponse, Problem> {
    let Opened { caller, deadline, asked, policy } = open::<ForgetJobRequest>(&service, &request, payload, &path, Role::Operate).await?;
    let group = asked.group.as_deref().map(|group| parse_group(Some(group))).transpose()?;
    let reason = check_reason(&asked.reason)?;
    let id = match asked.job_id.as_deref() {
        None => Uuid::new_v4(),
        Some(text) => Uuid::try_parse(text).map_err(|_| Problem::field("/job_id", "must be a UUID"))?,
    };
    if asked.from.is_none() && asked.to.is_none() {
        return Err(Problem::field("/from", "is missing: give from, to or both (/records/forget-all forgets everything)"));
    }
    let from_ms = time_ms("/from", asked.from.as_deref())?.unwrap_or(i64::MIN);
    // Each home ends it at its own time of now, at the latest.
    let to_ms = time_ms("/to", asked.to.as_deref())?.unwrap_or(i64::MAX);
    if from_ms >= to_ms {
        return Err(Problem::field("/to", "must be after from"));
    }
    let group = group.map(|g| g.as_str().to_owned());
    let job = JobSpec { id, topic: policy.topic.clone(), group, from_ms, to_ms, dry_run: asked.dry_run };
    let started = service.ladder.start_job(&job, &caller.name, reason, deadline).await;
    if started.iter().any(|(_, s)| matches!(s, Ok(JobStarted::KeysNotKept))) {
        let detail = "records hold digests, so only a topic with keep_key \"always\" can be forgotten by time; /records/forget-all forgets all of it";
        return Err(Problem::new(Code::KeysNotKept, detail));
    }
    if let Some(refusal) = started.iter().find_map(|(_, s)| s.as_ref().err()).filter(|_| started.iter().all(|(_, s)| s.is_err())) {
        return Err(service.refused(&caller, &policy.topic, *refusal).with("job_id", id.to_string()));
    }
    let state = |s: Result<JobStarted, _>| if s.is_ok_and(|s| s == JobStarted::Queued) { "queued" } else { "unreached" };
    let homes = started.into_iter().map(|(home, s)| (home, state(s))).collect();
    Ok(json(HttpResponse::Accepted(), &ForgetJobBody { job_id: id.to_string(), homes }))
}

fn time_ms(pointer: &str, text: Option<&str>) -> Result<Option<i64>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let at = OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| Problem::field(pointer, "must be a time as of RFC 3339, like 2026-12-24T18:00:00Z"))?;
    Ok(Some(i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)))
}

/// How far a job is in each home.
#[utoipa::path(get, path = "/v1/jobs/{job}", tag = "records", params(("job" = String, Path, description = "a UUID")),
    responses((status = 200, body = JobBody), (status = 404, description = "job-not-found (problem+json)")))]
pub async fn job(request: HttpRequest, path: Path<String>, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Operate)?;
    let deadline = service.deadline_of(&request)?;
    let missing = || Problem::new(Code::JobNotFound, "no home that could be asked has such a job");
    let id = Uuid::try_parse(&path).map_err(|_| missing())?;
    let found = service.ladder.job(id, deadline).await;
    let spec = found.iter().find_map(|(_, j)| j.as_ref().ok().and_then(Option::as_ref)).map(|j| j.spec.clone());
    let spec = spec.filter(|spec| caller.may_use(&spec.topic)).ok_or_else(missing)?;
    let homes: BTreeMap<String, JobInHome> = found.into_iter().map(|(home, j)| (home, in_home(j))).collect();
    Ok(ok(&JobBody {
        job_id: id.to_string(),
        topic: spec.topic.to_string(),
        group: spec.group,
        from: if spec.from_ms == i64::MIN { None } else { time_text(spec.from_ms) },
        to: time_text(spec.to_ms),
        dry_run: spec.dry_run,
        done: homes.values().all(|h| h.state == "done"),
        homes,
    }))
}

fn in_home<E>(found: Result<Option<JobView>, E>) -> JobInHome {
    match found {
        Err(_) => JobInHome { state: "unreached".into(), ..JobInHome::default() },
        Ok(None) => JobInHome { state: "absent".into(), ..JobInHome::default() },
        Ok(Some(job)) => JobInHome {
            state: job.state,
            looked: Some(job.looked),
            matched: Some(job.matched),
            created_at: time_text(job.created_ms),
            changed_at: time_text(job.changed_ms),
        },
    }
}
