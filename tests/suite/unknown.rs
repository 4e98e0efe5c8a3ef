//! Unknown outcomes: a reply that was lost after the commit (P4, P9; case M1).

use std::time::Duration;

use dedup_testbed::{Mode, Testbed, wait_until};
use reqwest::Method;
use serde_json::json;

use crate::api::{call, claim, complete, post, topic};
use crate::harness::{options, run};

/// Case M1: the home commits, its reply is lost. The caller gets its grant (the service asks again by itself), or is told that it is not
/// known; the same request id then gets that very grant on any instance; another one meets a claim that is really there.
/// Seen to fail with a build whose retry draws a new request hash (the service takes its own claim for somebody else's).
/// And with a service that called a lost lease one although its own first attempt had released the key.
#[test]
fn case_m1_a_lost_reply_is_settled_by_the_same_request() {
    run(async {
        let mut options = options(&["eu", "us"], 1);
        options.proxies = true;
        let testbed = Testbed::start(options).await.unwrap();
        let (eu, us) = (testbed.region("eu"), testbed.region("us"));
        let proxy = eu.proxy.as_ref().unwrap();
        let (a, b) = (eu.instances[0].url(), us.instances[0].url());
        let t = topic(&a, "m1").await;
        let owner = eu.postgres.connect("dedup_owner").await;
        let there = async |key: &str| -> i64 {
            owner
                .query_one("SELECT count(*) FROM dedup.claims WHERE digest = dedup.digest_v1($1, 0, 'default', 0, $2)", &[&t, &key])
                .await
                .unwrap()
                .get(0)
        };
        let warm = claim(&a, &t, json!({"key": "eu:warm-up"})).await.is("first");
        complete(&a, &warm.text("claim_token")).await;

        // The line heals before the deadline: the service settles it by itself.
        proxy.set_mode(Mode::LoseReplies);
        let asked = tokio::spawn({
            let (a, t) = (a.clone(), t.clone());
            async move { claim(&a, &t, json!({"key": "eu:1", "request_id": "r1", "lease_ms": 60_000})).await }
        });
        wait_until("the commit", Duration::from_secs(5), || async {
            if there("eu:1").await == 1 { Ok(()) } else { Err("not yet".into()) }
        })
        .await;
        proxy.set_mode(Mode::Pass);
        proxy.cut();
        let first = asked.await.unwrap().is("first");
        assert_eq!(first.body["replayed"], json!(true), "the second attempt met the first one's claim and knew it for its own");
        claim(&b, &t, json!({"key": "eu:1", "request_id": "other"})).await.is("in_progress");

        // It does not: the caller is told so, and settles it anywhere.
        proxy.set_mode(Mode::LoseReplies);
        let body = json!({"key": "eu:2", "request_id": "r2", "lease_ms": 60_000}).to_string().into_bytes();
        let path = format!("/v1/topics/{t}/claims");
        let unknown = call(Method::POST, &a, &path, Some(body.clone()), &[("dedup-deadline-ms", "700")])
            .await
            .unwrap()
            .fails(503, "claim-outcome-unknown");
        assert_eq!(
            (unknown.body["applied"].clone(), unknown.body["retry"].clone(), unknown.text("request_id")),
            (json!("unknown"), json!("same_request_id"), "r2".into())
        );
        assert!(unknown.retry_after.is_some());
        assert_eq!(there("eu:2").await, 1);
        assert!(proxy.lost_bytes() > 0);
        proxy.set_mode(Mode::Pass);
        proxy.cut();
        let settled = wait_until("the home is back", Duration::from_secs(10), || async {
            let r = call(Method::POST, &b, &path, Some(body.clone()), &[]).await.unwrap();
            if r.status == 200 { Ok(r) } else { Err(format!("{r:?}")) }
        })
        .await
        .is("first");
        assert_eq!(settled.body["replayed"], json!(true));
        wait_until("the other instance is back too", Duration::from_secs(10), || async {
            let r = claim(&a, &t, json!({"key": "eu:2"})).await;
            if r.status == 200 { Ok(r.is("in_progress")) } else { Err(format!("{r:?}")) }
        })
        .await;

        // (Both lines know their statements again, so that what is lost below is the reply to a commit.)
        for k in 0..20 {
            let warm = claim(&a, &t, json!({"key": format!("eu:warm-{k}")})).await.is("first");
            assert_eq!(complete(&a, &warm.text("claim_token")).await.status, 200);
        }

        // The same for a completion: it can be repeated, and is then known for what it was.
        proxy.set_mode(Mode::LoseReplies);
        let token = settled.text("claim_token");
        let done = json!({"claim_token": token, "outcome": "succeeded"}).to_string().into_bytes();
        let lost = call(Method::POST, &a, "/v1/claims/complete", Some(done), &[("dedup-deadline-ms", "700")]).await.unwrap();
        assert_eq!((lost.status, lost.code()), (503, "claim-outcome-unknown"), "{lost:?}");
        proxy.set_mode(Mode::Pass);
        proxy.cut();
        let repeated = wait_until("the completion is settled", Duration::from_secs(10), || async {
            let r = complete(&a, &token).await;
            if r.status == 200 { Ok(r) } else { Err(format!("{r:?}")) }
        })
        .await;
        assert_eq!(repeated.body["replayed"], json!(true));

        // A release, too: the reply of one that worked is lost; repeating it is no lost lease.
        let third = claim(&a, &t, json!({"key": "eu:3", "lease_ms": 60_000})).await.is("first");
        let body = json!({"claim_token": third.text("claim_token")});
        assert_eq!(post(&a, "/v1/claims/release", body.clone()).await.body["replayed"], json!(false));
        assert_eq!(post(&b, "/v1/claims/release", body).await.body["replayed"], json!(true));

        // A release that worked, and the key claimed since: the service's own repetition finds the lease lost, and cannot say that nothing
        // was changed. The caller's repetition is told so.
        let fourth = claim(&a, &t, json!({"key": "eu:4", "lease_ms": 60_000})).await.is("first");
        let body = json!({"claim_token": fourth.text("claim_token")});
        proxy.set_mode(Mode::LoseReplies);
        let asked = tokio::spawn({
            let (a, body) = (a.clone(), body.clone());
            async move { post(&a, "/v1/claims/release", body).await }
        });
        wait_until("the release", Duration::from_secs(5), || async {
            let sql = "SELECT meta & 7 FROM dedup.claims WHERE digest = dedup.digest_v1($1, 0, 'default', 0, 'eu:4')";
            let state: i32 = owner.query_one(sql, &[&t]).await.unwrap().get(0);
            if state == 4 { Ok(()) } else { Err(format!("state {state}")) }
        })
        .await;
        let taken: String = owner.query_one("SELECT verdict FROM dedup.claim($1, 'eu:4')", &[&t]).await.unwrap().get(0);
        assert_eq!(taken, "first");
        proxy.set_mode(Mode::Pass);
        proxy.cut();
        asked.await.unwrap().fails(503, "claim-outcome-unknown");
        // Until the instance has found the home again it says so.
        wait_until("the release is settled", Duration::from_secs(10), || async {
            let r = post(&a, "/v1/claims/release", body.clone()).await;
            if (r.status, r.code()) == (409, "lease-lost") { Ok(()) } else { Err(format!("{r:?}")) }
        })
        .await;
        testbed.stop().await.unwrap();
    });
}

/// A request that never reached the home may be asked again freely: nothing was claimed, and a stalled statement claims nothing later.
/// Seen to fail with a home that does not look at `not_after`.
#[test]
fn a_lost_request_claims_nothing() {
    run(async {
        let mut options = options(&["eu"], 1);
        options.proxies = true;
        let testbed = Testbed::start(options).await.unwrap();
        let eu = testbed.region("eu");
        let proxy = eu.proxy.as_ref().unwrap();
        let a = eu.instances[0].url();
        let t = topic(&a, "lostreq").await;
        claim(&a, &t, json!({"key": "eu:warm-up"})).await.is("first");
        proxy.set_mode(Mode::LoseRequests);
        let path = format!("/v1/topics/{t}/claims");
        let body = json!({"key": "eu:1", "request_id": "r1"}).to_string().into_bytes();
        // It cannot know that the bytes never arrived.
        call(Method::POST, &a, &path, Some(body), &[("dedup-deadline-ms", "500")]).await.unwrap().fails(503, "claim-outcome-unknown");
        proxy.set_mode(Mode::Pass);
        proxy.cut();
        wait_until("the home is back", Duration::from_secs(10), || async {
            let r = claim(&a, &t, json!({"key": "eu:1", "request_id": "r2"})).await;
            if r.status == 200 { Ok(r.is("first")) } else { Err(format!("{r:?}")) }
        })
        .await;
        // Delayed beyond its deadline: the statement arrives when nobody waits any more and must do nothing.
        proxy.set_delay(Duration::from_millis(800));
        let body = json!({"key": "eu:late", "request_id": "r1"}).to_string().into_bytes();
        call(Method::POST, &a, &path, Some(body), &[("dedup-deadline-ms", "300")]).await.unwrap().fails(503, "claim-outcome-unknown");
        proxy.set_delay(Duration::ZERO);
        let owner = eu.postgres.connect("dedup_owner").await;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let n: i64 = owner
            .query_one("SELECT count(*) FROM dedup.claims WHERE digest = dedup.digest_v1($1, 0, 'default', 0, 'eu:late')", &[&t])
            .await
            .unwrap()
            .get(0);
        assert_eq!(n, 0, "a statement past its not_after must not claim");
        testbed.stop().await.unwrap();
    });
}
