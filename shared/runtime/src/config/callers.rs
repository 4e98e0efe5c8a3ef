//! `[[callers]]`: who may call, as what, on which topics.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::check::{Checker, LABEL, hex_32};

/// One caller: a bearer token, known only by its SHA-256, with a role and topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerConfig {
    /// `name`: how logs and the audit call it, `[A-Za-z0-9._-]{1,64}`, unique. Required.
    pub name: String,
    /// `token_sha256`: SHA-256 of its bearer token, 64 hex digits, unique. Required.
    pub token_sha256: TokenDigest,
    /// `role`: `use`, `operate` or `admin`. Required.
    pub role: Role,
    /// `topics`: exact names, or prefixes with a trailing `*`. Default `["*"]`.
    pub topics: Vec<TopicPattern>,
}

/// What a caller may do; each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Ask and answer: check, claim, complete, release, extend, look up.
    Use,
    /// Also see and repair: open claims, statistics, forget, force-release.
    Operate,
    /// Also change policy.
    Admin,
}

/// SHA-256 of a bearer token. `Debug` hides it: it would let anybody test guesses offline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The 32 bytes, to be compared in constant time.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest([REDACTED])")
    }
}

/// A topic's name, or the beginning of names if it ends in `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPattern(String);

impl TopicPattern {
    /// Whether `topic` is meant.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        self.0.strip_suffix('*').map_or(self.0 == topic, |start| topic.starts_with(start))
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCaller {
    name: String,
    token_sha256: String,
    role: String,
    topics: Option<Vec<String>>,
}

pub(super) fn check(raw: Vec<RawCaller>, check: &mut Checker) -> Vec<CallerConfig> {
    let mut names = BTreeMap::new();
    let mut tokens = BTreeMap::new();
    let mut callers = Vec::with_capacity(raw.len());
    for (at, raw) in raw.into_iter().enumerate() {
        let path = format!("callers[{at}]");
        if let Some(first) = names.insert(raw.name.clone(), at) {
            check.note(format!("{path}.name"), format!("{:?} is the name of callers[{first}] already; names are unique", raw.name));
        }
        let caller = raw.check(&path, check);
        if let Some(first) = caller.as_ref().and_then(|caller| tokens.insert(caller.token_sha256, at)) {
            check.note(format!("{path}.token_sha256"), format!("is the token of callers[{first}] already; each caller has its own"));
        }
        callers.extend(caller);
    }
    callers
}

impl RawCaller {
    fn check(self, path: &str, check: &mut Checker) -> Option<CallerConfig> {
        check.name(&format!("{path}.name"), &self.name, 64, LABEL);
        let token = hex_32(&self.token_sha256);
        if token.is_none() {
            // Not quoted: somebody may have put the token itself here.
            check.note(format!("{path}.token_sha256"), "is required: the SHA-256 of the bearer token, 64 hexadecimal digits");
        }
        let role = match self.role.as_str() {
            "use" => Some(Role::Use),
            "operate" => Some(Role::Operate),
            "admin" => Some(Role::Admin),
            "" => {
                check.note(format!("{path}.role"), "is required: \"use\", \"operate\" or \"admin\"");
                None
            }
            other => {
                check.note(format!("{path}.role"), format!("{other:?} is not allowed; it is \"use\", \"operate\" or \"admin\""));
                None
            }
        };
        let topics = self.topics.unwrap_or_else(|| vec!["*".to_owned()]);
        for topic in topics.iter().filter(|topic| *topic != "*") {
            check.name(&format!("{path}.topics"), topic.strip_suffix('*').unwrap_or(topic), 249, LABEL);
        }
        Some(CallerConfig {
            name: self.name,
            token_sha256: TokenDigest(token?),
            role: role?,
            topics: topics.into_iter().map(TopicPattern).collect(),
        })
    }
}
