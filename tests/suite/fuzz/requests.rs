//! Generated requests: valid ones, nearly valid ones, and wild ones, against every path there is.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

/// Stands in every key, group, owner, fingerprint and request id that is sent: none of it may reach a log or a metric.
pub const MARK: &str = "fuzzmark";

/// One request, as it goes over the wire.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: &'static str,
    /// Path and query.
    pub target: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Option<Vec<u8>>,
}

/// Topics that questions are about.
pub const TOPICS: [&str; 3] = ["fz-a", "fz-b", "fz-gone"];

/// Makes requests out of one seed: the same seed and the same replies make the same requests.
pub struct Generator {
    rng: StdRng,
    /// Tokens and cursors that replies brought.
    tokens: Vec<String>,
    cursors: Vec<String>,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), tokens: Vec::new(), cursors: Vec::new() }
    }

    /// Remembers what a reply brought for later requests.
    pub fn learn(&mut self, body: &Value) {
        for (name, kept) in [("claim_token", &mut self.tokens), ("next_cursor", &mut self.cursors)] {
            if let Some(text) = body[name].as_str() {
                kept.push(text.to_owned());
                if kept.len() > 50 {
                    kept.remove(0);
                }
            }
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items.choose(&mut self.rng).unwrap().clone()
    }

    pub fn next(&mut self) -> Request {
        let (method, target, body) = self.valid();
        let mut request = Request { method, target, headers: Vec::new(), body: body.map(|b| b.to_string().into_bytes()) };
        if request.body.is_some() {
            request.headers.push(("content-type".into(), b"application/json".to_vec()));
        }
        match self.rng.random_range(0..10) {
            0..4 => {}
            4..8 => self.nearly(&mut request),
            _ => self.wild(&mut request),
        }
        request
    }

    fn key(&mut self) -> String {
        let home = self.pick(&["eu", "us", "eu", "us", "eu", "us", "xx"]);
        format!("{home}:{MARK}-{}", self.rng.random_range(0..30))
    }

    fn topic(&mut self) -> String {
        self.pick(&TOPICS).to_owned()
    }

    fn question(&mut self, claim: bool) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("key".into(), self.key().into());
        let mut maybe = |name: &str, value: Value, rng: &mut StdRng| {
            if rng.random_range(0..3) == 0 {
                body.insert(name.into(), value);
            }
        };
        let n = self.rng.random_range(0..4);
        maybe("group", format!("{MARK}-g{n}").into(), &mut self.rng);
        maybe("request_id", format!("{MARK}-r{n}").into(), &mut self.rng);
        maybe("fingerprint", format!("{MARK}-f{n}").into(), &mut self.rng);
        let window = self.pick(&[json!(1000), json!(60_000), json!("forever")]);
        maybe("window_ms", window, &mut self.rng);
        if claim {
            maybe("owner", format!("{MARK}-o{n} ü").into(), &mut self.rng);
            maybe("lease_ms", json!(1000 + n * 500), &mut self.rng);
        }
        body
    }

    fn token(&mut self) -> Value {
        if self.tokens.is_empty() { format!("dc1.{MARK}").into() } else { self.pick(&self.tokens.clone()).into() }
    }

    fn end(&mut self, kind: usize) -> Value {
        let token = self.token();
        match kind {
            0 => {
                let mut body = json!({"claim_token": token, "outcome": self.pick(&["succeeded", "failed"])});
                if self.one_in(2) {
                    body["result"] = json!({"status": 201, "media_type": "application/json", "headers": {"a": "b"}, "body": "{\"id\":1}"});
                }
                body
            }
            1 => json!({"claim_token": token, "note": "gave up\nfor now"}),
            _ => json!({"claim_token": token, "lease_ms": 5000}),
        }
    }

    fn batch(&mut self, mut item: impl FnMut(&mut Self) -> Value) -> Value {
        let n = self.pick(&[0usize, 1, 3, 20]);
        json!({"items": (0..n).map(|_| item(self)).collect::<Vec<_>>()})
    }

    fn valid(&mut self) -> (&'static str, String, Option<Value>) {
        let t = self.topic();
        let record = json!({"key": self.key(), "reason": "fuzz"});
        match self.rng.random_range(0..24) {
            0..3 => ("POST", format!("/v1/topics/{t}/checks"), Some(self.question(false).into())),
            3..6 => ("POST", format!("/v1/topics/{t}/claims"), Some(self.question(true).into())),
            6 => ("POST", format!("/v1/topics/{t}/checks/batch"), Some(self.batch(|g| g.question(false).into()))),
            7 => {
                let mut body = self.batch(|g| g.question(true).into());
                body["detail"] = self.pick(&["full", "verdict"]).into();
                ("POST", format!("/v1/topics/{t}/claims/batch"), Some(body))
            }
            8..12 => {
                let kind = self.rng.random_range(0..3);
                ("POST", format!("/v1/claims/{}", ["complete", "release", "extend"][kind]), Some(self.end(kind)))
            }
            12 => {
                let kind = self.rng.random_range(0..3);
                ("POST", format!("/v1/claims/{}/batch", ["complete", "release", "extend"][kind]), Some(self.batch(|g| g.end(kind))))
            }
            13 => ("POST", format!("/v1/topics/{t}/records/lookup"), Some(json!({"key": self.key()}))),
            14 => ("POST", format!("/v1/topics/{t}/records/forget"), Some(record)),
            15 => ("POST", format!("/v1/topics/{t}/records/force-release"), Some(record)),
            16 => {
                let window = self.pick(&[json!(60_000), json!("forever"), json!(1000)]);
                let policy = json!({"window_ms": window, "keep_key": self.pick(&["open", "always", "never"]), "lease_ms": 1500});
                ("PUT", format!("/v1/topics/{t}"), Some(policy))
            }
            17 => ("GET", format!("/v1/topics/{t}"), None),
            18 => (self.pick(&["DELETE", "GET"]), "/v1/topics/fz-gone".into(), None),
            19 => ("GET", self.pick(&["/v1/topics", "/v1/regions", "/v1/stats", "/healthz", "/readyz", "/metrics"]).into(), None),
            20 => ("GET", self.pick(&["/openapi.json", "/docs", "/docs/", "/problems", "/problems/lease-lost"]).into(), None),
            21 => ("GET", format!("/v1/claims?{}", self.query()), None),
            22 => ("GET", format!("/v1/audit?{}", self.query()), None),
            _ => ("POST", format!("/v1/topics/{t}/claims"), Some(self.question(true).into())),
        }
    }

    fn query(&mut self) -> String {
        let mut parts = vec![format!("limit={}", self.pick(&[1, 7, 1000]))];
        if self.one_in(2) {
            parts.push(format!("topic={}", self.topic()));
        }
        if let (Some(cursor), true) = (self.cursors.choose(&mut self.rng).cloned(), self.one_in(2)) {
            parts.push(format!("cursor={cursor}"));
        }
        parts.join("&")
    }

    /// Something that is not quite right in an otherwise valid request.
    fn nearly(&mut self, request: &mut Request) {
        let Some(body) = request.body.as_deref().and_then(|b| serde_json::from_slice::<Value>(b).ok()) else {
            return self.odd_query(request);
        };
        match self.rng.random_range(0..9) {
            0..4 => {
                let mut body = body;
                self.spoil(&mut body);
                request.body = Some(body.to_string().into_bytes());
            }
            4 => {
                let bytes = request.body.get_or_insert_default();
                bytes.truncate(self.rng.random_range(0..bytes.len().max(1)));
            }
            5 => {
                let bytes = request.body.get_or_insert_default();
                if !bytes.is_empty() {
                    let at = self.rng.random_range(0..bytes.len());
                    bytes[at] = self.rng.random();
                }
            }
            6 => {
                // A number no machine type holds, a member twice, or too deep.
                let text = body.to_string();
                let extra = self.pick(&[
                    r#""lease_ms":1e999,"#.to_owned(),
                    r#""window_ms":-0,"#.to_owned(),
                    format!(r#""key":"eu:{MARK}","key":"eu:{MARK}","#),
                    format!(r#""x":{}{},"#, "[".repeat(40), "]".repeat(40)),
                    r#""key":"\ud800","#.to_owned(),
                ]);
                request.body = Some(text.replacen('{', &format!("{{{extra}"), 1).into_bytes());
            }
            7 => {
                let value = self.odd_text().into_bytes();
                let name = self.pick(&["idempotency-key", "dedup-deadline-ms", "if-match", "authorization", "content-type", "accept"]);
                request.headers.retain(|(n, _)| n != name);
                // What HTTP cannot carry in a header at all never gets past the client.
                request.headers.push((name.into(), value.into_iter().filter(|b| *b >= 32 && *b != 127).collect()));
            }
            _ => {
                let deadline = self.pick(&["1", "3", "20", "99999999999999999999", "-1", " 5 "]);
                request.headers.push(("dedup-deadline-ms".into(), deadline.as_bytes().to_vec()));
            }
        }
    }

    /// Replaces, removes, adds or renames one member, at any depth.
    fn spoil(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                let names: Vec<String> = map.keys().cloned().collect();
                let name = self.pick(&names);
                match self.rng.random_range(0..6) {
                    0 => drop(map.remove(&name)),
                    1 => drop(map.insert("surplus".into(), json!(1))),
                    2 => {
                        let old = map.remove(&name).unwrap_or_default();
                        map.insert(format!("{name}s"), old);
                    }
                    3 if map[&name].is_object() || map[&name].is_array() => self.spoil(map.get_mut(&name).unwrap()),
                    _ => drop(map.insert(name, self.odd_value())),
                }
            }
            Value::Array(items) if !items.is_empty() => {
                let at = self.rng.random_range(0..items.len());
                self.spoil(&mut items[at]);
            }
            other => *other = self.odd_value(),
        }
    }

    fn odd_text(&mut self) -> String {
        let long = self.pick(&[128, 255, 300, 513, 5000]);
        self.pick(&[
            String::new(),
            " ".into(),
            ":".into(),
            "eu:".into(),
            format!(":{MARK}"),
            format!("\"eu:{MARK}"),
            format!("\"eu:{MARK}\""),
            format!("eu:{MARK}\u{0}"),
            format!("eu:{MARK}\u{85}"),
            format!("eu:{MARK}\u{202e}🦀"),
            format!("EU:{MARK}"),
            format!("eu:{}", MARK.repeat(long / MARK.len())),
            "x".repeat(long),
            "forever".into(),
            "*".into(),
            "0".into(),
            "W/\"1\"".into(),
            "';DROP TABLE dedup.claims;--".into(),
            "%00%ff".into(),
        ])
    }

    fn odd_value(&mut self) -> Value {
        let text = self.odd_text();
        self.pick(&[
            Value::Null,
            json!(true),
            json!(-1),
            json!(0),
            json!(1.5),
            json!(i64::MAX),
            json!(i64::MIN),
            json!(u64::MAX),
            json!([]),
            json!({}),
            json!([[[[[]]]]]),
            json!({"body": "a", "body_base64": "YQ=="}),
            text.into(),
        ])
    }

    fn odd_query(&mut self, request: &mut Request) {
        let path = request.target.split('?').next().unwrap_or_default().to_owned();
        let query = self.pick(&[
            "limit=0",
            "limit=99999999999999999999",
            "limit=1&limit=1",
            "cursor=AAAA",
            "cursor=%F0%28%8C%28",
            "state=done",
            "topic=%00",
            "topic=..",
            "&&&==&",
            "limit",
            "%zz=1",
        ]);
        request.target = format!("{path}?{query}");
    }

    /// Anything at all.
    fn wild(&mut self, request: &mut Request) {
        request.method = self.pick(&["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"]);
        if self.one_in(2) {
            let segments = [
                "v1", "topics", "claims", "checks", "batch", "records", "..", ".", "", "%2e%2e", "%00", "%ff", "%C3%28", "docs",
                "problems", "*", "a%2Fb", "metrics",
            ];
            let n = self.rng.random_range(0..6);
            let path: Vec<&str> = (0..n).map(|_| self.pick(&segments)).collect();
            request.target = format!("/{}", path.join("/"));
        }
        if self.one_in(2) {
            let n = self.pick(&[0usize, 1, 20, 300]);
            request.body = Some((0..n).map(|_| self.rng.random()).collect());
        }
        if self.one_in(3) {
            let media =
                self.pick(&["text/plain", "application/json; charset=latin1", "application/x+json", "multipart/form-data", "", "\u{fc}"]);
            request.headers.retain(|(n, _)| n != "content-type");
            request.headers.push(("content-type".into(), media.as_bytes().to_vec()));
        }
        if self.one_in(4) {
            let bytes = (0..40).map(|_| self.rng.random_range(128..=255)).collect();
            let name = self.pick(&["idempotency-key", "authorization", "if-match", "dedup-deadline-ms", "x-request-id", "accept-encoding"]);
            request.headers.push((name.into(), bytes));
        }
    }
}
