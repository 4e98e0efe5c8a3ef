//! Topics: the policy of their keys, in all homes.

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};
use dedup_core::{KeepKey, TopicPolicy, Window};
use dedup_runtime::config::Role;
use dedup_store::{PutTopic, TopicSpec, TopicsError};

use super::{json, ok};
use crate::body;
use crate::metrics::OTHER_TOPICS;
use crate::parse::{lease, parse_window};
use crate::problem::{Code, Problem};
use crate::service::{Service, parse_topic};
use crate::wire::{TopicBody, TopicDeletedBody, TopicPut, TopicPutBody, TopicsBody};

const LEASE_MS: u64 = 30_000;

/// Creates a topic or changes its policy, in every home. Records that exist keep what they were promised.
#[utoipa::path(put, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = String, Path,), ("If-Match" = Option<String>, Header, description = "only if this is the version now")), request_body = TopicPut,
    responses((status = 200, body = TopicPutBody, description = "applied in all homes"), (status = 202, body = TopicPutBody, description = "applied in some; the others are kept trying"), (status = 503, description = "no home could be reached (problem+json)")))]
pub async fn put(request: HttpRequest, path: Path<String>, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Admin)?;
    let deadline = service.deadline_of(&request)?;
    let asked: TopicPut = body::parse(&body::read(&request, payload, service.limits.body_bytes).await?, service.limits.json_depth)?;
    let topic = parse_topic(&path)?;
    if topic.as_str() == OTHER_TOPICS {
        return Err(Problem::field("/topic", format_args!("must not be {OTHER_TOPICS:?}: metrics call so the topics beyond topics_max")));
    }
    caller.needs_topic(&topic)?;
    let spec = spec(&service, &asked)?;
    let if_version = if_match(&request)?;
    let done =
        service.ladder.topics().put(PutTopic { topic: topic.clone(), spec, if_version }, deadline).await.map_err(|e| topics_problem(&e))?;
    service.decisions.know(&topic);
    let body = TopicPutBody { version: done.policy.version, homes: applied(done.homes) };
    let all = body.homes.values().all(|h| *h == "applied");
    Ok(json(if all { HttpResponse::Ok() } else { HttpResponse::Accepted() }, &body))
}

fn spec(service: &Service, asked: &TopicPut) -> Result<TopicSpec, Problem> {
    let limits = &service.limits;
    let at = |pointer: &'static str| {
        move |mut p: Problem| {
            p.more.insert("pointer".into(), pointer.into());
            p
        }
    };
    let window = parse_window(asked.window_ms, limits)?;
    let lease_max_ms = match asked.lease_max_ms {
        Some(ms) => lease(ms, limits.lease_ms_min, limits.lease_ms_max)
            .map_err(|_| Problem::range("/lease_max_ms", limits.lease_ms_min, limits.lease_ms_max))?,
        None => limits.lease_ms_max,
    };
    let lease_ms = lease(asked.lease_ms.unwrap_or(LEASE_MS.min(lease_max_ms.unsigned_abs())), limits.lease_ms_min, lease_max_ms)
        .map_err(at("/lease_ms"))?;
    let keep_key = match asked.keep_key.as_deref() {
        None => KeepKey::Open,
        Some(word) => KeepKey::parse(word).ok_or_else(|| Problem::field("/keep_key", "must be open, always or never"))?,
    };
    if let Some(prefix) = &asked.default_region {
        let table = service.ladder.table();
        if table.home_of(prefix).is_err() {
            let known: Vec<&str> = table.known_prefixes();
            return Err(Problem::new(Code::UnknownRegion, "default_region is no known prefix")
                .with("pointer", "/default_region")
                .with("known", known));
        }
    }
    let keep_results_ms = match (asked.keep_results_ms, window) {
        (None, _) => None,
        (Some(ms), window) => {
            let most = if let Window::Ms(ms) = window { ms } else { limits.window_ms_max };
            let ms = i64::try_from(ms).ok().filter(|ms| *ms <= most);
            Some(ms.ok_or_else(|| Problem::range("/keep_results_ms", 0, most))?)
        }
    };
    Ok(TopicSpec { window, lease_ms, lease_max_ms, keep_key, default_region: asked.default_region.clone(), keep_results_ms })
}

/// One topic.
#[utoipa::path(get, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = String, Path,)), responses((status = 200, body = TopicBody), (status = 404, description = "topic-not-found (problem+json)")))]
pub async fn get(request: HttpRequest, path: Path<String>, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Use)?;
    let policy = service.topic(&caller, &path).await?;
    let body = shape(&policy, service.ladder.topics().versions(&policy.topic));
    let mut response = HttpResponse::Ok();
    response.insert_header(("ETag", format!("\"{}\"", policy.version)));
    Ok(json(response, &body))
}

/// All topics granted to the caller.
#[utoipa::path(get, path = "/v1/topics", tag = "topics", responses((status = 200, body = TopicsBody)))]
pub async fn list(request: HttpRequest, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Use)?;
    let topics = service.ladder.topics().list().await;
    Ok(ok(&TopicsBody {
        topics: topics.into_iter().filter(|(p, _)| caller.may_use(&p.topic)).map(|(p, homes)| shape(&p, homes)).collect(),
    }))
}

/// Deletes a topic whose records are all past their windows.
#[utoipa::path(delete, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = String, Path,)), responses((status = 200, body = TopicDeletedBody), (status = 409, description = "topic-in-use (problem+json)")))]
pub async fn delete(request: HttpRequest, path: Path<String>, service: Data<Service>) -> Result<HttpResponse, Problem> {
    let caller = service.callers.identify(&request)?;
    caller.needs(Role::Admin)?;
    let deadline = service.deadline_of(&request)?;
    let policy = service.topic(&caller, &path).await?;
    let if_version = if_match(&request)?;
    let done = service.ladder.topics().delete(&policy.topic, if_version, deadline).await.map_err(|e| match e {
        TopicsError::NotFound => caller.missing_topic(&policy.topic),
        other => topics_problem(&other),
    })?;
    Ok(ok(&TopicDeletedBody { version: done.version, homes: applied(done.homes) }))
}

/// Per home `applied`, or `pending`: kept trying.
pub(super) fn applied(homes: Vec<(String, bool)>) -> std::collections::BTreeMap<String, &'static str> {
    homes.into_iter().map(|(home, done)| (home, if done { "applied" } else { "pending" })).collect()
}

/// `If-Match: "3"` or `3`; `*` means any.
fn if_match(request: &HttpRequest) -> Result<Option<i64>, Problem> {
    let Some(value) = request.headers().get("if-match") else { return Ok(None) };
    let text = value.to_str().unwrap_or("?").trim();
    if text == "*" {
        return Ok(None);
    }
    let version = text.trim_start_matches("W/").trim_matches('"').parse().ok();
    version.map(Some).ok_or_else(|| Problem::new(Code::InvalidField, "the header If-Match must be a version number"))
}

pub(super) fn topics_problem(error: &TopicsError) -> Problem {
    match error {
        TopicsError::NotFound => Problem::new(Code::TopicNotFound, "there is no such topic"),
        TopicsError::VersionDiffers { current } => {
            Problem::new(Code::VersionDiffers, format!("the version is {current}")).with("version", *current)
        }
        TopicsError::InUse { homes } => {
            Problem::new(Code::TopicInUse, "its records are not all past their windows").with("homes", homes.clone())
        }
        TopicsError::TooManyGroups => Problem::field("/group", error.to_string() + ": forget the whole topic"),
        TopicsError::Refused(refusal) => Problem::refusal(*refusal),
    }
}

fn shape(policy: &TopicPolicy, homes: Vec<(String, i64)>) -> TopicBody {
    TopicBody {
        topic: policy.topic.to_string(),
        version: policy.version,
        window_ms: match policy.window {
            Window::Ms(ms) => ms.into(),
            Window::Forever => "forever".into(),
        },
        lease_ms: policy.lease_ms,
        lease_max_ms: policy.lease_max_ms,
        keep_key: policy.keep_key.as_str(),
        default_region: policy.default_region.clone(),
        keep_results_ms: policy.keep_results_ms,
        homes: homes.into_iter().collect(),
    }
}
