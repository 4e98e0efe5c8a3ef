//! Forgetting: in the home, in every cache, for good (P6; the forget log).

use std::time::Duration;

use dedup_testbed::wait_until;
use serde_json::json;

use crate::api::{check, claim, complete, post, topic};
use crate::harness::{run, shared, url};

/// A forgotten key is first again on every instance of every region within a second, however warm the caches were.
/// Seen to fail with a feed that does not read the forget log.
#[test]
fn a_forgotten_key_is_first_again_everywhere() {
    run(async {
        let urls = [url("eu", 0).await, url("eu", 1).await, url("us", 0).await, url("us", 1).await];
        let t = topic(&urls[0], "forget").await;
        for round in 0..urls.len() * 2 {
            let key = format!("eu:{round}");
            check(&urls[0], &t, json!({"key": key})).await.is("first");
            for _ in 0..2 {
                for url in &urls {
                    check(url, &t, json!({"key": key})).await.is("duplicate");
                }
            }
            let gone = post(&urls[round % 4], &format!("/v1/topics/{t}/records/forget"), json!({"key": key, "reason": "test"})).await;
            assert_eq!((gone.status, gone.body["removed"].clone()), (200, json!(true)), "{gone:?}");
            // The instance that forgot knows at once; each other is asked, in turn, to be the first that notices.
            let other = &urls[(round + 1) % 4];
            let began = std::time::Instant::now();
            wait_until("the others hear of it", Duration::from_secs(3), || async {
                let r = post(other, &format!("/v1/topics/{t}/records/lookup"), json!({"key": key})).await;
                let believed = r.body["caches"].as_array().unwrap().iter().any(|c| c["state"] == "believed");
                if believed { Err(format!("{r:?}")) } else { Ok(()) }
            })
            .await;
            assert!(began.elapsed() < Duration::from_secs(1), "heard within a second: {:?}", began.elapsed());
            check(other, &t, json!({"key": key})).await.is("first");
            let again =
                post(other, &format!("/v1/topics/{t}/records/forget"), json!({"key": format!("{key}-never"), "reason": "test"})).await;
            assert_eq!((again.status, again.body["removed"].clone()), (200, json!(false)));
        }
    });
}

/// The token of a forgotten claim is lease-lost, and says why; a reason is needed and kept.
/// Seen to fail without the audit row, with a forgotten claim said to be expired, and with a blank reason taken.
#[test]
fn forgetting_ends_a_claim_and_is_audited() {
    run(async {
        let url = url("us", 0).await;
        let t = topic(&url, "audit").await;
        let first = claim(&url, &t, json!({"key": "us:k", "lease_ms": 60_000})).await.is("first");
        let path = format!("/v1/topics/{t}/records/forget");
        post(&url, &path, json!({"key": "us:k"})).await.fails(400, "invalid-field");
        post(&url, &path, json!({"key": "us:k", "reason": " "})).await.fails(400, "invalid-field");
        assert_eq!(post(&url, &path, json!({"key": "us:k", "reason": "customer asked"})).await.body["removed"], json!(true));
        assert_eq!(complete(&url, &first.text("claim_token")).await.fails(409, "lease-lost").text("state"), "forgotten");
        let next = claim(&url, &t, json!({"key": "us:k"})).await.is("first");
        assert_eq!(next.body["attempt"], json!(1));
        assert!(next.text("fence") > first.text("fence"));
        let owner = shared().await.region("us").postgres.connect("dedup_owner").await;
        let row = owner.query_one("SELECT actor, action, reason, grp FROM dedup.audit WHERE topic = $1", &[&t]).await.unwrap();
        let row: [String; 4] = [row.get(0), row.get(1), row.get(2), row.get(3)];
        assert_eq!(row, ["anonymous", "forget", "customer asked", "default"]);
    });
}

/// `lookup` reads without claiming and explains what each tier knows.
/// Seen to fail with a look-up that leaves a row, and with open claims kept in the local tier.
#[test]
fn lookup_explains_and_claims_nothing() {
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "lookup").await;
        let path = format!("/v1/topics/{t}/records/lookup");
        let look = || post(&url, &path, json!({"key": "eu:k"}));
        assert_eq!(look().await.body["home"]["state"], json!("absent"));
        let first = claim(&url, &t, json!({"key": "eu:k", "owner": "w", "fingerprint": "f"})).await.is("first");
        let open = look().await.body;
        assert_eq!((open["home"]["state"].clone(), open["home"]["record"]["owner"].clone()), (json!("in_progress"), json!("w")));
        assert_eq!(open["home"]["record"]["fence"], first.body["fence"]);
        assert!(open["caches"].as_array().unwrap().iter().all(|c| c["state"] == "absent"), "{open}");
        complete(&url, &first.text("claim_token")).await;
        let done = look().await.body;
        assert_eq!((done["home"]["state"].clone(), done["caches"][0]["state"].clone()), (json!("done"), json!("believed")));
        claim(&url, &t, json!({"key": "eu:k", "request_id": "x"})).await.is("duplicate");
    });
}
