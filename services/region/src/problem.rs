//! Problems (RFC 9457): callers' mistakes and "cannot decide". The one place that picks an HTTP status or a code.

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};
use dedup_store::{Applied, Refusal, RefusalKind};
use serde_json::{Map, Value, json};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $status:literal, $title:literal;)+) => {
        /// Every problem the service can answer with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $variant),+ }

        impl Code {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The word: `code` and the end of `type`.
            pub fn as_str(self) -> &'static str { match self { $(Self::$variant => $code),+ } }
            /// The HTTP status.
            pub fn status(self) -> u16 { match self { $(Self::$variant => $status),+ } }
            /// One line for people.
            pub fn title(self) -> &'static str { match self { $(Self::$variant => $title),+ } }
        }
    };
}

codes! {
    /// Not JSON, not UTF-8, too deep, a repeated member.
    MalformedRequest = "malformed-request", 400, "The request cannot be understood";
    /// A field is missing, unknown, of the wrong type or out of range.
    InvalidField = "invalid-field", 400, "A field is not valid";
    /// No or wrong bearer token.
    Unauthenticated = "unauthenticated", 401, "A valid bearer token is needed";
    /// The topic is not granted, or does not exist.
    TopicNotPermitted = "topic-not-permitted", 403, "The topic is not permitted to this caller";
    /// The role does not include this call.
    RoleNotPermitted = "role-not-permitted", 403, "The caller's role does not include this call";
    /// No such path.
    NotFound = "not-found", 404, "There is nothing here";
    /// No such topic.
    TopicNotFound = "topic-not-found", 404, "There is no such topic";
    /// No such record, or not in the state the call needs.
    RecordNotFound = "record-not-found", 404, "There is no such record";
    /// No home has such a job.
    JobNotFound = "job-not-found", 404, "There is no such job";
    /// The path exists, the method does not.
    MethodNotAllowed = "method-not-allowed", 405, "The method is not allowed here";
    /// The body came too slowly.
    RequestTimeout = "request-timeout", 408, "The request took too long to arrive";
    /// The fence is not the current one.
    LeaseLost = "lease-lost", 409, "The token's claim is not the current one";
    /// Completed before with another outcome or result.
    AlreadyCompleted = "already-completed", 409, "The claim was completed before, differently";
    /// Records of the topic may still live.
    TopicInUse = "topic-in-use", 409, "Records of the topic may still live";
    /// Its records cannot be told from those of other topics.
    KeysNotKept = "keys-not-kept", 409, "The topic does not keep its keys";
    /// `If-Match` names another version.
    VersionDiffers = "version-differs", 412, "The topic has another version";
    /// Too many items.
    BatchTooLarge = "batch-too-large", 413, "The batch has too many items";
    /// Too many bytes.
    PayloadTooLarge = "payload-too-large", 413, "The body is too large";
    /// Not JSON by its own word.
    UnsupportedMediaType = "unsupported-media-type", 415, "The body must be JSON";
    /// No home owns the prefix.
    UnknownRegion = "unknown-region", 422, "No region owns the key's prefix";
    /// The window is out of range.
    InvalidWindow = "invalid-window", 422, "The window is out of range";
    /// A fault of the service.
    Internal = "internal", 500, "The service failed";
    /// The queue of the home is full.
    Overloaded = "overloaded", 503, "Too many questions are waiting";
    /// Somebody's open transaction holds the key.
    KeyBusy = "key-busy", 503, "Somebody's open transaction holds the key";
    /// The home cannot be reached.
    HomeUnavailable = "home-unavailable", 503, "The key's home region cannot be reached";
    /// The home answered with an error.
    StoreUnavailable = "store-unavailable", 503, "The key's home region cannot answer";
    /// The outcome is not known.
    ClaimOutcomeUnknown = "claim-outcome-unknown", 503, "It is not known whether the call took effect";
}

/// One problem, with what helps to mend it.
#[derive(Debug, Clone)]
pub struct Problem {
    /// What.
    pub code: Code,
    /// What exactly, for people.
    pub detail: String,
    /// More members of the JSON object.
    pub more: Map<String, Value>,
}

impl Problem {
    /// A problem with an explanation.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), more: Map::new() }
    }

    /// A field that is not valid; `pointer` is a JSON pointer into the body (or the item, in a batch).
    pub fn field(pointer: &str, detail: impl std::fmt::Display) -> Self {
        let name = pointer.trim_start_matches('/');
        Self::new(Code::InvalidField, format!("{name} {detail}")).with("pointer", pointer)
    }

    /// A number out of range.
    pub fn range(pointer: &str, min: i64, max: i64) -> Self {
        Self::field(pointer, format_args!("must be between {min} and {max}")).with("min", min).with("max", max)
    }

    /// Adds a member.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// "Cannot decide": `claim-outcome-unknown` says for itself that it may have been applied, the others that it was not.
    pub fn refusal(refusal: Refusal) -> Self {
        let (code, detail, retry_after_ms) = match refusal.kind {
            RefusalKind::Overloaded => (Code::Overloaded, "the queue of the key's home is full, or the deadline passed in it", 200),
            RefusalKind::KeyBusy => (Code::KeyBusy, "an open transaction holds this key; whether it commits is not known yet", 100),
            RefusalKind::HomeUnavailable => {
                (Code::HomeUnavailable, "the home cannot be reached; no other region may decide in its place", 500)
            }
            RefusalKind::StoreUnavailable => {
                (Code::StoreUnavailable, "the home answered with an error of its own; see the service's log", 1000)
            }
            RefusalKind::OutcomeUnknown => {
                (Code::ClaimOutcomeUnknown, "a reply was lost; the same call, with the same request_id where it has one, settles it", 200)
            }
            RefusalKind::TopicUnknown => (Code::TopicNotFound, "the key's home does not know the topic", 1000),
        };
        let problem = Self::new(code, detail);
        if code == Code::TopicNotFound {
            return problem;
        }
        let retry = if refusal.applied == Applied::Unknown { "same_request_id" } else { "any" };
        problem.with("applied", refusal.applied.as_str()).with("retry", retry).with("retry_after_ms", retry_after_ms)
    }

    /// The JSON object.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "type": format!("/problems/{}", self.code.as_str()),
            "code": self.code.as_str(),
            "title": self.code.title(),
            "status": self.code.status(),
            "detail": self.detail,
        });
        if let Value::Object(members) = &mut object {
            members.extend(self.more.clone());
        }
        object
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.detail)
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponseBuilder::new(self.status_code());
        response.insert_header((CONTENT_TYPE, "application/problem+json"));
        if self.code == Code::Unauthenticated {
            response.insert_header((WWW_AUTHENTICATE, "Bearer"));
        }
        if let Some(allow) = self.more.get("allow").and_then(Value::as_str) {
            response.insert_header((ALLOW, allow));
        }
        if let Some(ms) = self.more.get("retry_after_ms").and_then(Value::as_u64) {
            response.insert_header((RETRY_AFTER, ms.div_ceil(1000).to_string()));
        }
        response.body(self.to_json().to_string())
    }
}
