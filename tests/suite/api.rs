//! The REST API as the tests speak it: plain JSON over HTTP, so that a test shows what a caller sees.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

/// What came back.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub body: Value,
    pub retry_after: Option<String>,
    pub content_type: String,
}

impl Reply {
    pub fn verdict(&self) -> &str {
        self.body["verdict"].as_str().unwrap_or_else(|| panic!("no verdict in {self:?}"))
    }

    pub fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_else(|| panic!("no text {field} in {self:?}")).to_owned()
    }

    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_else(|| panic!("no code in {self:?}"))
    }

    /// Asserts a verdict and hands the reply on.
    #[track_caller]
    pub fn is(self, verdict: &str) -> Self {
        assert_eq!((self.status, self.body["verdict"].as_str()), (200, Some(verdict)), "{self:?}");
        self
    }

    /// Asserts a problem and hands the reply on.
    #[track_caller]
    pub fn fails(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{self:?}");
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        assert_eq!(self.body["type"], json!(format!("/problems/{code}")), "{self:?}");
        assert_eq!(self.body["status"], json!(status), "{self:?}");
        self
    }
}

/// One client for all tests.
pub fn http() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        dedup_client_tls();
        Client::builder().timeout(Duration::from_secs(40)).pool_max_idle_per_host(300).no_proxy().build().unwrap()
    })
}

/// The client library knows how to set up TLS; the tests only need it once.
fn dedup_client_tls() {
    let _ = dedup_client::Client::new("http://127.0.0.1:1").unwrap();
}

pub async fn call(method: Method, url: &str, path: &str, body: Option<Vec<u8>>, headers: &[(&str, &str)]) -> Result<Reply, reqwest::Error> {
    let mut request = http().request(method, format!("{url}{path}"));
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await?;
    let status = response.status().as_u16();
    let header = |name: &str| response.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
    let (retry_after, content_type) = (header("retry-after"), header("content-type").unwrap_or_default());
    let bytes = response.bytes().await?;
    let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    Ok(Reply { status, body, retry_after, content_type })
}

pub async fn post(url: &str, path: &str, body: Value) -> Reply {
    call(Method::POST, url, path, Some(body.to_string().into_bytes()), &[]).await.unwrap()
}

pub async fn get(url: &str, path: &str) -> Reply {
    call(Method::GET, url, path, None, &[]).await.unwrap()
}

pub async fn put(url: &str, path: &str, body: Value) -> Reply {
    call(Method::PUT, url, path, Some(body.to_string().into_bytes()), &[]).await.unwrap()
}

pub async fn claim(url: &str, topic: &str, body: Value) -> Reply {
    post(url, &format!("/v1/topics/{topic}/claims"), body).await
}

pub async fn check(url: &str, topic: &str, body: Value) -> Reply {
    post(url, &format!("/v1/topics/{topic}/checks"), body).await
}

pub async fn complete(url: &str, token: &str) -> Reply {
    post(url, "/v1/claims/complete", json!({"claim_token": token, "outcome": "succeeded"})).await
}

pub async fn release(url: &str, token: &str) -> Reply {
    post(url, "/v1/claims/release", json!({"claim_token": token})).await
}

/// A new topic with a window of a day, known to every home.
pub async fn topic(url: &str, name: &str) -> String {
    topic_with(url, name, json!({"window_ms": 86_400_000})).await
}

/// A new topic of a given policy.
pub async fn topic_with(url: &str, name: &str, policy: Value) -> String {
    let name = format!("{name}-{:08x}", rand::random::<u32>());
    let put = put(url, &format!("/v1/topics/{name}"), policy).await;
    assert_eq!(put.status, 200, "{put:?}");
    name
}

/// Value of one series of a scrape: the sum over all lines of `name` that carry all of `labels`.
pub fn series(text: &str, name: &str, labels: &[&str]) -> f64 {
    text.lines()
        .filter(|line| line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|l| line.contains(l)))
        .filter_map(|line| line.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok()))
        .sum()
}

/// The Prometheus text of an instance.
pub async fn metrics(url: &str) -> String {
    let reply = get(url, "/metrics").await;
    assert_eq!(reply.status, 200);
    reply.body.as_str().unwrap().to_owned()
}
