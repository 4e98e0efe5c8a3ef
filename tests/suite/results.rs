//! Stored results: byte-equal from every tier, bounded, never a reason for a second `first` (cases H1, H2).

use serde_json::json;

use crate::api::{claim, post, topic};
use crate::harness::{run, url};

/// Standard base64, for the test's own bytes.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let n = (u32::from(chunk[0]) << 16) | (u32::from(*chunk.get(1).unwrap_or(&0)) << 8) | u32::from(*chunk.get(2).unwrap_or(&0));
        for i in 0..4 {
            out.push(if i <= chunk.len() { char::from(ALPHABET[(n >> (18 - 6 * i)) as usize & 63]) } else { '=' });
        }
    }
    out
}

/// Case H2: any bytes, an empty body and no result at all come back as they went in, from every tier.
/// Seen to fail with bytes read as text, and with an empty body stored as none.
#[test]
fn case_h2_results_are_bytes() {
    run(async {
        let urls = [url("eu", 0).await, url("eu", 1).await, url("us", 0).await];
        let t = topic(&urls[0], "h2").await;
        let all: Vec<u8> = (0..=255).collect();
        let random: Vec<u8> = (0..40_000).map(|_| rand::random()).collect();
        let text = "{\"id\":1,\"name\":\"Zoë \u{1F418}\"}";
        let results = [
            ("all", json!({"body_base64": base64(&all), "media_type": "application/octet-stream"})),
            ("invalid", json!({"body_base64": base64(&[0xff, 0xfe, 0x80])})),
            ("random", json!({"body_base64": base64(&random)})),
            ("empty", json!({"body": ""})),
            (
                "text",
                json!({"media_type": "application/json", "status": 201, "headers": {"location": "/charges/1", "x": "y"}, "body": text}),
            ),
            ("none", json!({"status": 204})),
        ];
        for (key, result) in &results {
            let key = format!("eu:{key}");
            let first = claim(&urls[0], &t, json!({"key": key})).await.is("first");
            let done = post(
                &urls[0],
                "/v1/claims/complete",
                json!({"claim_token": first.text("claim_token"), "outcome": "succeeded", "result": result}),
            )
            .await;
            assert_eq!((done.status, done.body["result_stored"].clone()), (200, json!(true)), "{done:?}");
            for url in urls.iter().chain(&urls) {
                let got = claim(url, &t, json!({"key": key})).await.is("duplicate").body["result"].clone();
                for field in ["body", "body_base64", "media_type", "status"] {
                    assert_eq!(got[field], result[field], "{key} {field}");
                }
                assert_eq!(got["headers"], result.get("headers").cloned().unwrap_or(json!({})));
            }
            let batch = post(&urls[1], &format!("/v1/topics/{t}/claims/batch"), json!({"items": [{"key": key}]})).await;
            assert_eq!(batch.body["results"][0]["result"]["body_base64"], result["body_base64"]);
        }
        let first = claim(&urls[0], &t, json!({"key": "eu:nothing"})).await.is("first");
        post(&urls[0], "/v1/claims/complete", json!({"claim_token": first.text("claim_token"), "outcome": "succeeded"})).await;
        assert!(claim(&urls[1], &t, json!({"key": "eu:nothing"})).await.is("duplicate").body.get("result").is_none());
    });
}

/// Case H1: at most once wins over replay: a result too large to keep leaves the record done and says so; a body beyond all limits changes nothing.
/// Seen to fail with repeats compared by what is kept of a result instead of the whole.
#[test]
fn case_h1_an_oversize_result_still_completes() {
    run(async {
        let (a, b) = (url("eu", 0).await, url("us", 0).await);
        let t = topic(&a, "h1").await;
        let limit = 65_536;
        for (key, size, kept) in [("eu:fits", limit, true), ("eu:over", limit + 1, false)] {
            let first = claim(&a, &t, json!({"key": key})).await.is("first");
            let body = json!({"claim_token": first.text("claim_token"), "outcome": "succeeded", "result": {"body": "x".repeat(size)}});
            let done = post(&a, "/v1/claims/complete", body.clone()).await;
            assert_eq!((done.status, done.body["result_stored"].clone()), (200, json!(kept)), "{key} {}", done.body);
            assert_eq!(post(&b, "/v1/claims/complete", body).await.body["replayed"], json!(true), "a repeat is known by the whole result");
            for url in [&a, &b] {
                let duplicate = claim(url, &t, json!({"key": key})).await.is("duplicate");
                assert_eq!(duplicate.body["result"]["body"].as_str().map_or(0, str::len), if kept { size } else { 0 });
                assert_eq!(duplicate.body.get("result_omitted").is_some(), !kept);
            }
            let other = json!({"claim_token": first.text("claim_token"), "outcome": "succeeded", "result": {"body": "y".repeat(size)}});
            post(&a, "/v1/claims/complete", other).await.fails(409, "already-completed");
        }
        let first = claim(&a, &t, json!({"key": "eu:huge"})).await.is("first");
        let huge = json!({"claim_token": first.text("claim_token"), "outcome": "succeeded", "result": {"body": "x".repeat(2 << 20)}});
        post(&a, "/v1/claims/complete", huge).await.fails(413, "payload-too-large");
        claim(&b, &t, json!({"key": "eu:huge"})).await.is("in_progress");
        let small = json!({"claim_token": first.text("claim_token"), "outcome": "succeeded", "result": {"body": "small"}});
        assert_eq!(post(&a, "/v1/claims/complete", small).await.status, 200);
    });
}
