//! Who asks, and what they may.

use actix_web::HttpRequest;
use actix_web::http::header::AUTHORIZATION;
use dedup_core::Topic;
use dedup_runtime::config::{CallerConfig, Role, TopicPattern};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::problem::{Code, Problem};

/// The callers of the configuration; none: everybody is an administrator (and the service listens on loopback only).
pub struct Callers {
    callers: Vec<CallerConfig>,
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Name in the configuration, for the audit trail.
    pub name: String,
    role: Role,
    topics: Option<Vec<TopicPattern>>,
}

impl Callers {
    /// From the configuration.
    pub fn new(callers: Vec<CallerConfig>) -> Self {
        Self { callers }
    }

    /// Finds out who asks.
    pub fn identify(&self, request: &HttpRequest) -> Result<Caller, Problem> {
        if self.callers.is_empty() {
            return Ok(Caller { name: "anonymous".into(), role: Role::Admin, topics: None });
        }
        let refused = || Problem::new(Code::Unauthenticated, "no bearer token of a known caller");
        let header = request.headers().get(AUTHORIZATION).and_then(|h| h.to_str().ok()).ok_or_else(refused)?;
        let (scheme, token) = header.split_once(' ').ok_or_else(refused)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(refused());
        }
        let given = Sha256::digest(token.trim().as_bytes());
        // Every entry is compared, each in constant time, so that the time tells nothing of which one nearly fits.
        let mut found = None;
        for caller in &self.callers {
            if bool::from(given.as_slice().ct_eq(caller.token_sha256.as_bytes())) {
                found = Some(caller);
            }
        }
        let caller = found.ok_or_else(refused)?;
        Ok(Caller { name: caller.name.clone(), role: caller.role, topics: Some(caller.topics.clone()) })
    }
}

impl Caller {
    /// Refuses a role below `needed`.
    pub fn needs(&self, needed: Role) -> Result<(), Problem> {
        if self.role >= needed {
            Ok(())
        } else {
            Err(Problem::new(Code::RoleNotPermitted, format!("the call needs the role {needed:?}").to_lowercase()))
        }
    }

    /// Whether the topic is granted.
    pub fn may_use(&self, topic: &Topic) -> bool {
        self.topics.as_ref().is_none_or(|patterns| patterns.iter().any(|p| p.matches(topic.as_str())))
    }

    /// Refuses a topic that is not granted.
    pub fn needs_topic(&self, topic: &Topic) -> Result<(), Problem> {
        if self.may_use(topic) { Ok(()) } else { Err(not_permitted()) }
    }

    /// What a caller is told of a topic that does not exist: only an administrator learns that.
    pub fn missing_topic(&self, topic: &Topic) -> Problem {
        if self.role < Role::Admin {
            return not_permitted();
        }
        let put = format!("PUT /v1/topics/{topic} {{\"window_ms\":86400000}}");
        Problem::new(Code::TopicNotFound, format!("create it first: {put}")).with("put", put)
    }
}

fn not_permitted() -> Problem {
    Problem::new(Code::TopicNotPermitted, "the topic is not granted to this caller, or there is none of this name")
}
