//! Warm rows in bulk, and their rotation: what the benchmarks of many rows begin with.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dedup_client::{Client, TopicPolicy, Window};
use tokio_postgres::Client as Postgres;

use super::load::{Keys, Load};

/// First claims as these benchmarks ask for them.
pub const FIRSTS: Load = Load { keys: Keys::New, batch: 256, connections: 16 };
/// Topic of those.
pub const TOPIC: &str = "bench";
/// The digest of number `n`, as the home computes it.
pub const SQL_DIGEST: &str = "encode(substring(sha256(int8send(n)) FOR 16), 'hex')::uuid";
/// Rows inserted by one statement.
const INSERT: u64 = 250_000;
const PATIENCE: Duration = Duration::from_secs(900);

/// Makes [`TOPIC`].
pub async fn make_topic(url: &str) -> anyhow::Result<()> {
    let policy = TopicPolicy { window_ms: Some(Window::Ms(86_400_000)), ..TopicPolicy::default() };
    let client = Client::new(url)?.with_timeout(Duration::from_secs(30));
    client.put_topic(TOPIC, &policy).await.context("the topic could not be made")?;
    Ok(())
}

/// Rows as checks leave them, of the numbers from `first` on, in the segment.
pub async fn fill_rows(owner: &Postgres, segment: i32, first: u64, rows: u64) -> anyhow::Result<()> {
    for from in (first..first + rows).step_by(INSERT as usize) {
        let to = (from + INSERT).min(first + rows) - 1;
        let sql = format!(
            "INSERT INTO dedup.claims SELECT {SQL_DIGEST}, dedup.fence_base() | n, 1, {segment}, 0, dedup.t_in(s.origin_ms, s.now), dedup.t_in(s.origin_ms, s.now + 25920000000), \
             dedup.t_in(s.origin_ms, s.now), 275 FROM generate_series({from}::bigint, {to}) n, (SELECT origin_ms, dedup.now_ms() AS now FROM dedup.segments WHERE segment_id = {segment}) s"
        );
        owner.batch_execute(&sql).await?;
    }
    Ok(())
}

/// Until the query says so.
pub async fn until(owner: &Postgres, sql: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    while !owner.query_one(sql, &[]).await?.get::<_, bool>(0) {
        ensure!(began.elapsed() < PATIENCE, "it takes too long: {sql}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Seals the open segment; the next one takes over.
pub async fn rotate(owner: &Postgres, janitor: &Postgres) -> anyhow::Result<()> {
    until(owner, "SELECT count(*) > 1 FROM dedup.segments WHERE state IN ('prepared', 'open')").await?;
    let rotated: String = janitor.query_one("SELECT dedup.rotate_v1()", &[]).await?.get(0);
    ensure!(rotated == "rotated", "the segment was not rotated: {rotated}");
    Ok(())
}
