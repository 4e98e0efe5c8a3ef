//! One call: send, repeat where that is safe, read.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Client;
use crate::{Applied, Error, Problem, Result};

/// Longest wait before a repeat, milliseconds, whatever the service asks for.
const RETRY_WAIT_MS_MAX: u64 = 1_000;
/// Wait before a repeat where the service says nothing, milliseconds.
const RETRY_WAIT_MS: u64 = 100;

/// When a call may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Made twice it is as made once.
    Always,
    /// Made twice it would tell something else; so only where the first surely did nothing.
    IfNotApplied,
}

/// One call, ready to be sent as often as needed.
pub(super) struct Call {
    method: Method,
    url: Url,
    body: Option<Bytes>,
    timeout: Duration,
    repeat: Repeat,
}

impl Call {
    /// With parameters in the URL; those without a value are left out.
    pub fn query(mut self, pairs: &[(&str, Option<&str>)]) -> Self {
        for (name, value) in pairs.iter().filter_map(|(name, value)| Some((name, (*value)?))) {
            self.url.query_pairs_mut().append_pair(name, value);
        }
        self
    }

    pub fn waiting(self, extra_ms: Option<u64>) -> Self {
        Self { timeout: self.timeout + Duration::from_millis(extra_ms.unwrap_or(0)), ..self }
    }
}

impl Client {
    pub(super) fn post<B: Serialize>(&self, path: &[&str], body: &B, repeat: Repeat) -> Result<Call> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Argument(error.to_string()))?;
        self.post_bytes(path, body.into(), repeat)
    }

    pub(super) fn post_bytes(&self, path: &[&str], body: Bytes, repeat: Repeat) -> Result<Call> {
        Ok(Call { body: Some(body), ..self.call(Method::POST, path, repeat)? })
    }

    pub(super) fn put<B: Serialize>(&self, path: &[&str], body: &B) -> Result<Call> {
        Ok(Call { method: Method::PUT, ..self.post(path, body, Repeat::Always)? })
    }

    pub(super) fn call(&self, method: Method, path: &[&str], repeat: Repeat) -> Result<Call> {
        // A URL swallows such segments, and the call would land elsewhere.
        if let Some(bad) = path.iter().find(|segment| matches!(**segment, "" | "." | "..")) {
            return Err(Error::Argument(format!("{bad:?} is no name")));
        }
        let mut url = self.base.clone();
        url.path_segments_mut().map_err(|()| Error::Argument("base_url: it takes no path".to_owned()))?.pop_if_empty().extend(path);
        Ok(Call { method, url, body: None, timeout: self.timeout, repeat })
    }

    /// Sends and reads a JSON answer.
    pub(super) async fn answer<T: DeserializeOwned>(&self, call: Call) -> Result<T> {
        let body = self.send(&call).await?;
        serde_json::from_slice(&body).map_err(|error| Error::Decode(error.to_string()))
    }

    /// Sends, repeats where allowed, and gives the body of a success.
    pub(super) async fn send(&self, call: &Call) -> Result<Bytes> {
        let mut left = self.retries;
        loop {
            let error = match self.attempt(call).await {
                Ok(body) => return Ok(body),
                Err(error) => error,
            };
            if left == 0 || !may_repeat(&error, call.repeat) {
                return Err(error);
            }
            left -= 1;
            let wait_ms = error.problem().and_then(|problem| problem.retry_after_ms).unwrap_or(RETRY_WAIT_MS);
            tokio::time::sleep(Duration::from_millis(wait_ms.min(RETRY_WAIT_MS_MAX))).await;
        }
    }

    async fn attempt(&self, call: &Call) -> Result<Bytes> {
        let (status, body, retry_after_ms) = self.exchange(call).await?;
        if status.is_success() { Ok(body) } else { Err(Error::Problem(Box::new(problem(status, &body, retry_after_ms)))) }
    }

    /// Sends once; the status is not judged.
    pub(super) async fn exchange(&self, call: &Call) -> Result<(StatusCode, Bytes, Option<u64>)> {
        let mut request = self.http.request(call.method.clone(), call.url.clone()).timeout(call.timeout);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let response = request.send().await?;
        let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        Ok((response.status(), response.bytes().await?, seconds.map(|seconds| seconds.saturating_mul(1_000))))
    }
}

/// The problem in a reply's body, or one made of its status where a proxy answered with a page of its own.
fn problem(status: StatusCode, body: &[u8], retry_after_ms: Option<u64>) -> Problem {
    let mut problem = serde_json::from_slice::<Problem>(body).unwrap_or_default();
    problem.status = status.as_u16();
    problem.title = problem.title.or_else(|| status.canonical_reason().map(str::to_owned));
    problem.retry_after_ms = problem.retry_after_ms.or(retry_after_ms);
    problem
}

fn may_repeat(error: &Error, repeat: Repeat) -> bool {
    match (error, repeat) {
        (Error::Http(error), Repeat::Always) => error.is_connect() || error.is_timeout() || error.is_request() || error.is_body(),
        (Error::Http(error), Repeat::IfNotApplied) => error.is_connect(),
        (Error::Problem(problem), Repeat::Always) => problem.may_retry(),
        (Error::Problem(problem), Repeat::IfNotApplied) => problem.may_retry() && problem.applied == Some(Applied::No),
        (Error::Decode(_) | Error::Argument(_), _) => false,
    }
}
