//! Races: many callers, several instances and regions, one key (P1, P11; cases G1–G3, N2).

use std::collections::HashMap;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::api::{check, claim, post, topic};
use crate::harness::{options, run, shared, url};

/// Every instance asks for the same cold keys at once; answers of one key.
async fn storm(urls: &[String], topic: &str, keys: std::ops::Range<usize>, callers: usize) -> (usize, usize) {
    let (mut firsts, mut asked) = (0, 0);
    for k in keys {
        let key = format!("eu:{k}");
        let one = |i: usize| claim(&urls[i % urls.len()], topic, json!({"key": key, "lease_ms": 60_000}));
        let answers = join_all((0..callers).map(one)).await;
        let first: Vec<_> = answers.iter().filter(|a| a.verdict() == "first").collect();
        assert_eq!(first.len(), 1, "{key}: {:?}", first);
        assert!(answers.iter().all(|a| a.status == 200), "{key}");
        let fence = first[0].text("fence");
        assert!(
            answers.iter().filter(|a| a.verdict() == "in_progress").all(|a| a.text("fence") == fence),
            "{key}: P2, every loser names the winner"
        );
        firsts += 1;
        asked += answers.len();
    }
    (firsts, asked)
}

/// P1, case G1: 200 callers over two instances of one region and one of another on one cold key, 1,000 keys: exactly one `first` each.
/// Seen to fail without the unique index.
#[test]
fn p1_case_g1_one_first_per_key_over_instances_and_regions() {
    run(async {
        let urls = [url("eu", 0).await, url("eu", 1).await, url("us", 0).await];
        let t = topic(&urls[0], "g1").await;
        assert_eq!(storm(&urls, &t, 0..1000, 200).await, (1000, 200_000));
    });
}

/// The same without any Redis.
/// Seen to fail without the unique index.
#[test]
fn p1_case_g1_one_first_per_key_without_redis() {
    run(async {
        let mut options = options(&["eu", "us"], 2);
        options.redis = false;
        let testbed = dedup_testbed::Testbed::start(options).await.unwrap();
        let urls =
            [testbed.region("eu").instances[0].url(), testbed.region("eu").instances[1].url(), testbed.region("us").instances[0].url()];
        let t = topic(&urls[0], "g1").await;
        storm(&urls, &t, 0..200, 200).await;
        testbed.stop().await.unwrap();
    });
}

/// P1 for checks, mixed with claims, from batches and single calls at once.
/// Seen to fail without the unique index.
#[test]
fn p1_checks_claims_and_batches_share_one_first() {
    run(async {
        let urls = [url("eu", 0).await, url("us", 1).await, url("eu", 1).await];
        let t = topic(&urls[0], "mix").await;
        for k in 0..100 {
            let key = format!("us:{k}");
            let one = |i: usize| {
                let (url, t, key) = (&urls[i % 3], &t, &key);
                async move {
                    match i % 4 {
                        0 => check(url, t, json!({"key": key})).await.body,
                        1 => claim(url, t, json!({"key": key, "lease_ms": 60_000})).await.body,
                        2 => post(url, &format!("/v1/topics/{t}/checks/batch"), json!({"items": [{"key": "eu:noise"}, {"key": key}]}))
                            .await
                            .body["results"][1]
                            .clone(),
                        _ => post(url, &format!("/v1/topics/{t}/claims/batch"), json!({"items": [{"key": key}]})).await.body["results"][0]
                            .clone(),
                    }
                }
            };
            let answers: Vec<Value> = join_all((0..24).map(one)).await;
            let firsts = answers.iter().filter(|a| a["verdict"] == "first").count();
            assert_eq!(firsts, 1, "{answers:?}");
        }
    });
}

/// Case N2: batches with the same keys in opposite order never deadlock for a caller, and each key has one `first`.
/// Seen to fail (deadlocks in the server's log) when batches are neither sorted nor bounded by the function's lock_timeout; either alone
/// keeps callers from them.
#[test]
fn case_n2_opposite_batches_do_not_deadlock() {
    run(async {
        let urls = [url("eu", 0).await, url("eu", 1).await];
        let t = topic(&urls[0], "n2").await;
        for round in 0..40 {
            let keys: Vec<Value> = (0..500).map(|k| json!({"key": format!("eu:{round}-{k}")})).collect();
            let back: Vec<Value> = keys.iter().rev().cloned().collect();
            let path = format!("/v1/topics/{t}/checks/batch");
            let body = |items: &[Value]| json!({"detail": "verdict", "items": items});
            let (one, two, three) = tokio::join!(
                post(&urls[0], &path, body(&keys)),
                post(&urls[1], &path, body(&back)),
                post(&urls[round % 2], &path, body(&keys[100..300]))
            );
            let mut firsts: HashMap<String, usize> = HashMap::new();
            for (items, reply) in [(&keys[..], one), (&back[..], two), (&keys[100..300], three)] {
                assert_eq!(reply.status, 200);
                for (item, result) in items.iter().zip(reply.body["results"].as_array().unwrap()) {
                    let verdict = result["verdict"].as_str().unwrap_or_else(|| panic!("{result}"));
                    *firsts.entry(item["key"].to_string()).or_default() += usize::from(verdict == "first");
                }
            }
            assert!(firsts.len() == 500 && firsts.values().all(|n| *n == 1), "round {round}");
        }
        let log = std::fs::read_to_string(shared().await.region("eu").postgres.log_path()).unwrap();
        assert!(!log.contains("deadlock detected"), "the server saw a deadlock");
    });
}

/// Cases G2 and G3: losers of a race against a transaction that stays open get no verdict from it: they wait, and are told the truth once
/// it commits (duplicate) or rolls back (exactly one of them is first). Never an empty answer, never a duplicate of nothing.
/// Seen to fail with a home that answers `duplicate` for a key held by an open transaction.
#[test]
fn case_g2_g3_losers_wait_for_the_winners_commit_or_rollback() {
    run(async {
        let testbed = shared().await;
        let urls = [url("eu", 0).await, url("eu", 1).await];
        let t = topic(&urls[0], "g2").await;
        for commits in [true, false] {
            let key = format!("eu:{commits}");
            // A row as a check of the same identity would leave it, in a transaction of our own. The digest is computed by the home.
            let mut owner = testbed.region("eu").postgres.connect("dedup_owner").await;
            let tx = owner.transaction().await.unwrap();
            tx.execute("SELECT pg_advisory_xact_lock_shared(1684366453, 1)", &[]).await.unwrap();
            tx.execute(
                "INSERT INTO dedup.claims SELECT dedup.digest_v1($1, 0, 'default', 0, $2), dedup.fence_base() | nextval('dedup.fence_counter'), 1, \
                 l.current_segment, 0, dedup.t_in(s.origin_ms, dedup.now_ms()), dedup.t_in(s.origin_ms, dedup.now_ms() + 60000), \
                 dedup.t_in(s.origin_ms, dedup.now_ms()), 275 FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment",
                &[&t, &key],
            )
            .await
            .unwrap();
            let losers: Vec<_> = (0..20)
                .map(|i| {
                    let (url, t, key) = (urls[i % 2].clone(), t.clone(), key.clone());
                    tokio::spawn(async move { check(&url, &t, json!({"key": key})).await })
                })
                .collect();
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            assert!(losers.iter().all(|l| !l.is_finished()), "P2: an answer before the commit it would rest on");
            if commits {
                tx.commit().await.unwrap()
            } else {
                tx.rollback().await.unwrap()
            }
            let answers = join_all(losers).await;
            let firsts = answers.iter().filter(|a| a.as_ref().unwrap().verdict() == "first").count();
            assert_eq!(firsts, usize::from(!commits));
            assert!(answers.iter().all(|a| ["first", "duplicate"].contains(&a.as_ref().unwrap().verdict())));
        }
    });
}
