//! Reading a record without claiming it, and forgetting one.

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};
use dedup_core::State;
use dedup_runtime::config::Role;
use dedup_store::Deed;

use super::bulk::spread_body;
use super::ends::state_word;
use super::ok;
use super::opening::{Opened, open};
use crate::parse::{check_reason, parse_group, parse_key};
use crate::problem::Problem;
use crate::service::Service;
use crate::wire::{CacheBody, ForgetBody, ForgetRequest, HomeBody, LookupBody, LookupRequest, RecordBody, ResultBody, time_text};

/// Explains a key: what each tier knows of it, and whether it would be believed. Changes nothing.
#[utoipa::path(post, path = "/v1/topics/{topic}/records/lookup", tag = "records", params(("topic" = String, Path,)), request_body = LookupRequest,
    responses((status = 200, body = LookupBody), (status = 503, description = "the home cannot be asked (problem+json)")))]
pub async fn lookup(request: HttpRequest, path: Path<String>, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let Opened { caller, deadline, asked, policy } = open::<LookupRequest>(&service, &request, payload, &path, Role::Use).await?;
    let ladder = &service.ladder;
    let key = parse_key(&asked.key, &service.limits, &policy, ladder.table())?;
    let group = parse_group(asked.group.as_deref())?;
    let refused = |refusal| service.refused(&caller, &policy.topic, refusal);
    let looked = ladder.lookup(&policy.topic, &group, &key, deadline).await.map_err(refused)?;
    let caches = looked.caches.into_iter().map(|report| CacheBody {
        tier: report.tier.as_str(),
        state: report.state,
        fence: report.record.map(|r| r.fence.to_string()),
    });
    // What the caches hold can be told without the home.
    let home = match looked.home {
        Ok(home) => home,
        Err(refusal) => return Err(refused(refusal).with("caches", serde_json::to_value(caches.collect::<Vec<_>>()).unwrap_or_default())),
    };
    let record = home.record.as_ref();
    let state = match record {
        None => "absent",
        Some(r) if home.home_ms >= r.present_until_ms() => "expired",
        Some(r) => state_word(r.state),
    };
    let archived = home.segment.as_ref().is_some_and(|(place, _)| *place < 0);
    let record = record.map(|r| RecordBody {
        segment: home.segment.as_ref().map(|(id, state)| place_text(*id, state)).unwrap_or_default(),
        fence: (!archived).then(|| r.fence.to_string()),
        attempt: (!archived).then_some(r.attempt),
        one_shot: (!archived).then_some(r.one_shot),
        first_seen_at: if archived { None } else { time_text(r.first_seen_ms) },
        first_seen_between: archived.then(|| [time_text(r.first_seen_ms), time_text(r.ends_ms)]),
        expires_at: time_text(r.expires_ms),
        ends_at: if archived { None } else { time_text(r.ends_ms) },
        outcome: (r.state == State::Done).then(|| r.outcome.as_str()),
        has_fingerprint: (!archived).then_some(r.fingerprint.is_some()),
        owner: home.owner.clone(),
        note: home.note.clone(),
        result: r.result.as_ref().filter(|x| !x.omitted).map(|x| ResultBody::new(x)),
    });
    Ok(ok(&LookupBody {
        key: key.as_str().to_owned(),
        group: group.as_str().to_owned(),
        home_region: ladder.table().get(key.home()).name.clone(),
        served_by: service.instance.clone(),
        caches: caches.collect(),
        home: HomeBody { state, at: time_text(home.home_ms), record },
    }))
}

/// Where a record lies: a segment's number, or minus an archive's.
fn place_text(place: i32, state: &str) -> String {
    if place < 0 { format!("archive {} ({state})", place.unsigned_abs()) } else { format!("{place} ({state})") }
}

/// Forgets a key in its home and, through the home's log, in the caches of every region. Audited.
#[utoipa::path(post, path = "/v1/topics/{topic}/records/forget", tag = "records", params(("topic" = String, Path,)), request_body = ForgetRequest,
    responses((status = 200, body = ForgetBody), (status = 503, description = "the home cannot be asked (problem+json)")))]
pub async fn forget(request: HttpRequest, path: Path<String>, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let Opened { caller, deadline, asked, policy } = open::<ForgetRequest>(&service, &request, payload, &path, Role::Operate).await?;
    let ladder = &service.ladder;
    let key = parse_key(&asked.key, &service.limits, &policy, ladder.table())?;
    let group = parse_group(asked.group.as_deref())?;
    let reason = check_reason(&asked.reason)?;
    let deed = Deed { actor: &caller.name, reason, topic: &policy.topic, group: &group };
    let forgotten = ladder.forget(&key, &deed, deadline).await.map_err(|refusal| service.refused(&caller, &policy.topic, refusal))?;
    let (regions, unheard) = spread_body(forgotten.regions);
    Ok(ok(&ForgetBody { removed: forgotten.removed, regions, unheard }))
}
