//! Callers: bearer tokens, roles, topic patterns; and no open door without them.

use std::process::Command;

use dedup_testbed::Testbed;
use reqwest::Method;
use serde_json::json;

use crate::api::{Reply, call};
use crate::harness::{dedup_bin, options, run};

/// Three callers whose tokens are `use-token`, `operate-token` and `admin-token`.
fn callers() -> String {
    let entry = |name: &str, topics: &str| {
        let hash = Command::new("sh").args(["-c", &format!("printf %s {name}-token | sha256sum | cut -d' ' -f1")]).output().unwrap();
        let hash = String::from_utf8(hash.stdout).unwrap();
        format!("[[callers]]\nname = \"{name}\"\ntoken_sha256 = \"{}\"\nrole = \"{name}\"\ntopics = [{topics}]\n", hash.trim())
    };
    [entry("use", "\"pay*\""), entry("operate", "\"*\""), entry("admin", "\"*\"")].join("\n")
}

/// Every call needs a token; the role and the topic must fit; a missing topic and an ungranted one look alike to all but administrators.
/// Seen to fail with a claim token that opens its topic to everybody, with a missing topic told to those who may not know, and without the
/// look at the role.
#[test]
fn callers_get_what_their_role_and_topics_allow() {
    run(async {
        let mut options = options(&["eu"], 1);
        options.extra_tables = callers();
        let testbed = Testbed::start(options).await.unwrap();
        let url = testbed.region("eu").instances[0].url();
        let send = |method: Method, path: &'static str, token: &'static str, body: serde_json::Value| {
            let url = &url;
            async move {
                let header = format!("Bearer {token}");
                let headers = [("authorization", header.as_str())];
                let headers: &[(&str, &str)] = if token.is_empty() { &[] } else { &headers };
                call(method, url, path, Some(body.to_string().into_bytes()), headers).await.unwrap()
            }
        };
        let topic = json!({"window_ms": 60_000});
        let post = |path, token, body| send(Method::POST, path, token, body);
        let put = |path, token| send(Method::PUT, path, token, topic.clone());
        put("/v1/topics/payments", "").await.fails(401, "unauthenticated");
        put("/v1/topics/payments", "wrong").await.fails(401, "unauthenticated");
        put("/v1/topics/payments", "operate-token").await.fails(403, "role-not-permitted");
        assert_eq!(put("/v1/topics/payments", "admin-token").await.status, 200);
        assert_eq!(put("/v1/topics/orders", "admin-token").await.status, 200);
        let key = || json!({"key": "eu:k"});
        post("/v1/topics/payments/checks", "use-token", key()).await.is("first");
        let ungranted = post("/v1/topics/orders/checks", "use-token", key()).await.fails(403, "topic-not-permitted");
        let missing = post("/v1/topics/pay-nothing/checks", "use-token", key()).await.fails(403, "topic-not-permitted");
        assert_eq!(ungranted.body, missing.body, "existence must not leak");
        post("/v1/topics/nothing/checks", "admin-token", key()).await.fails(404, "topic-not-found");
        // The body's shape is judged before the topic; the caller before both.
        post("/v1/topics/orders/checks", "use-token", json!({"kee": 1})).await.fails(400, "invalid-field");
        post("/v1/topics/orders/checks", "", json!({"kee": 1})).await.fails(401, "unauthenticated");
        // A claim token is no way around the topic's grant.
        let claim = post("/v1/topics/orders/claims", "operate-token", key()).await.is("first");
        let body = json!({"claim_token": claim.text("claim_token"), "outcome": "succeeded"});
        post("/v1/claims/complete", "use-token", body.clone()).await.fails(403, "topic-not-permitted");
        assert_eq!(post("/v1/claims/complete", "operate-token", body).await.status, 200);
        let forget = || json!({"key": "eu:k", "reason": "test"});
        post("/v1/topics/payments/records/forget", "use-token", forget()).await.fails(403, "role-not-permitted");
        assert_eq!(post("/v1/topics/payments/records/forget", "operate-token", forget()).await.body["removed"], json!(true));
        let reason = || json!({"reason": "test"});
        for path in ["/v1/topics/payments/records/forget-all", "/v1/topics/payments/forget-jobs"] {
            post(path, "", reason()).await.fails(401, "unauthenticated");
            post(path, "use-token", reason()).await.fails(403, "role-not-permitted");
        }
        assert_eq!(post("/v1/topics/payments/records/forget-all", "operate-token", reason()).await.status, 200);
        let range = json!({"from": "2026-01-01T00:00:00Z", "reason": "test"});
        post("/v1/topics/payments/forget-jobs", "operate-token", range).await.fails(409, "keys-not-kept");
        let job = "/v1/jobs/11111111-2222-3333-4444-555555555555";
        send(Method::GET, job, "use-token", json!({})).await.fails(403, "role-not-permitted");
        send(Method::GET, job, "operate-token", json!({})).await.fails(404, "job-not-found");
        let list = |token| send(Method::GET, "/v1/topics", token, json!({}));
        assert_eq!(list("use-token").await.body["topics"].as_array().unwrap().len(), 1);
        assert_eq!(list("admin-token").await.body["topics"].as_array().unwrap().len(), 2);
        send(Method::GET, "/metrics", "", json!({})).await.fails(401, "unauthenticated");
        send(Method::GET, "/metrics", "use-token", json!({})).await.fails(403, "role-not-permitted");
        assert_eq!(send(Method::GET, "/metrics", "operate-token", json!({})).await.status, 200);
        let open: Reply = send(Method::GET, "/readyz", "", json!({})).await;
        assert_eq!(open.status, 200, "readiness is for whoever balances the load");
        let log = std::fs::read_to_string(testbed.region("eu").instances[0].log_path()).unwrap();
        for secret in ["use-token", "admin-token", testbed.secret_hex(), testbed.region("eu").postgres.password()] {
            assert!(!log.contains(secret), "a secret is in the log");
        }
        testbed.stop().await.unwrap();
    });
}

/// Without callers the service listens on loopback only: a configuration that says otherwise is refused by name, as is a setting that does
/// not exist (case U1's second half).
/// Seen to fail without the rule about loopback (it began to serve).
#[test]
fn without_callers_only_loopback_is_listened_on() {
    let dir = std::env::temp_dir().join(format!("dedup-callers-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("open.toml");
    let homes = "[[homes]]\nname = \"eu\"\nregion = \"eu\"\nprefixes = [\"eu\"]\npostgres = \"host=127.0.0.1 port=1 user=x dbname=y\"\n";
    let check = |text: String| {
        std::fs::write(&file, text).unwrap();
        // One that is accepted serves until it is told to stop.
        let out = Command::new("timeout").arg("10").arg(dedup_bin()).args(["serve", "--config"]).arg(&file).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout))
    };
    let (code, text) = check(format!("region = \"eu\"\nlisten = \"0.0.0.0:0\"\n{homes}"));
    assert!(code == Some(1) && text.contains("listen"), "{code:?} {text}");
    let (code, text) = check(format!("region = \"eu\"\nlisten = \"127.0.0.1:0\"\ndurable = false\n{homes}"));
    assert!(code == Some(1) && text.contains("durable"), "{code:?} {text}");
    std::fs::remove_dir_all(&dir).unwrap();
}
