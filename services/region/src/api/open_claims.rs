//! The list of open claims, over all homes.

use std::time::Instant;

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use dedup_core::Topic;
use dedup_runtime::config::Role;
use dedup_store::{OpenAt, OpenState};
use uuid::Uuid;

use super::ok;
use crate::paging::{Cursor, bad_cursor};
use crate::problem::Problem;
use crate::query::{Params, parameter};
use crate::service::Service;
use crate::wire::{OpenClaimBody, OpenClaimsBody};

/// Calls to homes one page may cost: with few matches among many claims the page ends early and has a next one.
const CALLS_MAX: usize = 20;

/// Claims that are not done: key, group, attempt, owner, note, age, lease, fence. Homes one after the other, in the order of their table;
/// one that cannot be asked is named in `incomplete`. Claims that change while pages are read may be missed or seen as they were.
#[utoipa::path(get, path = "/v1/claims", tag = "operators",
    params(("topic" = Option<String>, Query, description = "of this topic; of all granted ones if absent"),
           ("state" = Option<String>, Query, description = "`in_progress`, `lapsed` or `released`; the first two if absent"),
           ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "100 if absent"),
           ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before")),
    responses((status = 200, body = OpenClaimsBody), (status = "4XX", description = "a caller's mistake (problem+json)"), (status = 503, description = "no topic is known yet (problem+json)")))]
pub async fn open_claims(request: HttpRequest, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Operate)?;
    let deadline = service.deadline_of(&request)?;
    let params = Params::read(&request, &["topic", "state", "limit", "cursor"])?;
    let states = match params.get("state") {
        None => vec![OpenState::InProgress, OpenState::Lapsed],
        Some(word) => vec![OpenState::parse(word).ok_or_else(|| parameter("state", "must be in_progress, lapsed or released"))?],
    };
    let limit = params.limit()?;
    let cursor = Cursor::parse(params.get("cursor"), service.ladder.table())?;
    let topics: Vec<Topic> = match params.get("topic") {
        Some(name) => vec![service.topic(&caller, name).await?.topic.clone()],
        None => service.ladder.topics().names_now().await.into_iter().filter(|topic| caller.may_use(topic)).collect(),
    };
    page(&service, &topics, &states, limit, cursor, deadline).await.map(|body| ok(&body))
}

async fn page(
    service: &Service,
    topics: &[Topic],
    states: &[OpenState],
    limit: usize,
    mut cursor: Cursor,
    deadline: Instant,
) -> Result<OpenClaimsBody, Problem> {
    let table = service.ladder.table();
    let mut claims = Vec::new();
    let mut calls = 0;
    let mut next_cursor = None;
    // The home the last page stopped in; those before it are through.
    let begun = table.iter().position(|(_, spec)| cursor.places.contains_key(&spec.name));
    let mut after = match begun.and_then(|at| cursor.places.values().next().map(|place| (at, place))) {
        Some((_, place)) => parse_place(place).ok_or_else(bad_cursor)?,
        None => OpenAt::START,
    };
    'homes: for (at, (id, spec)) in table.iter().enumerate() {
        if begun.is_some_and(|begun| at < begun) || cursor.skipped.contains(&spec.name) {
            continue;
        }
        loop {
            if claims.len() >= limit || calls >= CALLS_MAX {
                cursor.places = [(spec.name.clone(), place_text(after))].into();
                next_cursor = Some(cursor.to_text());
                break 'homes;
            }
            calls += 1;
            // A silent home must not take the time of the ones after it.
            let now = Instant::now();
            let homes_left = u32::try_from(table.len() - at).unwrap_or(1);
            let share = now + deadline.saturating_duration_since(now) / homes_left;
            let left = i32::try_from(limit - claims.len()).unwrap_or(i32::MAX);
            match service.ladder.open_claims(id, topics, states, after, left, share).await {
                Ok(found) => {
                    claims.extend(found.claims.into_iter().map(|claim| OpenClaimBody::new(&spec.name, claim)));
                    match found.next {
                        Some(next) => after = next,
                        None => break,
                    }
                }
                Err(_) => {
                    cursor.skipped.push(spec.name.clone());
                    break;
                }
            }
        }
        after = OpenAt::START;
    }
    Ok(OpenClaimsBody { claims, next_cursor, incomplete: cursor.skipped })
}

fn place_text(at: OpenAt) -> String {
    format!("{} {}", at.topic_id, at.digest.simple())
}

fn parse_place(text: &str) -> Option<OpenAt> {
    let (topic_id, digest) = text.split_once(' ')?;
    Some(OpenAt { topic_id: topic_id.parse().ok()?, digest: Uuid::try_parse(digest).ok()? })
}
