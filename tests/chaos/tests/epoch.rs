//! After a restore that makes no new timeline the epoch is raised by command, and fences go on rising.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

use std::process::Command;
use std::time::Duration;

use dedup_testbed::{Options, Testbed, wait_until};
use serde_json::{Value, json};

async fn post(url: &str, path: &str, body: Value) -> (u16, Value) {
    dedup_client::Client::new("http://127.0.0.1:1").unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let sent = client.post(format!("{url}{path}")).header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
    (sent.status().as_u16(), serde_json::from_str(&sent.text().await.unwrap()).unwrap())
}

/// P5 and case U1: a home is restored to the state before a claim was granted, counter and all. Without a raised epoch the next owner would
/// get the very fence of the lost claim; with it its fence is above, and the token of the lost claim ends nothing.
#[test]
fn a_raised_epoch_lifts_fences_after_a_restore() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let bin = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("dedup");
        let mut options = Options::new(bin.clone());
        options.regions = vec!["eu".into()];
        let testbed = Testbed::start(options).await.unwrap();
        let eu = testbed.region("eu");
        let url = eu.instances[0].url();
        let put = reqwest::Client::builder().no_proxy();
        dedup_client::Client::new("http://127.0.0.1:1").unwrap();
        let put = put.build().unwrap().put(format!("{url}/v1/topics/t")).header("content-type", "application/json");
        assert_eq!(put.body(json!({"window_ms": 86_400_000}).to_string()).send().await.unwrap().status(), 200);

        let owner = eu.postgres.connect("dedup_owner").await;
        let before: i64 = owner.query_one("SELECT last_value FROM dedup.fence_counter", &[]).await.unwrap().get(0);
        let (_, lost) = post(&url, "/v1/topics/t/claims", json!({"key": "eu:k", "lease_ms": 60_000})).await;
        assert_eq!(lost["verdict"], "first");
        // The restore: the claim is gone, and the counter is where it was.
        let sql = format!("DELETE FROM dedup.claims; SELECT setval('dedup.fence_counter', {before}, {})", before > 1);
        owner.batch_execute(&sql).await.unwrap();

        let ran = Command::new(&bin)
            .args(["raise-epoch", "--owner", "dedup_owner", "--home", "eu", "--reason", "restored from a dump", "--config"])
            .arg(testbed.dir().join("eu").join("migrate.toml"))
            .env("DEDUP_OWNER_PASSWORD", eu.postgres.password())
            .output()
            .unwrap();
        assert!(ran.status.success() && String::from_utf8_lossy(&ran.stdout).contains("epoch is 2"), "{ran:?}");
        let next = wait_until("the instance has noticed", Duration::from_secs(10), || async {
            let (status, body) = post(&url, "/v1/topics/t/claims", json!({"key": "eu:k", "lease_ms": 60_000, "request_id": "next"})).await;
            if status == 200 { Ok(body) } else { Err(body.to_string()) }
        })
        .await;
        assert_eq!(next["verdict"], "first");
        assert!(next["fence"].as_str() > lost["fence"].as_str(), "{next} after {lost}");
        let late = json!({"claim_token": lost["claim_token"], "outcome": "succeeded"});
        assert_eq!(post(&url, "/v1/claims/complete", late).await.1["code"], "lease-lost");
        let audited: String = owner.query_one("SELECT reason FROM dedup.audit WHERE action = 'raise-epoch'", &[]).await.unwrap().get(0);
        assert_eq!(audited, "restored from a dump");
        testbed.stop().await.unwrap();
    });
}
