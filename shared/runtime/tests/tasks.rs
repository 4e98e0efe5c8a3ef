//! Tasks and the signal to stop.

use std::time::Duration;

use dedup_runtime::shutdown::StopReason;
use dedup_runtime::{Shutdown, Tasks, tls};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn tasks_end_with_the_signal() {
    let tasks = Tasks::new(Shutdown::new());
    let shutdown = tasks.shutdown().clone();
    tasks.spawn("waits", async move { shutdown.triggered().await });
    assert!(!tasks.shutdown().is_triggered());
    let drained = tasks.drain(SOON).await;
    assert!(drained.is_clean(), "{drained:?}");
}

#[tokio::test]
async fn a_panic_stops_the_process_and_is_named() {
    let tasks = Tasks::new(Shutdown::new());
    tasks.spawn("breaks", async { panic!("on purpose") });
    let reason = tokio::time::timeout(SOON, tasks.shutdown().wait_for_signal()).await.expect("in time").expect("signals");
    assert_eq!(reason, StopReason::Asked);
    let drained = tasks.drain(SOON).await;
    assert_eq!(drained.panicked, ["breaks"]);
    assert!(!drained.is_clean());
}

#[tokio::test]
async fn a_task_that_does_not_end_is_named() {
    let tasks = Tasks::new(Shutdown::new());
    tasks.spawn("hangs", std::future::pending());
    assert_eq!(tasks.drain(Duration::from_millis(10)).await.left, ["hangs"]);
}

#[test]
fn the_tls_provider_may_be_installed_twice() {
    tls::install_crypto_provider();
    tls::install_crypto_provider();
    assert!(rustls::crypto::CryptoProvider::get_default().is_some());
}
