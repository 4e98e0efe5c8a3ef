//! What the tests of the testbed share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dedup_testbed::{Options, Testbed, wait_until};

/// Long enough for a slow machine; nothing waits that long when all is well.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The stores of one region; no service is needed.
pub async fn one_region() -> Testbed {
    let mut options = Options::new(PathBuf::from("/nonexistent/dedup"));
    options.regions = vec!["eu".into()];
    Testbed::start_stores(options).await.expect("the stores start")
}

/// Waits until neither the processes nor the folder exist.
pub async fn wait_until_gone(pids: &[u32], dir: &Path) {
    wait_until("nothing is left", PATIENCE, || async {
        let left: Vec<_> = pids.iter().filter(|pid| running(**pid)).collect();
        if left.is_empty() && !dir.exists() {
            return Ok(());
        }
        Err(format!("processes {left:?}, folder exists: {}", dir.exists()))
    })
    .await;
}

/// A zombie does not run: a container's first process may never collect it.
fn running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|s| !s.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}
