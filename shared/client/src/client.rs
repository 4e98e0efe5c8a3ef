//! The client itself: where it calls, as whom, how patiently.

mod admin;
mod claims;
mod operators;
mod questions;
mod send;

use std::net::IpAddr;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderValue;

use crate::{Error, Result};

/// A client of one instance. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    retries: u32,
}

impl Client {
    /// A client of the instance at `base_url` (`http://127.0.0.1:8080`), without a token, with 10 s a call and one retry.
    ///
    /// # Errors
    /// [`Error::Argument`] if the URL is none; [`Error::Http`] if TLS cannot be set up.
    pub fn new(base_url: &str) -> Result<Self> {
        let base = Url::parse(base_url).map_err(|error| Error::Argument(format!("base_url: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(Error::Argument("base_url: it begins with http:// or https://".to_owned()));
        }
        Ok(Self { http: http_client(&base)?, base, authorization: None, timeout: Duration::from_secs(10), retries: 1 })
    }

    /// Calls with this bearer token.
    ///
    /// # Errors
    /// [`Error::Argument`] if it holds characters no header can carry.
    pub fn with_token(self, token: &str) -> Result<Self> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| Error::Argument("token: it holds characters no header can carry".to_owned()))?;
        // Keeps the token out of Debug.
        value.set_sensitive(true);
        Ok(Self { authorization: Some(value), ..self })
    }

    /// How long one attempt of a call may take (default 10 s); a claim's `wait_ms` is added to it.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How often a call is repeated after a lost reply or a 503 (default 1, 0 = never). A repeat is the same question: it carries the same
    /// request id. Release, forget and a topic's deletion are repeated only where the first attempt surely did nothing.
    #[must_use]
    pub fn with_retries(self, retries: u32) -> Self {
        Self { retries, ..self }
    }

    /// How often a call is repeated.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// The base URL.
    #[must_use]
    pub fn base_url(&self) -> &str {
        self.base.as_str()
    }
}

fn http_client(base: &Url) -> Result<reqwest::Client> {
    // An error only says that the program chose a provider already.
    _ = rustls::crypto::ring::default_provider().install_default();
    // A redirect would turn a POST into a GET; the service sends none.
    let mut builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    if base.scheme() == "http" {
        // Plain HTTP must work where the machine has no certificates at all (a slim container).
        builder = builder.tls_certs_only([]);
    }
    if is_loopback(base) {
        // A proxy of the environment is for the world outside, not for this machine.
        builder = builder.no_proxy();
    }
    Ok(builder.build()?)
}

fn is_loopback(base: &Url) -> bool {
    let host = base.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
