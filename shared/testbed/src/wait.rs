//! Waiting for a condition instead of sleeping.

use std::time::Duration;

use tokio::time::Instant;

use crate::slot::POLL;

/// Asks every 20 ms until the condition gives a value, and returns it.
///
/// # Panics
/// When `timeout` has passed, with the condition's last complaint in the message.
pub async fn wait_until<F, Fut, T>(what: &str, timeout: Duration, mut cond: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let deadline = Instant::now() + timeout;
    let mut last = String::from("never answered");
    loop {
        match tokio::time::timeout_at(deadline, cond()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(why)) => last = why,
            Err(_) => {}
        }
        assert!(Instant::now() < deadline, "{what}: not within {timeout:?}; last seen: {last}");
        tokio::time::sleep(POLL).await;
    }
}
