//! Answers to checks and claims.

use base64::{Engine, prelude::BASE64_STANDARD};
use dedup_core::{Record, RequestId, StoredResult, Tier, Verdict};
use dedup_store::{Answer, Previous};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::time_text;

/// A verdict with what belongs to it. Members that do not apply are absent.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct AnswerBody<'a> {
    /// `first`, `duplicate`, `in_progress` or `mismatch`.
    #[schema(example = "first")]
    pub verdict: &'static str,
    /// The same request was granted before: this is that grant again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<bool>,
    /// `exact`.
    pub certainty: &'static str,
    /// Where the answer was found: `local`, `hot`, `warm`, `cold`.
    pub tier: &'static str,
    /// Home of the key.
    pub home_region: &'a str,
    /// Instance that answers.
    pub served_by: &'a str,
    /// The full key.
    pub key: &'a str,
    /// Request id, the caller's or made by the service: repeat the call with it if this reply is lost.
    pub request_id: String,
    /// In a batch: the lower item with the same key, whose duplicate this one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_index: Option<usize>,
    /// Completes, releases or extends this claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_token: Option<String>,
    /// Rises with every change of owner; sorts as text. Give it to stores that can refuse an older one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
    /// 1, or one more after a release or lapse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// Who is at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<&'a str>,
    /// End of the lease, home time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<String>,
    /// What is left of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms_left: Option<i64>,
    /// The lease asked for was longer than the window and was cut to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_cut: Option<bool>,
    /// When the key was first seen, home time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<String>,
    /// From the archive (`tier` is `cold`): the key was first seen between these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen_between: Option<[Option<String>; 2]>,
    /// When it was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<String>,
    /// When it will be forgotten; null: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Option<String>>,
    /// `succeeded` or `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// Both sides gave a fingerprint, and they agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint_checked: Option<bool>,
    /// What the completion stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultBody>,
    /// Until when the result is kept; absent: as long as the record is warm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_expires_at: Option<String>,
    /// A result is known of and not here: too large to keep, kept no longer, or (in a batch) too much for one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_omitted: Option<bool>,
    /// The attempt before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousBody>,
    /// When to ask again, at the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<i64>,
}

/// What became of the attempt before.
#[derive(Debug, Serialize, ToSchema)]
pub struct PreviousBody {
    attempt: i32,
    /// `lapsed` or `released`.
    ended: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    at: Option<String>,
}

/// A stored result: `body`, or `body_base64` for bytes that are not UTF-8; neither: none was given.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResultBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i16>,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl ResultBody {
    /// Shapes a stored result.
    pub fn new(result: &StoredResult) -> Self {
        let headers = RawValue::from_string(result.headers.clone()).or_else(|_| RawValue::from_string("{}".into()));
        let text = result.body.as_deref().map(std::str::from_utf8);
        Self {
            media_type: result.media_type.clone(),
            status: result.status,
            headers: headers.expect("an empty object is JSON"),
            body: text.and_then(Result::ok).map(str::to_owned),
            body_base64: text.filter(Result::is_err).and(result.body.as_deref()).map(|b| BASE64_STANDARD.encode(b)),
        }
    }
}

/// What the answer needs besides the facts.
pub struct Asked<'a> {
    pub claim: bool,
    pub key: &'a str,
    pub request_id: RequestId,
    pub home: &'a str,
    pub served_by: &'a str,
    pub lease_asked_ms: i64,
}

impl<'a> AnswerBody<'a> {
    /// Shapes an answer; the claim token, which needs the secret, is put in by the caller.
    pub fn new(answer: &'a Answer, asked: Asked<'a>) -> Self {
        let record = &answer.record;
        let lease_left = || (record.ends_ms - answer.at_ms).max(0);
        let mut body = Self {
            verdict: answer.verdict.as_str(),
            certainty: "exact",
            tier: answer.tier.as_str(),
            home_region: asked.home,
            served_by: asked.served_by,
            key: asked.key,
            request_id: asked.request_id.into_string(),
            first_seen_at: time_text(record.first_seen_ms),
            ..Self::default()
        };
        // The archive keeps that it was done and how, until when it counts, and no more.
        if answer.tier == Tier::Cold {
            body.first_seen_at = None;
            body.first_seen_between = Some([time_text(record.first_seen_ms), time_text(record.ends_ms)]);
            body.expires_at = Some(time_text(record.expires_ms));
            body.outcome = Some(record.outcome.as_str());
            body.fingerprint_checked = Some(false);
            body.put_result(record);
            return body;
        }
        if answer.verdict == Verdict::Mismatch {
            return body;
        }
        body.fence = Some(record.fence.to_string());
        body.attempt = Some(record.attempt);
        body.expires_at = Some(time_text(record.expires_ms));
        match answer.verdict {
            Verdict::First => {
                body.replayed = Some(answer.replayed);
                if asked.claim {
                    body.lease_expires_at = time_text(record.ends_ms);
                    body.lease_ms_left = Some(lease_left());
                    body.lease_cut = record.cuts(asked.lease_asked_ms).then_some(true);
                }
                body.previous = answer.previous.as_deref().map(PreviousBody::new);
            }
            Verdict::Duplicate => {
                body.outcome = Some(record.outcome.as_str());
                body.completed_at = time_text(record.ends_ms);
                body.fingerprint_checked = Some(answer.fingerprint_checked);
                body.put_result(record);
            }
            Verdict::InProgress => {
                body.owner = answer.owner.as_deref();
                body.fingerprint_checked = Some(answer.fingerprint_checked);
                body.lease_ms_left = Some(lease_left());
                body.retry_after_ms = Some(lease_left().clamp(1, 1000));
            }
            Verdict::Mismatch => {}
        }
        body
    }

    fn put_result(&mut self, record: &Record) {
        match &record.result {
            Some(result) if result.omitted => self.result_omitted = Some(true),
            Some(result) => {
                self.result = Some(ResultBody::new(result));
                self.result_expires_at = result.keep_until_ms.and_then(time_text);
            }
            None => {}
        }
    }
}

impl PreviousBody {
    fn new(previous: &Previous) -> Self {
        Self {
            attempt: previous.attempt,
            ended: previous.ended.clone(),
            owner: previous.owner.clone(),
            note: previous.note.clone(),
            at: time_text(previous.at_ms),
        }
    }
}

/// How a batch went.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Counts {
    /// New keys.
    #[serde(skip_serializing_if = "is_zero")]
    pub first: usize,
    /// Done before.
    #[serde(skip_serializing_if = "is_zero")]
    pub duplicate: usize,
    /// Somebody is at it.
    #[serde(skip_serializing_if = "is_zero")]
    pub in_progress: usize,
    /// Another payload.
    #[serde(skip_serializing_if = "is_zero")]
    pub mismatch: usize,
    /// Cannot be decided now.
    #[serde(skip_serializing_if = "is_zero")]
    pub undecided: usize,
    /// Not valid.
    #[serde(skip_serializing_if = "is_zero")]
    pub invalid: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// One item's answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum BatchItem<'a> {
    /// Everything a single call would say.
    Full(Box<AnswerBody<'a>>),
    /// With `detail: verdict`.
    Verdict {
        /// The verdict.
        verdict: &'static str,
    },
    /// No verdict: the item is not valid, or cannot be decided now.
    Problem {
        /// As of a single call.
        #[schema(value_type = Object)]
        problem: Value,
    },
}

/// Answers of a batch, in request order: each a verdict or `{"problem": …}`.
#[derive(Debug, Serialize, ToSchema)]
pub struct BatchBody<'a> {
    /// One per item.
    pub results: Vec<BatchItem<'a>>,
    /// How many of which.
    pub counts: Counts,
}
