//! Hard to hurt: silent sockets, slow bodies, and thousands of callers of one key cost the others next to nothing.

#![expect(clippy::print_stdout, reason = "figures for whoever looks, by --nocapture")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dedup_testbed::{Testbed, wait_until};
use futures_util::future::join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::api::{check, claim, complete, metrics, series, topic};
use crate::harness::{options, run};

/// p99 of single first checks, one after the other: the best of several windows, since whatever else this machine does comes and goes,
/// while what a test does to the service is there in all of them.
async fn p99(url: &str, topic: &str, tag: &str) -> Duration {
    let mut best = Duration::MAX;
    for window in 0..5 {
        let mut times = Vec::new();
        for k in 0..300 {
            let began = Instant::now();
            check(url, topic, json!({"key": format!("eu:{tag}-{window}-{k}")})).await.is("first");
            times.push(began.elapsed());
        }
        times.sort();
        best = best.min(times[times.len() * 99 / 100]);
    }
    best
}

/// The crowd has left: what the others waited beside it was near what they wait without it, before it came or now, whichever was longer.
async fn hurt_nobody(url: &str, topic: &str, before: Duration, during: Duration, allowed: impl Fn(Duration) -> Duration) {
    let after = p99(url, topic, "after").await;
    println!("p99 {before:?} before, {during:?} during, {after:?} after");
    assert!(during < allowed(before.max(after)), "p99 {before:?} before, {during:?} during, {after:?} after");
}

/// 2,000 connections that say nothing and 200 bodies that drip: honest callers do not notice, and the service is rid of them by itself.
/// Seen to fail with a handler that waits for a body on the thread that serves all others.
#[test]
fn silent_sockets_hurt_nobody() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let instance = &testbed.region("eu").instances[0];
        let url = instance.url();
        let t = topic(&url, "silent").await;
        p99(&url, &t, "warm-up").await;
        let before = p99(&url, &t, "before").await;
        let address = url.trim_start_matches("http://").to_owned();
        let silent = join_all((0..2000).map(|_| TcpStream::connect(&address))).await;
        let silent: Vec<TcpStream> = silent.into_iter().map(|s| s.unwrap()).collect();
        let drip = |_| {
            let (address, t) = (address.clone(), t.clone());
            tokio::spawn(async move {
                let mut socket = TcpStream::connect(address).await.unwrap();
                let head = format!(
                    "POST /v1/topics/{t}/checks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n"
                );
                socket.write_all(head.as_bytes()).await.unwrap();
                // Until the service hangs up.
                while socket.write_all(b" ").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            })
        };
        let dripping: Vec<_> = (0..200).map(drip).collect();
        let during = p99(&url, &t, "during").await;
        // Slow bodies end by the service's own limit of 10 s.
        for drip in dripping {
            tokio::time::timeout(Duration::from_secs(20), drip).await.expect("a dripping body is still taken").unwrap();
        }
        drop(silent);
        hurt_nobody(&url, &t, before, during, |alone| alone * 2 + Duration::from_millis(5)).await;
        testbed.stop().await.unwrap();
    });
}

/// Statements the home was sent so far by the instance's batchers.
async fn statements(url: &str) -> f64 {
    series(&metrics(url).await, "dedup_home_roundtrip_seconds_count", &[])
}

/// Waits until so many connections stand between this process and the instance, and the burst of first looks is over.
async fn all_there(url: &str, callers: usize) {
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    let remote = format!(":{port:04X}");
    // Column 2 of the kernel's table is the other end, column 3 the state: 01 is established.
    let connected = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let columns = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        columns.filter(|c| c[2].ends_with(&remote) && c[3] == "01").count()
    };
    wait_until("every caller is connected", Duration::from_secs(20), || async {
        let n = connected();
        if n >= callers { Ok(()) } else { Err(format!("{n} of {callers}")) }
    })
    .await;
    let mut last = (Instant::now(), statements(url).await);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = (Instant::now(), statements(url).await);
        if (now.1 - last.1) / (now.0 - last.0).as_secs_f64() <= 50.0 {
            return;
        }
        last = now;
    }
}

/// 2,000 callers wait for one open claim: one look serves them all, so the home is asked a few times a second for that key, other keys
/// do not notice, and a completion reaches every caller within a second.
/// Seen to fail with callers that each look for themselves.
#[test]
fn two_thousand_waiting_callers_cost_a_few_statements() {
    run(async {
        const CALLERS: usize = 2000;
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "hot").await;
        p99(&url, &t, "warm-up").await;
        let before = p99(&url, &t, "before").await;
        let first = claim(&url, &t, json!({"key": "eu:hot", "lease_ms": 600_000})).await.is("first");
        let caller = |_| {
            let (url, t) = (url.clone(), t.clone());
            tokio::spawn(async move {
                loop {
                    let answer = claim(&url, &t, json!({"key": "eu:hot", "wait_ms": 20_000})).await;
                    if answer.verdict() == "duplicate" {
                        return Instant::now();
                    }
                }
            })
        };
        let callers: Vec<_> = (0..CALLERS).map(caller).collect();
        all_there(&url, CALLERS).await;
        let (began, asked) = (Instant::now(), statements(&url).await);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let rate = (statements(&url).await - asked) / began.elapsed().as_secs_f64();
        let during = p99(&url, &t, "during").await;
        println!("{rate:.1} statements a second");
        assert!(rate <= 50.0, "{rate:.1} statements a second for one key");
        let began = Instant::now();
        assert_eq!(complete(&url, &first.text("claim_token")).await.status, 200);
        let ended = join_all(callers).await.into_iter().map(|c| c.unwrap()).max().unwrap();
        println!("all told after {:?}", ended - began);
        assert!(ended - began < Duration::from_secs(1), "{:?}", ended - began);
        hurt_nobody(&url, &t, before, during, |alone| alone * 3 / 2 + Duration::from_millis(5)).await;
        testbed.stop().await.unwrap();
    });
}

/// Case O1: callers that do not wait but ask again after `retry_after_ms` share looks as well: the home is asked at most 50 times a second
/// for that key, other keys do not notice much, and a completion reaches each with its next question. (`DEDUP_CROWD` callers, 500.)
/// Seen to fail without the rest between two looks at a key in progress.
#[test]
fn polling_callers_hurt_nobody() {
    run(async {
        let crowd = std::env::var("DEDUP_CROWD").map_or(500, |n| n.parse::<usize>().unwrap());
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "polled").await;
        p99(&url, &t, "warm-up").await;
        let before = p99(&url, &t, "before").await;
        let first = claim(&url, &t, json!({"key": "eu:hot", "lease_ms": 600_000})).await.is("first");
        let answered = Arc::new(AtomicUsize::new(0));
        let caller = |n: usize| {
            let (url, t, answered) = (url.clone(), t.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis((n * 1000 / crowd) as u64)).await;
                let mut known = false;
                loop {
                    let answer = claim(&url, &t, json!({"key": "eu:hot"})).await;
                    if !std::mem::replace(&mut known, true) {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    if answer.verdict() == "duplicate" {
                        return Instant::now();
                    }
                    tokio::time::sleep(Duration::from_millis(answer.body["retry_after_ms"].as_u64().unwrap())).await;
                }
            })
        };
        let callers: Vec<_> = (0..crowd).map(caller).collect();
        wait_until("each caller was answered once", Duration::from_secs(20), || async {
            let n = answered.load(Ordering::Relaxed);
            if n == crowd { Ok(()) } else { Err(format!("{n} of {crowd}")) }
        })
        .await;
        let (began, asked) = (Instant::now(), statements(&url).await);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let rate = (statements(&url).await - asked) / began.elapsed().as_secs_f64();
        let during = p99(&url, &t, "during").await;
        println!("{crowd} callers, {rate:.1} statements a second");
        assert!(rate <= 50.0, "{rate:.1} statements a second for {crowd} questions a second");
        let began = Instant::now();
        assert_eq!(complete(&url, &first.text("claim_token")).await.status, 200);
        let ended = join_all(callers).await.into_iter().map(|c| c.unwrap()).max().unwrap();
        println!("all told after {:?}", ended - began);
        assert!(ended - began < Duration::from_millis(2000), "a question a second, then a moment: {:?}", ended - began);
        hurt_nobody(&url, &t, before, during, |alone| alone * 3 / 2 + Duration::from_millis(10)).await;
        testbed.stop().await.unwrap();
    });
}
