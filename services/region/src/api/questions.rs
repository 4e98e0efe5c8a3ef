//! Checks and claims, single and in batches.

use std::time::{Duration, Instant};

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};
use dedup_core::{ClaimToken, HomeId, Op, Tier, TopicPolicy, Verdict};
use dedup_runtime::config::Role;
use dedup_store::{Answer, Query, Refusal};
use serde::Deserialize;
use serde_json::Value;

use super::ok;
use crate::auth::Caller;
use crate::body;
use crate::fold;
use crate::parse::{Parser, Question, header_key, parse_group, parse_window};
use crate::problem::{Code, Problem};
use crate::service::Service;
use crate::traces;
use crate::wire::{AnswerBody, Asked, BatchBody, BatchItem, CheckBatch, CheckItem, ClaimBatch, ClaimItem, Counts, Detail, WindowWord};

/// Stored results of one batch answer, in sum; beyond that `result_omitted`.
const BATCH_RESULT_BYTES: usize = 1 << 20;

/// One-shot check: "am I the first?" Marks the key done at once.
///
/// When the worker dies after a `first` and before its effect, the message is lost: at most once.
#[utoipa::path(post, path = "/v1/topics/{topic}/checks", tag = "questions", params(("topic" = String, Path,)), request_body = CheckItem,
    responses((status = 200, body = AnswerBody), (status = "4XX", description = "a caller's mistake (problem+json)"), (status = 503, description = "cannot decide (problem+json)")))]
pub async fn check(request: HttpRequest, path: Path<String>, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    single::<Checks>(&request, &path, payload, &service).await
}

/// Claim: `first` comes with a claim token and a lease; then work, then complete (or release).
///
/// When the worker dies, the message is redone after the lease: at least once, one owner at a time.
#[utoipa::path(post, path = "/v1/topics/{topic}/claims", tag = "questions", params(("topic" = String, Path,)), request_body = ClaimItem,
    responses((status = 200, body = AnswerBody), (status = "4XX", description = "a caller's mistake (problem+json)"), (status = 503, description = "cannot decide (problem+json)")))]
pub async fn claim(request: HttpRequest, path: Path<String>, payload: Payload, service: Data<Service>) -> Result<HttpResponse, Problem> {
    single::<Claims>(&request, &path, payload, &service).await
}

/// Many checks of one topic, homes mixed; answers in request order.
#[utoipa::path(post, path = "/v1/topics/{topic}/checks/batch", tag = "questions", params(("topic" = String, Path,)), request_body = CheckBatch,
    responses((status = 200, body = BatchBody), (status = "4XX", description = "a caller's mistake (problem+json)")))]
pub async fn check_batch(
    request: HttpRequest,
    path: Path<String>,
    payload: Payload,
    service: Data<Service>,
) -> Result<HttpResponse, Problem> {
    let begun = Begun::new(&request, payload, &service).await?;
    let batch: CheckBatch<'_> = body::parse(&begun.body, service.limits.json_depth)?;
    let items = body::parse_items::<CheckItem<'_>>(batch.items, service.limits.json_depth)?;
    let policy = begun.topic(&service, &path, items.len()).await?;
    let parser = begun.batch_parser(&request, &service, &policy, batch.group.as_deref(), batch.window_ms)?;
    let parsed = items.iter().map(|item| parser.check(item.as_ref().map_err(Problem::clone)?)).collect();
    Ok(begun.answer_batch(&service, &policy, Op::Check, batch.detail, parsed).await)
}

/// Many claims of one topic, homes mixed; answers in request order.
#[utoipa::path(post, path = "/v1/topics/{topic}/claims/batch", tag = "questions", params(("topic" = String, Path,)), request_body = ClaimBatch,
    responses((status = 200, body = BatchBody), (status = "4XX", description = "a caller's mistake (problem+json)")))]
pub async fn claim_batch(
    request: HttpRequest,
    path: Path<String>,
    payload: Payload,
    service: Data<Service>,
) -> Result<HttpResponse, Problem> {
    let begun = Begun::new(&request, payload, &service).await?;
    let batch: ClaimBatch<'_> = body::parse(&begun.body, service.limits.json_depth)?;
    let mut items = body::parse_items::<ClaimItem<'_>>(batch.items, service.limits.json_depth)?;
    let policy = begun.topic(&service, &path, items.len()).await?;
    let parser = begun.batch_parser(&request, &service, &policy, batch.group.as_deref(), batch.window_ms)?;
    for item in items.iter_mut().flatten() {
        item.owner = item.owner.take().or_else(|| batch.owner.clone());
        item.lease_ms = item.lease_ms.or(batch.lease_ms);
    }
    let parsed = items.iter().map(|item| match item {
        Ok(item) if item.wait_ms.is_some() => Err(Problem::field("/wait_ms", "is for single claims")),
        Ok(item) => parser.claim(item),
        Err(problem) => Err(problem.clone()),
    });
    let parsed = parsed.collect();
    Ok(begun.answer_batch(&service, &policy, Op::Claim, batch.detail, parsed).await)
}

/// A request whose caller and body are known.
struct Begun {
    at: Instant,
    deadline: Instant,
    caller: Caller,
    body: actix_web::web::BytesMut,
}

impl Begun {
    async fn new(request: &HttpRequest, payload: Payload, service: &Service) -> Result<Self, Problem> {
        let at = Instant::now();
        let caller = service.callers.identify(request)?;
        caller.needs(Role::Use)?;
        let deadline = at + service.time_of(request)?;
        let body = body::read(request, payload, service.limits.body_bytes).await?;
        Ok(Self { at, deadline, caller, body })
    }

    async fn topic(&self, service: &Service, name: &str, items: usize) -> Result<std::sync::Arc<TopicPolicy>, Problem> {
        if items > service.limits.batch_items {
            let max = service.limits.batch_items;
            return Err(Problem::new(Code::BatchTooLarge, format!("a batch has at most {max} items, this one {items}")).with("max", max));
        }
        service.topic(&self.caller, name).await
    }

    fn parser<'a>(&self, service: &'a Service, policy: &'a TopicPolicy) -> Parser<'a> {
        Parser { ladder: &service.ladder, limits: &service.limits, policy, header_key: None, group: None, window: None }
    }

    /// The parser of a batch: what is common to its items is checked once, as the request's own mistake.
    fn batch_parser<'a>(
        &self,
        request: &HttpRequest,
        service: &'a Service,
        policy: &'a TopicPolicy,
        group: Option<&'a str>,
        window: Option<WindowWord>,
    ) -> Result<Parser<'a>, Problem> {
        if request.headers().contains_key("idempotency-key") {
            return Err(Problem::new(Code::InvalidField, "the header Idempotency-Key is for single calls; name the keys in the items"));
        }
        parse_group(group)?;
        window.map(|w| parse_window(w, &service.limits)).transpose()?;
        Ok(Parser { group, window, ..self.parser(service, policy) })
    }

    async fn answer_batch(
        &self,
        service: &Service,
        policy: &TopicPolicy,
        op: Op,
        detail: Detail,
        parsed: Vec<Result<Question<'_>, Problem>>,
    ) -> HttpResponse {
        let mut questions = Vec::with_capacity(parsed.len());
        let mut places: Vec<Result<usize, Problem>> = Vec::with_capacity(parsed.len());
        // Where each question stood in the request: what `of_index` counts in.
        let mut index_of = Vec::with_capacity(parsed.len());
        for (i, question) in parsed.into_iter().enumerate() {
            places.push(question.map(|q| {
                questions.push(q);
                index_of.push(i);
                questions.len() - 1
            }));
        }
        let queries: Vec<&Query<'_>> = questions.iter().map(|q: &Question<'_>| &q.query).collect();
        let leaders = fold::leaders(&queries);
        let asking: Vec<usize> = (0..queries.len()).filter(|i| leaders[*i].is_none()).collect();
        let asked: Vec<&Query<'_>> = asking.iter().map(|i| queries[*i]).collect();
        traces::note(policy.topic.as_str(), op.as_str(), queries.len());
        let found = service.ladder.ask(&policy.topic, &asked, self.deadline).await;
        let mut answers: Vec<Option<Result<Answer, Refusal>>> = vec![None; queries.len()];
        for (i, answer) in asking.iter().zip(found) {
            answers[*i] = Some(answer);
        }
        for (i, leader) in leaders.iter().enumerate() {
            if let Some(leader) = leader
                && let Some(found) = &answers[*leader]
            {
                answers[i] = Some(found.as_ref().map(|a| fold::follow(a, queries[i])).map_err(|refusal| *refusal));
            }
        }
        let decided = queries.iter().zip(&answers).filter_map(|(q, a)| a.as_ref().and_then(|a| a.as_ref().ok()).map(|a| (q.key.home(), a)));
        service.decisions.count_answers(&policy.topic, op, decided);
        let deepest = answers.iter().flatten().flatten().map(|a| a.tier).max().unwrap_or(Tier::Warm);
        service.decisions.took(op, deepest, self.at.elapsed());

        let mut counts = Counts::default();
        let mut result_bytes = 0;
        let results = places
            .into_iter()
            .map(|place| {
                let n = match place {
                    Ok(n) => n,
                    Err(problem) => {
                        counts.invalid += 1;
                        return problem_item(&problem, None);
                    }
                };
                let question = &questions[n];
                match answers[n].as_ref() {
                    Some(Ok(answer)) => {
                        count(&mut counts, answer.verdict);
                        if detail == Detail::Verdict {
                            return BatchItem::Verdict { verdict: answer.verdict.as_str() };
                        }
                        let mut shaped = shape(service, policy, answer, question);
                        shaped.of_index = leaders[n].map(|l| index_of[l]);
                        result_bytes += answer.record.result.as_ref().map_or(0, |r| r.weight());
                        if result_bytes > BATCH_RESULT_BYTES && shaped.result.take().is_some() {
                            shaped.result_omitted = Some(true);
                        }
                        BatchItem::Full(Box::new(shaped))
                    }
                    Some(Err(refusal)) => {
                        counts.undecided += 1;
                        let problem = service.refused(&self.caller, &policy.topic, *refusal);
                        service.decisions.count_undecided(&policy.topic, question.query.key.home(), op, problem.code);
                        problem_item(&problem, Some(question.query.request.text().as_str()))
                    }
                    None => problem_item(&Problem::new(Code::Internal, "no answer was given"), None),
                }
            })
            .collect();
        ok(&BatchBody { results, counts })
    }
}

fn count(counts: &mut Counts, verdict: Verdict) {
    match verdict {
        Verdict::First => counts.first += 1,
        Verdict::Duplicate => counts.duplicate += 1,
        Verdict::InProgress => counts.in_progress += 1,
        Verdict::Mismatch => counts.mismatch += 1,
    }
}

/// An item's problem, with the request id to repeat it with.
fn problem_item(problem: &Problem, request_id: Option<&str>) -> BatchItem<'static> {
    let mut problem = problem.to_json();
    if let (Value::Object(members), Some(id)) = (&mut problem, request_id) {
        members.insert("request_id".into(), id.into());
    }
    BatchItem::Problem { problem }
}

/// A kind of single question: how its item is read.
trait Kind {
    const OP: Op;
    type Item<'a>: Deserialize<'a>;
    fn question<'i, 'b: 'i>(parser: &'i Parser<'i>, item: &'i Self::Item<'b>) -> Result<Question<'i>, Problem>;
}

struct Checks;

impl Kind for Checks {
    const OP: Op = Op::Check;
    type Item<'a> = CheckItem<'a>;

    fn question<'i, 'b: 'i>(parser: &'i Parser<'i>, item: &'i CheckItem<'b>) -> Result<Question<'i>, Problem> {
        parser.check(item)
    }
}

struct Claims;

impl Kind for Claims {
    const OP: Op = Op::Claim;
    type Item<'a> = ClaimItem<'a>;

    fn question<'i, 'b: 'i>(parser: &'i Parser<'i>, item: &'i ClaimItem<'b>) -> Result<Question<'i>, Problem> {
        parser.claim(item)
    }
}

async fn single<K: Kind>(request: &HttpRequest, path: &str, payload: Payload, service: &Service) -> Result<HttpResponse, Problem> {
    let begun = Begun::new(request, payload, service).await?;
    let item: K::Item<'_> = body::parse(&begun.body, service.limits.json_depth)?;
    if request.headers().get_all("idempotency-key").count() > 1 {
        return Err(Problem::new(Code::InvalidField, "there is more than one header Idempotency-Key"));
    }
    let key = request.headers().get("idempotency-key").map(|v| std::str::from_utf8(v.as_bytes()));
    let key = key.transpose().map_err(|_| Problem::new(Code::InvalidField, "the header Idempotency-Key is not UTF-8"))?;
    let key = key.map(header_key).transpose()?;
    let policy = begun.topic(service, path, 1).await?;
    let parser = Parser { header_key: key.as_deref(), ..begun.parser(service, &policy) };
    let question = K::question(&parser, &item)?;
    let op = K::OP;
    let home = question.query.key.home();
    traces::note(policy.topic.as_str(), op.as_str(), 1);
    // A caller's own deadline ends its waiting too; the service's default does not.
    let until = service.own_deadline_of(request)?.map(|own| begun.at + own);
    match ask_waiting(service, &policy, &question, begun.deadline, until).await {
        Ok(answer) => {
            service.decisions.count_answers(&policy.topic, op, std::iter::once((home, &answer)));
            service.decisions.took(op, answer.tier, begun.at.elapsed());
            Ok(ok(&shape(service, &policy, &answer, &question)))
        }
        Err(refusal) => {
            let problem = service.refused(&begun.caller, &policy.topic, refusal);
            service.decisions.count_undecided(&policy.topic, home, op, problem.code);
            Err(problem.with("request_id", question.query.request.text().as_str()))
        }
    }
}

/// Asks, and asks again while somebody else is at it and the caller wants to wait. `own`: the deadline of the caller's header.
async fn ask_waiting(
    service: &Service,
    policy: &TopicPolicy,
    question: &Question<'_>,
    deadline: Instant,
    own: Option<Instant>,
) -> Result<Answer, Refusal> {
    let ask =
        async |deadline| service.ladder.ask(&policy.topic, &[&question.query], deadline).await.pop().expect("one question, one answer");
    if question.wait_ms == 0 {
        return ask(deadline).await;
    }
    let until = Instant::now() + Duration::from_millis(question.wait_ms);
    let until = own.map_or(until, |own| own.min(until));
    let answer = ask(deadline).await?;
    let again = async || ask(own.unwrap_or_else(|| Instant::now() + service.deadline)).await;
    service.waiting.wait(answer, &question.query, until, again).await
}

fn shape<'a>(service: &'a Service, policy: &TopicPolicy, answer: &'a Answer, question: &'a Question<'_>) -> AnswerBody<'a> {
    let query = &question.query;
    let home: HomeId = query.key.home();
    let asked = Asked {
        claim: query.claim,
        key: query.key.as_str(),
        request_id: question.query.request.text(),
        home: &service.ladder.table().get(home).name,
        served_by: &service.instance,
        lease_asked_ms: query.lease_ms.unwrap_or(policy.lease_ms),
    };
    let mut body = AnswerBody::new(answer, asked);
    if query.claim && answer.verdict == Verdict::First {
        let token = ClaimToken { home, topic: policy.topic.clone(), digest: answer.digest, fence: answer.record.fence };
        body.claim_token = Some(token.to_text(service.ladder.secret(), service.ladder.table()));
    }
    body
}
