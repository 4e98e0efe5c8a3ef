//! Many keys in one call.

use serde_json::json;

use super::{caller, code, sql_check};
use crate::api::topic_with;
use crate::harness::{run, shared, url};

/// Case N2, P11 in SQL: `check_many` answers in the order of its keys, of equal ones the first wins, and callers with the same keys in
/// opposite orders do not deadlock.
/// Seen to fail with the asks left in the order of the keys.
#[test]
fn p11_many_keys_come_in_order_and_opposite_orders_do_not_deadlock() {
    run(async {
        let t = topic_with(&url("eu", 0).await, "many", json!({"window_ms": 60_000, "default_region": "eu", "keep_key": "always"})).await;
        let client = caller().await;
        let many = "SELECT key, verdict, of_index, fence FROM dedup.check_many($1, $2, fingerprints => $3)";
        assert_eq!(sql_check(&client, &t, "old").await.unwrap(), "first");
        let rows = client
            .query(many, &[&t, &vec!["c", "a", "old", "eu:a", "b", "a"], &vec![Some("1"), Some("1"), None, Some("2"), None, None]])
            .await
            .unwrap();
        let told: Vec<(String, String, Option<i32>)> = rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect();
        let is = |key: &str, verdict: &str, of: Option<i32>| (format!("eu:{key}"), verdict.to_owned(), of);
        assert_eq!(
            told,
            [
                is("c", "first", None),
                is("a", "first", None),
                is("old", "duplicate", None),
                is("a", "mismatch", Some(2)),
                is("b", "first", None),
                is("a", "duplicate", Some(2))
            ]
        );
        assert!(client.query(many, &[&t, &Vec::<String>::new(), &None::<Vec<String>>]).await.unwrap().is_empty());
        let owner = shared().await.region("eu").postgres.connect("dedup_owner").await;
        let sql =
            "SELECT string_agg(x.key, ' ' ORDER BY x.key) FROM dedup.claim_texts x JOIN dedup.topics o USING (topic_id) WHERE o.name = $1";
        let kept: String = owner.query_one(sql, &[&t]).await.unwrap().get(0);
        assert_eq!(kept, "eu:a eu:b eu:c eu:old");

        let callers = (0..4).map(|n| {
            let t = t.clone();
            async move {
                let (mut client, mut firsts) = (caller().await, 0);
                for round in 0..40 {
                    let mut keys: Vec<String> = (0..60).map(|k| format!("{round}-{k}")).collect();
                    if n % 2 == 1 {
                        keys.reverse();
                    }
                    loop {
                        let tx = client.transaction().await.unwrap();
                        match tx.query("SELECT verdict FROM dedup.check_many($1, $2)", &[&t, &keys]).await {
                            Ok(rows) => {
                                firsts += rows.iter().filter(|r| r.get::<_, &str>(0) == "first").count();
                                tx.commit().await.unwrap();
                                break;
                            }
                            Err(error) => assert_eq!(code(&error), "55P03", "{error}"),
                        }
                    }
                }
                firsts
            }
        });
        let tasks: Vec<_> = callers.map(tokio::spawn).collect();
        let mut firsts = 0;
        for task in tasks {
            firsts += task.await.unwrap();
        }
        assert_eq!(firsts, 40 * 60);
    });
}
