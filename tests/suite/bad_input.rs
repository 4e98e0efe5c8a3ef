//! Bad input: every caller's mistake has one clear problem with the field named, and nothing is lost or half done (cases A2, C4, N1, N3).

use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{call, check, claim, get, post, put, topic, topic_with};
use crate::harness::{run, url};

/// Bodies that are not what they should be.
/// Seen to fail without the look at the depth of a body, with a parser that takes an array for an object, and with texts of any length.
#[test]
fn malformed_bodies_are_refused_and_named() {
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "mal").await;
        let path = format!("/v1/topics/{t}/checks");
        let send = |body: Vec<u8>| {
            let (url, path) = (&url, &path);
            async move { call(Method::POST, url, path, Some(body), &[]).await.unwrap() }
        };
        // Where depth were not looked at, this one would be an unknown field.
        let deep = format!("{{\"key\":\"eu:a\",\"x\":{}{}}}", "[".repeat(16), "]".repeat(16));
        for body in [
            "",
            "{",
            "[",
            "null",
            "[]",
            "\"x\"",
            "{\"key\":\"eu:a\"} x",
            "{\"key\":\"eu:a\",\"key\":\"eu:b\"}",
            deep.as_str(),
            "{\"key\":\"\\ud800\"}",
        ] {
            let reply = send(body.into()).await;
            assert_eq!((reply.status, reply.code()), (400, "malformed-request"), "{body}: {reply:?}");
        }
        assert_eq!(send(b"{\"key\":\"eu:\xff\"}".to_vec()).await.code(), "malformed-request");
        for (body, pointer) in [
            (json!({"key": "eu:a", "windowms": 1}), "/windowms"),
            (json!({"key": 7}), "/key"),
            (json!({"key": "eu:a", "lease_ms": 1000}), "/lease_ms"),
            (json!({}), "/key"),
            (json!({"key": ""}), "/key"),
            (json!({"key": "   "}), "/key"),
            (json!({"key": "k"}), "/key"),
            (json!({"key": ":k"}), "/key"),
            (json!({"key": "eu:"}), "/key"),
            (json!({"key": format!("eu:{}", "x".repeat(510))}), "/key"),
            (json!({"key": "eu:a", "request_id": ""}), "/request_id"),
            (json!({"key": "eu:a", "request_id": "x".repeat(129)}), "/request_id"),
            (json!({"key": "eu:a", "group": "x".repeat(256)}), "/group"),
            (json!({"key": "eu:a", "fingerprint": "x".repeat(129)}), "/fingerprint"),
            (json!({"key": "eu:a", "fingerprint": "ü"}), "/fingerprint"),
            (json!({"key": "eu:a", "fingerprint": ""}), "/fingerprint"),
        ] {
            let reply = send(body.to_string().into_bytes()).await.fails(400, "invalid-field");
            assert_eq!(reply.text("pointer"), pointer, "{body}");
        }
        let unknown = check(&url, &t, json!({"key": "xx:k"})).await.fails(422, "unknown-region");
        assert_eq!(unknown.body["known"], json!(["eu", "us"]));
        // An array of the fields in order is no object, alone, in a batch, or nested.
        send(br#"["eu:a",null,null,null,null]"#.to_vec()).await.fails(400, "malformed-request");
        let batch = post(&url, &format!("{path}/batch"), json!({"items": [["eu:a", null, null, null, null], {"key": "eu:b"}]})).await;
        assert_eq!(batch.body["results"][0]["problem"]["code"], json!("malformed-request"));
        assert_eq!(batch.body["results"][1]["verdict"], json!("first"));
        for field in [json!({"group": "\u{1}"}), json!({"window_ms": 5})] {
            let mut body = json!({"items": [{"key": "eu:c"}]});
            body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
            let refused = post(&url, &format!("{path}/batch"), body).await;
            assert!(refused.status == 400 || refused.status == 422, "what is common to a batch is the request's mistake: {refused:?}");
        }
        post(&url, &format!("{path}/batch"), json!({"items": 7})).await.fails(400, "invalid-field");
        // None of all this left anything behind.
        check(&url, &t, json!({"key": "eu:a"})).await.is("first");
    });
}

/// Claims have more fields to get wrong.
/// Seen to fail with texts of any length, and with any number taken for a result's status.
#[test]
fn fields_of_claims_and_ends_are_checked() {
    run(async {
        let url = url("us", 0).await;
        let t = topic(&url, "fields").await;
        for (field, value) in [
            ("lease_ms", json!(-1)),
            ("lease_ms", json!(1.5)),
            ("lease_ms", json!("1000")),
            ("owner", json!("x".repeat(129))),
            ("wait_ms", json!(30_001)),
        ] {
            let mut body = json!({"key": "us:k"});
            body[field] = value;
            assert_eq!(claim(&url, &t, body.clone()).await.fails(400, "invalid-field").text("pointer"), format!("/{field}"), "{body}");
        }
        let token = claim(&url, &t, json!({"key": "us:k"})).await.is("first").text("claim_token");
        for (body, pointer) in [
            (json!({"outcome": "succeeded"}), "/claim_token"),
            (json!({"claim_token": token}), "/outcome"),
            (json!({"claim_token": token, "outcome": "maybe"}), "/outcome"),
            (json!({"claim_token": token, "outcome": null}), "/outcome"),
            (json!({"claim_token": "dc1.x", "outcome": "succeeded"}), "/claim_token"),
            (json!({"claim_token": token, "outcome": "succeeded", "result": {"status": 99}}), "/result/status"),
            (json!({"claim_token": token, "outcome": "succeeded", "result": {"body_base64": "***"}}), "/result/body_base64"),
            (json!({"claim_token": token, "outcome": "succeeded", "result": {"body": "a", "body_base64": "YQ=="}}), "/result/body_base64"),
            (json!({"claim_token": token, "outcome": "succeeded", "result": {"headers": {"a b": "1"}}}), "/result/headers"),
            (json!({"claim_token": token, "outcome": "succeeded", "result": {"headers": {"": "1"}}}), "/result/headers"),
            (json!({"claim_token": token, "outcome": "succeeded", "result": {"headers": {"Etag": "1", "ETag": "2"}}}), "/result/headers"),
            (json!({"claim_token": token, "outcome": "succeeded", "note": "x"}), "/note"),
        ] {
            assert_eq!(
                post(&url, "/v1/claims/complete", body.clone()).await.fails(400, "invalid-field").text("pointer"),
                pointer,
                "{body}"
            );
        }
        let note = post(&url, "/v1/claims/release", json!({"claim_token": token, "note": "x".repeat(4097)})).await;
        assert_eq!(note.fails(400, "invalid-field").text("pointer"), "/note");
        claim(&url, &t, json!({"key": "us:k"})).await.is("in_progress");
    });
}

/// Paths, methods, media types, headers.
/// Seen to fail with any media type taken, with another method answered like an unknown path, and with a header's key ignored where the
/// body has another.
#[test]
fn requests_that_miss_the_api_get_problems_too() {
    run(async {
        let url = url("eu", 1).await;
        let t = topic(&url, "paths").await;
        get(&url, "/nowhere").await.fails(404, "not-found");
        let refused = get(&url, &format!("/v1/topics/{t}/checks")).await.fails(405, "method-not-allowed");
        assert_eq!(refused.body["allow"], json!("POST"));
        check(&url, "no-such-topic", json!({"key": "eu:k"})).await.fails(404, "topic-not-found");
        check(&url, "bad%20name", json!({"key": "eu:k"})).await.fails(400, "invalid-field");
        for name in ["other", "a%20b"] {
            put(&url, &format!("/v1/topics/{name}"), json!({"window_ms": 5_000})).await.fails(400, "invalid-field");
        }
        let path = format!("/v1/topics/{t}/checks");
        for media in ["text/plain", "application/x-www-form-urlencoded", "application/problem+json", ""] {
            with_media(&url, &path, media).await.fails(415, "unsupported-media-type");
        }
        let header = |h: &'static [(&'static str, &'static str)], body: &'static str| {
            let (url, path) = (&url, &path);
            async move { call(Method::POST, url, path, Some(body.as_bytes().to_vec()), h).await.unwrap() }
        };
        header(&[("dedup-deadline-ms", "0")], r#"{"key":"eu:k"}"#).await.fails(400, "invalid-field");
        header(&[("dedup-deadline-ms", "soon")], r#"{"key":"eu:k"}"#).await.fails(400, "invalid-field");
        header(&[("dedup-deadline-ms", "4000")], r#"{"key":"eu:k"}"#).await.is("first");
        header(&[("idempotency-key", "eu:h")], "{}").await.is("first");
        header(&[("idempotency-key", "\"eu:h\"")], "{}").await.is("duplicate");
        header(&[("idempotency-key", "eu:h")], r#"{"key":"eu:h"}"#).await.is("duplicate");
        header(&[("idempotency-key", "eu:h")], r#"{"key":"eu:other"}"#).await.fails(400, "invalid-field");
        header(&[("idempotency-key", "\"eu:h")], "{}").await.fails(400, "invalid-field");
        let problem = get(&url, "/problems/lease-lost").await;
        assert!(problem.status == 200 && problem.body.as_str().unwrap().contains("stop the work"));
        let all = get(&url, "/problems").await;
        for entry in all.body["problems"].as_array().unwrap() {
            let page = get(&url, &format!("/problems/{}", entry["code"].as_str().unwrap())).await;
            assert_eq!(page.status, 200, "{entry}");
        }
    });
}

/// Sends a check with another media type.
async fn with_media(url: &str, path: &str, media: &str) -> crate::api::Reply {
    let response =
        crate::api::http().post(format!("{url}{path}")).header("content-type", media).body("{\"key\":\"eu:k\"}").send().await.unwrap();
    let status = response.status().as_u16();
    let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
    crate::api::Reply { status, body: response.json().await.unwrap(), retry_after: None, content_type }
}

/// Case N3: batches of every size; too large is one clear refusal with nothing applied.
/// Seen to fail without the limit of items, and without the limit of bytes.
#[test]
fn case_n3_batch_sizes() {
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "n3").await;
        let path = format!("/v1/topics/{t}/checks/batch");
        let items = |n: usize| -> Vec<Value> { (0..n).map(|k| json!({"key": format!("eu:{k}")})).collect() };
        let empty = post(&url, &path, json!({"items": []})).await;
        assert_eq!((empty.status, empty.body["results"].clone(), empty.body["counts"].clone()), (200, json!([]), json!({})));
        for n in [1001, 8_000] {
            let refused = post(&url, &path, json!({"items": items(n)})).await.fails(413, "batch-too-large");
            assert_eq!(refused.body["max"], json!(1000));
        }
        post(&url, &path, json!({"items": items(70_000)})).await.fails(413, "payload-too-large");
        for n in [1, 1000] {
            let reply = post(&url, &path, json!({"detail": "verdict", "items": items(n)})).await;
            assert_eq!(reply.body["results"].as_array().unwrap().len(), n);
            assert_eq!(reply.body["counts"]["first"], json!(if n == 1 { 1 } else { 999 }), "{}", reply.body["counts"]);
        }
    });
}

/// Case N1 and P11: each item by itself, in request order; the batch of one equals the single call; a bad item harms nobody.
/// Seen to fail when a folded item inherits its leader's `first`.
#[test]
fn case_n1_p11_each_item_has_its_own_verdict() {
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "n1").await;
        let done = claim(&url, &t, json!({"key": "eu:done"})).await.is("first");
        crate::api::complete(&url, &done.text("claim_token")).await;
        claim(&url, &t, json!({"key": "us:busy"})).await.is("first");
        let items = json!([{"key": "eu:done"}, {"key": "us:new1"}, {"key": "us:busy"}, {"key": "bad"}, {"kee": 1}, {"key": "eu:new2"}, {"key": "eu:new2", "request_id": "x"}, 7]);
        let batch = post(&url, &format!("/v1/topics/{t}/claims/batch"), json!({"items": items, "lease_ms": 60_000})).await;
        let word = |r: &Value| r["verdict"].as_str().or(r["problem"]["code"].as_str()).unwrap().to_owned();
        let words: Vec<String> = batch.body["results"].as_array().unwrap().iter().map(word).collect();
        assert_eq!(
            words,
            ["duplicate", "first", "in_progress", "invalid-field", "invalid-field", "first", "in_progress", "malformed-request"]
        );
        assert_eq!(batch.body["results"][6]["of_index"], json!(5));
        assert_eq!(batch.body["results"][6]["fence"], batch.body["results"][5]["fence"]);
        assert_eq!(batch.body["counts"], json!({"first": 2, "duplicate": 1, "in_progress": 2, "invalid": 3}));
        // One of one, for every verdict.
        for key in ["eu:done", "us:busy"] {
            let single = claim(&url, &t, json!({"key": key, "request_id": "same"})).await;
            let one = post(&url, &format!("/v1/topics/{t}/claims/batch"), json!({"items": [{"key": key, "request_id": "same"}]})).await;
            let (mut a, mut b) = (single.body.clone(), one.body["results"][0].clone());
            for moving in ["tier", "lease_ms_left", "retry_after_ms"] {
                a[moving] = Value::Null;
                b[moving] = Value::Null;
            }
            assert_eq!(a, b);
        }
        // Checks: equal keys in one batch, whatever their request ids: the first one wins.
        let same = json!({"items": [{"key": "eu:x", "request_id": "r"}, {"key": "eu:x", "request_id": "r"}, {"key": "eu:x"}]});
        let batch = post(&url, &format!("/v1/topics/{t}/checks/batch"), same).await;
        let words: Vec<String> = batch.body["results"].as_array().unwrap().iter().map(word).collect();
        assert_eq!(words, ["first", "duplicate", "duplicate"]);
    });
}

/// Topics: their fields, versions, and names.
/// Seen to fail with a lease above the topic's own maximum, and with a default region that no home owns, both taken.
#[test]
fn topics_are_checked_when_set() {
    run(async {
        let url = url("eu", 0).await;
        for (body, status, code) in [
            (json!({}), 400, "invalid-field"),
            (json!({"window_ms": 1}), 422, "invalid-window"),
            (json!({"window_ms": 60_000, "lease_ms": 1}), 400, "invalid-field"),
            (json!({"window_ms": 60_000, "lease_ms": 5000, "lease_max_ms": 4000}), 400, "invalid-field"),
            (json!({"window_ms": 60_000, "keep_key": "perhaps"}), 400, "invalid-field"),
            (json!({"window_ms": 60_000, "default_region": "mars"}), 422, "unknown-region"),
            (json!({"window_ms": 60_000, "color": "red"}), 400, "invalid-field"),
        ] {
            put(&url, "/v1/topics/t-bad", body.clone()).await.fails(status, code);
        }
        get(&url, "/v1/topics/t-bad").await.fails(404, "topic-not-found");
        let t = topic_with(&url, "default", json!({"window_ms": "forever", "default_region": "us"})).await;
        let bare = check(&url, &t, json!({"key": "order-1"})).await.is("first");
        assert_eq!((bare.text("key"), bare.text("home_region")), ("us:order-1".into(), "us".into()));
        check(&url, &t, json!({"key": "us:order-1"})).await.is("duplicate");
    });
}

/// What is wrong below the API gets its status without a body: too large a head, a head that does not come, two lengths at once; a body that
/// does not come gets a problem. The next caller is served.
/// Seen to fail without the time limit of a head, and without that of a body.
#[test]
fn broken_http_is_refused_and_harms_nobody() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "http").await;
        let address = url.trim_start_matches("http://").to_owned();
        let raw = |bytes: Vec<u8>| {
            let address = address.clone();
            async move {
                let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
                socket.write_all(&bytes).await.unwrap();
                let mut answer = vec![0; 512];
                match tokio::time::timeout(std::time::Duration::from_secs(20), socket.read(&mut answer)).await {
                    Ok(read) => String::from_utf8_lossy(&answer[..read.unwrap()]).into_owned(),
                    Err(_) => "nothing within 20 s".to_owned(),
                }
            }
        };
        let head = format!("POST /v1/topics/{t}/checks HTTP/1.1\r\nhost: x\r\n");
        let (large_head, long_path, garbage, lengths, slow_head, slow_body) = tokio::join!(
            raw(format!("GET /healthz HTTP/1.1\r\nhost: x\r\nlarge: {}\r\n\r\n", "x".repeat(200_000)).into_bytes()),
            raw(format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(200_000)).into_bytes()),
            raw(b"GARBAGE\r\n\r\n".to_vec()),
            raw(format!("{head}transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n").into_bytes()),
            raw(head.clone().into_bytes()),
            raw(format!("{head}content-type: application/json\r\ncontent-length: 50\r\n\r\n{{").into_bytes()),
        );
        assert!(large_head.starts_with("HTTP/1.1 431"), "{large_head}");
        assert!(long_path.starts_with("HTTP/1.1 431"), "{long_path}");
        assert!(garbage.starts_with("HTTP/1.1 400"), "{garbage}");
        assert!(lengths.starts_with("HTTP/1.1 400"), "{lengths}");
        assert!(slow_head.starts_with("HTTP/1.1 408"), "{slow_head}");
        assert!(slow_body.starts_with("HTTP/1.1 408") && slow_body.contains("request-timeout"), "{slow_body}");
        check(&url, &t, json!({"key": "eu:k"})).await.is("first");
    });
}
