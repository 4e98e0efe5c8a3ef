//! Processes are killed, frozen and restarted.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::rig::Rig;

pub async fn service_kill(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let instance = rig.any_instance(rng);
    instance.kill9().await;
    sleep(Duration::from_millis(rng.random_range(0..150))).await;
    instance.start().await?;
    rig.saw("instances killed", 1);
    Ok(())
}

pub async fn rolling_restart(rig: &Rig, n: usize) -> anyhow::Result<()> {
    let all = rig.instances();
    let instance = all[n % all.len()];
    let ended = instance.sigterm_and_wait(Duration::from_secs(20)).await;
    instance.start().await?;
    rig.saw("restarts", u64::from(ended.success()));
    Ok(())
}

pub async fn service_stall(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let instance = rig.any_instance(rng);
    instance.sigstop().await;
    sleep(Duration::from_millis(2200)).await;
    instance.sigcont().await;
    rig.saw("instances frozen", 1);
    Ok(())
}

pub async fn pg_kill(rig: &Rig) -> anyhow::Result<()> {
    rig.primary().kill9().await;
    rig.primary().start().await?;
    rig.saw("Postgres killed", 1);
    Ok(())
}

pub async fn pg_restart(rig: &Rig) -> anyhow::Result<()> {
    rig.primary().stop_fast().await;
    rig.primary().start().await?;
    rig.saw("Postgres restarted", 1);
    Ok(())
}

pub async fn pg_stall(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    rig.primary().sigstop().await;
    sleep(Duration::from_millis(rng.random_range(100..2500))).await;
    rig.primary().sigcont().await;
    rig.saw("Postgres frozen", 1);
    Ok(())
}
