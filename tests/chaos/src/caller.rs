//! Asks over HTTP and turns what comes back into what the checker understands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dedup_checker::{Answer, Call, Kind, Out, Verdict};
use serde_json::{Value, json};

use crate::clock::ms_of;
use crate::record::Recorder;
use crate::topics::{Place, recorded_group};

/// How callers reach the instances.
#[derive(Debug, Clone)]
pub struct Net {
    client: reqwest::Client,
    pub nodes: Arc<Vec<(String, String)>>,
    pub recorder: Arc<Recorder>,
    pub deadline_ms: u64,
    batches: Arc<AtomicU64>,
}

/// One question of a worker.
#[derive(Debug, Clone)]
pub struct Question {
    pub claim: bool,
    pub place: Place,
    pub request: String,
    pub fp: String,
    pub lease_ms: i64,
}

impl Question {
    pub fn call(&self, who: u32, node: &str) -> Call {
        let kind = if self.claim { Kind::Claim } else { Kind::Check };
        Call {
            request: self.request.clone(),
            fp: self.fp.clone(),
            lease_ms: if self.claim { self.lease_ms } else { 0 },
            ..Call::new(kind, who, node, self.place.recorded())
        }
    }

    fn body(&self) -> Value {
        let mut body = json!({"key": self.place.key, "request_id": self.request});
        if let Some(group) = &self.place.group {
            body["group"] = json!(group);
        }
        if !self.fp.is_empty() {
            body["fingerprint"] = json!(self.fp);
        }
        if self.claim {
            body["lease_ms"] = json!(self.lease_ms);
        }
        body
    }

    fn path(&self) -> String {
        format!("/v1/topics/{}/{}", self.place.topic, if self.claim { "claims" } else { "checks" })
    }
}

/// A granted claim.
#[derive(Debug, Clone)]
pub struct Held {
    pub place: Place,
    pub fence: String,
    pub token: String,
}

/// What a call came to, for the worker.
#[derive(Debug, Clone)]
pub struct Told {
    pub out: Out,
    pub token: Option<String>,
}

impl Told {
    pub fn verdict(&self) -> Option<Verdict> {
        if let Out::Ok(answer) = &self.out { Some(answer.verdict) } else { None }
    }

    pub fn fence(&self) -> &str {
        if let Out::Ok(answer) = &self.out { &answer.fence } else { "" }
    }
}

enum Heard {
    Status(u16, Value),
    NotSent(String),
    Lost(String),
}

impl Net {
    pub fn new(nodes: Vec<(String, String)>, recorder: Arc<Recorder>, deadline_ms: u64) -> anyhow::Result<Self> {
        // The client library sets TLS up, which the HTTP client wants even where nothing is encrypted.
        dedup_client::Client::new("http://127.0.0.1:1")?;
        let client = reqwest::Client::builder()
            .timeout(Duration::from_millis(deadline_ms + 1500))
            .connect_timeout(Duration::from_secs(1))
            .pool_max_idle_per_host(512)
            .no_proxy()
            .build()?;
        Ok(Self { client, nodes: Arc::new(nodes), recorder, deadline_ms, batches: Arc::default() })
    }

    async fn post(&self, node: usize, path: &str, body: &Value) -> Heard {
        let url = format!("{}{path}", self.nodes[node % self.nodes.len()].1);
        let request = self
            .client
            .post(url)
            .header("content-type", "application/json")
            .header("dedup-deadline-ms", self.deadline_ms.to_string())
            .body(body.to_string());
        let response = match request.send().await {
            Ok(response) => response,
            Err(e) if e.is_connect() => return Heard::NotSent("not connected".into()),
            Err(e) => return Heard::Lost(if e.is_timeout() { "no answer".into() } else { "connection lost".into() }),
        };
        let status = response.status().as_u16();
        match response.bytes().await.map(|b| serde_json::from_slice(&b)) {
            Ok(Ok(body)) => Heard::Status(status, body),
            _ => Heard::Lost("half an answer".into()),
        }
    }

    fn name(&self, node: usize) -> &str {
        &self.nodes[node % self.nodes.len()].0
    }

    /// Asks one question.
    pub async fn ask(&self, who: u32, node: usize, question: &Question) -> Told {
        let op = self.recorder.call(question.call(who, self.name(node)));
        let told = self.hear(self.post(node, &question.path(), &question.body()).await, Kind::Claim);
        self.recorder.back(op, told.out.clone());
        told
    }

    /// Asks and hangs up after a while, whatever has happened by then.
    pub async fn ask_and_hang_up(&self, who: u32, node: usize, question: &Question, after: Duration) {
        let op = self.recorder.call(question.call(who, self.name(node)));
        let (path, body) = (question.path(), question.body());
        let out = match tokio::time::timeout(after, self.post(node, &path, &body)).await {
            Ok(heard) => self.hear(heard, Kind::Claim).out,
            Err(_) => Out::Unknown("hung up".into()),
        };
        self.recorder.back(op, out);
    }

    /// Asks many questions of one topic in one request.
    pub async fn ask_many(&self, who: u32, node: usize, questions: &[Question]) -> Vec<Told> {
        let Some(first) = questions.first() else { return Vec::new() };
        let batch = self.batches.fetch_add(1, Ordering::Relaxed);
        let call = |(i, q): (usize, &Question)| {
            let mut call = q.call(who, self.name(node));
            call.batch = Some((batch, u32::try_from(i).unwrap_or(u32::MAX)));
            self.recorder.call(call)
        };
        let ops: Vec<u64> = questions.iter().enumerate().map(call).collect();
        let path = format!("{}/batch", first.path());
        let items: Vec<Value> = questions.iter().map(Question::body).collect();
        let told: Vec<Told> = match self.post(node, &path, &json!({"items": items})).await {
            Heard::Status(200, body) if body["results"].as_array().is_some_and(|r| r.len() == questions.len()) => {
                let results = body["results"].as_array().cloned().unwrap_or_default();
                let item = |result: Value| match result.get("problem") {
                    Some(problem) => self.hear(Heard::Status(503, problem.clone()), Kind::Claim),
                    None => self.hear(Heard::Status(200, result), Kind::Claim),
                };
                results.into_iter().map(item).collect()
            }
            Heard::Status(200, body) => {
                self.recorder.odd(format!("a batch answer of the wrong length: {body}"));
                vec![Told { out: Out::Unknown("unreadable".into()), token: None }; questions.len()]
            }
            other => vec![self.hear(other, Kind::Claim); questions.len()],
        };
        for (op, told) in ops.iter().zip(&told) {
            self.recorder.back(*op, told.out.clone());
        }
        told
    }

    /// Completes, releases or extends.
    pub async fn finish(&self, who: u32, node: usize, kind: Kind, held: &Held, result: &str, lease_ms: i64) -> Told {
        let op = self.recorder.call(Call {
            token: held.fence.clone(),
            lease_ms: if kind == Kind::Extend { lease_ms } else { 0 },
            result: if kind == Kind::Complete { result.into() } else { String::new() },
            keep_ms: held.place.keep_ms().filter(|_| kind == Kind::Complete),
            ..Call::new(kind, who, self.name(node), held.place.recorded())
        });
        let (path, body) = match kind {
            Kind::Complete => (
                "/v1/claims/complete",
                json!({"claim_token": held.token, "outcome": "succeeded", "result": {"media_type": "text/plain", "body": result}}),
            ),
            Kind::Release => ("/v1/claims/release", json!({"claim_token": held.token})),
            _ => ("/v1/claims/extend", json!({"claim_token": held.token, "lease_ms": lease_ms})),
        };
        let told = self.hear(self.post(node, path, &body).await, kind);
        self.recorder.back(op, told.out.clone());
        told
    }

    /// Has a key forgotten everywhere. Only if every region says that it is done, it is.
    pub async fn forget(&self, who: u32, node: usize, place: &Place) {
        let op = self.recorder.call(Call::new(Kind::Forget, who, self.name(node), place.recorded()));
        let path = format!("/v1/topics/{}/records/forget", place.topic);
        let body = json!({"key": place.key, "group": place.group(), "reason": "chaos"});
        let out = match self.post(node, &path, &body).await {
            Heard::Status(200, body) => forgotten(&body),
            other => self.hear(other, Kind::Forget).out,
        };
        self.recorder.back(op, out);
    }

    /// Has a whole group forgotten. It is only if every home and every region says so.
    pub async fn forget_all(&self, who: u32, node: usize, topic: &str, group: &str) {
        let op = self.recorder.call(Call::new(Kind::ForgetAll, who, self.name(node), recorded_group(topic, group)));
        let path = format!("/v1/topics/{topic}/records/forget-all");
        let out = match self.post(node, &path, &json!({"group": group, "reason": "chaos"})).await {
            Heard::Status(200, body) => forgotten(&body),
            // A home that is away follows by itself.
            Heard::Status(202, _) => Out::Unknown("pending".into()),
            other => self.hear(other, Kind::ForgetAll).out,
        };
        self.recorder.back(op, out);
    }

    fn hear(&self, heard: Heard, kind: Kind) -> Told {
        let (status, body) = match heard {
            Heard::Status(status, body) => (status, body),
            Heard::NotSent(why) => return Told { out: Out::No(why), token: None },
            Heard::Lost(why) => return Told { out: Out::Unknown(why), token: None },
        };
        if status == 200 {
            return match answer(&body, kind) {
                Some(answer) => Told { out: Out::Ok(answer), token: body["claim_token"].as_str().map(String::from) },
                None => {
                    self.recorder.odd(format!("an answer that says nothing: {body}"));
                    Told { out: Out::Unknown("unreadable".into()), token: None }
                }
            };
        }
        let code = body["code"].as_str().unwrap_or("no code").to_owned();
        let out = match (code.as_str(), body["applied"].as_str()) {
            ("lease-lost", _) => Out::Ok(Answer::new(Verdict::LeaseLost)),
            ("already-completed", _) => Out::Ok(Answer::new(Verdict::AlreadyCompleted)),
            (_, Some("no")) => Out::No(code),
            (_, Some("unknown")) => Out::Unknown(code),
            _ => {
                self.recorder.odd(format!("{status}: {body}"));
                Out::Unknown(code)
            }
        };
        Told { out, token: None }
    }
}

/// What came of a forget, by what is said of the regions.
fn forgotten(body: &Value) -> Out {
    let done = body["regions"].as_object().is_some_and(|regions| regions.values().all(|v| v == "done"));
    if done { Out::Ok(Answer::new(Verdict::Forgotten)) } else { Out::Unknown("pending".into()) }
}

fn answer(body: &Value, kind: Kind) -> Option<Answer> {
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let at = |name: &str| body[name].as_str().and_then(ms_of);
    let verdict = match kind {
        Kind::Complete => (body["state"] == "done").then_some(Verdict::Completed)?,
        Kind::Release => (body["state"] == "released").then_some(Verdict::Released)?,
        Kind::Extend => (body["state"] == "in_progress").then_some(Verdict::Extended)?,
        _ => match body["verdict"].as_str()? {
            "first" => Verdict::First,
            "duplicate" => Verdict::Duplicate,
            "in_progress" => Verdict::InProgress,
            "mismatch" => Verdict::Mismatch,
            _ => return None,
        },
    };
    Some(Answer {
        verdict,
        replayed: body["replayed"] == true,
        fence: text("fence"),
        seen: if verdict == Verdict::Mismatch { None } else { at("first_seen_at") },
        expires: at("expires_at"),
        lease_end: at("lease_expires_at"),
        result: body["result"]["body"].as_str().unwrap_or_default().to_owned(),
        of_index: body["of_index"].as_u64().and_then(|n| u32::try_from(n).ok()),
        cold: body["tier"] == "cold",
    })
}
