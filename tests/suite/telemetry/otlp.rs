//! What is pushed to a collector: metrics beside the scrape, traces, and nothing that hurts when the collector is away.

use std::time::{Duration, Instant};

use dedup_testbed::{Testbed, wait_until};
use futures_util::future::join_all;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use opentelemetry_proto::tonic::trace::v1::Span;
use reqwest::Method;
use serde_json::json;

use super::receiver::{Collector, attribute};
use crate::api::{Reply, call, check, claim, get, metrics, series, topic};
use crate::harness::{options, run};

async fn testbed(regions: &[&str], telemetry: &str) -> Testbed {
    let mut options = options(regions, 1);
    options.extra_tables = format!("[telemetry]\n{telemetry}\n");
    Testbed::start(options).await.unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A trace id and the header that carries it.
fn parent(sampled: bool) -> (String, String) {
    let trace = format!("{:032x}", rand::random::<u128>() | 1);
    let header = format!("00-{trace}-00f067aa0ba902b7-{:02x}", u8::from(sampled));
    (trace, header)
}

async fn ask_traced(url: &str, topic: &str, key: &str, header: &str) -> Reply {
    let body = json!({"key": key}).to_string().into_bytes();
    call(Method::POST, url, &format!("/v1/topics/{topic}/checks"), Some(body), &[("traceparent", header)]).await.unwrap()
}

/// The spans of a trace, once there are as many as expected.
async fn spans(collector: &Collector, trace: &str, at_least: usize) -> Vec<Span> {
    wait_until("the spans", Duration::from_secs(20), || async {
        let found: Vec<Span> = collector.spans().into_iter().filter(|s| hex(&s.trace_id) == trace).collect();
        if found.len() >= at_least { Ok(found) } else { Err(format!("{} spans of {trace}", found.len())) }
    })
    .await
}

/// The same counts are scraped and pushed, at once; the resource says service, version, region and instance.
/// Seen to fail with a push at the end only, and with instances that go by one name.
#[test]
fn metrics_are_pushed_beside_the_scrape() {
    run(async {
        let collector = Collector::start().await;
        let testbed = testbed(&["eu"], &format!("otlp_endpoint = \"{}\"\notlp_interval_ms = 1000", collector.url())).await;
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "pushed").await;
        for k in 0..7 {
            check(&url, &t, json!({"key": format!("eu:{k}")})).await.is("first");
        }
        let label = format!("topic=\"{t}\"");
        assert_eq!(series(&metrics(&url).await, "dedup_decisions_total", &[&label, "verdict=\"first\""]), 7.0);
        let (resource, sum, monotonic) = wait_until("the push", Duration::from_secs(20), || async {
            let received = collector.received.lock().unwrap();
            let (resource, metrics) = received.metrics.last().ok_or("nothing yet")?;
            let decisions = metrics.iter().find(|m| m.name == "dedup_decisions").ok_or("no decisions")?;
            let Some(Data::Sum(sum)) = &decisions.data else { return Err("no sum".to_owned()) };
            let firsts = sum.data_points.iter().filter(|p| {
                attribute(&p.attributes, "topic").as_deref() == Some(&t) && attribute(&p.attributes, "verdict").as_deref() == Some("first")
            });
            let n: i64 = firsts.map(|p| if let Some(number_data_point::Value::AsInt(n)) = p.value { n } else { 0 }).sum();
            if n == 7 { Ok((resource.clone(), n, sum.is_monotonic)) } else { Err(format!("{n} firsts")) }
        })
        .await;
        assert_eq!((sum, monotonic), (7, true));
        let of = |name: &str| attribute(&resource.attributes, name).unwrap_or_else(|| panic!("no {name} in {resource:?}"));
        assert_eq!([of("service.name"), of("cloud.region"), of("service.instance.id")], ["dedup", "eu", "eu-1"].map(str::to_owned));
        assert!(!of("service.version").is_empty());
        testbed.stop().await.unwrap();
    });
}

/// A caller's trace goes on: a span for its request, one for each tier asked, and one for the call to the home, which links back to every
/// traced request in it. The answer names the trace. No key is in any of it.
/// Seen to fail with each request the root of a trace of its own, and with a call that links to the first request only.
#[test]
fn a_callers_trace_goes_on_to_the_home() {
    run(async {
        let collector = Collector::start().await;
        let testbed = testbed(&["eu", "us"], &format!("otlp_endpoint = \"{}\"\notlp_metrics = false", collector.url())).await;
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "traced").await;
        let (trace, header) = parent(true);
        let body = json!({"key": "us:secret-key-1"}).to_string();
        let path = format!("{url}/v1/topics/{t}/checks");
        let answer = crate::api::http()
            .post(path)
            .header("traceparent", &header)
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await
            .unwrap();
        let returned = answer.headers().get("traceparent").unwrap().to_str().unwrap().to_owned();
        assert!(returned.starts_with(&format!("00-{trace}-")) && returned.ends_with("-01") && returned != header, "{returned}");
        let found = spans(&collector, &trace, 5).await;
        let one = |name: &str| found.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no span {name} in {found:#?}"));
        let request = one("POST /v1/topics/{topic}/checks");
        assert_eq!(hex(&request.parent_span_id), "00f067aa0ba902b7");
        assert_eq!(hex(&request.span_id), returned[36..52]);
        assert_eq!(request.kind, 2, "a server's span");
        let of = |name: &str| attribute(&request.attributes, name).unwrap_or_else(|| panic!("no {name} in {request:?}"));
        assert_eq!([of("http.response.status_code"), of("dedup.topic"), of("dedup.op")], ["200".to_owned(), t.clone(), "check".to_owned()]);
        for tier in ["local", "hot", "home"] {
            let span = one(tier);
            assert_eq!(span.parent_span_id, request.span_id, "{tier}");
            assert_eq!(attribute(&span.attributes, "dedup.home_region").as_deref(), Some("us"), "{tier}");
        }
        let call = one("home call");
        assert_eq!(call.kind, 3, "a client's span");
        assert_eq!(call.links.iter().map(|l| hex(&l.span_id)).collect::<Vec<_>>(), [hex(&request.span_id)]);
        assert_eq!(attribute(&call.attributes, "db.system.name").as_deref(), Some("postgresql"));
        assert!(!format!("{found:?}").contains("secret-key"), "a key is in a span");

        // Many traced requests that share a call: all ask for one key, so while the first one's call is stuck the others wait for it to end,
        // and then go out together.
        let eu = &testbed.region("eu").postgres;
        eu.sigstop().await;
        let parents: Vec<(String, String)> = (0..12).map(|_| parent(true)).collect();
        let asked = parents.iter().map(|(_, header)| {
            let (url, t, header) = (url.clone(), t.clone(), header.clone());
            tokio::spawn(async move { ask_traced(&url, &t, "eu:shared", &header).await })
        });
        let asked: Vec<_> = asked.collect();
        wait_until("all to be in line", Duration::from_secs(10), || async {
            let queued = series(&metrics(&url).await, "dedup_home_queued", &["home_region=\"eu\""]);
            if queued >= 12.0 { Ok(()) } else { Err(format!("{queued} in line")) }
        })
        .await;
        eu.sigcont().await;
        let verdicts: Vec<String> = join_all(asked).await.into_iter().map(|r| r.unwrap().verdict().to_owned()).collect();
        assert_eq!(verdicts.iter().filter(|v| *v == "first").count(), 1, "{verdicts:?}");
        for (trace, _) in &parents {
            spans(&collector, trace, 4).await;
        }
        let calls: Vec<Span> = collector.spans().into_iter().filter(|s| s.name == "home call").collect();
        let linked = |trace: &str| calls.iter().filter(|c| c.links.iter().any(|l| hex(&l.trace_id) == trace)).count();
        for (trace, _) in &parents {
            assert!(linked(trace) >= 1, "no call links to {trace}");
        }
        let widest = calls.iter().map(|c| c.links.len()).max().unwrap();
        // Two calls for all twelve: those who were there when the first one left, and all others.
        assert!(widest >= 6, "the call that most shared links to {widest}");
        testbed.stop().await.unwrap();
    });
}

/// Who is traced is configured: a caller's "not sampled" is followed, a request without a trace is traced by `trace_ratio`, and no caller
/// gets more than `traces_per_second_max`.
/// Seen to fail with every caller's trace followed, sampled or not, and without the look at `traces_per_second_max`.
#[test]
fn sampling_is_configured_and_callers_are_capped() {
    run(async {
        let collector = Collector::start().await;
        let tables = format!("otlp_endpoint = \"{}\"\notlp_metrics = false\ntraces_per_second_max = 3", collector.url());
        let testbed = testbed(&["eu"], &tables).await;
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "sampled").await;
        let (unsampled, header) = parent(false);
        ask_traced(&url, &t, "eu:0", &header).await.is("first");
        check(&url, &t, json!({"key": "eu:none"})).await.is("first");
        ask_traced(&url, &t, "eu:odd", "00-not-a-trace-01").await.is("first");
        let began = Instant::now();
        let parents: Vec<(String, String)> = (0..60).map(|_| parent(true)).collect();
        for (n, (_, header)) in parents.iter().enumerate() {
            ask_traced(&url, &t, &format!("eu:k{n}"), header).await.is("first");
        }
        let seconds = began.elapsed().as_secs() + 2;
        // Orderly end: what waits is pushed.
        testbed.region("eu").instances[0].sigterm_and_wait(Duration::from_secs(10)).await;
        let requests: Vec<String> = collector.spans().iter().filter(|s| s.kind == 2).map(|s| hex(&s.trace_id)).collect();
        assert!(!requests.is_empty(), "some were traced");
        assert!(requests.len() as u64 <= 3 * seconds, "{} traces in {seconds} s", requests.len());
        assert!(!requests.contains(&unsampled));
        assert!(requests.iter().all(|trace| parents.iter().any(|(p, _)| p == trace)), "nobody else was traced");

        let all = Collector::start().await;
        let config = testbed.region("eu").instances[0].config_path();
        let text = std::fs::read_to_string(config).unwrap();
        let text = text.replace(&collector.url(), &all.url()).replace("traces_per_second_max = 3", "trace_ratio = 1.0");
        std::fs::write(config, text).unwrap();
        testbed.region("eu").instances[0].start().await.unwrap();
        let url = testbed.region("eu").instances[0].url();
        for n in 0..5 {
            check(&url, &t, json!({"key": format!("eu:again-{n}")})).await.is("first");
        }
        wait_until("all five", Duration::from_secs(10), || async {
            let n = all.spans().iter().filter(|s| s.kind == 2 && s.parent_span_id.is_empty() && s.name.ends_with("/checks")).count();
            if n == 5 { Ok(()) } else { Err(format!("{n} traces")) }
        })
        .await;
        testbed.stop().await.unwrap();
    });
}

/// Logs are JSON and carry the trace of the request they are about; keys are not in them.
/// Seen to fail with a call that logs outside of its span, and with a service that logs what it is asked for.
#[test]
fn logs_carry_trace_ids_and_no_keys() {
    run(async {
        let collector = Collector::start().await;
        let tables = format!("otlp_endpoint = \"{}\"\notlp_metrics = false", collector.url());
        let testbed = testbed(&["eu"], &tables).await;
        let instance = &testbed.region("eu").instances[0];
        let t = topic(&instance.url(), "logged").await;
        claim(&instance.url(), &t, json!({"key": "eu:secret-key-0"})).await.is("first");
        // A home that says nothing: the call fails some time after its caller was told.
        testbed.region("eu").postgres.sigstop().await;
        let (trace, header) = parent(true);
        let body = json!({"key": "eu:secret-key-1"}).to_string().into_bytes();
        let headers = [("traceparent", header.as_str()), ("dedup-deadline-ms", "300")];
        let reply = call(Method::POST, &instance.url(), &format!("/v1/topics/{t}/checks"), Some(body), &headers).await.unwrap();
        assert_eq!(reply.status, 503, "{reply:?}");
        let log = wait_until("the failed call in the log", Duration::from_secs(10), || async {
            let log = std::fs::read_to_string(instance.log_path()).unwrap();
            if log.contains(&trace) { Ok(log) } else { Err("not there".to_owned()) }
        })
        .await;
        testbed.region("eu").postgres.sigcont().await;
        for line in log.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            if line.to_string().contains(&trace) {
                assert_eq!(line["span"]["trace_id"], json!(trace), "{line}");
                assert!(line["span"]["span_id"].is_string(), "{line}");
            }
        }
        assert!(!log.contains("secret-key"), "a key is in the log");
        testbed.stop().await.unwrap();
    });
}

/// A collector that is away, or takes everything and never answers, costs no verdict and no time, and does not hold up the end.
/// Seen to fail with a last push that is waited for as long as it takes, and with requests that wait until their spans are pushed.
#[test]
fn a_dead_or_slow_collector_hurts_nobody() {
    run(async {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let held = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Ok((stream, _)) = silent.accept().await {
                all.push(stream);
            }
        });
        // Port 9 of loopback: nobody listens there.
        for endpoint in ["http://127.0.0.1:9".to_owned(), format!("http://127.0.0.1:{port}")] {
            let tables =
                format!("otlp_endpoint = \"{endpoint}\"\notlp_interval_ms = 1000\ntrace_ratio = 1.0\ntraces_per_second_max = 10000");
            let testbed = testbed(&["eu"], &tables).await;
            let instance = &testbed.region("eu").instances[0];
            let t = topic(&instance.url(), "away").await;
            check(&instance.url(), &t, json!({"key": "eu:once"})).await.is("first");
            let until = Instant::now() + Duration::from_secs(4);
            let mut slowest = Duration::ZERO;
            let mut n = 0;
            while Instant::now() < until {
                let began = Instant::now();
                check(&instance.url(), &t, json!({"key": format!("eu:{n}")})).await.is("first");
                slowest = slowest.max(began.elapsed());
                n += 1;
            }
            assert!(slowest < Duration::from_secs(2), "{endpoint}: {slowest:?}");
            assert_eq!(get(&instance.url(), "/readyz").await.status, 200);
            assert!(series(&metrics(&instance.url()).await, "dedup_decisions_total", &["verdict=\"first\""]) >= f64::from(n), "{endpoint}");
            let status = instance.sigterm_and_wait(Duration::from_secs(8)).await;
            assert!(status.success(), "{endpoint}: {status}");
            testbed.stop().await.unwrap();
        }
        held.abort();
    });
}
