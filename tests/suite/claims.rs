//! Claims and their ends: leases, fences, take-overs, releases (P1, P4, P5, P10; cases A1, A2, B1–B4, C2, D1, G5).

use std::time::Duration;

use dedup_testbed::wait_until;
use serde_json::{Value, json};

use crate::api::{check, claim, complete, post, release, topic, topic_with};
use crate::harness::{clocked, run, url};

/// Case A1: a worker dies; its lease lapses and the next claim takes over, long before the window ends.
/// Seen to fail with a lapsed lease that is still said to be in progress, and with a take-over that keeps the old window.
#[test]
fn case_a1_a_lapsed_lease_is_taken_over_with_a_higher_fence() {
    run(async {
        let mut clock = clocked().await;
        let url = clock.url(0);
        let t = topic(&url, "a1").await;
        let first = claim(&url, &t, json!({"key": "eu:k", "lease_ms": 30_000, "owner": "w1"})).await.is("first");
        assert_eq!(first.body["attempt"], json!(1));
        assert!(first.body["previous"].is_null());
        clock.forward(Duration::from_millis(28_000)).await;
        let busy = claim(&url, &t, json!({"key": "eu:k"})).await.is("in_progress");
        assert!(busy.body["retry_after_ms"].as_i64().unwrap() <= 1000, "{busy:?}");
        assert_eq!(busy.text("owner"), "w1");
        assert_eq!(busy.text("fence"), first.text("fence"));
        clock.forward(Duration::from_millis(3_000)).await;
        let second = claim(&url, &t, json!({"key": "eu:k", "owner": "w2"})).await.is("first");
        assert_eq!(second.body["attempt"], json!(2));
        assert!(second.text("fence") > first.text("fence"));
        assert_eq!(second.body["previous"]["ended"], json!("lapsed"));
        assert_eq!(second.body["previous"]["owner"], json!("w1"));
        assert!(second.text("expires_at") > first.text("expires_at"), "a take-over starts the window anew");
        complete(&url, &second.text("claim_token")).await;
        let done = claim(&url, &t, json!({"key": "eu:k"})).await.is("duplicate");
        assert_eq!(done.text("expires_at"), second.text("expires_at"), "duplicates and completions never move the end");
    });
}

/// Case A2: no claim is unbounded; a lease out of range is refused, and one longer than the window is cut to it and says so.
/// Seen to fail with leases cut to the maximum in silence, and with a lease that outlives its window.
#[test]
fn case_a2_every_claim_has_a_finite_lease() {
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "a2").await;
        let first = claim(&url, &t, json!({"key": "eu:k"})).await.is("first");
        assert_eq!(first.body["lease_ms_left"], json!(30_000));
        let refused = claim(&url, &t, json!({"key": "eu:k2", "lease_ms": 315_360_000_000u64})).await.fails(400, "invalid-field");
        assert_eq!((refused.text("pointer"), refused.body["max"].clone()), ("/lease_ms".into(), json!(86_400_000)));
        claim(&url, &t, json!({"key": "eu:k2", "lease_ms": 999})).await.fails(400, "invalid-field");
        let cut = claim(&url, &t, json!({"key": "eu:k3", "lease_ms": 60_000, "window_ms": 5_000})).await.is("first");
        assert_eq!(cut.body["lease_ms_left"], json!(5_000));
        assert_eq!(cut.body["lease_cut"], json!(true));
        for (lease, left, told) in [(60_000, 5_000, json!(true)), (4_000, 4_000, Value::Null)] {
            let body = json!({"claim_token": cut.text("claim_token"), "lease_ms": lease});
            let extended = post(&url, "/v1/claims/extend", body).await;
            assert_eq!((extended.body["lease_ms_left"].clone(), extended.body["lease_cut"].clone()), (json!(left), told), "{extended:?}");
        }
        let short = topic_with(&url, "a2s", json!({"window_ms": 60_000, "lease_ms": 2_000, "lease_max_ms": 10_000})).await;
        claim(&url, &short, json!({"key": "eu:k", "lease_ms": 10_001})).await.fails(400, "invalid-field");
        let first = claim(&url, &short, json!({"key": "eu:k"})).await.is("first");
        assert_eq!(first.body["lease_ms_left"], json!(2_000));
    });
}

/// Case B1: completing and taking over race around the lease's end; after a completion that succeeded nobody is `first`.
/// Seen to fail with a take-over whose DELETE does not repeat the state and fence it judged.
#[test]
fn case_b1_a_take_over_never_overwrites_a_finished_record() {
    run(async {
        let (a, b) = (url("eu", 0).await, url("eu", 1).await);
        let t = topic(&a, "b1").await;
        let round = |i: usize| {
            let (a, b, t) = (&a, &b, &t);
            async move {
                let key = format!("eu:{i}");
                let first = claim(a, t, json!({"key": key, "lease_ms": 1000})).await.is("first");
                // Both strike when the lease is about to end: half of them at the same moment, half each at its own, so that both win often
                // enough on a slow machine too.
                let token = first.text("claim_token");
                let moment = || Duration::from_millis(900 + rand::random_range(0..250));
                let (one, other) = (moment(), moment());
                let (one, other) = if i.is_multiple_of(2) { (one, one) } else { (one, other) };
                let (done, over) = tokio::join!(
                    async {
                        tokio::time::sleep(one).await;
                        complete(a, &token).await
                    },
                    async {
                        tokio::time::sleep(other).await;
                        claim(b, t, json!({"key": key})).await
                    }
                );
                let after = claim(b, t, json!({"key": key})).await;
                match done.status {
                    200 => {
                        assert_ne!(over.verdict(), "first", "taken over although completed: {done:?} {over:?}");
                        assert_eq!(after.verdict(), "duplicate");
                    }
                    409 => {
                        assert_eq!(done.code(), "lease-lost");
                        assert_eq!((over.verdict(), after.verdict()), ("first", "in_progress"));
                    }
                    _ => panic!("{done:?}"),
                }
                done.status
            }
        };
        let ended = futures_util::future::join_all((0..300).map(round)).await;
        let completed = ended.iter().filter(|s| **s == 200).count();
        assert!(completed > 20 && completed < 280, "both ways must have happened to mean anything: {completed} of 300 completed");
    });
}

/// Case B3 and P5: only the current fence ends a claim; anything else is `lease-lost` and changes nothing.
/// Seen to fail when `finish_one` compares the digest alone.
#[test]
fn case_b3_p5_an_old_token_frees_nobodys_claim() {
    run(async {
        let (a, b) = (url("eu", 0).await, url("us", 1).await);
        let t = topic(&a, "b3").await;
        let first = claim(&a, &t, json!({"key": "eu:k", "lease_ms": 1000})).await.is("first");
        let second = wait_until("the take-over", Duration::from_secs(5), || async {
            let r = claim(&b, &t, json!({"key": "eu:k", "lease_ms": 60_000})).await;
            if r.verdict() == "first" { Ok(r) } else { Err(format!("{r:?}")) }
        })
        .await;
        let (old, new) = (first.text("claim_token"), second.text("claim_token"));
        let lost = release(&a, &old).await.fails(409, "lease-lost");
        assert_eq!((lost.text("fence"), lost.text("state")), (second.text("fence"), "in_progress".into()));
        assert_eq!(lost.body["attempt"], json!(2));
        complete(&b, &old).await.fails(409, "lease-lost");
        post(&a, "/v1/claims/extend", json!({"claim_token": old, "lease_ms": 1000})).await.fails(409, "lease-lost");
        let held = claim(&a, &t, json!({"key": "eu:k"})).await.is("in_progress");
        assert_eq!(held.text("fence"), second.text("fence"));
        assert_eq!(release(&a, &new).await.body["state"], json!("released"));
        let third = claim(&a, &t, json!({"key": "eu:k"})).await.is("first");
        assert!(third.text("fence") > second.text("fence"));
        assert_eq!(third.body["attempt"], json!(3));
        assert_eq!(third.body["previous"]["ended"], json!("released"));
        post(&a, "/v1/claims/release", json!({})).await.fails(400, "invalid-field");
        release(&a, "dc1.AAAA").await.fails(400, "invalid-field");
    });
}

/// Case B4: a lease is prolonged while the work goes on, and lapses when that stops; a late owner whom nobody replaced may still complete.
/// Seen to fail with an extension that changes nothing, with one that counts from the old end, and with one refused as soon as the lease
/// has lapsed.
#[test]
fn case_b4_extending_keeps_others_out_until_it_stops() {
    run(async {
        let mut clock = clocked().await;
        let url = clock.url(0);
        let t = topic(&url, "b4").await;
        let first = claim(&url, &t, json!({"key": "eu:k", "lease_ms": 10_000})).await.is("first");
        let token = first.text("claim_token");
        for _ in 0..6 {
            clock.forward(Duration::from_millis(8_000)).await;
            let extended = post(&url, "/v1/claims/extend", json!({"claim_token": token, "lease_ms": 10_000, "note": "half\nway"})).await;
            assert_eq!((extended.status, extended.body["lease_ms_left"].clone()), (200, json!(10_000)), "{extended:?}");
            claim(&url, &t, json!({"key": "eu:k"})).await.is("in_progress");
        }
        clock.forward(Duration::from_millis(10_500)).await;
        // Nobody took over yet, so the fence is still current although the lease has lapsed.
        assert_eq!(post(&url, "/v1/claims/extend", json!({"claim_token": token, "lease_ms": 1000})).await.status, 200);
        clock.forward(Duration::from_millis(1_500)).await;
        let second = claim(&url, &t, json!({"key": "eu:k"})).await.is("first");
        assert_eq!(second.body["previous"]["note"], json!("half\nway"));
        post(&url, "/v1/claims/extend", json!({"claim_token": token, "lease_ms": 1000})).await.fails(409, "lease-lost");
    });
}

/// Case B2: a row without a sensible lease (as another writer might leave it) protects until its window ends; it is never "abandoned".
/// Seen to fail with a lease that ends with its window read as none at all, so as abandoned.
#[test]
fn case_b2_a_claim_that_never_lapses_protects() {
    run(async {
        let mut clock = clocked().await;
        let url = clock.url(0);
        let t = topic(&url, "b2").await;
        claim(&url, &t, json!({"key": "eu:k", "lease_ms": 1000})).await.is("first");
        let owner = clock.testbed.region("eu").postgres.connect("dedup_owner").await;
        let changed = owner.execute("UPDATE dedup.claims SET ends = expires WHERE meta & 7 = 1 AND ends < expires", &[]).await.unwrap();
        assert!(changed >= 1);
        clock.forward(Duration::from_secs(3600)).await;
        for n in 0..2 {
            claim(&clock.url(n), &t, json!({"key": "eu:k"})).await.is("in_progress");
        }
    });
}

/// Case C2: completing does not end the window: the key is a duplicate until then, and first again after it.
/// Seen to fail with a completion that leaves the record a minute, and with caches that never look at the window's end.
#[test]
fn case_c2_finishing_the_work_does_not_end_the_window() {
    run(async {
        let mut clock = clocked().await;
        let (a, b) = (clock.url(0), clock.url(1));
        let t = topic(&a, "c2").await;
        let first = claim(&a, &t, json!({"key": "eu:k", "window_ms": 300_000})).await.is("first");
        complete(&a, &first.text("claim_token")).await;
        for step in [1_000, 149_000, 148_000] {
            clock.forward_and_tell(Duration::from_millis(step), &t).await;
            claim(&a, &t, json!({"key": "eu:k"})).await.is("duplicate");
            claim(&b, &t, json!({"key": "eu:k"})).await.is("duplicate");
        }
        clock.forward_and_tell(Duration::from_millis(3_000), &t).await;
        let again = claim(&b, &t, json!({"key": "eu:k"})).await.is("first");
        assert_eq!(again.body["attempt"], json!(1), "attempts start anew after the window");
    });
}

/// Case D1 and P10: a release makes the key claimable everywhere before it returns, a hundred times over.
/// Seen to fail with a build that keeps open claims in the local tier.
#[test]
fn case_d1_p10_a_release_is_seen_everywhere_at_once() {
    run(async {
        let urls = [url("eu", 0).await, url("us", 0).await, url("eu", 1).await];
        let t = topic(&urls[0], "d1").await;
        let mut fence = String::new();
        for i in 0..100 {
            let (here, there) = (&urls[i % 3], &urls[(i + 1) % 3]);
            let first = claim(here, &t, json!({"key": "eu:k", "lease_ms": 60_000})).await.is("first");
            assert_eq!(first.body["attempt"], json!(i + 1));
            assert!(first.text("fence") > fence);
            fence = first.text("fence");
            claim(there, &t, json!({"key": "eu:k"})).await.is("in_progress");
            let released =
                post(there, "/v1/claims/release", json!({"claim_token": first.text("claim_token"), "note": format!("try {i}")})).await;
            assert_eq!(released.status, 200, "{released:?}");
        }
        let last = claim(&urls[0], &t, json!({"key": "eu:k"})).await.is("first");
        assert_eq!(last.body["previous"]["note"], json!("try 99"));
    });
}

/// Case D2: a failure that is final is stored as one; one that is not is released.
/// Seen to fail with an outcome that is not stored.
#[test]
fn case_d2_final_failures_are_recognisable() {
    run(async {
        let url = url("us", 0).await;
        let t = topic(&url, "d2").await;
        let first = claim(&url, &t, json!({"key": "us:k"})).await.is("first");
        release(&url, &first.text("claim_token")).await;
        let second = claim(&url, &t, json!({"key": "us:k"})).await.is("first");
        let body = json!({"claim_token": second.text("claim_token"), "outcome": "failed", "result": {"status": 402, "body": "refused"}});
        assert_eq!(post(&url, "/v1/claims/complete", body).await.status, 200);
        let duplicate = claim(&url, &t, json!({"key": "us:k"})).await.is("duplicate");
        assert_eq!((duplicate.text("outcome"), duplicate.body["result"]["status"].clone()), ("failed".into(), json!(402)));
    });
}

/// P4: a request id that was granted gets the very same grant again, on any instance, until that grant ends; a check's until its window ends.
/// Seen to fail with a build that sends a new request hash with each call.
#[test]
fn p4_the_same_request_gets_the_same_grant() {
    run(async {
        let urls = [url("eu", 0).await, url("eu", 1).await, url("us", 0).await, url("us", 1).await];
        let t = topic(&urls[0], "p4").await;
        let ask = json!({"key": "eu:k", "request_id": "r-1", "lease_ms": 60_000});
        let first = claim(&urls[0], &t, ask.clone()).await.is("first");
        assert_eq!(first.body["replayed"], json!(false));
        for url in &urls {
            let again = claim(url, &t, ask.clone()).await.is("first");
            assert_eq!(again.body["replayed"], json!(true));
            for same in ["fence", "claim_token", "first_seen_at", "expires_at", "request_id"] {
                assert_eq!(again.text(same), first.text(same), "{same}");
            }
            claim(url, &t, json!({"key": "eu:k", "request_id": "r-2"})).await.is("in_progress");
            claim(url, &t, json!({"key": "eu:k"})).await.is("in_progress");
        }
        complete(&urls[2], &first.text("claim_token")).await;
        for url in &urls {
            claim(url, &t, ask.clone()).await.is("duplicate");
        }
        // A check's grant stays: through the home, the local and the hot tier.
        let ask = json!({"key": "eu:c", "request_id": "r-1"});
        let first = check(&urls[0], &t, ask.clone()).await.is("first");
        for url in urls.iter().chain(&urls) {
            let again = check(url, &t, ask.clone()).await.is("first");
            assert_eq!((again.body["replayed"].clone(), again.text("fence")), (json!(true), first.text("fence")));
            check(url, &t, json!({"key": "eu:c", "request_id": "other"})).await.is("duplicate");
        }
    });
}

/// P4, fine print: the same request after a lapse that nobody used gets its grant again, its lease renewed; after a take-over it does not.
/// Seen to fail with the same request after a lapse treated as a take-over.
#[test]
fn p4_an_unused_lapse_gives_the_grant_back() {
    run(async {
        let mut clock = clocked().await;
        let (a, b) = (clock.url(0), clock.url(1));
        let t = topic(&a, "p4l").await;
        let ask = json!({"key": "eu:k", "request_id": "r-1", "lease_ms": 5_000});
        let first = claim(&a, &t, ask.clone()).await.is("first");
        clock.forward(Duration::from_millis(6_000)).await;
        let again = claim(&b, &t, ask.clone()).await.is("first");
        assert_eq!((again.text("fence"), again.body["replayed"].clone()), (first.text("fence"), json!(true)));
        assert_eq!(again.body["lease_ms_left"], json!(5_000));
        assert_eq!(again.text("expires_at"), first.text("expires_at"), "a retry never moves the window");
        claim(&a, &t, json!({"key": "eu:k", "request_id": "r-2"})).await.is("in_progress");
        clock.forward(Duration::from_millis(6_000)).await;
        let over = claim(&b, &t, json!({"key": "eu:k", "request_id": "r-2"})).await.is("first");
        assert!(over.text("fence") > first.text("fence"));
        claim(&a, &t, ask).await.is("in_progress");
    });
}

/// P5: repeating the same completion succeeds; another one is refused and the first stands (case H3).
/// Seen to fail with any completion of a done claim taken for a repeat, and with none.
#[test]
fn p5_a_completion_can_be_repeated_but_not_changed() {
    run(async {
        let (a, b) = (url("eu", 0).await, url("us", 0).await);
        let t = topic(&a, "p5").await;
        let first = claim(&a, &t, json!({"key": "eu:k"})).await.is("first");
        let token = first.text("claim_token");
        let done = |outcome: &str, body: &str| json!({"claim_token": token, "outcome": outcome, "result": {"body": body}});
        let once = post(&a, "/v1/claims/complete", done("succeeded", "A")).await;
        assert_eq!(
            (once.body["state"].clone(), once.body["replayed"].clone(), once.body["result_stored"].clone()),
            (json!("done"), json!(false), json!(true))
        );
        let twice = post(&b, "/v1/claims/complete", done("succeeded", "A")).await;
        assert_eq!((twice.status, twice.body["replayed"].clone()), (200, json!(true)), "{twice:?}");
        post(&b, "/v1/claims/complete", done("succeeded", "B")).await.fails(409, "already-completed");
        post(&a, "/v1/claims/complete", done("failed", "A")).await.fails(409, "already-completed");
        complete(&a, &token).await.fails(409, "already-completed");
        release(&a, &token).await.fails(409, "lease-lost");
        for url in [&a, &b, &a] {
            let duplicate = claim(url, &t, json!({"key": "eu:k"})).await.is("duplicate");
            assert_eq!(duplicate.body["result"]["body"], json!("A"));
            assert_eq!((duplicate.text("fence"), duplicate.text("first_seen_at")), (first.text("fence"), first.text("first_seen_at")));
            assert_eq!(duplicate.body["attempt"], json!(1));
        }
    });
}

/// Case G5 and P10: refusing a duplicate changes nothing, however often, in every state. The row's transaction id shows it.
/// Seen to fail with a home that moves `expires` of the rows it found.
#[test]
fn case_g5_p10_refusing_a_duplicate_writes_nothing() {
    run(async {
        let clock = clocked().await;
        let (a, b) = (clock.url(0), clock.url(1));
        let t = topic(&a, "g5").await;
        let owner = clock.testbed.region("eu").postgres.connect("dedup_owner").await;
        let versions = async || -> Vec<(String, i64)> {
            let rows = owner.query("SELECT digest::text, xmin::text::bigint FROM dedup.claims ORDER BY 1", &[]).await.unwrap();
            rows.iter().map(|r| (r.get(0), r.get(1))).collect()
        };
        let first = claim(&a, &t, json!({"key": "eu:k", "lease_ms": 60_000})).await.is("first");
        for done in [false, true] {
            if done {
                complete(&a, &first.text("claim_token")).await;
            }
            let before = versions().await;
            for i in 0..10 {
                let url = if i % 2 == 0 { &a } else { &b };
                claim(url, &t, json!({"key": "eu:k"})).await.is(if done { "duplicate" } else { "in_progress" });
                release(url, "dc1.bm8").await.fails(400, "invalid-field");
                let batch = post(url, &format!("/v1/topics/{t}/claims/batch"), json!({"items": [{"key": "eu:k"}, {"key": "eu:k"}]})).await;
                assert_eq!(batch.status, 200);
            }
            assert_eq!(versions().await, before);
        }
    });
}
