//! Keys that another system has seen become memory: `dedup import`.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use dedup_testbed::wait_until;
use serde_json::json;

use super::{Cold, all_are, check_all, cold_duplicate};
use crate::api::{check, topic_with};
use crate::harness::run;

async fn import(cold: &Cold, topic: &str, file: &Path) -> Output {
    let password = cold.region().postgres.password();
    tokio::process::Command::new(crate::harness::dedup_bin())
        .args(["import", "--topic", topic, "--config"])
        .arg(cold.janitor().config_path())
        .arg(file)
        .env("DEDUP_JANITOR_PASSWORD", password)
        .env("DEDUP_HOME_EU_PASSWORD", password)
        .output()
        .await
        .unwrap()
}

/// Imported keys are duplicates from the moment the import ends, until their own windows end, in every form of a line; what is claimed
/// meanwhile is not disturbed; broken off and repeated it goes on; a bad line ends it with nothing counting.
#[test]
fn imported_keys_are_remembered() {
    run(async {
        let mut cold = Cold::start("").await;
        let url = cold.url();
        let t = topic_with(&url, "import", json!({"window_ms": 30 * 86_400_000_i64})).await;
        let held = crate::api::claim(&url, &t, json!({"key": "eu:held", "lease_ms": 3_600_000})).await.is("first");
        let now = cold.owner().await.query_one("SELECT dedup.now_ms()", &[]).await.unwrap().get::<_, i64>(0);
        let file = cold.testbed.dir().join("keys");
        let mut lines: String = (0..120_000).map(|k| format!("eu:{k}\n")).collect();
        lines += &format!("{{\"key\":\"eu:old\",\"first_seen_ms\":{}}}\r\n", now - 29 * 86_400_000);
        lines += &format!("{{\"key\":\"eu:gone\",\"first_seen_ms\":{}}}\n", now - 31 * 86_400_000);
        lines += "{\"key\":\"eu:\\u00e4\"}\n\neu:0\neu:held";
        std::fs::write(&file, format!("{lines}\nno prefix\n")).unwrap();
        let failed = import(&cold, &t, &file).await;
        assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("must be <region>:<rest>"), "{failed:?}");
        check(&url, &t, json!({"key": "eu:1"})).await.is("first");
        // Two chunks are staged; the repetition goes on behind them.
        let again = import(&cold, &t, &file).await;
        assert!(String::from_utf8_lossy(&again.stdout).contains("goes on at byte"), "{again:?}");
        std::fs::write(&file, lines).unwrap();
        let done = import(&cold, &t, &file).await;
        assert!(done.status.success(), "{done:?}");
        assert!(String::from_utf8_lossy(&done.stdout).contains("120003 different keys are remembered"), "{done:?}");
        all_are(&check_all(&url, &t, (0..120_000).step_by(17).map(|k| format!("eu:{k}"))).await, "duplicate");
        for key in ["eu:old", "eu:ä", "eu:119999"] {
            cold_duplicate(&url, &t, key).await;
        }
        check(&url, &t, json!({"key": "eu:gone"})).await.is("first");
        all_are(&check_all(&url, &t, (0..200).map(|k| format!("eu:other-{k}"))).await, "first");
        // The claim that was open goes on.
        crate::api::claim(&url, &t, json!({"key": "eu:held"})).await.is("in_progress");
        assert_eq!(crate::api::complete(&url, &held.text("claim_token")).await.body["state"], json!("done"));
        check(&url, &t, json!({"key": "eu:held"})).await.is("duplicate");
        let left = cold.owner().await.query_one("SELECT count(*) FROM dedup.imports", &[]).await.unwrap();
        assert_eq!(left.get::<_, i64>(0), 1, "what was broken off");
        cold.forward(Duration::from_secs(3 * 86_400)).await;
        check(&url, &t, json!({"key": "eu:old"})).await.is("first");
        check(&url, &t, json!({"key": "eu:5"})).await.is("duplicate");
        cold.forward(Duration::from_secs(5 * 86_400)).await;
        wait_until("what was broken off is given up", Duration::from_secs(20), || async {
            let left = cold
                .owner()
                .await
                .query_one("SELECT (SELECT count(*) FROM dedup.imports) + (SELECT count(*) FROM dedup.import_rows)", &[])
                .await
                .unwrap();
            let left: i64 = left.get(0);
            if left == 0 { Ok(()) } else { Err(left.to_string()) }
        })
        .await;
        check(&url, &t, json!({"key": "eu:6"})).await.is("duplicate");
        cold.testbed.stop().await.unwrap();
    });
}
