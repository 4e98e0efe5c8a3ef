//! Segments that rotate and become archives, and migrations.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use dedup_testbed::{Janitor, Options};
use futures_util::future::join_all;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::rig::Rig;

/// How long a sealed segment stays warm under [`hasty_janitor`].
pub const WARM_MS: u64 = 1000;

/// A janitor for which a day is a second, and no caches: each question reaches the tier its record is in.
pub fn hasty_janitor(options: &mut Options, _: &Path) -> anyhow::Result<()> {
    options.janitor = true;
    options.redis = false;
    options.extra_tables = format!(
        "[local]\nbytes = 0\n[janitor]\nsegment_ms = 1000\nwarm_ms = {WARM_MS}\ndrop_margin_ms = 1000\npause_ms = 50\nlayout_pause_ms = 20\nclock_hold_ms = 0\n"
    );
    Ok(())
}

/// The janitor dies, somewhere or at a point of its way, and is started again.
pub async fn cold(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let janitor = rig.home().janitor.as_ref().context("this fault has a janitor")?;
    if rng.random_bool(0.5) {
        sleep(Duration::from_millis(rng.random_range(0..1500))).await;
    } else {
        janitor.fail_at(Janitor::POINTS[rng.random_range(0..Janitor::POINTS.len())]);
        let until = Instant::now() + Duration::from_secs(3);
        while janitor.ended().await.is_none() && Instant::now() < until {
            sleep(Duration::from_millis(20)).await;
        }
        // (It may not have come there: then it dies where it is.)
        rig.saw("janitors dead at a chosen point", u64::from(!janitor.fail_no_more()));
    }
    janitor.kill9().await;
    janitor.start().await?;
    rig.saw("janitors killed", 1);
    let root = rig.primary().connect("postgres").await;
    let sql = "SELECT (SELECT count(*) FROM dedup.archives WHERE level = 0), (SELECT count(*) FROM dedup.archives WHERE level > 0), \
               (SELECT coalesce(max(archive_id), 0)::bigint FROM dedup.archives)";
    let row = root.query_one(sql, &[]).await?;
    // (Archives that were merged or have ended are gone from the table; their numbers never come again.)
    for (what, n) in ["archives at last", "merged archives at last", "archives made"].into_iter().zip(0_usize..) {
        rig.found(what, u64::try_from(row.get::<_, i64>(n)).unwrap_or(0));
    }
    Ok(())
}

/// Rotates as often as it may for a second.
pub async fn rotate(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let janitor = rig.primary().connect("dedup_jan").await;
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        janitor.execute("SELECT dedup.prepare_segment_v1()", &[]).await?;
        let done: String = janitor.query_one("SELECT dedup.rotate_v1()", &[]).await?.get(0);
        match done.as_str() {
            "rotated" => rig.saw("rotations", 1),
            _ => rig.saw("rotations put off", 1),
        }
        sleep(Duration::from_millis(rng.random_range(50..100))).await;
    }
    Ok(())
}

/// Four at once, one of them killed.
pub async fn migrate(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let home = rig.home();
    let config = rig.testbed.dir().join(&home.name).join("migrate.toml");
    let start = || {
        tokio::process::Command::new(&rig.dedup)
            .args(["migrate", "--owner", "dedup_owner", "--config"])
            .arg(&config)
            .env("DEDUP_OWNER_PASSWORD", home.postgres.password())
            .env("DEDUP_SECRET", rig.testbed.secret_hex())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
    };
    let mut all = (0..4).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
    let mut victim = all.pop().expect("four were started");
    sleep(Duration::from_millis(rng.random_range(0..60))).await;
    victim.start_kill().ok();
    victim.wait().await?;
    for done in join_all(all.iter_mut().map(|c| c.wait())).await {
        anyhow::ensure!(done?.success(), "a migration failed beside others");
        rig.saw("migrations", 1);
    }
    Ok(())
}
