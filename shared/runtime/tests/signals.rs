//! Signals reach a whole process, so this test has one of its own.

use std::process::Command;
use std::time::Duration;

use dedup_runtime::Shutdown;
use dedup_runtime::shutdown::StopReason;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn sigterm_stops_the_process() {
    let shutdown = Shutdown::new();
    let waits = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { shutdown.wait_for_signal().await }
    });
    // On this one thread the task has run up to its wait, so the handler is in place.
    tokio::task::yield_now().await;
    let sent = Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
    let reason = tokio::time::timeout(SOON, waits).await.expect("in time").expect("no panic").expect("signals");
    assert_eq!(reason, StopReason::Terminate);
    assert!(shutdown.is_triggered());
}
