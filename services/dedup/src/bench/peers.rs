//! The peers: `redis-benchmark` and `pgbench` as they come with the packages.

use std::path::PathBuf;

use anyhow::{Context, bail};
use tokio::process::Command;

use super::world::World;

/// Requests of one run of `redis-benchmark`, for about five seconds.
async fn redis_benchmark(world: &World, pipeline: usize, requests: u64) -> anyhow::Result<f64> {
    let redis = world.region().redis.as_ref().context("the benchmark's region has a Redis")?;
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", "127.0.0.1", "-p", &redis.port().to_string(), "-a", redis.password(), "-c", "64", "--csv"]);
    command.args(["-n", &requests.to_string(), "-P", &pipeline.to_string(), "-r", "10000"]);
    command.args(["SET", "peer:order-__rand_int__", "1", "NX", "EX", "86400"]);
    let out = command.output().await.context("redis-benchmark cannot be run; it comes with the package redis-tools")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().last().context("redis-benchmark printed nothing")?;
    let rate = line.split("\",\"").nth(1).and_then(|f| f.trim_matches('"').parse().ok());
    rate.with_context(|| format!("redis-benchmark printed {text}"))
}

/// Keys per second of SET NX EX for about `seconds`.
pub async fn set_nx(world: &World, pipeline: usize, seconds: u64) -> anyhow::Result<f64> {
    let probe = redis_benchmark(world, pipeline, 50_000).await?;
    redis_benchmark(world, pipeline, (probe * seconds as f64) as u64 + 1).await
}

/// Rows per second of `INSERT … ON CONFLICT DO NOTHING` of new text keys by 64 clients, one a transaction, prepared.
pub async fn insert(world: &World, seconds: u64) -> anyhow::Result<f64> {
    let script = world_file("insert.sql");
    let sql = "\\set a random(1, 1000000000)\n\\set b random(1, 1000000000)\nINSERT INTO peer VALUES ('eu_order-' || :a::text || '-' || :b::text) ON CONFLICT DO NOTHING;\n";
    std::fs::write(&script, sql)?;
    let postgres = &world.region().postgres;
    let mut command = Command::new(pgbench());
    command.args(["-n", "-M", "prepared", "-c", "64", "-j", "2", "-T", &seconds.to_string(), "-f"]).arg(&script);
    command.args(["-h", "127.0.0.1", "-p", &postgres.port().to_string(), "-U", "postgres", "dedup"]).env("PGPASSWORD", postgres.password());
    let out = command.output().await.context("pgbench cannot be run; it comes with the package postgresql")?;
    std::fs::remove_file(&script).ok();
    let text = String::from_utf8_lossy(&out.stdout);
    let tps = text.lines().find_map(|l| l.strip_prefix("tps = ")).and_then(|l| l.split(' ').next()?.parse().ok());
    match tps {
        Some(tps) => Ok(tps),
        None => bail!("pgbench failed: {}", String::from_utf8_lossy(&out.stderr).lines().next().unwrap_or_default()),
    }
}

fn world_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("dedup-bench-{}-{name}", std::process::id()))
}

/// `pgbench` from the newest installed server, or from PATH.
fn pgbench() -> PathBuf {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|e| e.path().join("bin/pgbench")).collect();
    found.retain(|p| p.exists());
    found.sort();
    found.pop().unwrap_or_else(|| "pgbench".into())
}

/// Version line of Redis.
pub async fn redis_version() -> anyhow::Result<String> {
    let out = Command::new("redis-server").arg("--version").output().await?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let version = text.split(' ').find_map(|w| w.strip_prefix("v=")).unwrap_or("?");
    Ok(format!("Redis {version}"))
}
