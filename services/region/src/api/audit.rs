//! The trace of what operators did, over all homes.

use std::time::Instant;

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use dedup_core::{HomeId, Topic};
use dedup_runtime::config::Role;
use dedup_store::AuditEntry;
use futures_util::future::join_all;

use super::ok;
use crate::auth::Caller;
use crate::paging::{Cursor, bad_cursor};
use crate::problem::Problem;
use crate::query::{Params, parameter};
use crate::service::Service;
use crate::wire::{AuditBody, DeedBody};

/// Forgets and forced releases of all homes, newest first: who, what, why. The key is not kept, so that what was forgotten stays forgotten.
#[utoipa::path(get, path = "/v1/audit", tag = "operators",
    params(("topic" = Option<String>, Query, description = "of this topic, deleted ones too; of all granted ones if absent"),
           ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "100 if absent"),
           ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before")),
    responses((status = 200, body = AuditBody), (status = "4XX", description = "a caller's mistake (problem+json)")))]
pub async fn audit(request: HttpRequest, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Operate)?;
    let deadline = service.deadline_of(&request)?;
    let params = Params::read(&request, &["topic", "limit", "cursor"])?;
    let topic = params.get("topic").map(|name| Topic::parse(name).map_err(|e| parameter("topic", e))).transpose()?;
    if let Some(topic) = &topic {
        caller.needs_topic(topic)?;
    }
    let limit = params.limit()?;
    let cursor = Cursor::parse(params.get("cursor"), service.ladder.table())?;
    page(&service, &caller, topic.as_ref(), limit, cursor, deadline).await.map(|body| ok(&body))
}

async fn page(
    service: &Service,
    caller: &Caller,
    topic: Option<&Topic>,
    limit: usize,
    mut cursor: Cursor,
    deadline: Instant,
) -> Result<AuditBody, Problem> {
    let table = service.ladder.table();
    let mut asking = Vec::new();
    for (id, spec) in table.iter().filter(|(_, spec)| !cursor.skipped.contains(&spec.name)) {
        let before = match cursor.places.get(&spec.name) {
            Some(place) => place.parse::<i64>().ok().filter(|before| *before > 0).ok_or_else(bad_cursor)?,
            None => i64::MAX,
        };
        asking.push((id, spec.name.as_str(), before));
    }
    // One more than needed tells whether there is a next page.
    let most = i32::try_from(limit + 1).unwrap_or(i32::MAX);
    let asked = asking.iter().map(|(id, _, before)| service.ladder.audit(*id, topic, *before, most, deadline));
    let mut merged: Vec<(HomeId, &str, AuditEntry)> = Vec::new();
    for ((id, name, before), found) in asking.iter().zip(join_all(asked).await) {
        cursor.places.insert((*name).to_owned(), before.to_string());
        match found {
            Ok(entries) => merged.extend(entries.into_iter().map(|entry| (*id, *name, entry))),
            Err(_) => {
                cursor.places.remove(*name);
                cursor.skipped.push((*name).to_owned());
            }
        }
    }
    // Within a home the number decides, for its clock may have been set back: each home's part is in order already, and sorting is stable.
    merged.sort_by_key(|(_, _, entry)| std::cmp::Reverse(entry.at_ms));
    let more = merged.len() > limit;
    merged.truncate(limit);
    for (_, name, entry) in &merged {
        if let Some(place) = cursor.places.get_mut(*name) {
            let lowest = place.parse().unwrap_or(i64::MAX).min(entry.id);
            *place = lowest.to_string();
        }
    }
    let next_cursor = more.then(|| cursor.to_text());
    let granted = |topic: &str| Topic::parse(topic).is_ok_and(|topic| caller.may_use(&topic));
    let entries = merged.into_iter().filter(|(_, _, e)| granted(&e.topic)).map(|(_, name, entry)| DeedBody::new(name, entry)).collect();
    Ok(AuditBody { entries, next_cursor, incomplete: cursor.skipped })
}
