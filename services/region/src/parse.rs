//! From wire to domain: every field checked once, every mistake named.

use dedup_core::{Fingerprint, Group, HomeTable, Key, KeyError, Limits, RequestId, TextError, TopicPolicy, Window, check_free_text};
use dedup_store::{Ladder, Query, Request};

use crate::problem::{Code, Problem};
use crate::wire::{CheckItem, ClaimItem, Text, WindowWord};

/// A question with the texts its answer echoes.
pub struct Question<'a> {
    pub query: Query<'a>,
    pub wait_ms: u64,
}

/// Longest `wait_ms`.
const WAIT_MS_MAX: u64 = 30_000;

/// What items are checked against.
pub struct Parser<'a> {
    pub ladder: &'a Ladder,
    pub limits: &'a Limits,
    pub policy: &'a TopicPolicy,
    /// From the header `Idempotency-Key`.
    pub header_key: Option<&'a str>,
    /// For items without one.
    pub group: Option<&'a str>,
    /// For items without one.
    pub window: Option<WindowWord>,
}

impl Parser<'_> {
    pub fn check<'i>(&'i self, item: &'i CheckItem<'i>) -> Result<Question<'i>, Problem> {
        let texts = Texts { key: &item.key, group: &item.group, request_id: &item.request_id, fingerprint: &item.fingerprint };
        Ok(Question { query: self.common(false, texts, item.window_ms)?, wait_ms: 0 })
    }

    pub fn claim<'i>(&'i self, item: &'i ClaimItem<'i>) -> Result<Question<'i>, Problem> {
        let texts = Texts { key: &item.key, group: &item.group, request_id: &item.request_id, fingerprint: &item.fingerprint };
        let mut query = self.common(true, texts, item.window_ms)?;
        if let Some(owner) = &item.owner {
            check_free_text(owner, self.limits.owner_bytes).map_err(|e| text_problem("/owner", &e))?;
            query.owner = Some(owner.to_string()).filter(|o| !o.is_empty());
        }
        query.lease_ms = item.lease_ms.map(|ms| self.lease(ms)).transpose()?;
        let wait_ms = item.wait_ms.unwrap_or(0);
        if wait_ms > WAIT_MS_MAX {
            return Err(Problem::range("/wait_ms", 0, WAIT_MS_MAX as i64));
        }
        Ok(Question { query, wait_ms })
    }

    /// A lease within the limits of the service and of the topic.
    pub fn lease(&self, ms: u64) -> Result<i64, Problem> {
        lease(ms, self.limits.lease_ms_min, self.limits.lease_ms_max.min(self.policy.lease_max_ms))
    }

    fn common<'i>(&'i self, claim: bool, texts: Texts<'i>, window: Option<WindowWord>) -> Result<Query<'i>, Problem> {
        let key = match (texts.key.as_deref(), self.header_key) {
            (Some(body), Some(header)) if body != header => {
                return Err(Problem::field("/key", "differs from the header Idempotency-Key"));
            }
            (Some(key), _) | (None, Some(key)) => key,
            (None, None) => return Err(Problem::field("/key", "is missing")),
        };
        let key = parse_key(key, self.limits, self.policy, self.ladder.table())?;
        let group = parse_group(texts.group.as_deref().or(self.group))?;
        let secret = self.ladder.secret();
        let request = match texts.request_id.as_deref() {
            Some(text) => {
                let id = RequestId::parse(text, self.limits.request_id_bytes).map_err(|e| text_problem("/request_id", &e))?;
                let hash = id.hash(secret);
                Request::Given(id, hash)
            }
            None => Request::Made(rand::random()),
        };
        let fingerprint = texts.fingerprint.as_deref().map(|f| Fingerprint::parse(f, secret)).transpose();
        let fingerprint = fingerprint.map_err(|e| text_problem("/fingerprint", &e))?;
        let window = window.or(self.window).map(|w| parse_window(w, self.limits)).transpose()?;
        Ok(Query { claim, group, key, request, fingerprint, window, lease_ms: None, owner: None })
    }
}

/// The texts that checks and claims have in common.
struct Texts<'i> {
    key: &'i Option<Text<'i>>,
    group: &'i Option<Text<'i>>,
    request_id: &'i Option<Text<'i>>,
    fingerprint: &'i Option<Text<'i>>,
}

/// A lease in range.
pub fn lease(ms: u64, min: i64, max: i64) -> Result<i64, Problem> {
    let max = max.max(min);
    i64::try_from(ms).ok().filter(|ms| (min..=max).contains(ms)).ok_or_else(|| Problem::range("/lease_ms", min, max))
}

/// A key, with its home.
pub fn parse_key<'a>(text: &'a str, limits: &Limits, policy: &TopicPolicy, homes: &HomeTable) -> Result<Key<'a>, Problem> {
    Key::parse(text, limits.key_bytes, policy.default_region.as_deref(), homes).map_err(|e| key_problem(&e))
}

/// A group, `default` if absent.
pub fn parse_group(group: Option<&str>) -> Result<Group<'_>, Problem> {
    group.map_or_else(|| Ok(Group::default()), |g| Group::parse(g).map_err(|e| text_problem("/group", &e)))
}

/// Why an operator does what it does: it is written down, so it must say something.
pub fn check_reason(text: &str) -> Result<&str, Problem> {
    const BYTES_MAX: usize = 1024;
    if text.trim().is_empty() {
        return Err(Problem::field("/reason", "must not be empty"));
    }
    check_free_text(text, BYTES_MAX).map_err(|e| text_problem("/reason", &e))?;
    Ok(text)
}

/// A window within the limits.
pub fn parse_window(word: WindowWord, limits: &Limits) -> Result<Window, Problem> {
    match word {
        WindowWord::Forever => Ok(Window::Forever),
        WindowWord::Ms(ms) if ms < 0 => Err(Problem::range("/window_ms", limits.window_ms_min, limits.window_ms_max)),
        WindowWord::Ms(ms) => Window::from_ms(ms, limits.window_ms_min, limits.window_ms_max).map_err(|e| {
            let problem = Problem::new(Code::InvalidWindow, format!("window_ms {e}")).with("pointer", "/window_ms");
            problem.with("min", e.min_ms).with("max", e.max_ms)
        }),
    }
}

/// A text that is not valid.
pub fn text_problem(pointer: &str, error: &TextError) -> Problem {
    let problem = Problem::field(pointer, error);
    if let TextError::TooLong { max, .. } = error { problem.with("max", *max) } else { problem }
}

/// A key that is not valid.
pub fn key_problem(error: &KeyError) -> Problem {
    match error {
        KeyError::UnknownPrefix(route) => {
            let known: Vec<&str> = route.known.split(", ").collect();
            Problem::new(Code::UnknownRegion, format!("key: {route}")).with("pointer", "/key").with("known", known)
        }
        KeyError::TooLong { max, .. } => Problem::field("/key", error).with("max", *max),
        _ => Problem::field("/key", error),
    }
}

/// The key of a header `Idempotency-Key`: raw, or quoted as an RFC 8941 string.
pub fn header_key(value: &str) -> Result<String, Problem> {
    let bad = || Problem::new(Code::InvalidField, "the header Idempotency-Key is not a valid quoted string");
    let Some(inner) = value.strip_prefix('"') else { return Ok(value.to_owned()) };
    let inner = inner.strip_suffix('"').ok_or_else(bad)?;
    let mut key = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('"' | '\\')) => key.push(c),
                _ => return Err(bad()),
            },
            '"' => return Err(bad()),
            c => key.push(c),
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::header_key;

    #[test]
    fn raw_and_quoted_forms_of_the_header_are_equal() {
        assert_eq!(header_key("eu:a").expect("raw"), "eu:a");
        assert_eq!(header_key("\"eu:a\"").expect("quoted"), "eu:a");
        assert_eq!(header_key(r#""eu:\"a\\""#).expect("escaped"), "eu:\"a\\");
        for bad in ["\"eu:a", "\"a\"b\"", r#""a\x""#] {
            assert!(header_key(bad).is_err(), "{bad}");
        }
    }
}
