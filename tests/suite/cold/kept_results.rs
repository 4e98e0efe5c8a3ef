//! How long a stored result is told is the topic's policy (`keep_results_ms`), whatever tier its record is in.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Cold, check_all};
use crate::api::{Reply, check, claim, post, topic_with};
use crate::harness::{clocked, run};

async fn completed(url: &str, topic: &str, key: &str, body: &str) -> Reply {
    let first = claim(url, topic, json!({"key": key})).await.is("first");
    let token = first.text("claim_token");
    let result = json!({"status": 201, "media_type": "text/plain", "headers": {"a": "b"}, "body": body});
    let ended = post(url, "/v1/claims/complete", json!({"claim_token": token, "outcome": "succeeded", "result": result})).await;
    assert_eq!(ended.body["state"], json!("done"), "{ended:?}");
    ended
}

/// A result whose topic keeps it for twenty days is told by the archive, in REST, in SQL and to `lookup`, while its record is moved from tier to tier,
/// and not a moment longer; then it is gone from the tables, too, and a repetition of the completion is still known as one while the record is warm. A
/// result of an earlier window, or of a forgotten record, is never told of a later one.
/// Seen to fail with results that are dropped with their segment, and with a forget that leaves them.
#[test]
fn a_kept_result_is_told_from_the_archive_until_its_time() {
    run(async {
        let mut cold = Cold::start("warm_ms = 86400000\n").await;
        let url = cold.url();
        let day = 86_400_000_i64;
        let t = topic_with(&url, "keep", json!({"window_ms": 60 * day, "keep_results_ms": 20 * day})).await;
        let plain = topic_with(&url, "keep-not", json!({"window_ms": 60 * day})).await;
        for key in ["eu:a", "eu:b", "eu:forgotten"] {
            completed(&url, &t, key, key).await;
        }
        completed(&url, &plain, "eu:a", "x").await;
        let app = cold.region().postgres.connect("dedup_caller").await;
        let sql = async |key: &str| {
            let row = app
                .query_one("SELECT verdict, convert_from(result_body, 'UTF8'), result_omitted, result_expires_at IS NOT NULL FROM dedup.check($1, $2)", &[&t, &key])
                .await
                .unwrap();
            (row.get::<_, String>(0), row.get::<_, Option<String>>(1), row.get::<_, Option<bool>>(2), row.get::<_, bool>(3))
        };
        let first = check(&url, &t, json!({"key": "eu:a"})).await.is("duplicate");
        assert_eq!((&first.body["tier"], &first.body["result"]["body"]), (&json!("warm"), &json!("eu:a")), "{first:?}");
        for days in 1..=18 {
            check_all(&url, &t, (0..20).map(|k| format!("eu:noise-{days}-{k}"))).await;
            cold.next_day().await;
        }
        let told = check(&url, &t, json!({"key": "eu:a"})).await.is("duplicate");
        assert_eq!((&told.body["tier"], &told.body["result"]), (&json!("cold"), &first.body["result"]), "{told:?}");
        assert_eq!(told.body["result_expires_at"], first.body["result_expires_at"], "{told:?}");
        assert_eq!(sql("eu:b").await, ("duplicate".into(), Some("eu:b".into()), Some(false), true));
        let looked = post(&url, &format!("/v1/topics/{t}/records/lookup"), json!({"key": "eu:b"})).await;
        assert_eq!(looked.body["home"]["record"]["result"]["body"], json!("eu:b"), "{looked:?}");
        let gone = check(&url, &plain, json!({"key": "eu:a"})).await.is("duplicate");
        assert_eq!(
            (&gone.body["result"], &gone.body["result_omitted"]),
            (&Value::Null, &json!(true)),
            "kept no longer than it is warm: {gone:?}"
        );
        // Forgotten in the archive and done again without a result.
        post(&url, &format!("/v1/topics/{t}/records/forget"), json!({"key": "eu:forgotten", "reason": "test"})).await;
        let again = claim(&url, &t, json!({"key": "eu:forgotten"})).await.is("first");
        crate::api::complete(&url, &again.text("claim_token")).await;
        assert_eq!(check(&url, &t, json!({"key": "eu:forgotten"})).await.is("duplicate").body["result"], Value::Null);
        let left = cold.owner().await.query_one("SELECT count(*) FROM dedup.results WHERE body IS NOT NULL", &[]).await.unwrap();
        assert_eq!(left.get::<_, i64>(0), 2, "of a and b");

        for _ in 0..2 {
            cold.next_day().await;
        }
        let over = check(&url, &t, json!({"key": "eu:a"})).await.is("duplicate");
        assert_eq!((&over.body["result"], &over.body["result_omitted"]), (&Value::Null, &json!(true)), "{over:?}");
        assert_eq!(sql("eu:b").await, ("duplicate".into(), None, Some(true), false));
        cold.settled().await;
        let left = cold.owner().await.query_one("SELECT count(*) FROM dedup.results WHERE body IS NOT NULL", &[]).await.unwrap();
        assert_eq!(left.get::<_, i64>(0), 0);
        cold.testbed.stop().await.unwrap();
    });
}

/// The caches tell a result no longer than the home does, on the instance that completed, and on the other; one that is not to be kept at all is
/// said not to be stored. `keep_results_ms` is at most the window.
/// Seen to fail with caches that do not look at a result's end, with a completion that is cached with its result,
/// and with a home that does not look at it either.
#[test]
fn caches_tell_a_result_no_longer_than_the_home() {
    run(async {
        let mut clock = clocked().await;
        let urls = [clock.url(0), clock.url(1)];
        let t = topic_with(&urls[0], "keep-hot", json!({"window_ms": 600_000, "keep_results_ms": 60_000})).await;
        assert_eq!(completed(&urls[0], &t, "eu:k", "body").await.body["result_stored"], json!(true));
        for _ in 0..3 {
            for url in &urls {
                let told = claim(url, &t, json!({"key": "eu:k"})).await.is("duplicate");
                assert_eq!(told.body["result"]["body"], json!("body"), "{told:?}");
                assert!(told.body["result_expires_at"].is_string(), "{told:?}");
            }
        }
        let home = clock.testbed.region("eu").postgres.connect("postgres").await;
        // A caller in SQL asks the home alone.
        let kept = async || {
            let sql = "SELECT convert_from(result_body, 'UTF8'), result_omitted FROM dedup.claim($1, 'eu:k')";
            let row = home.query_one(sql, &[&t]).await.unwrap();
            (row.get::<_, Option<String>>(0), row.get::<_, bool>(1))
        };
        assert_eq!(kept().await, (Some("body".to_owned()), false));
        clock.forward_and_tell(Duration::from_secs(61), &t).await;
        assert_eq!(kept().await, (None, true));
        for _ in 0..3 {
            for url in &urls {
                let told = claim(url, &t, json!({"key": "eu:k"})).await.is("duplicate");
                assert_eq!((&told.body["result"], &told.body["result_omitted"]), (&Value::Null, &json!(true)), "{told:?}");
            }
        }
        let never = topic_with(&urls[0], "keep-never", json!({"window_ms": 600_000, "keep_results_ms": 0})).await;
        assert_eq!(completed(&urls[0], &never, "eu:k", "body").await.body["result_stored"], json!(false));
        for url in &urls {
            let told = claim(url, &never, json!({"key": "eu:k"})).await.is("duplicate");
            assert_eq!((&told.body["result"], &told.body["result_omitted"]), (&Value::Null, &json!(true)), "{told:?}");
        }
        let more = crate::api::put(&urls[0], &format!("/v1/topics/{t}"), json!({"window_ms": 600_000, "keep_results_ms": 600_001})).await;
        let more = more.fails(400, "invalid-field");
        assert_eq!((&more.body["pointer"], &more.body["max"]), (&json!("/keep_results_ms"), &json!(600_000)));
    });
}
