//! What SQL callers may not say and may not do.

use serde_json::json;

use super::{caller, code, sql_check, sql_claim, text};
use crate::api::{claim, topic, topic_with};
use crate::harness::{run, shared, url};

/// What is not valid is refused by name, with a SQLSTATE of its own, before anything is written.
/// Seen to fail without the look at a text's length and characters, and with any key taken that has no prefix of the home.
#[test]
fn bad_input_is_refused_by_name_and_changes_nothing() {
    run(async {
        let rest = url("eu", 0).await;
        let t = topic_with(&rest, "bad", json!({"window_ms": 60_000, "lease_max_ms": 5000, "lease_ms": 2000})).await;
        let us = topic_with(&rest, "badus", json!({"window_ms": 60_000, "default_region": "us"})).await;
        let client = caller().await;
        let token = text(&sql_claim(&client, &t, "eu:token", None).await.unwrap(), "claim_token");
        let owner = shared().await.region("eu").postgres.connect("dedup_owner").await;
        let written = async || -> i64 {
            let sql = "SELECT (SELECT count(*) FROM dedup.claim_texts x JOIN dedup.topics o USING (topic_id) WHERE o.name = $1) + (SELECT count(*) FROM dedup.claims WHERE digest = dedup.digest_v1($1, 0, 'default', 0, 'eu:k'))";
            owner.query_one(sql, &[&t]).await.unwrap().get(0)
        };
        let before = written().await;
        let cases = [
            ("DD010", "topic", "dedup.check('nothing', 'eu:k')".to_owned()),
            ("DD010", "topic", "dedup.check_many('nothing', '{eu:k}')".to_owned()),
            ("DD011", "topic", "dedup.check(NULL, 'eu:k')".to_owned()),
            ("DD011", "key", format!("dedup.check('{t}', NULL)")),
            ("DD011", "key", format!("dedup.check('{t}', '')")),
            ("DD011", "key", format!("dedup.check('{t}', 'k')")),
            ("DD011", "key", format!("dedup.check('{t}', E'eu:a\\nb')")),
            ("DD011", "key", format!("dedup.check('{t}', 'eu:' || repeat('x', 510))")),
            ("DD011", "key", format!("dedup.check('{t}', 'eu:' || repeat('é', 255))")),
            ("DD012", "key", format!("dedup.check('{t}', 'us:k')")),
            ("DD012", "key", format!("dedup.check('{t}', 'xx:k')")),
            ("DD012", "key", format!("dedup.check('{us}', 'k')")),
            ("DD012", "key", format!("dedup.check('{us}', 'ap:k')")),
            ("DD012", "key", format!("dedup.check_many('{t}', '{{eu:k,us:k}}')")),
            ("DD011", "key", format!("dedup.check_many('{t}', '{{eu:k,NULL}}')")),
            ("DD011", "keys", format!("dedup.check_many('{t}', array_fill('eu:k'::text, '{{1001}}'))")),
            ("DD011", "keys", format!("dedup.check_many('{t}', '{{{{eu:k}},{{eu:l}}}}')")),
            ("DD011", "fingerprints", format!("dedup.check_many('{t}', '{{eu:k,eu:l}}', fingerprints => '{{a}}')")),
            ("DD011", "grp", format!("dedup.check('{t}', 'eu:k', '')")),
            ("DD011", "grp", format!("dedup.check('{t}', 'eu:k', NULL)")),
            ("DD011", "grp", format!("dedup.check('{t}', 'eu:k', repeat('g', 256))")),
            ("DD011", "grp", format!("dedup.check('{t}', 'eu:k', E'a\\u0085')")),
            ("DD011", "fingerprint", format!("dedup.check('{t}', 'eu:k', fingerprint => '')")),
            ("DD011", "fingerprint", format!("dedup.check('{t}', 'eu:k', fingerprint => 'é')")),
            ("DD011", "fingerprint", format!("dedup.check('{t}', 'eu:k', fingerprint => repeat('f', 129))")),
            ("DD011", "request_id", format!("dedup.check('{t}', 'eu:k', request_id => '')")),
            ("DD011", "request_id", format!("dedup.check('{t}', 'eu:k', request_id => repeat('r', 129))")),
            ("DD011", "window_ms", format!("dedup.check('{t}', 'eu:k', window_ms => 999)")),
            ("DD011", "window_ms", format!("dedup.check('{t}', 'eu:k', window_ms => 31536000001)")),
            ("DD011", "window_ms", format!("dedup.check_many('{t}', '{{eu:k}}', window_ms => -1)")),
            ("DD011", "lease_ms", format!("dedup.claim('{t}', 'eu:k', lease_ms => 999)")),
            ("DD011", "lease_ms", format!("dedup.claim('{t}', 'eu:k', lease_ms => 5001)")),
            ("DD011", "owner", format!("dedup.claim('{t}', 'eu:k', owner => repeat('o', 129))")),
            ("DD011", "claim_token", "dedup.complete(NULL)".to_owned()),
            ("DD011", "claim_token", "dedup.complete('dc1.x')".to_owned()),
            ("DD011", "outcome", format!("dedup.complete('{token}', 'done')")),
            ("DD011", "outcome", format!("dedup.complete('{token}', NULL)")),
            ("DD011", "result_body", format!("dedup.complete('{token}', 'failed', 'a', result_body => 'b')")),
            ("DD011", "result_status", format!("dedup.complete('{token}', 'failed', 'a', result_status => 99)")),
            ("DD011", "result_headers", format!("dedup.complete('{token}', 'failed', 'a', result_headers => '[1]')")),
            ("DD011", "result_headers", format!("dedup.complete('{token}', 'failed', 'a', result_headers => '{{\"a\":1}}')")),
            ("DD011", "result_headers", format!("dedup.complete('{token}', 'failed', 'a', result_headers => '{{\"a b\":\"1\"}}')")),
            (
                "DD011",
                "result_headers",
                format!("dedup.complete('{token}', 'failed', 'a', result_headers => '{{\"a\":\"1\",\"A\":\"1\"}}')"),
            ),
            ("DD011", "result_media_type", format!("dedup.complete('{token}', 'failed', 'a', E'a\\nb')")),
            ("DD011", "note", format!("dedup.release('{token}', repeat('n', 4097))")),
            ("DD011", "note", format!("dedup.release('{token}', E'a\\x07')")),
            ("DD011", "lease_ms", format!("dedup.extend('{token}', 5001)")),
        ];
        for (state, column, sql) in &cases {
            let error = client.query(&format!("SELECT {sql}"), &[]).await.expect_err(sql);
            let said = error.as_db_error().unwrap();
            assert_eq!((said.code().code(), said.column()), (*state, Some(*column)), "{sql}: {said:?}");
        }
        assert_eq!(written().await, before);
        let gone = topic(&rest, "gone").await;
        let deleted = crate::api::call(reqwest::Method::DELETE, &rest, &format!("/v1/topics/{gone}"), None, &[]).await.unwrap();
        assert_eq!(deleted.status, 200, "{deleted:?}");
        assert_eq!(code(&sql_check(&client, &gone, "eu:k").await.unwrap_err()), "DD010");
        // Valid at the edges.
        for sql in [
            format!("dedup.check('{t}', 'eu:' || repeat('x', 509))"),
            format!("dedup.check('{t}', 'eu:é', repeat('é', 127))"),
            format!(
                "dedup.check('{t}', 'eu:f', fingerprint => repeat('f', 128), request_id => repeat('r', 128), window_ms => dedup.forever())"
            ),
            format!("dedup.claim('{t}', 'eu:g', lease_ms => 5000, owner => repeat('o', 128))"),
            format!("dedup.extend('{token}', 5000, repeat('n', 4096))"),
        ] {
            client.query(&format!("SELECT {sql}"), &[]).await.unwrap();
        }
        let never: bool = client
            .query_one(&format!("SELECT expires_at IS NULL AND verdict = 'duplicate' FROM dedup.check('{t}', 'eu:f')"), &[])
            .await
            .unwrap()
            .get(0);
        assert!(never);
        // A result too large to keep is known of.
        client.query(&format!("SELECT dedup.complete('{token}', 'failed', repeat('x', 65535))"), &[]).await.unwrap();
        let reply = claim(&rest, &t, json!({"key": "eu:token"})).await.is("duplicate");
        assert_eq!((&reply.body["outcome"], &reply.body["result_omitted"]), (&json!("failed"), &json!(true)));
    });
}

/// The role of SQL callers may execute its functions and nothing else; everybody else may execute nothing of the schema.
/// Seen to fail with SELECT on the claims granted to them, and with one function more.
#[test]
fn callers_may_execute_their_functions_and_nothing_else() {
    run(async {
        let owner = shared().await.region("eu").postgres.connect("dedup_owner").await;
        let sql = "SELECT string_agg(DISTINCT p.proname, ' ' ORDER BY p.proname) FROM pg_proc p WHERE p.pronamespace = 'dedup'::regnamespace AND has_function_privilege('dedup_caller', p.oid, 'EXECUTE')";
        let mine: String = owner.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(mine, "check check_many claim complete extend forever is_first now now_ms release t_in t_out");
        let sql = "SELECT (SELECT count(*) FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE p.pronamespace = 'dedup'::regnamespace AND a.grantee = 0) \
                        + (SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'dedup'::regnamespace AND c.relkind IN ('r', 'p', 'v') \
                           AND has_table_privilege('dedup_caller', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')) \
                        + (SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'dedup'::regnamespace AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege('dedup_caller', c.oid, 'USAGE, SELECT, UPDATE') END)";
        assert_eq!(owner.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
        // Definer's rights with a search path of their own: no object of the caller's stands in for one of ours.
        let sql = "SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'dedup'::regnamespace AND p.proname = ANY (ARRAY['check', 'check_many', 'claim', 'complete', 'extend', 'is_first', 'release']) \
                   AND p.prosecdef AND 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig)";
        assert_eq!(owner.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 7);
    });
}
