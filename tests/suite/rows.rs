//! The row rules of a home (design section 6): narrow rows, index probes only, held keys, two-statement re-claims, roles.

use std::time::{Duration, Instant};

use dedup_testbed::{Testbed, wait_until};
use serde_json::{Value, json};

use crate::api::{check, claim, metrics, post, release, series, topic};
use crate::harness::{clocked, dedup_bin, options, run, shared, url};

/// A row as a check would leave it, in the caller's own transaction: the key is held until that ends.
pub async fn hold(tx: &tokio_postgres::Transaction<'_>, topic: &str, key: &str) {
    tx.execute("SELECT pg_advisory_xact_lock_shared(1684366453, 1)", &[]).await.unwrap();
    let sql = "INSERT INTO dedup.claims SELECT dedup.digest_v1($1, 0, 'default', 0, $2), dedup.fence_base() | nextval('dedup.fence_counter'), 1, \
               l.current_segment, 0, dedup.t_in(s.origin_ms, dedup.now_ms()), dedup.t_in(s.origin_ms, dedup.now_ms() + 60000), \
               dedup.t_in(s.origin_ms, dedup.now_ms()), 275 FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment";
    tx.execute(sql, &[&topic, &key]).await.unwrap();
}

/// Somebody holds one key in an open transaction for 10 s while others keep asking for it: every other key stays within normal + 100 ms,
/// and the held one is `key-busy` at its deadline, never `in_progress` (P2).
/// Seen to fail without the function's own lock_timeout (everything waits), and with held keys left in the common lane.
#[test]
fn a_held_key_costs_only_itself() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "held").await;
        let others = |n: usize, tag: String| {
            let (url, t) = (url.clone(), t.clone());
            async move {
                let mut times = Vec::new();
                for k in 0..n {
                    let began = Instant::now();
                    check(&url, &t, json!({"key": format!("eu:{tag}-{k}")})).await.is("first");
                    times.push(began.elapsed());
                }
                times
            }
        };
        let mut normal = others(300, "normal".into()).await;
        normal.sort();
        let normal = normal[normal.len() * 99 / 100];
        let mut owner = testbed.region("eu").postgres.connect("dedup_owner").await;
        let tx = owner.transaction().await.unwrap();
        hold(&tx, &t, "eu:held").await;
        let until = Instant::now() + Duration::from_secs(10);
        let asking: Vec<_> = (0..4)
            .map(|_| {
                let (url, t) = (url.clone(), t.clone());
                tokio::spawn(async move {
                    let mut refused = 0;
                    while Instant::now() < until - Duration::from_millis(2500) {
                        let headers = [("dedup-deadline-ms", "2000")];
                        let body = json!({"key": "eu:held"}).to_string().into_bytes();
                        let r = crate::api::call(reqwest::Method::POST, &url, &format!("/v1/topics/{t}/checks"), Some(body), &headers)
                            .await
                            .unwrap();
                        let r = r.fails(503, "key-busy");
                        assert_eq!(r.body["applied"], json!("no"));
                        refused += 1;
                    }
                    refused
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        let mut round = 0;
        let mut all = Vec::new();
        while Instant::now() < until {
            let singles = others(20, format!("r{round}")).await;
            all.extend(singles);
            // A batch with the held key in it: the others get their verdicts, the held one waits for its deadline alone.
            round += 1;
        }
        all.sort();
        slowest = slowest.max(all[all.len() - 1]);
        assert!(slowest < normal + Duration::from_millis(100), "another key took {slowest:?}; normal is {normal:?} (p99)");
        for asked in asking {
            assert!(asked.await.unwrap() >= 2);
        }
        let batch = json!({"items": [{"key": "eu:b1"}, {"key": "eu:held"}, {"key": "eu:b2"}]}).to_string().into_bytes();
        let headers = [("dedup-deadline-ms", "1000")];
        let batch =
            crate::api::call(reqwest::Method::POST, &url, &format!("/v1/topics/{t}/checks/batch"), Some(batch), &headers).await.unwrap();
        let word = |r: &Value| r["verdict"].as_str().or(r["problem"]["code"].as_str()).unwrap().to_owned();
        let words: Vec<String> = batch.body["results"].as_array().unwrap().iter().map(word).collect();
        assert_eq!(words, ["first", "key-busy", "first"]);
        assert!(series(&metrics(&url).await, "dedup_held_keys_total", &[]) > 0.0);
        tx.commit().await.unwrap();
        check(&url, &t, json!({"key": "eu:held"})).await.is("duplicate");
        testbed.stop().await.unwrap();
    });
}

/// Rows are 56 bytes wide with one index, and a key costs at most 130 bytes on disk.
/// Seen to fail with a second index (150 bytes a key), and with one more column.
#[test]
fn rows_are_narrow() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "narrow").await;
        let owner = testbed.region("eu").postgres.connect("dedup_owner").await;
        let row = owner
            .query_one("SELECT sum(attlen)::bigint, bool_and(attnotnull) FROM pg_attribute WHERE attrelid = 'dedup.claims'::regclass AND attnum > 0", &[])
            .await
            .unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (56, true));
        for batch in 0..60 {
            let items: Vec<Value> = (0..1000).map(|k| json!({"key": format!("eu:{batch}-{k}")})).collect();
            let done = post(&url, &format!("/v1/topics/{t}/checks/batch"), json!({"detail": "verdict", "items": items})).await;
            assert_eq!(done.body["counts"]["first"], json!(1000));
        }
        let size: i64 =
            owner.query_one("SELECT pg_table_size('dedup.claims_s1') + pg_indexes_size('dedup.claims_s1')", &[]).await.unwrap().get(0);
        let each = size as f64 / 60_000.0;
        assert!(each <= 130.0, "{each:.1} bytes a key");
        let indexes: i64 =
            owner.query_one("SELECT count(*) FROM pg_index WHERE indrelid = 'dedup.claims_s1'::regclass", &[]).await.unwrap().get(0);
        assert_eq!(indexes, 1);
        testbed.stop().await.unwrap();
    });
}

/// Look-ups are index probes, one per (segment, digest) pair, whatever the plan was made on: no sequential scan ever, and no more probes
/// than pairs.
/// Seen to fail with a plain join in place of the lateral probe and without the function's plan settings.
#[test]
fn look_ups_are_one_probe_per_pair() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "probe").await;
        let path = format!("/v1/topics/{t}/checks/batch");
        let janitor = testbed.region("eu").postgres.connect("dedup_jan").await;
        let batch = |tag: usize, n: usize| {
            let items: Vec<Value> = (0..n).map(|k| json!({"key": format!("eu:{tag}-{k}")})).collect();
            json!({"detail": "verdict", "items": items})
        };
        for segment in 0..3 {
            post(&url, &path, batch(segment, 1000)).await;
            let done: String = janitor.query_one("SELECT dedup.rotate_v1()", &[]).await.unwrap().get(0);
            assert_eq!(done, "rotated");
            janitor.execute("SELECT dedup.prepare_segment_v1()", &[]).await.unwrap();
        }
        let owner = testbed.region("eu").postgres.connect("dedup_owner").await;
        owner.batch_execute("ANALYZE dedup.claims").await.unwrap();
        let scans = async || -> (i64, i64) {
            let sql = "SELECT sum(seq_scan)::bigint, sum(idx_scan)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'claims_s%'";
            let row = owner.query_one(sql, &[]).await.unwrap();
            (row.get(0), row.get(1))
        };
        // Counters of idle sessions arrive late.
        let settled = async |at_least: i64| {
            wait_until("the statistics", Duration::from_secs(30), || async {
                let now = scans().await;
                if now.1 >= at_least { Ok(now) } else { Err(format!("{now:?}, expected {at_least}")) }
            })
            .await
        };
        // Three batches of 1,000, each looked for in one more segment than the last (two are live at first), and inserted.
        let before = settled(3000).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let before = settled(before.1).await;
        for round in 10..20 {
            assert_eq!(post(&url, &path, batch(round, 500)).await.body["counts"]["first"], json!(500));
        }
        // Each of 5,000 keys is looked for in four segments, and its insert probes the current one once more.
        let pairs = 10 * 500 * 4;
        let after = settled(before.1 + pairs).await;
        assert_eq!(after.0, before.0, "a sequential scan");
        let probes = after.1 - before.1;
        assert!(probes <= pairs + 5_000, "{probes} probes for {pairs} pairs and 5,000 inserts");
        testbed.stop().await.unwrap();
    });
}

/// A re-claim is two statements: the old row goes, the new one stands in the current segment, also when both are the same segment.
/// Seen to fail (the key is lost) when both are one statement with the INSERT first; a DELETE that feeds its INSERT passed.
#[test]
fn re_claims_leave_exactly_one_row_in_the_current_segment() {
    run(async {
        let mut clock = clocked().await;
        let url = clock.url(0);
        let t = topic(&url, "reclaim").await;
        let janitor = clock.testbed.region("eu").postgres.connect("dedup_jan").await;
        let owner = clock.testbed.region("eu").postgres.connect("dedup_owner").await;
        let rows = async || -> Vec<(i32, bool)> {
            let sql = "SELECT segment_id, segment_id = (SELECT current_segment FROM dedup.layout) FROM dedup.claims WHERE digest = dedup.digest_v1($1, 0, 'default', 0, 'eu:k')";
            owner.query(sql, &[&t]).await.unwrap().iter().map(|r| (r.get(0), r.get(1))).collect()
        };
        for round in 0..6 {
            if round % 2 == 1 {
                janitor.execute("SELECT dedup.prepare_segment_v1()", &[]).await.unwrap();
                let done: String = janitor.query_one("SELECT dedup.rotate_v1()", &[]).await.unwrap().get(0);
                assert_eq!(done, "rotated");
            }
            let first = claim(&url, &t, json!({"key": "eu:k", "lease_ms": 5000})).await.is("first");
            let found = rows().await;
            assert!(found.len() == 1 && found[0].1, "round {round}: {found:?}");
            // Released, lapsed, or past its window: three ways to a re-claim.
            match round % 3 {
                0 => assert_eq!(release(&url, &first.text("claim_token")).await.status, 200),
                1 => clock.forward(Duration::from_secs(6)).await,
                _ => clock.forward(Duration::from_secs(86_401)).await,
            }
        }
    });
}

/// Roles: the service executes functions and reads no table; SQL callers and the janitor reach only what is theirs. The janitor reads the
/// rows that it archives, and changes none but through functions.
/// Seen to fail with SELECT on the claims granted to the service, and with the right to rotate.
#[test]
fn roles_reach_only_what_is_theirs() {
    run(async {
        let postgres = &shared().await.region("eu").postgres;
        let denied = async |user: &str, sql: &str| {
            let error = postgres.connect(user).await.batch_execute(sql).await.expect_err(sql);
            let code = error.code().map(|c| c.code().to_owned()).unwrap_or_default();
            assert_eq!(code, "42501", "{user}: {sql}: {error}");
        };
        for user in ["dedup_svc", "dedup_jan", "dedup_caller"] {
            for sql in [
                "DELETE FROM dedup.claims",
                "DELETE FROM dedup.claims_s1",
                "UPDATE dedup.claims_s1 SET meta = 0",
                "SELECT secret FROM dedup.home",
                "UPDATE dedup.layout SET generation = 0",
                "CREATE TABLE dedup.x ()",
            ] {
                denied(user, sql).await;
            }
        }
        for user in ["dedup_svc", "dedup_caller"] {
            for sql in ["SELECT * FROM dedup.claims", "SELECT * FROM dedup.blocks", "DELETE FROM dedup.tombstones"] {
                denied(user, sql).await;
            }
        }
        denied("dedup_svc", "SELECT dedup.rotate_v1()").await;
        denied("dedup_svc", "SELECT dedup.publish_v1(1)").await;
        denied("dedup_svc", "SELECT dedup.init_home('a', 'a', '{a}', NULL, 1, 1)").await;
        denied("dedup_caller", "SELECT dedup.hello_v1()").await;
        denied("dedup_jan", "SELECT dedup.hello_v1()").await;
        assert!(postgres.connect("dedup_svc").await.query_one("SELECT count(*) FROM dedup.segment_list", &[]).await.is_ok());
    });
}

/// Migrating an empty database several times at once makes one home and fails nobody; migrating again changes nothing; another secret is
/// refused.
/// Seen to fail without the lock that lets one migrate at a time, with a segment made by each run, and with another secret taken.
#[test]
fn migrations_can_run_twice_and_at_once() {
    run(async {
        let testbed = shared().await;
        let postgres = &testbed.region("eu").postgres;
        let password = postgres.password().to_owned();
        let migrate = |config: &std::path::Path, secret: &str| {
            let mut command = tokio::process::Command::new(dedup_bin());
            command
                .args(["migrate", "--owner", "dedup_owner", "--config"])
                .arg(config)
                .env("DEDUP_OWNER_PASSWORD", &password)
                .env("DEDUP_SECRET", secret);
            command.output()
        };
        let at_once = async |config: &std::path::Path| {
            for out in futures_util::future::join_all((0..4).map(|_| migrate(config, testbed.secret_hex()))).await {
                let out = out.unwrap();
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            }
        };
        // What a home is, but for its rows.
        let state = async |client: &tokio_postgres::Client| -> String {
            let sql = "SELECT (SELECT jsonb_agg(h) FROM dedup.home h) || (SELECT jsonb_agg(s ORDER BY segment_id) FROM dedup.segments s) \
                       || (SELECT jsonb_agg(m ORDER BY version) FROM dedup.schema_history m)";
            client.query_one(&format!("SELECT ({sql})::text"), &[]).await.unwrap().get(0)
        };
        let config = testbed.region("eu").instances[0].config_path();
        postgres.connect("postgres").await.batch_execute("CREATE DATABASE empty OWNER dedup_owner").await.unwrap();
        let new = config.with_extension("empty.toml");
        std::fs::write(&new, std::fs::read_to_string(config).unwrap().replace("dbname=dedup", "dbname=empty")).unwrap();
        at_once(&new).await;
        let dsn = postgres.dsn("dedup_owner").replace("dbname=dedup", "dbname=empty");
        let (owner, connection) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let made = state(&owner).await;
        let segments: i64 = owner.query_one("SELECT count(*) FROM dedup.segments", &[]).await.unwrap().get(0);
        assert_eq!(segments, 2, "{made}");
        at_once(&new).await;
        assert_eq!(state(&owner).await, made);

        at_once(config).await;
        let out = migrate(config, &"0".repeat(64)).await.unwrap();
        assert!(
            !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("another secret"),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let t = topic(&url("eu", 0).await, "after").await;
        check(&url("eu", 0).await, &t, json!({"key": "eu:k"})).await.is("first");
    });
}

/// Case G4: one transaction with new keys and an existing one: the new ones are committed, the other is a duplicate, and the connection
/// serves the next call; nothing relies on catching a violation.
/// Seen to fail with a batch that does not look first and inserts without ON CONFLICT.
#[test]
fn case_g4_an_existing_key_spoils_no_batch() {
    run(async {
        let testbed = shared().await;
        let url = url("eu", 0).await;
        let t = topic(&url, "g4").await;
        for round in 0..20 {
            check(&url, &t, json!({"key": format!("eu:{round}-5")})).await.is("first");
            let items: Vec<Value> = (0..10).map(|k| json!({"key": format!("eu:{round}-{k}")})).collect();
            let batch = post(&url, &format!("/v1/topics/{t}/claims/batch"), json!({"items": items})).await;
            assert_eq!(batch.body["counts"], json!({"first": 9, "duplicate": 1}));
            check(&url, &t, json!({"key": format!("eu:{round}-0")})).await.is("in_progress");
        }
        let log = std::fs::read_to_string(testbed.region("eu").postgres.log_path()).unwrap();
        assert!(!log.contains("aborted") && !log.contains("duplicate key value"), "the server's log tells of a violation");
    });
}

/// `keep_key` decides whether a key's text lies beside its record, and for how long.
/// Seen to fail with `never` ignored, and with a completion that leaves the text.
#[test]
fn key_texts_are_kept_as_the_topic_says() {
    run(async {
        let testbed = shared().await;
        let url = url("us", 0).await;
        let owner = testbed.region("us").postgres.connect("dedup_owner").await;
        for (keep, open, done, checked) in
            [("open", Some("us:c"), None, None), ("always", Some("us:c"), Some("us:c"), Some("us:k")), ("never", None, None, None)]
        {
            let t = crate::api::topic_with(&url, "keep", json!({"window_ms": 60_000, "keep_key": keep})).await;
            let text = async |key: &str| -> Option<String> {
                let sql = "SELECT key FROM dedup.claim_texts WHERE digest = dedup.digest_v1($1, 0, 'default', 0, $2)";
                owner.query_opt(sql, &[&t, &key]).await.unwrap().and_then(|r| r.get(0))
            };
            let first = claim(&url, &t, json!({"key": "us:c", "owner": "w"})).await.is("first");
            assert_eq!(text("us:c").await.as_deref(), open, "{keep}, open");
            crate::api::complete(&url, &first.text("claim_token")).await;
            assert_eq!(text("us:c").await.as_deref(), done, "{keep}, done");
            check(&url, &t, json!({"key": "us:k"})).await.is("first");
            assert_eq!(text("us:k").await.as_deref(), checked, "{keep}, checked");
        }
    });
}
