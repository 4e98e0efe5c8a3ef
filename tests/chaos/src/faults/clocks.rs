//! Clocks that are wrong: of instances, and of homes.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use dedup_testbed::Options;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::rig::Rig;

/// Instances see the wall clock that a file says.
pub fn fake_clock(options: &mut Options, scratch: &Path) -> anyhow::Result<()> {
    let places = ["/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"];
    let library = places.iter().find(|p| Path::new(p).exists()).context("libfaketime is missing (apt-get install faketime)")?;
    std::fs::write(scratch.join("clock"), "+0s")?;
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    options.env.extend([
        pair("LD_PRELOAD", library),
        pair("FAKETIME_TIMESTAMP_FILE", &scratch.join("clock").display().to_string()),
        pair("FAKETIME_NO_CACHE", "1"),
        pair("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]);
    Ok(())
}

pub async fn app_clock(rig: &Rig, n: usize) -> anyhow::Result<()> {
    let hours = [2, -2, 0][n % 3];
    std::fs::write(rig.scratch.join("clock"), format!("{:+}s", hours * 3600))?;
    sleep(Duration::from_millis(700)).await;
    rig.saw("jumps", 1);
    Ok(())
}

pub async fn region_clocks(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    for region in rig.testbed.regions() {
        rig.shift_clock(region, rng.random_range(-30_000..30_000)).await?;
    }
    sleep(Duration::from_millis(1500)).await;
    rig.saw("shifts", 1);
    Ok(())
}

pub async fn step(rig: &Rig, by_ms: i64) -> anyhow::Result<()> {
    rig.shift_clock(rig.home(), by_ms).await?;
    sleep(Duration::from_millis(1500)).await;
    rig.saw("steps", 1);
    Ok(())
}
