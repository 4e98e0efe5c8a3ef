//! Completions, releases and extensions: by claim token alone.

use std::collections::HashSet;
use std::sync::Arc;

use actix_web::http::header::HeaderName;
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use base64::{Engine, prelude::BASE64_STANDARD};
use dedup_core::{ClaimToken, Limits, Op, Outcome, State, StoredResult, Tier, check_free_text};
use dedup_runtime::config::Role;
use dedup_store::{FinishAnswer, FinishOp};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::ok;
use crate::auth::Caller;
use crate::body;
use crate::metrics::Counted;
use crate::parse::{lease, text_problem};
use crate::problem::{Code, Problem};
use crate::service::Service;
use crate::wire::{
    CompleteBatch, CompleteRequest, EndBatchBody, EndItem, ExtendBatch, ExtendRequest, OutcomeWord, ReleaseBatch, ReleaseRequest,
    ResultRequest, SettledBody, time_text,
};

/// Ends a claim with its outcome and result. Repeating the same call is a success (`replayed`).
#[utoipa::path(post, path = "/v1/claims/complete", tag = "claims", request_body = CompleteRequest,
    responses((status = 200, body = SettledBody), (status = 409, description = "lease-lost or already-completed (problem+json)"), (status = 503, description = "cannot decide (problem+json)")))]
pub async fn complete(request: HttpRequest, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    single::<CompleteRequest>(&request, payload, &service).await
}

/// Gives a claim back after a failure: the next claim anywhere is `first`, before this call returns.
#[utoipa::path(post, path = "/v1/claims/release", tag = "claims", request_body = ReleaseRequest,
    responses((status = 200, body = SettledBody), (status = 409, description = "lease-lost (problem+json)"), (status = 503, description = "cannot decide (problem+json)")))]
pub async fn release(request: HttpRequest, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    single::<ReleaseRequest>(&request, payload, &service).await
}

/// Prolongs a lease, counted from now.
#[utoipa::path(post, path = "/v1/claims/extend", tag = "claims", request_body = ExtendRequest,
    responses((status = 200, body = SettledBody), (status = 409, description = "lease-lost (problem+json)"), (status = 503, description = "cannot decide (problem+json)")))]
pub async fn extend(request: HttpRequest, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    single::<ExtendRequest>(&request, payload, &service).await
}

/// Ends many claims.
#[utoipa::path(post, path = "/v1/claims/complete/batch", tag = "claims", request_body = CompleteBatch, responses((status = 200, body = EndBatchBody)))]
pub async fn complete_batch(request: HttpRequest, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    batch::<CompleteRequest, CompleteBatch>(&request, payload, &service, |b| b.items).await
}

/// Gives many claims back.
#[utoipa::path(post, path = "/v1/claims/release/batch", tag = "claims", request_body = ReleaseBatch, responses((status = 200, body = EndBatchBody)))]
pub async fn release_batch(request: HttpRequest, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    batch::<ReleaseRequest, ReleaseBatch>(&request, payload, &service, |b| b.items).await
}

/// Prolongs many leases.
#[utoipa::path(post, path = "/v1/claims/extend/batch", tag = "claims", request_body = ExtendBatch, responses((status = 200, body = EndBatchBody)))]
pub async fn extend_batch(request: HttpRequest, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    batch::<ExtendRequest, ExtendBatch>(&request, payload, &service, |b| b.items).await
}

/// One kind of end: how its wire form becomes an operation.
trait End: DeserializeOwned {
    const OP: Op;
    fn token(&self) -> &str;
    fn op(&self, limits: &Limits, lease_max_ms: i64) -> Result<FinishOp, Problem>;
}

impl End for CompleteRequest {
    const OP: Op = Op::Complete;

    fn token(&self) -> &str {
        &self.claim_token
    }

    fn op(&self, limits: &Limits, _: i64) -> Result<FinishOp, Problem> {
        let outcome = match self.outcome {
            OutcomeWord::Succeeded => Outcome::Succeeded,
            OutcomeWord::Failed => Outcome::Failed,
        };
        let whole = self.result.as_ref().map(|r| stored_result(&r.0)).transpose()?;
        let result_hash = whole.as_ref().map(StoredResult::hash);
        let result = whole.map(|mut result| {
            let headers: usize = self.result.as_ref().map_or(0, |r| r.0.headers.iter().map(|(k, v)| k.len() + v.len()).sum());
            let bytes = result.body.as_ref().map_or(0, Vec::len) + headers + result.media_type.as_ref().map_or(0, String::len);
            if bytes > limits.result_bytes {
                // At most once wins over replay: the record is done all the same.
                result = StoredResult {
                    status: result.status,
                    media_type: None,
                    headers: "{}".into(),
                    body: None,
                    omitted: true,
                    keep_until_ms: None,
                };
            }
            Arc::new(result)
        });
        Ok(FinishOp::Complete { outcome, result, result_hash })
    }
}

impl End for ReleaseRequest {
    const OP: Op = Op::Release;

    fn token(&self) -> &str {
        &self.claim_token
    }

    fn op(&self, limits: &Limits, _: i64) -> Result<FinishOp, Problem> {
        Ok(FinishOp::Release { note: note(self.note.as_deref(), limits)? })
    }
}

impl End for ExtendRequest {
    const OP: Op = Op::Extend;

    fn token(&self) -> &str {
        &self.claim_token
    }

    fn op(&self, limits: &Limits, lease_max_ms: i64) -> Result<FinishOp, Problem> {
        let lease_ms = self.lease_ms.map(|ms| lease(ms, limits.lease_ms_min, limits.lease_ms_max.min(lease_max_ms))).transpose()?;
        Ok(FinishOp::Extend { lease_ms, note: note(self.note.as_deref(), limits)? })
    }
}

fn note(text: Option<&str>, limits: &Limits) -> Result<Option<String>, Problem> {
    // A note may have line breaks; only what Postgres cannot hold is refused.
    if let Some(text) = text {
        let visible: String = text.chars().filter(|c| !matches!(c, '\n' | '\r' | '\t')).collect();
        check_free_text(&visible, limits.note_bytes).map_err(|e| text_problem("/note", &e))?;
        if text.len() > limits.note_bytes {
            return Err(Problem::field("/note", format_args!("must be at most {} bytes", limits.note_bytes)).with("max", limits.note_bytes));
        }
    }
    Ok(text.map(str::to_owned))
}

fn stored_result(result: &ResultRequest) -> Result<StoredResult, Problem> {
    let body = match (&result.body, &result.body_base64) {
        (Some(_), Some(_)) => return Err(Problem::field("/result/body_base64", "must not be given together with body")),
        (Some(text), None) => Some(text.clone().into_bytes()),
        (None, Some(text)) => {
            Some(BASE64_STANDARD.decode(text).map_err(|_| Problem::field("/result/body_base64", "is not standard base64"))?)
        }
        (None, None) => None,
    };
    if let Some(status) = result.status
        && !(100..=599).contains(&status)
    {
        return Err(Problem::range("/result/status", 100, 599));
    }
    let no_control = |pointer: &str, text: &str| {
        if text.chars().any(char::is_control) { Err(Problem::field(pointer, "must not contain control characters")) } else { Ok(()) }
    };
    if let Some(media) = &result.media_type {
        no_control("/result/media_type", media)?;
    }
    let mut names = HashSet::new();
    for (name, value) in &result.headers {
        // Whoever replays them writes them into an HTTP answer.
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Problem::field("/result/headers", "has a name that is no header field's (RFC 9110, section 5.6.2)"))?;
        if !names.insert(name) {
            return Err(Problem::field("/result/headers", "has one name twice; upper and lower case are the same"));
        }
        no_control("/result/headers", value)?;
    }
    let headers = serde_json::to_string(&result.headers).expect("a map of strings is JSON");
    Ok(StoredResult { status: result.status, media_type: result.media_type.clone(), headers, body, omitted: false, keep_until_ms: None })
}

/// Checks one item: its token, whether the caller may, and its fields.
fn parse<E: End>(service: &Service, caller: &Caller, item: &E) -> Result<(ClaimToken, FinishOp), Problem> {
    let ladder = &service.ladder;
    let token = ClaimToken::parse(item.token(), ladder.secret(), ladder.table()).map_err(|e| Problem::field("/claim_token", e))?;
    caller.needs_topic(&token.topic)?;
    let lease_max_ms = ladder.topics().known(&token.topic).map_or(service.limits.lease_ms_max, |p| p.lease_max_ms);
    let op = item.op(&service.limits, lease_max_ms)?;
    Ok((token, op))
}

async fn single<E: End>(request: &HttpRequest, payload: Payload, service: &Service) -> Result<HttpResponse, Problem> {
    let at = std::time::Instant::now();
    let caller = service.callers.identify(request)?;
    caller.needs(Role::Use)?;
    let deadline = service.deadline_of(request)?;
    let body = body::read(request, payload, service.limits.body_bytes).await?;
    let item: E = body::parse(&body, service.limits.json_depth)?;
    let (token, op) = parse(service, &caller, &item)?;
    let answer = service.ladder.finish(vec![(token.clone(), op.clone())], deadline).await.pop().expect("one end, one answer");
    service.decisions.took(E::OP, Tier::Warm, at.elapsed());
    shape(service, &token, &op, E::OP, answer).map(|body| ok(&body))
}

async fn batch<E: End, B: DeserializeOwned>(
    request: &HttpRequest,
    payload: Payload,
    service: &Service,
    items: impl FnOnce(B) -> Vec<Box<RawValue>>,
) -> Result<HttpResponse, Problem> {
    let at = std::time::Instant::now();
    let caller = service.callers.identify(request)?;
    caller.needs(Role::Use)?;
    let deadline = service.deadline_of(request)?;
    let body = body::read(request, payload, service.limits.body_bytes).await?;
    let items = items(body::parse::<B>(&body, service.limits.json_depth)?);
    let max = service.limits.batch_items;
    if items.len() > max {
        return Err(
            Problem::new(Code::BatchTooLarge, format!("a batch has at most {max} items, this one {}", items.len())).with("max", max)
        );
    }
    let parse_raw = |raw: &RawValue| parse::<E>(service, &caller, &body::parse(raw.get().as_bytes(), service.limits.json_depth)?);
    let parsed: Vec<Result<(ClaimToken, FinishOp), Problem>> = items.iter().map(|raw| parse_raw(raw)).collect();
    let asked = parsed.iter().flatten().cloned().collect();
    let mut answers = service.ladder.finish(asked, deadline).await.into_iter();
    service.decisions.took(E::OP, Tier::Warm, at.elapsed());
    let results = parsed
        .iter()
        .map(|item| {
            let shaped = match item {
                Ok((token, op)) => shape(service, token, op, E::OP, answers.next().expect("one end, one answer")),
                Err(problem) => Err(problem.clone()),
            };
            shaped.map_or_else(|problem| EndItem::Problem { problem: problem.to_json() }, EndItem::Settled)
        })
        .collect();
    Ok(ok(&EndBatchBody { results }))
}

fn shape(
    service: &Service,
    token: &ClaimToken,
    op: &FinishOp,
    counted_op: Op,
    answer: Result<FinishAnswer, dedup_store::Refusal>,
) -> Result<SettledBody, Problem> {
    let count = |counted| service.decisions.count(&token.topic, token.home, counted_op, counted, Tier::Warm);
    match answer {
        Err(refusal) => {
            let problem = Problem::refusal(refusal);
            service.decisions.count_undecided(&token.topic, token.home, counted_op, problem.code);
            Err(problem)
        }
        Ok(FinishAnswer::Applied { record, replayed, at_ms, .. }) => {
            count(if replayed { Counted::Replayed } else { Counted::Applied });
            let mut body = SettledBody {
                state: state_word(record.state),
                replayed,
                expires_at: time_text(record.expires_ms),
                ..SettledBody::default()
            };
            match op {
                FinishOp::Complete { result, .. } => {
                    let over = at_ms >= record.expires_ms;
                    body.remembered = over.then_some(false);
                    let stored = !over && record.result.as_ref().is_some_and(|r| !r.omitted);
                    body.result_stored = Some(stored);
                    let reason = |given: &Arc<StoredResult>| match (over, given.omitted) {
                        (true, _) => "window-ended",
                        (false, true) => "too-large",
                        (false, false) => "not-kept",
                    };
                    body.result_reason = result.as_ref().filter(|_| !stored).map(reason);
                }
                FinishOp::Extend { lease_ms, .. } => {
                    body.lease_expires_at = time_text(record.ends_ms);
                    body.lease_ms_left = Some((record.ends_ms - at_ms).max(0));
                    body.lease_cut = lease_ms.is_some_and(|asked| record.cuts(asked)).then_some(true);
                }
                FinishOp::Release { .. } => {}
            }
            Ok(body)
        }
        Ok(FinishAnswer::AlreadyCompleted { record }) => {
            count(Counted::AlreadyCompleted);
            let detail = "the claim was completed before with another outcome or result, which stands";
            Err(Problem::new(Code::AlreadyCompleted, detail)
                .with("state", "done")
                .with("outcome", record.outcome.as_str())
                .with("fence", record.fence.to_string()))
        }
        Ok(FinishAnswer::LeaseLost { record, forgotten }) => {
            count(Counted::LeaseLost);
            let detail = match &record {
                Some(record) if record.fence == token.fence && record.state == State::Done => {
                    "the claim is completed, so it can neither be released nor extended; nothing was changed"
                }
                Some(record) if record.fence == token.fence && record.state == State::Released => {
                    "the claim was given back, so it can neither be completed nor extended; nothing was changed"
                }
                Some(_) => "the fence of this token is not the current one; nothing was changed",
                None => "the key has no record any more; nothing was changed",
            };
            let problem = Problem::new(Code::LeaseLost, detail);
            Err(match record {
                Some(record) => {
                    problem.with("state", state_word(record.state)).with("attempt", record.attempt).with("fence", record.fence.to_string())
                }
                None => problem.with("state", if forgotten { "forgotten" } else { "expired" }),
            })
        }
    }
}

/// The word of a state.
pub(super) fn state_word(state: State) -> &'static str {
    match state {
        State::InProgress => "in_progress",
        State::InDoubt => "in_doubt",
        State::Done => "done",
        State::Released => "released",
        State::Issued => "issued",
    }
}
