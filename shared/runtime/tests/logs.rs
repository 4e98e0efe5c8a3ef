//! Logs as a collector reads them. The test runs itself once more as a child, whose standard error it reads.

use std::process::Command;

use dedup_runtime::config::LogConfig;
use dedup_runtime::logs;

const CHILD: &str = "DEDUP_TEST_LOGS_CHILD";

#[test]
fn each_line_is_json_panics_too() {
    if std::env::var_os(CHILD).is_some() {
        logs::init(&LogConfig::default());
        logs::init(&LogConfig::default());
        tracing::info!(region = "eu", "started");
        tracing::debug!("below the level");
        panic!("on purpose");
    }
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "each_line_is_json_panics_too", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("the child runs");
    let text = String::from_utf8_lossy(&child.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('{')).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains(r#""message":"started""#) && lines[0].contains(r#""region":"eu""#), "{text}");
    assert!(lines[1].contains(r#""panic":"on purpose""#) && lines[1].contains(r#""level":"ERROR""#), "{text}");
}
