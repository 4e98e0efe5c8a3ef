//! Primaries, standbys, and which of them counts.

use std::path::Path;
use std::time::{Duration, Instant};

use dedup_testbed::{Mode, Options};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::rig::Rig;

/// One region of two instances, its home with two synchronous standbys.
pub fn two_synchronous(options: &mut Options, _: &Path) -> anyhow::Result<()> {
    options.standbys = 2;
    options.proxies = false;
    options.postgres_settings.push(("synchronous_standby_names".into(), "'ANY 1 (*)'".into()));
    options.regions.truncate(1);
    options.instances = 2;
    Ok(())
}

/// The same, with a proxy in front of the first node.
pub fn two_synchronous_by_proxy(options: &mut Options, scratch: &Path) -> anyhow::Result<()> {
    two_synchronous(options, scratch)?;
    options.proxies = true;
    Ok(())
}

/// One region of two instances, its home with a standby that nobody waits for.
pub fn one_asynchronous(options: &mut Options, _: &Path) -> anyhow::Result<()> {
    options.standbys = 1;
    options.proxies = false;
    options.regions.truncate(1);
    options.instances = 2;
    Ok(())
}

pub async fn standby_down(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    for standby in standbys(rig) {
        rig.nodes()[standby].kill9().await;
    }
    sleep(Duration::from_millis(rng.random_range(1500..3500))).await;
    for standby in standbys(rig) {
        rig.nodes()[standby].start().await?;
    }
    rig.saw("times without a standby", 1);
    Ok(())
}

fn standbys(rig: &Rig) -> Vec<usize> {
    (0..rig.nodes().len()).filter(|n| *n != rig.primary_index()).collect()
}

/// The primary dies; of the standbys the one that has more is promoted and the others follow it; the old primary returns as a standby.
pub async fn failover(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let (nodes, old) = (rig.nodes(), rig.primary_index());
    let behind = standbys(rig);
    // One of them lags: the other's word alone is what the primary's answers rest on.
    let lagging = nodes[behind[rng.random_range(0..behind.len())]];
    lagging.sigstop().await;
    sleep(Duration::from_millis(rng.random_range(100..500))).await;
    nodes[old].kill9().await;
    lagging.sigcont().await;
    promote_best(rig, old).await?;
    nodes[old].become_standby_of(rig.primary()).await?;
    rig.saw("failovers", 1);
    Ok(())
}

/// Promotes the standby that received most; the others follow it.
async fn promote_best(rig: &Rig, old: usize) -> anyhow::Result<()> {
    let nodes = rig.nodes();
    let mut best = (0, 0);
    for n in standbys(rig) {
        let received = nodes[n].received().await;
        if received >= best.0 {
            best = (received, n);
        }
    }
    nodes[best.1].promote().await?;
    for n in (0..nodes.len()).filter(|n| *n != old && *n != best.1) {
        nodes[n].follow(nodes[best.1]).await?;
    }
    rig.set_primary(best.1);
    rig.recorder.mark(format!("node {} is promoted", best.1));
    Ok(())
}

/// No standby follows the primary any more.
async fn detach(rig: &Rig) -> anyhow::Result<()> {
    let nodes = rig.nodes();
    for n in standbys(rig) {
        let client = nodes[n].connect("postgres").await;
        for sql in ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"] {
            client.batch_execute(sql).await?;
        }
        while client.query_one("SELECT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)", &[]).await?.get::<_, bool>(0) {
            sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

/// The standby has lost touch, the primary goes on acknowledging, dies, and the standby is promoted: what was acknowledged meanwhile is lost.
pub async fn lossy(rig: &Rig) -> anyhow::Result<()> {
    let (nodes, old) = (rig.nodes(), rig.primary_index());
    detach(rig).await?;
    sleep(Duration::from_millis(600)).await;
    nodes[old].kill9().await;
    promote_best(rig, old).await?;
    nodes[old].become_standby_of(rig.primary()).await?;
    rig.saw("failovers", 1);
    Ok(())
}

/// A standby is promoted while the old primary lives. One instance stays connected to the old one, the other loses its line to it and goes
/// over to the new one. At last the old primary becomes a standby.
pub async fn old_primary(rig: &Rig) -> anyhow::Result<()> {
    let nodes = rig.nodes();
    if rig.primary_index() != 0 {
        back_to_first(rig).await?;
    }
    let line = &rig.fronts[0];
    // First no standby confirms for it any more: of two, the other could otherwise still do so after one was chosen.
    detach(rig).await?;
    promote_best(rig, 0).await?;
    line.set_mode(Mode::Refuse);
    line.cut();
    sleep(Duration::from_millis(4500)).await;
    nodes[0].become_standby_of(rig.primary()).await?;
    line.set_mode(Mode::Pass);
    rig.saw("times with two primaries", 1);
    sleep(Duration::from_millis(2500)).await;
    Ok(())
}

/// Makes the first node the primary again, without loss: only its word counts before the present one dies.
async fn back_to_first(rig: &Rig) -> anyhow::Result<()> {
    let (nodes, old) = (rig.nodes(), rig.primary_index());
    let others: Vec<usize> = standbys(rig).into_iter().filter(|n| *n != 0).collect();
    for n in &others {
        nodes[*n].sigstop().await;
    }
    sleep(Duration::from_millis(200)).await;
    nodes[old].kill9().await;
    nodes[0].promote().await?;
    for n in others {
        nodes[n].sigcont().await;
        nodes[n].follow(nodes[0]).await?;
    }
    rig.set_primary(0);
    nodes[old].become_standby_of(nodes[0]).await?;
    rig.saw("failovers", 1);
    sleep(Duration::from_millis(1500)).await;
    Ok(())
}

/// No standby listens, waits are cancelled (each client then sees a success with a warning), and the primary dies.
pub async fn cancel_sync(rig: &Rig) -> anyhow::Result<()> {
    let (nodes, old) = (rig.nodes(), rig.primary_index());
    detach(rig).await?;
    let root = nodes[old].connect("postgres").await;
    let until = Instant::now() + Duration::from_millis(1200);
    while Instant::now() < until {
        let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        rig.saw("waits cancelled", u64::try_from(root.query_one(sql, &[]).await?.get::<_, i64>(0)).unwrap_or(0));
        sleep(Duration::from_millis(30)).await;
    }
    nodes[old].kill9().await;
    promote_best(rig, old).await?;
    nodes[old].become_standby_of(rig.primary()).await?;
    rig.saw("failovers", 1);
    Ok(())
}
