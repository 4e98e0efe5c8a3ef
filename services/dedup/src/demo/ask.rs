//! Questions to one instance, in the words the demo counts in.

use std::time::Duration;

use dedup_client::{Answer as Wire, Batch, BatchItem, CheckRequest, ClaimRequest, Client, Error, Outcome, Problem, StoredResult};

use super::topics::Topic;

/// What knew an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    Local,
    Hot,
    Warm,
    Cold,
}

/// A grant of the key to the asker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) attempt: u32,
    pub(super) fence: Option<String>,
    /// Of claims only.
    pub(super) claim_token: Option<String>,
}

/// The verdicts that topics without special policy give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    First { replayed: bool, grant: Grant },
    Duplicate,
    InProgress { retry_after: Duration },
}

/// A decided question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    pub(super) tier: Option<Tier>,
}

/// No answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Undecided {
    /// When to ask again with the same request id; `None`: that would not help.
    pub(super) again_after: Option<Duration>,
    /// For people.
    pub(super) why: String,
}

/// How a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completion {
    Done,
    /// Somebody else took over when the lease had lapsed.
    LeaseLost,
}

const AGAIN_AFTER: Duration = Duration::from_millis(100);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A consumer's connection to one instance.
#[derive(Debug, Clone)]
pub(super) struct Asker(Client);

impl Asker {
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        // The consumers repeat by themselves, so that each repeat is counted.
        Ok(Self(Client::new(url)?.with_timeout(CALL_TIMEOUT).with_retries(0)))
    }

    pub(super) async fn check(&self, topic: Topic, key: &str, request_id: &str) -> Result<Answer, Undecided> {
        let request = CheckRequest { request_id: Some(request_id.into()), ..CheckRequest::new(key) };
        understood(&self.0.check(topic.name(), &request).await?)
    }

    /// Key and request id of each item; answers come in the same order.
    pub(super) async fn check_batch(&self, topic: Topic, items: &[(String, String)]) -> Result<Vec<Result<Answer, Undecided>>, Undecided> {
        let request = |(key, id): &(String, String)| CheckRequest { request_id: Some(id.clone()), ..CheckRequest::new(key.as_str()) };
        let batch = Batch::new(items.iter().map(request).collect());
        let answers = self.0.check_batch(topic.name(), &batch).await?.results;
        if answers.len() != items.len() {
            return Err(Undecided::for_good(format!("{} answers to {} questions", answers.len(), items.len())));
        }
        Ok(answers.iter().map(item).collect())
    }

    pub(super) async fn claim(&self, topic: Topic, key: &str, request_id: &str, lease: Duration) -> Result<Answer, Undecided> {
        let lease_ms = u64::try_from(lease.as_millis()).ok();
        let request = ClaimRequest { request_id: Some(request_id.into()), lease_ms, ..ClaimRequest::new(key) };
        understood(&self.0.claim(topic.name(), &request).await?)
    }

    pub(super) async fn complete(&self, claim_token: &str, result_json: &str) -> Result<Completion, Undecided> {
        let result = StoredResult { status: Some(201), ..StoredResult::from_bytes("application/json", result_json.as_bytes()) };
        match self.0.complete(claim_token, Outcome::Succeeded, Some(result)).await {
            Ok(_) => Ok(Completion::Done),
            Err(error) if error.code() == Some("lease-lost") => Ok(Completion::LeaseLost),
            Err(error) => Err(error.into()),
        }
    }
}

impl Undecided {
    fn for_good(why: String) -> Self {
        Self { again_after: None, why }
    }
}

impl From<Error> for Undecided {
    fn from(error: Error) -> Self {
        match &error {
            Error::Problem(problem) => problem.as_ref().into(),
            Error::Http(_) => Self { again_after: Some(AGAIN_AFTER), why: error.to_string() },
            Error::Decode(_) | Error::Argument(_) => Self::for_good(error.to_string()),
        }
    }
}

impl From<&Problem> for Undecided {
    fn from(problem: &Problem) -> Self {
        // An item of a batch carries no status of its own; only what cannot be decided says what was applied.
        let may_retry = problem.may_retry() || (problem.status == 0 && problem.applied.is_some());
        let after = problem.retry_after_ms.map_or(AGAIN_AFTER, Duration::from_millis);
        Self { again_after: may_retry.then_some(after), why: format!("{} {}", problem.status, problem.code) }
    }
}

fn item(item: &BatchItem) -> Result<Answer, Undecided> {
    understood(item.as_result()?)
}

fn understood(wire: &Wire) -> Result<Answer, Undecided> {
    use dedup_client::{Tier as WireTier, Verdict as WireVerdict};
    let verdict = match &wire.verdict {
        WireVerdict::First => Verdict::First { replayed: wire.replayed, grant: grant(wire) },
        WireVerdict::Duplicate => Verdict::Duplicate,
        WireVerdict::InProgress => Verdict::InProgress { retry_after: wire.retry_after_ms.map_or(AGAIN_AFTER, Duration::from_millis) },
        other => return Err(Undecided::for_good(format!("verdict {other}"))),
    };
    let tier = match wire.tier {
        Some(WireTier::Local) => Some(Tier::Local),
        Some(WireTier::Hot) => Some(Tier::Hot),
        Some(WireTier::Warm) => Some(Tier::Warm),
        Some(WireTier::Cold) => Some(Tier::Cold),
        Some(WireTier::Other(_)) | None => None,
    };
    Ok(Answer { verdict, tier })
}

/// A check has one attempt only, and may not number it.
fn grant(wire: &Wire) -> Grant {
    Grant {
        attempt: wire.attempt.and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        fence: wire.fence.clone(),
        claim_token: wire.claim_token.clone(),
    }
}
