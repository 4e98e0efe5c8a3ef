//! Postgres without room or connections, and what may happen to Redis.

use std::path::Path;
use std::time::{Duration, Instant};

use dedup_testbed::Options;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::rig::Rig;

/// A file system of its own for each Postgres, which can be filled.
pub fn small_disk(options: &mut Options, _: &Path) -> anyhow::Result<()> {
    options.postgres_disk_mb = Some(220);
    options.postgres_settings.push(("max_wal_size".into(), "64MB".into()));
    Ok(())
}

/// So few connections that somebody can hold them all.
pub fn few_connections(options: &mut Options, _: &Path) -> anyhow::Result<()> {
    options.postgres_settings.push(("max_connections".into(), "60".into()));
    Ok(())
}

pub async fn disk_full(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    rig.primary().fill_disk().await;
    sleep(Duration::from_millis(rng.random_range(1500..3000))).await;
    rig.primary().empty_disk().await;
    while !rig.primary().is_gone().await && !writes(rig).await {
        sleep(Duration::from_millis(50)).await;
    }
    if rig.primary().is_gone().await {
        rig.saw("Postgres gave up", 1);
    }
    rig.primary().start().await?;
    let log = std::fs::read_to_string(rig.primary().log_path())?;
    rig.saw("complaints of no space", log.matches("No space left on device").count() as u64);
    Ok(())
}

/// Whether the primary takes writes.
async fn writes(rig: &Rig) -> bool {
    let Ok((client, connection)) = tokio_postgres::connect(&rig.primary().dsn("postgres"), tokio_postgres::NoTls).await else {
        return false;
    };
    tokio::spawn(connection);
    client.batch_execute("SELECT pg_logical_emit_message(true, 'chaos', 'is there room')").await.is_ok()
}

pub async fn no_connections(rig: &Rig) -> anyhow::Result<()> {
    let postgres = rig.primary();
    let root = postgres.connect("postgres").await;
    let dsn = postgres.dsn("dedup_owner");
    root.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'dedup_svc'").await?;
    let mut held = Vec::new();
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        match tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                held.push(client);
            }
            Err(_) => {
                rig.saw("connections refused", 1);
                root.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'dedup_svc'").await?;
                sleep(Duration::from_millis(30)).await;
            }
        }
    }
    rig.saw("connections held", held.len() as u64);
    Ok(())
}

pub async fn redis_down(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    for region in rig.testbed.regions() {
        let Some(redis) = &region.redis else { continue };
        redis.kill9().await;
        sleep(Duration::from_millis(rng.random_range(300..1200))).await;
        redis.start().await?;
        rig.saw("Redis killed", 1);
    }
    Ok(())
}

pub async fn redis_stall(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    for region in rig.testbed.regions() {
        let Some(redis) = &region.redis else { continue };
        redis.sigstop().await;
        sleep(Duration::from_millis(rng.random_range(300..1200))).await;
        redis.sigcont().await;
        rig.saw("Redis frozen", 1);
    }
    Ok(())
}

pub async fn redis_flush(rig: &Rig) -> anyhow::Result<()> {
    for region in rig.testbed.regions() {
        let Some(redis) = &region.redis else { continue };
        let mut direct = redis::Client::open(redis.url())?.get_multiplexed_async_connection().await?;
        let keys: u64 = redis::cmd("DBSIZE").query_async(&mut direct).await?;
        let () = redis::cmd("FLUSHALL").query_async(&mut direct).await?;
        rig.saw("values flushed", keys);
    }
    sleep(Duration::from_millis(200)).await;
    Ok(())
}

/// Overwrites what instances keep in Redis.
pub async fn redis_garbage(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    for region in rig.testbed.regions() {
        let Some(redis) = &region.redis else { continue };
        let mut direct = redis::Client::open(redis.url())?.get_multiplexed_async_connection().await?;
        for _ in 0..60 {
            let key: Option<Vec<u8>> = redis::cmd("RANDOMKEY").query_async(&mut direct).await?;
            let other: Option<Vec<u8>> = redis::cmd("RANDOMKEY").query_async(&mut direct).await?;
            let (Some(key), Some(other)) = (key, other) else { break };
            let value: redis::RedisResult<Vec<u8>> = redis::cmd("GET").arg(&key).query_async(&mut direct).await;
            let theirs: redis::RedisResult<Vec<u8>> = redis::cmd("GET").arg(&other).query_async(&mut direct).await;
            let (Ok(mut value), Ok(theirs)) = (value, theirs) else { continue };
            match rng.random_range(0..4) {
                0 if !value.is_empty() => {
                    let at = rng.random_range(0..value.len());
                    value[at] ^= 1 << rng.random_range(0..8);
                    let () = redis::cmd("SET").arg(&key).arg(value).query_async(&mut direct).await?;
                }
                1 => {
                    let () = redis::cmd("SET").arg(&key).arg(theirs).query_async(&mut direct).await?;
                }
                2 => {
                    let () = redis::cmd("DEL").arg(&key).query_async(&mut direct).await?;
                    let () = redis::cmd("LPUSH").arg(&key).arg("x").query_async(&mut direct).await?;
                }
                _ => {
                    let cut = value.len() / 2;
                    let () = redis::cmd("SET").arg(&key).arg(&value[..cut]).query_async(&mut direct).await?;
                }
            }
            rig.saw("values spoilt", 1);
        }
    }
    sleep(Duration::from_millis(100)).await;
    Ok(())
}
