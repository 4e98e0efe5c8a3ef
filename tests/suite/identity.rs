//! Identity of keys: byte for byte, per topic and group, unambiguous (cases E2, E3, F1–F4).

use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{check, claim, complete, post, topic};
use crate::harness::{run, shared, url};

/// Case F1: nothing is folded, trimmed or normalised.
/// Seen to fail with keys in lower case, and with keys trimmed.
#[test]
fn case_f1_keys_are_compared_byte_for_byte() {
    run(async {
        let urls = [url("eu", 0).await, url("us", 0).await];
        let t = topic(&urls[0], "f1").await;
        let keys =
            ["eu:Order-1", "eu:order-1", "eu:order-1 ", "eu: order-1", "eu:ordér-1", "eu:orde\u{301}r-1", "eu:eu:order-1", "us:order-1"];
        for key in keys {
            check(&urls[0], &t, json!({"key": key})).await.is("first");
        }
        for url in &urls {
            for key in keys {
                check(url, &t, json!({"key": key})).await.is("duplicate");
            }
        }
        check(&urls[0], &t, json!({"key": "eu:order-1\t"})).await.fails(400, "invalid-field");
        check(&urls[0], &t, json!({"key": "EU:order-1"})).await.fails(422, "unknown-region");
        check(&urls[0], &t, json!({"key": " eu:order-1"})).await.fails(422, "unknown-region");
    });
}

/// Case F2: a NUL (or any control character) is refused at the door, in every text field, and harms no neighbour.
/// Seen to fail without the look at characters.
#[test]
fn case_f2_control_characters_are_refused_and_harm_nobody() {
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "f2").await;
        for key in ["eu:\0a", "eu:a\0b", "eu:a\0", "eu:a\u{7f}", "eu:a\u{9f}", "eu:a\nb"] {
            let reply = check(&url, &t, json!({"key": key})).await.fails(400, "invalid-field");
            assert_eq!(reply.text("pointer"), "/key");
        }
        for field in ["group", "request_id", "fingerprint", "owner"] {
            let mut body = json!({"key": "eu:x"});
            body[field] = json!("a\0b");
            let reply = claim(&url, &t, body).await.fails(400, "invalid-field");
            assert_eq!(reply.text("pointer"), format!("/{field}"));
        }
        let items = json!({"items": [{"key": "eu:good1"}, {"key": "eu:\0"}, {"key": "eu:good2"}]});
        let batch = post(&url, &format!("/v1/topics/{t}/claims/batch"), items).await;
        let verdicts: Vec<&Value> = batch.body["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| if r["verdict"].is_null() { &r["problem"]["code"] } else { &r["verdict"] })
            .collect();
        assert_eq!(verdicts, [&json!("first"), &json!("invalid-field"), &json!("first")]);
        // A result may be any bytes, a NUL too.
        let token = batch.body["results"][0]["claim_token"].as_str().unwrap();
        let done =
            post(&url, "/v1/claims/complete", json!({"claim_token": token, "outcome": "succeeded", "result": {"body": "a\0b"}})).await;
        assert_eq!(done.status, 200, "{done:?}");
        assert_eq!(claim(&url, &t, json!({"key": "eu:good1"})).await.is("duplicate").body["result"]["body"], json!("a\0b"));
    });
}

/// Case F3: no content of one part imitates another, in the home and in Redis.
/// Seen to fail with a digest over parts glued without their lengths and generations; without the lengths alone the older pairs passed.
#[test]
fn case_f3_joined_fields_stay_apart() {
    run(async {
        let url = url("eu", 0).await;
        let t = topic(&url, "f3").await;
        let questions = [
            ("a:b", "eu:c"),
            ("a", "eu:b:c"),
            ("a", "eu:c"),
            ("ae", "eu:u:c"),
            ("a|", "eu:c"),
            ("a", "eu:|c"),
            ("a", "eu:{c}"),
            ("{a", "eu:c}"),
            ("g", "eu:eu:x"),
            ("geu:", "eu:x"),
            ("a/", "eu:c"),
            ("a", "eu:/c"),
        ];
        let mut tokens = Vec::new();
        for (group, key) in questions {
            tokens.push(claim(&url, &t, json!({"group": group, "key": key})).await.is("first").text("claim_token"));
        }
        complete(&url, &tokens[0]).await;
        for (i, (group, key)) in questions.iter().enumerate() {
            claim(&url, &t, json!({"group": group, "key": key})).await.is(if i == 0 { "duplicate" } else { "in_progress" });
        }
    });
}

/// Case F4, E3: topic and group are part of the identity; a result of one is never given to another.
/// Seen to fail with a digest that leaves the group out.
#[test]
fn case_f4_e3_topics_and_groups_are_independent() {
    run(async {
        let url = url("us", 0).await;
        let (pay, refund) = (topic(&url, "pay").await, topic(&url, "refund").await);
        let first = claim(&url, &pay, json!({"key": "eu:k", "group": "g1"})).await.is("first");
        let done = json!({"claim_token": first.text("claim_token"), "outcome": "succeeded", "result": {"body": "secret of g1"}});
        assert_eq!(post(&url, "/v1/claims/complete", done).await.status, 200);
        for (topic, group) in [(&pay, "g2"), (&refund, "g1"), (&pay, "default")] {
            claim(&url, topic, json!({"key": "eu:k", "group": group})).await.is("first");
        }
        let batch = post(
            &url,
            &format!("/v1/topics/{pay}/claims/batch"),
            json!({"group": "g3", "items": [{"key": "eu:k"}, {"key": "eu:k", "group": "g1"}]}),
        )
        .await;
        assert_eq!(
            (batch.body["results"][0]["verdict"].clone(), batch.body["results"][1]["verdict"].clone()),
            (json!("first"), json!("duplicate"))
        );
        let gone = post(&url, &format!("/v1/topics/{pay}/records/forget"), json!({"key": "eu:k", "group": "g2", "reason": "test"})).await;
        assert_eq!(gone.body["removed"], json!(true));
        claim(&url, &pay, json!({"key": "eu:k", "group": "g1"})).await.is("duplicate");
        claim(&url, &pay, json!({"key": "eu:k", "group": ""})).await.fails(400, "invalid-field");
    });
}

/// Case E2: fingerprints are compared by every tier that can answer; a mismatch never carries a result (E3).
/// Seen to fail with a local tier that answers without comparing.
#[test]
fn case_e2_every_tier_compares_fingerprints() {
    run(async {
        // eu-1 has it in its local tier, eu-2 finds it in Redis, us-1 in the home.
        let urls = [url("eu", 0).await, url("eu", 1).await, url("us", 0).await];
        let t = topic(&urls[0], "e2").await;
        let open = claim(&urls[0], &t, json!({"key": "eu:k", "fingerprint": "A"})).await.is("first");
        let differs = claim(&urls[1], &t, json!({"key": "eu:k", "fingerprint": "B"})).await.is("mismatch");
        assert!(differs.body["result"].is_null() && differs.body["fence"].is_null());
        let done = json!({"claim_token": open.text("claim_token"), "outcome": "succeeded", "result": {"body": "R"}});
        assert_eq!(post(&urls[0], "/v1/claims/complete", done).await.status, 200);
        let mut tiers = Vec::new();
        for url in urls.iter().chain(&urls) {
            let differs = claim(url, &t, json!({"key": "eu:k", "fingerprint": "B"})).await.is("mismatch");
            assert!(differs.body["result"].is_null(), "{differs:?}");
            tiers.push(differs.text("tier"));
            assert_eq!(differs.text("first_seen_at"), open.text("first_seen_at"));
            let same = claim(url, &t, json!({"key": "eu:k", "fingerprint": "A"})).await.is("duplicate");
            assert_eq!((same.body["result"]["body"].clone(), same.body["fingerprint_checked"].clone()), (json!("R"), json!(true)));
            let silent = claim(url, &t, json!({"key": "eu:k"})).await.is("duplicate");
            assert_eq!(silent.body["fingerprint_checked"], json!(false));
        }
        assert!(["local", "warm"].iter().all(|tier| tiers.iter().any(|t| t == tier)), "{tiers:?}");
        let batch = post(
            &urls[1],
            &format!("/v1/topics/{t}/claims/batch"),
            json!({"items": [{"key": "eu:k", "fingerprint": "B"}, {"key": "eu:k", "fingerprint": "A"}]}),
        )
        .await;
        assert_eq!(batch.body["results"][0]["verdict"], json!("mismatch"));
    });
}

/// Identity is the same in Rust and in SQL: one table of vectors, both sides.
/// Seen to fail with the group left out on one side, and with it in lower case on the other.
#[test]
fn digests_agree_between_rust_and_sql() {
    run(async {
        use dedup_core::{Digest, Group, HomeSpec, HomeTable, Key, Secret, Topic};
        let testbed = shared().await;
        let secret = Secret::parse_hex(testbed.secret_hex()).unwrap();
        let homes = HomeTable::new(vec![HomeSpec { name: "eu".into(), region: "eu".into(), prefixes: vec!["eu".into()] }]).unwrap();
        let owner = testbed.region("eu").postgres.connect("dedup_owner").await;
        let long = format!("eu:{}", "ü".repeat(254));
        for (topic, topic_generation, group, group_generation, key) in [
            ("t", 0, "default", 0, "eu:k"),
            ("orders.v1", 7, "g", 300, "eu:order-123"),
            ("T", i64::from(u32::MAX), "Straße 🐘", 1, "eu:\u{1F418} key"),
            ("a-b_c.d", 0, "x", 0, long.as_str()),
        ] {
            let ours = Digest::of(
                &secret,
                &Topic::parse(topic).unwrap(),
                topic_generation,
                &Group::parse(group).unwrap(),
                group_generation,
                &Key::parse(key, 512, None, &homes).unwrap(),
            );
            let row = owner
                .query_one("SELECT dedup.digest_v1($1, $2, $3, $4, $5)", &[&topic, &topic_generation, &group, &group_generation, &key])
                .await
                .unwrap();
            assert_eq!(row.get::<_, Uuid>(0), ours.0, "{topic} {group} {key}");
        }
    });
}

/// The rule of judgement is one: the SQL function agrees with `dedup_core::judge` over every combination of a small world.
/// Seen to fail with an absent fingerprint compared, and with a lease that lives a millisecond longer, both in SQL.
#[test]
fn judgements_agree_between_rust_and_sql() {
    run(async {
        use dedup_core::{Fence, Fingerprint, Outcome, Question, Record, RequestHash, State, judge};
        let owner = shared().await.region("eu").postgres.connect("dedup_owner").await;
        let statement = owner.prepare("SELECT dedup.judge_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)").await.unwrap();
        let mut compared = 0;
        for state in [State::InProgress, State::InDoubt, State::Done, State::Released] {
            for one_shot in [false, true] {
                for (kept, given) in [(0, 0), (3, 0), (0, 3), (3, 3), (3, 4)] {
                    for request in [7i64, 8] {
                        for claim in [false, true] {
                            for (expires, ends) in [(100i64, 50i64), (50, 100), (i64::MAX, 50)] {
                                for now in [10i64, 50, 99, 100] {
                                    let record = Record {
                                        fence: Fence(1),
                                        request: RequestHash::from_stored(7),
                                        fingerprint: Fingerprint::from_stored(kept),
                                        state,
                                        outcome: Outcome::Succeeded,
                                        one_shot,
                                        attempt: 1,
                                        first_seen_ms: 0,
                                        expires_ms: expires,
                                        ends_ms: ends,
                                        result: None,
                                    };
                                    let question = Question {
                                        claim,
                                        request: RequestHash::from_stored(request),
                                        fingerprint: Fingerprint::from_stored(given),
                                    };
                                    let rust = judge(&record, &question, now).code();
                                    let row = owner
                                        .query_one(
                                            &statement,
                                            &[&record.pack_meta(), &expires, &ends, &7i64, &kept, &now, &claim, &request, &given],
                                        )
                                        .await
                                        .unwrap();
                                    assert_eq!(row.get::<_, i32>(0), rust, "{record:?} {question:?} {now}");
                                    compared += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(compared, 4 * 2 * 5 * 2 * 2 * 3 * 4);
    });
}
