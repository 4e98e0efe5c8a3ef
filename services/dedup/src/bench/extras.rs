//! Figures beside the table: idle latency, a check inside a caller's transaction, bytes of a warm key, memory of a million cached records.

use std::time::Instant;

use anyhow::ensure;
use hdrhistogram::Histogram;

use super::cpu;
use super::http::Connection;
use super::report::{Extra, median};
use super::world::World;

const IDLE_ASKS: u64 = 500;
const CACHED: u64 = 1_000_000;
const TRANSACTIONS: u64 = 1000;
const SQL_ROUNDS: usize = 5;

/// Measures them all.
pub async fn measure(world: &World) -> anyhow::Result<Vec<Extra>> {
    let mut extras = idle_latency(world).await?;
    extras.extend(sql_check(world).await?);
    extras.push(bytes_per_key(world).await?);
    extras.extend(memory(world).await?);
    Ok(extras)
}

/// One claim at a time through the service, and one INSERT at a time by the same driver, in turn.
async fn idle_latency(world: &World) -> anyhow::Result<Vec<Extra>> {
    let mut http = Connection::open(world.port()).await?;
    let postgres = world.region().postgres.connect("postgres").await;
    let insert = postgres.prepare("INSERT INTO peer_idle VALUES ($1)").await?;
    let (mut ours, mut bare) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    let path = format!("/v1/topics/{}/claims", world.topic);
    let salt: u32 = rand::random();
    for i in 0..IDLE_ASKS {
        let body = format!("{{\"key\":\"eu:idle-{salt:x}-{i}\"}}");
        let began = Instant::now();
        http.post(&path, body.as_bytes()).await?;
        ours.record(u64::try_from(began.elapsed().as_micros())?)?;
        let began = Instant::now();
        postgres.execute(&insert, &[&body]).await?;
        bare.record(u64::try_from(began.elapsed().as_micros())?)?;
    }
    let ms = |h: &Histogram<u64>, q: f64| h.value_at_quantile(q) as f64 / 1000.0;
    let note = |q: f64| format!("idle single claim {:.2} ms, bare INSERT {:.2} ms, in turn, {IDLE_ASKS} each", ms(&ours, q), ms(&bare, q));
    Ok(vec![
        Extra { name: "idle_claim_minus_insert_p50", value: ms(&ours, 0.5) - ms(&bare, 0.5), unit: "ms", note: note(0.5) },
        Extra { name: "idle_claim_over_insert_p99", value: ms(&ours, 0.99) / ms(&bare, 0.99), unit: "×", note: note(0.99) },
    ])
}

/// A transaction with one insert of the caller's and a dedup check by the SQL function, and the same with a hand-written dedup table, in turn.
/// Keys are random and the table has as many rows as the home, so that both write to pages of an index of one size.
async fn sql_check(world: &World) -> anyhow::Result<Vec<Extra>> {
    let owner = world.region().postgres.connect("postgres").await;
    let tables = "CREATE TABLE business (id bigserial PRIMARY KEY, key text NOT NULL, amount int NOT NULL);
        CREATE TABLE hand_written (topic text NOT NULL, key text NOT NULL, seen_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (topic, key));
        INSERT INTO hand_written SELECT 'bench', 'eu:' || gen_random_uuid() FROM dedup.claims;
        VACUUM ANALYZE hand_written";
    for statement in tables.split(';') {
        owner.batch_execute(statement).await?;
    }
    let mut extras = Vec::new();
    for (name, sessions) in [("sql_check_over_table", 1), ("sql_check_over_table_16", 16)] {
        let (mut ours, mut hand) = (Vec::new(), Vec::new());
        for _ in 0..SQL_ROUNDS {
            ours.push(transactions(world, sessions, "SELECT verdict = 'first' FROM dedup.check($1, $2)").await?);
            hand.push(
                transactions(world, sessions, "INSERT INTO hand_written VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING true").await?,
            );
        }
        let (ours, hand) = (median(&mut ours), median(&mut hand));
        let note = format!(
            "transaction with one more insert, {sessions} session(s): {ours:.2} ms with dedup.check, {hand:.2} ms with a table, in turn, {SQL_ROUNDS} × {TRANSACTIONS} each"
        );
        extras.push(Extra { name, value: ours / hand, unit: "×", note });
    }
    Ok(extras)
}

/// Milliseconds of a transaction, on average, of `sessions` at once.
async fn transactions(world: &World, sessions: u64, check: &str) -> anyhow::Result<f64> {
    let session = |_| async move {
        let client = world.region().postgres.connect("postgres").await;
        let check = client.prepare(check).await?;
        let business = client.prepare("INSERT INTO business (key, amount) VALUES ($1, 100)").await?;
        let began = Instant::now();
        for _ in 0..TRANSACTIONS / sessions {
            let key = format!("eu:{:032x}", rand::random::<u128>());
            client.batch_execute("BEGIN").await?;
            ensure!(client.query_one(&check, &[&world.topic, &key]).await?.get::<_, bool>(0), "a new key is not the first");
            client.execute(&business, &[&key]).await?;
            client.batch_execute("COMMIT").await?;
        }
        anyhow::Ok(began.elapsed().as_secs_f64() * 1000.0 / (TRANSACTIONS / sessions) as f64)
    };
    let times = futures_util::future::try_join_all((0..sessions).map(session)).await?;
    Ok(times.iter().sum::<f64>() / sessions as f64)
}

/// What the warm rows of this run take, index included.
async fn bytes_per_key(world: &World) -> anyhow::Result<Extra> {
    let owner = world.region().postgres.connect("postgres").await;
    owner.batch_execute("VACUUM ANALYZE dedup.claims_s1").await?;
    let row = owner
        .query_one(
            "SELECT pg_table_size('dedup.claims_s1') + pg_indexes_size('dedup.claims_s1'), (SELECT count(*) FROM dedup.claims_s1)",
            &[],
        )
        .await?;
    let (bytes, rows): (i64, i64) = (row.get(0), row.get(1));
    ensure!(rows > 0, "no warm rows");
    Ok(Extra { name: "warm_bytes_per_key", value: bytes as f64 / rows as f64, unit: "B", note: format!("{rows} rows with their index") })
}

/// Memory of a fresh service, and what a million cached done records add.
async fn memory(world: &World) -> anyhow::Result<Vec<Extra>> {
    let service = &world.region().instances[0];
    service.kill9().await;
    service.start().await?;
    let idle = cpu::resident(service.pid());
    let mut http = Connection::open(world.port()).await?;
    let path = format!("/v1/topics/{}/checks/batch", world.topic);
    let salt: u32 = rand::random();
    for chunk in 0..CACHED / 1000 {
        let items: Vec<String> = (0..1000).map(|i| format!("{{\"key\":\"eu:cached-{salt:x}-{}\"}}", chunk * 1000 + i)).collect();
        let body = format!("{{\"detail\":\"verdict\",\"items\":[{}]}}", items.join(","));
        http.post(&path, body.as_bytes()).await?;
    }
    let full = cpu::resident(service.pid());
    let metrics = dedup_client::Client::new(&service.url())?.metrics_text().await?;
    let local = |name: &str| {
        let mut lines = metrics.lines().filter(|l| l.starts_with(name) && l.contains("tier=\"local\""));
        lines.find_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let (entries, told) = (local("dedup_tier_entries"), local("dedup_tier_size_bytes"));
    ensure!(entries > 0.9 * CACHED as f64, "only {entries} records are cached");
    let grown = (full - idle) as f64;
    Ok(vec![
        Extra { name: "idle_memory", value: idle as f64 / 1048576.0, unit: "MiB", note: "resident, just started".into() },
        Extra {
            name: "cached_record_bytes",
            value: grown / entries,
            unit: "B",
            note: format!(
                "{entries:.0} records grew resident memory by {:.0} MiB; the budget counts {:.0} MiB",
                grown / 1048576.0,
                told / 1048576.0
            ),
        },
        Extra {
            name: "cache_budget_error",
            value: (grown / told - 1.0) * 100.0,
            unit: "%",
            note: "resident growth against the budget's own count".into(),
        },
    ])
}
