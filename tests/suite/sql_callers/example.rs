//! The example consumer of the documentation.

use std::process::Command;

use crate::api::topic;
use crate::harness::{run, shared, url};

/// The example consumer: with effect and record in one transaction, 200 crashes at random points lose and double nothing; with two
/// transactions the same crashes lose messages, so the example sees the difference.
/// Seen to fail with a check that leaves no row (effects doubled).
#[test]
fn the_ledger_example_is_exactly_once_and_two_transactions_are_not() {
    run(async {
        let testbed = shared().await;
        let t = topic(&url("eu", 0).await, "ledger").await;
        testbed
            .region("eu")
            .postgres
            .connect("postgres")
            .await
            .batch_execute("CREATE SCHEMA ledger AUTHORIZATION dedup_caller")
            .await
            .unwrap();
        let dsn = testbed.region("eu").postgres.dsn("dedup_caller");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../infra/examples/ledger.py");
        let ledger = |more: &[&str]| {
            let mut command = Command::new("/usr/bin/python3");
            command.args([script, "--schema", "ledger", "--topic", &t, "--crashes", "200", "--dsn", &dsn]).args(more);
            let out = command.output().unwrap();
            (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr))
        };
        let number = |text: &str, name: &str| -> u32 {
            let mut words = text.split_whitespace().skip_while(|w| *w != name);
            words.nth(1).unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        let (code, said) = tokio::task::block_in_place(|| ledger(&[]));
        assert_eq!(code, Some(0), "{said}");
        assert!(number(&said, "crashes") >= 200 && said.contains("exactly once"), "{said}");
        let (code, said) = tokio::task::block_in_place(|| ledger(&["--two-transactions"]));
        assert!(code == Some(1) && number(&said, "lost") > 0, "{said}");
    });
}
