//! Hard to hurt: generated requests against every path. `DEDUP_FUZZ_REQUESTS` says how many (2,000), `DEDUP_FUZZ_SEED` repeats a run.

#![expect(clippy::print_stdout, reason = "figures for whoever looks, by --nocapture")]

mod requests;

use std::collections::{BTreeMap, BTreeSet};

use dedup_testbed::Testbed;
use reqwest::Method;
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::api::{check, get, http, metrics, put};
use crate::harness::{options, run};
use requests::{Generator, MARK, Request, TOPICS};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// What came back, as far as the rules below need it.
struct Reply {
    status: u16,
    content_type: String,
    retry_after: bool,
    body: Vec<u8>,
}

async fn send(url: &str, request: &Request) -> Reply {
    let method = Method::from_bytes(request.method.as_bytes()).unwrap();
    let mut built = http().request(method, format!("{url}{}", request.target));
    for (name, value) in &request.headers {
        built = built.header(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap());
    }
    if let Some(body) = &request.body {
        built = built.body(body.clone());
    }
    let response = built.send().await.unwrap_or_else(|error| panic!("no reply ({error:?}) to {request:?}"));
    let text = |name: &str| response.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
    let (status, content_type, retry_after) =
        (response.status().as_u16(), text("content-type").unwrap_or_default(), text("retry-after").is_some());
    Reply { status, content_type, retry_after, body: response.bytes().await.unwrap().to_vec() }
}

/// What must hold of every reply; `Err` says what does not.
fn judge(request: &Request, reply: &Reply, known: &BTreeMap<String, u64>) -> Result<Value, String> {
    let json = serde_json::from_slice::<Value>(&reply.body).ok();
    // An answer to HEAD has no body to look at.
    if request.method == "HEAD" {
        return if reply.status < 500 { Ok(Value::Null) } else { Err("a 5xx".into()) };
    }
    if reply.status < 400 {
        let json_expected = reply.content_type.starts_with("application/json");
        return match json {
            Some(body) => items(&body, known).map(|()| body),
            None if json_expected => Err("announced as JSON and is none".into()),
            None => Ok(Value::Null),
        };
    }
    if reply.content_type != "application/problem+json" {
        return Err(format!("no problem but {:?}", reply.content_type));
    }
    let body = json.ok_or("a problem that is no JSON")?;
    problem(&body, known)?;
    if body["status"] != json!(reply.status) {
        return Err("another status in the body".into());
    }
    if reply.status >= 500 && reply.status != 503 {
        return Err("a 5xx that is no 503".into());
    }
    if reply.status == 503 && !(reply.retry_after && ["no", "unknown"].iter().any(|word| body["applied"] == *word)) {
        return Err("a 503 without Retry-After or applied".into());
    }
    Ok(body)
}

fn problem(body: &Value, known: &BTreeMap<String, u64>) -> Result<(), String> {
    let code = body["code"].as_str().ok_or("a problem without a code")?;
    match known.get(code) {
        Some(status) if body["status"] == json!(status) && body["type"] == json!(format!("/problems/{code}")) => Ok(()),
        other => Err(format!("code {code}, documented with {other:?}")),
    }
}

/// Batches: each item has a verdict, a state, or a known problem.
fn items(body: &Value, known: &BTreeMap<String, u64>) -> Result<(), String> {
    for item in body["results"].as_array().into_iter().flatten() {
        match &item["problem"] {
            Value::Null if item["verdict"].is_string() || item["state"].is_string() => {}
            Value::Null => return Err(format!("an item that says nothing: {item}")),
            told => problem(told, known)?,
        }
    }
    Ok(())
}

/// No generated request, valid, nearly valid or wild, makes the service fail: every reply is an answer, a problem with a known code, or a
/// documented 503; nothing panics; and no key, group, owner or id that was sent is in a log line or a metric.
/// Seen to fail with paths whose bad escapes got the framework's own plain 404, with a handler that indexes the first item of a batch
/// (panic), and with a log line that names the key.
#[test]
fn generated_requests_hurt_nothing() {
    run(async {
        let mut options = options(&["eu", "us"], 1);
        options.extra_tables = "[log]\nlevel = \"info\"\n".into();
        let testbed = Testbed::start(options).await.unwrap();
        let urls: Vec<String> = testbed.regions().iter().map(|r| r.instances[0].url()).collect();
        for t in TOPICS {
            assert_eq!(put(&urls[0], &format!("/v1/topics/{t}"), json!({"window_ms": 60_000})).await.status, 200);
        }
        let problems = get(&urls[0], "/problems").await;
        let known: BTreeMap<String, u64> = problems.body["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| (p["code"].as_str().unwrap().to_owned(), p["status"].as_u64().unwrap()))
            .collect();
        let (requests, seed) = (number("DEDUP_FUZZ_REQUESTS", 2000), number("DEDUP_FUZZ_SEED", rand::random::<u32>().into()));
        const CALLERS: u64 = 8;
        let calling = (0..CALLERS).map(|caller| {
            let (url, known) = (urls[caller as usize % urls.len()].clone(), known.clone());
            tokio::spawn(async move {
                let mut generator = Generator::new(seed.wrapping_mul(CALLERS) + caller);
                let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
                for n in 0..requests.div_ceil(CALLERS) {
                    let request = generator.next();
                    let reply = send(&url, &request).await;
                    *statuses.entry(reply.status).or_default() += 1;
                    match judge(&request, &reply, &known) {
                        Ok(body) => generator.learn(&body),
                        Err(why) => panic!(
                            "DEDUP_FUZZ_SEED={seed}, caller {caller}, request {n}: {why}\n{} {}\n{:?}\n{}\n→ {} {}",
                            request.method,
                            request.target,
                            request.headers,
                            String::from_utf8_lossy(request.body.as_deref().unwrap_or_default()),
                            reply.status,
                            String::from_utf8_lossy(&reply.body)
                        ),
                    }
                }
                statuses
            })
        });
        let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
        for told in futures_util::future::join_all(calling).await {
            for (status, n) in told.unwrap() {
                *statuses.entry(status).or_default() += n;
            }
        }
        // The generator reaches what it should: answers, and each kind of refusal.
        let seen: BTreeSet<u16> = statuses.keys().copied().collect();
        assert!([200, 400, 404, 405, 409, 415, 422].iter().all(|s| seen.contains(s)), "{statuses:?}");
        assert!(statuses[&200] * 4 > requests, "too few valid ones: {statuses:?}");
        for (url, region) in urls.iter().zip(testbed.regions()) {
            check(url, "fz-a", json!({"key": format!("eu:after-{}", region.name)})).await.is("first");
            assert!(!metrics(url).await.contains(MARK), "a key is in the metrics");
            let log = std::fs::read_to_string(region.instances[0].log_path()).unwrap();
            let told: Vec<&str> =
                log.lines().filter(|l| l.contains("panicked") || l.contains(MARK) || l.contains("ERROR")).take(5).collect();
            assert!(told.is_empty(), "DEDUP_FUZZ_SEED={seed}: {told:#?}");
        }
        println!("{requests} requests, seed {seed}: {statuses:?}");
        testbed.stop().await.unwrap();
    });
}
