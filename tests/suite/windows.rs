//! Windows: counted from the accepted call, by the home's clock, never moved by a duplicate (P8; cases C1, C3, C4).

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{check, claim, complete, post, topic, topic_with};
use crate::harness::{Clocked, clocked, options, run, url};

/// Case C1: a steady repeat is let through again when the window ends, over both instances and through every tier.
/// Seen to fail with caches that never look at the window's end, and with ones that look at it by the instance's own clock.
#[test]
fn case_c1_duplicates_do_not_renew_the_memory() {
    run(async {
        let mut clock = clocked().await;
        let t = topic_with(&clock.url(0), "c1", json!({"window_ms": 60_000})).await;
        let first = claim(&clock.url(0), &t, json!({"key": "eu:k"})).await.is("first");
        complete(&clock.url(0), &first.text("claim_token")).await;
        check(&clock.url(0), &t, json!({"key": "eu:c"})).await.is("first");
        for second in 1..59 {
            clock.forward_and_tell(Duration::from_secs(1), &t).await;
            let url = clock.url(second % 2);
            let again = claim(&url, &t, json!({"key": "eu:k"})).await.is("duplicate");
            assert_eq!(again.text("expires_at"), first.text("expires_at"));
            check(&url, &t, json!({"key": "eu:c"})).await.is("duplicate");
        }
        clock.forward_and_tell(Duration::from_secs(2), &t).await;
        for key in ["eu:k", "eu:c"] {
            let again = check(&clock.url(1), &t, json!({"key": key})).await.is("first");
            assert_eq!(again.body["attempt"], json!(1));
        }
    });
}

/// Case C1 and P10 without caches: the home itself renews nothing, whatever state the key is in: done, one-shot, open. What it answers stays
/// the same, and so does the row.
/// Seen to fail with a home whose duplicates write a new `expires`.
#[test]
fn case_c1_p10_the_home_renews_nothing() {
    run(async {
        let mut options = options(&["eu"], 2);
        options.redis = false;
        options.extra_tables = "[local]\nbytes = 0".into();
        let mut clock = Clocked::start(options).await;
        let t = topic_with(&clock.url(0), "c1", json!({"window_ms": 60_000})).await;
        let done = claim(&clock.url(0), &t, json!({"key": "eu:done"})).await.is("first");
        complete(&clock.url(0), &done.text("claim_token")).await;
        let checked = check(&clock.url(0), &t, json!({"key": "eu:checked"})).await.is("first");
        let open = claim(&clock.url(0), &t, json!({"key": "eu:open", "lease_ms": 60_000})).await.is("first");
        let owner = clock.testbed.region("eu").postgres.connect("dedup_owner").await;
        let rows = async || -> Vec<(String, i32, i32)> {
            let rows = owner.query("SELECT digest::text, expires, ends FROM dedup.claims ORDER BY 1", &[]).await.unwrap();
            rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect()
        };
        let before = rows().await;
        assert_eq!(before.len(), 3);
        for second in 1..58 {
            clock.forward(Duration::from_secs(1)).await;
            let url = clock.url(second % 2);
            for (key, first, verdict) in
                [("eu:done", &done, "duplicate"), ("eu:checked", &checked, "duplicate"), ("eu:open", &open, "in_progress")]
            {
                let again = claim(&url, &t, json!({"key": key})).await.is(verdict);
                assert_eq!((again.text("tier"), again.text("expires_at")), ("warm".into(), first.text("expires_at")), "{key}");
            }
            check(&url, &t, json!({"key": "eu:checked"})).await.is("duplicate");
        }
        assert_eq!(rows().await, before);
        clock.forward(Duration::from_secs(3)).await;
        for key in ["eu:done", "eu:checked", "eu:open"] {
            assert_eq!(claim(&clock.url(1), &t, json!({"key": key})).await.is("first").body["attempt"], json!(1), "{key}");
        }
        clock.testbed.stop().await.unwrap();
    });
}

/// Case C3: expiry is decided when reading; the old row is still there and counts no more, in a batch too.
/// Seen to fail with a home whose rows count until they are removed.
#[test]
fn case_c3_an_expired_row_is_absent_before_anybody_removes_it() {
    run(async {
        let mut clock = clocked().await;
        let url = clock.url(0);
        let t = topic(&url, "c3").await;
        let items: Vec<Value> = (0..50).map(|k| json!({"key": format!("eu:{k}"), "window_ms": 10_000})).collect();
        let path = format!("/v1/topics/{t}/checks/batch");
        assert_eq!(post(&url, &path, json!({"items": items})).await.body["counts"]["first"], json!(50));
        assert_eq!(post(&url, &path, json!({"items": items})).await.body["counts"]["duplicate"], json!(50));
        let open = claim(&url, &t, json!({"key": "eu:open", "window_ms": 10_000, "lease_ms": 5_000})).await.is("first");
        clock.forward_and_tell(Duration::from_millis(10_500), &t).await;
        let looked = post(&url, &format!("/v1/topics/{t}/records/lookup"), json!({"key": "eu:7"})).await;
        assert_eq!(looked.body["home"]["state"], json!("expired"), "{looked:?}");
        let again = post(&url, &path, json!({"items": items})).await;
        assert_eq!(again.body["counts"], json!({"first": 50}));
        assert!(again.body["results"].as_array().unwrap().iter().all(|r| r["attempt"] == json!(1)));
        // The owner whose window ended may still complete; nothing is remembered of it, and the answer says so.
        let late = complete(&url, &open.text("claim_token")).await;
        assert_eq!((late.status, late.body["state"].clone()), (200, json!("done")), "{late:?}");
        assert_eq!((late.text("expires_at"), late.body["remembered"].clone()), (open.text("expires_at"), json!(false)));
        claim(&url, &t, json!({"key": "eu:open"})).await.is("first");
    });
}

/// An open claim is present until the later of its window's and its lease's end: an extended lease outlives a short window.
/// Seen to fail with a home that looks at the window alone.
#[test]
fn an_open_claim_outlives_its_window_while_its_lease_lives() {
    run(async {
        let mut clock = clocked().await;
        let url = clock.url(0);
        let t = topic(&url, "open").await;
        let first = claim(&url, &t, json!({"key": "eu:k", "window_ms": 10_000, "lease_ms": 8_000})).await.is("first");
        clock.forward(Duration::from_millis(7_000)).await;
        let extended = post(&url, "/v1/claims/extend", json!({"claim_token": first.text("claim_token"), "lease_ms": 9_000})).await;
        assert_eq!(extended.status, 200, "{extended:?}");
        clock.forward(Duration::from_millis(5_000)).await;
        claim(&url, &t, json!({"key": "eu:k"})).await.is("in_progress");
        clock.forward(Duration::from_millis(5_000)).await;
        let next = claim(&url, &t, json!({"key": "eu:k"})).await.is("first");
        assert_eq!(next.body["attempt"], json!(1), "the window had ended");
    });
}

/// Case C4: one unit, named in the field; what is out of range is refused with the range, and nothing is ever unlimited by accident.
/// Seen to fail with any number taken for a window.
#[test]
fn case_c4_windows_are_whole_milliseconds_in_range() {
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "c4").await;
        let ask = |window: Value| {
            let (url, t) = (&url, &t);
            async move { check(url, t, json!({"key": "eu:k", "window_ms": window})).await }
        };
        for (window, code) in [
            (json!(0), (422, "invalid-window")),
            (json!(999), (422, "invalid-window")),
            (json!(31_536_000_001u64), (422, "invalid-window")),
            (json!(9_223_372_036_854_775_808u64), (422, "invalid-window")),
            (json!(1e30), (422, "invalid-window")),
            (json!(-1), (400, "invalid-field")),
            (json!(0.0001), (400, "invalid-field")),
            (json!(1000.0), (400, "invalid-field")),
            (json!("60"), (400, "invalid-field")),
            (json!([]), (400, "invalid-field")),
        ] {
            let reply = ask(window.clone()).await.fails(code.0, code.1);
            assert_eq!(reply.text("pointer"), "/window_ms", "{window}");
            if code.0 == 422 {
                assert_eq!((reply.body["min"].clone(), reply.body["max"].clone()), (json!(1000), json!(31_536_000_000u64)));
            }
        }
        ask(json!(1000)).await.is("first");
        for (key, window) in [("eu:max", json!(31_536_000_000u64)), ("eu:big", json!(2_147_483_648u64)), ("eu:null", Value::Null)] {
            check(&url, &t, json!({"key": key, "window_ms": window})).await.is("first");
        }
        let forever = check(&url, &t, json!({"key": "eu:forever", "window_ms": "forever"})).await.is("first");
        assert!(forever.body["expires_at"].is_null() && forever.body.get("expires_at").is_some());
    });
}

/// Case C4, P8: a window of one second is one second of the home's clock: duplicate before, first after, and `expires_at` says when.
/// Seen to fail with milliseconds taken for seconds, with ends cut to whole seconds, and with caches that never look at the window's end.
#[test]
fn case_c4_p8_a_second_is_a_second() {
    run(async {
        let mut clock = clocked().await;
        let (a, b) = (clock.url(0), clock.url(1));
        let t = topic_with(&a, "second", json!({"window_ms": 1000})).await;
        for key in ["eu:1", "eu:2", "eu:3"] {
            let first = check(&a, &t, json!({"key": key})).await.is("first");
            assert_eq!(span_ms(&first.text("first_seen_at"), &first.text("expires_at")), 1000);
        }
        clock.forward_and_tell(Duration::from_millis(400), &t).await;
        check(&b, &t, json!({"key": "eu:2"})).await.is("duplicate");
        clock.forward_and_tell(Duration::from_millis(700), &t).await;
        check(&a, &t, json!({"key": "eu:1"})).await.is("first");
        check(&b, &t, json!({"key": "eu:3"})).await.is("first");
    });
}

/// Milliseconds from one RFC 3339 time to another of the next 24 hours.
pub fn span_ms(from: &str, to: &str) -> i64 {
    let of_day = |text: &str| {
        let time = text.split('T').nth(1).unwrap().trim_end_matches('Z');
        let parts: Vec<f64> = time.split(':').map(|p| p.parse().unwrap()).collect();
        ((parts[0] * 3600.0 + parts[1] * 60.0 + parts[2]) * 1000.0).round() as i64
    };
    (of_day(to) - of_day(from)).rem_euclid(86_400_000)
}

/// P8, case K1: an instance's own clock decides nothing: a home two hours away from it is followed in everything.
/// Seen to fail with a home whose `now_ms` reads the server's clock instead of `dedup.now()`, and with an instance that says by its own clock
/// until when a call counts.
#[test]
fn p8_application_clocks_decide_nothing() {
    run(async {
        // An instance has no way to be told another time: its code reads no wall clock. What can be shifted is the home's clock, far away
        // from this machine's, and everything must follow the home.
        let mut clock = clocked().await;
        clock.forward(Duration::from_secs(7200)).await;
        let url = clock.url(0);
        let t = topic(&url, "p8").await;
        let first = claim(&url, &t, json!({"key": "eu:k", "lease_ms": 20_000})).await.is("first");
        assert_eq!(first.body["lease_ms_left"], json!(20_000));
        claim(&clock.url(1), &t, json!({"key": "eu:k"})).await.is("in_progress");
        clock.forward(Duration::from_secs(19)).await;
        claim(&clock.url(1), &t, json!({"key": "eu:k"})).await.is("in_progress");
        clock.forward(Duration::from_secs(2)).await;
        claim(&clock.url(1), &t, json!({"key": "eu:k"})).await.is("first");
    });
}

/// A home's clock that runs ahead for a while and is set back: what was past its window meanwhile was given to others, and no cache tells the
/// old grant again, not even one that heard nothing of the new one.
/// Seen to fail with caches that go back with the clock.
#[test]
fn p8_what_was_past_stays_past_when_the_clock_is_set_back() {
    run(async {
        let mut clock = Clocked::start(options(&["eu"], 2)).await;
        let urls = [clock.url(0), clock.url(1)];
        let t = topic_with(&urls[0], "back", json!({"window_ms": 60_000})).await;
        let old = check(&urls[0], &t, json!({"key": "eu:k"})).await.is("first");
        for url in urls.iter().chain(&urls) {
            check(url, &t, json!({"key": "eu:k"})).await.is("duplicate");
        }
        clock.forward_and_tell(Duration::from_secs(90), &t).await;
        let new = claim(&urls[1], &t, json!({"key": "eu:k"})).await.is("first");
        complete(&urls[1], &new.text("claim_token")).await;
        clock.back_and_tell(Duration::from_secs(85), &t).await;
        for url in &urls {
            let told = check(url, &t, json!({"key": "eu:k"})).await.is("duplicate");
            assert_eq!(told.text("fence"), new.text("fence"), "not {}", old.text("fence"));
        }
        clock.testbed.stop().await.unwrap();
    });
}
