//! `dedup bench cold`: what long memory costs, and that it never errs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dedup_core::{Digest, Filter, FilterHead, FilterPart, filter_blocks};
use dedup_testbed::{Options, Testbed};
use sha2::{Digest as _, Sha256};
use tokio_postgres::Client;
use uuid::Uuid;

use super::cpu;
use super::load;
use super::report::{Extra, median, say_extra};
use super::warm::{FIRSTS, SQL_DIGEST, TOPIC, fill_rows, make_topic, rotate, until};
use crate::output::say;

/// What `dedup bench cold` takes.
#[derive(Debug, clap::Args)]
pub struct ColdArgs {
    /// Keys that are archived, and as many that never were there
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    keys: u64,
    /// Keys of each kind that the home's exact look is asked for (default: all)
    #[arg(long)]
    exact: Option<u64>,
}

const FPR: f64 = 0.01;

/// A digest as HMAC makes them: uniform, and another one for each number. The home computes the same from the number.
fn digest(n: u64) -> Digest {
    let sum = Sha256::digest(n.to_be_bytes());
    Digest(Uuid::from_slice(&sum[..16]).expect("16 bytes"))
}

/// Measures; what it starts is gone afterwards.
pub async fn measure(args: &ColdArgs) -> anyhow::Result<Vec<Extra>> {
    let mut options = Options::new(std::env::current_exe()?);
    options.regions = vec!["eu".into()];
    options.redis = false;
    options.janitor = true;
    options.extra_tables = "[janitor]\nwarm_ms = 0\npause_ms = 20\nlayout_pause_ms = 20\nsegment_rows = 1000000000\n".into();
    let testbed = Testbed::start(options).await.context("the benchmark's servers did not start")?;
    let outcome = with(&testbed, args).await;
    testbed.stop().await?;
    outcome
}

/// Figures, each said as soon as it is known: what comes after may take minutes, or fail.
#[derive(Default)]
struct Said(Vec<Extra>);

impl Said {
    fn push(&mut self, extra: Extra) {
        say_extra(&extra);
        self.0.push(extra);
    }
}

async fn with(testbed: &Testbed, args: &ColdArgs) -> anyhow::Result<Vec<Extra>> {
    let mut extras = Said::default();
    extras.push(look_up_16(args.keys));
    let postgres = &testbed.region("eu").postgres;
    let owner = postgres.connect("postgres").await;
    extras.push(fill(&owner, args.keys).await?);
    let janitor = testbed.region("eu").janitor.as_ref().context("there is a janitor")?;
    let began = Instant::now();
    // The janitor has it sealed, filtered, frozen and archived, one after the other.
    let rotated: String = postgres.connect("dedup_jan").await.query_one("SELECT dedup.rotate_v1()", &[]).await?.get(0);
    ensure!(rotated == "rotated", "the segment was not rotated: {rotated}");
    until(&owner, "SELECT filter_id IS NOT NULL FROM dedup.segments WHERE segment_id = 1").await?;
    let filtered = began.elapsed();
    extras.push(rate(
        "filter_build_keys_per_s",
        args.keys,
        filtered,
        "rotation included, from Postgres over one connection, stored and published",
    ));
    until(&owner, "SELECT EXISTS (SELECT 1 FROM dedup.archives WHERE state = 'live')").await?;
    extras.push(rate(
        "archive_build_keys_per_s",
        args.keys,
        began.elapsed() - filtered,
        "sorted, packed, stored, read back and compared, published",
    ));
    extras.push(Extra {
        name: "janitor_memory",
        value: cpu::resident(janitor.pid()) as f64 / 1048576.0,
        unit: "MiB",
        note: "resident, after building filter and archive".into(),
    });
    let row =
        owner.query_one("SELECT pg_total_relation_size('dedup.blocks'), (SELECT bytes FROM dedup.filters WHERE place < 0)", &[]).await?;
    let (archive, filter): (i64, i64) = (row.get(0), row.get(1));
    let keys = args.keys as f64;
    extras.push(Extra {
        name: "archive_bytes_per_key",
        value: archive as f64 / keys,
        unit: "B",
        note: "table, index and free space".into(),
    });
    extras.push(Extra {
        name: "filter_bytes_per_key",
        value: filter as f64 / keys,
        unit: "B",
        note: format!("at {} % false positives", FPR * 100.0),
    });
    extras.push(false_positives(&owner, args.keys).await?);
    exact(&owner, args).await?.into_iter().for_each(|e| extras.push(e));
    beside_the_janitor(testbed, &owner, args.keys).await?.into_iter().for_each(|e| extras.push(e));
    extras.push(import(testbed, args.keys).await?);
    Ok(extras.0)
}

/// `dedup import` of keys from a file, as operators run it, from its start to its end.
async fn import(testbed: &Testbed, keys: u64) -> anyhow::Result<Extra> {
    let region = testbed.region("eu");
    let config = region.janitor.as_ref().context("there is a janitor")?.config_path();
    let file = testbed.dir().join("keys.txt");
    let mut rates = Vec::new();
    for round in 0..3 {
        let mut lines = BufWriter::new(File::create(&file)?);
        (0..keys).try_for_each(|n| writeln!(lines, "eu:imported-{round}-{n}"))?;
        lines.into_inner()?.sync_all()?;
        let began = Instant::now();
        let done = tokio::process::Command::new(std::env::current_exe()?)
            .args(["import", "--topic", TOPIC, "--config"])
            .arg(config)
            .arg(&file)
            .env("DEDUP_JANITOR_PASSWORD", region.postgres.password())
            .env("DEDUP_HOME_EU_PASSWORD", region.postgres.password())
            .output()
            .await?;
        ensure!(done.status.success(), "the import failed: {}", String::from_utf8_lossy(&done.stderr));
        rates.push(keys as f64 / began.elapsed().as_secs_f64());
    }
    Ok(Extra {
        name: "import_keys_per_s",
        value: median(&mut rates),
        unit: "keys/s",
        note: format!("{keys} keys as text from a file into one archive: staged, sorted, packed, compared, published; median of 3"),
    })
}

fn rate(name: &'static str, keys: u64, took: Duration, note: &str) -> Extra {
    Extra {
        name,
        value: keys as f64 / took.as_secs_f64(),
        unit: "keys/s",
        note: format!("{note}; {keys} keys in {:.1} s", took.as_secs_f64()),
    }
}

/// First claims while the janitor does nothing, and while it seals, filters and archives another segment.
async fn beside_the_janitor(testbed: &Testbed, owner: &Client, keys: u64) -> anyhow::Result<Vec<Extra>> {
    const SECONDS: u64 = 5;
    let region = testbed.region("eu");
    let port = region.instances[0].port();
    make_topic(&region.instances[0].url()).await?;
    let janitor = region.postgres.connect("dedup_jan").await;
    let (mut rates, mut p99s) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let segment: i32 = owner.query_one("SELECT current_segment FROM dedup.layout", &[]).await?.get(0);
        fill_rows(owner, segment, (2 + round) * keys, keys / 2).await?;
        let idle = load::run(port, TOPIC, "eu", FIRSTS, SECONDS, rand::random()).await?;
        rotate(owner, &janitor).await?;
        let busy = load::run(port, TOPIC, "eu", FIRSTS, SECONDS, rand::random()).await?;
        let archived =
            format!("SELECT NOT EXISTS (SELECT 1 FROM dedup.segments WHERE segment_id = {segment} AND state IN ('sealed', 'frozen'))");
        ensure!(
            !owner.query_one(&archived, &[]).await?.get::<_, bool>(0),
            "the janitor was done before the measurement was: take more keys than {keys}"
        );
        until(owner, &archived).await?;
        rates.push(busy.keys_per_s / idle.keys_per_s);
        let p99 = |outcome: &load::Outcome| outcome.latency_us.value_at_quantile(0.99) as f64;
        p99s.push(p99(&busy) / p99(&idle));
        say(format!("round {round}: {:.0} keys/s idle, {:.0} beside the janitor", idle.keys_per_s, busy.keys_per_s));
    }
    let note = |what: &str| format!("{what}; batches of 256, 16 connections, medians of 3 × {SECONDS} s each");
    Ok(vec![
        Extra {
            name: "archiving_over_idle",
            value: median(&mut rates),
            unit: "×",
            note: note("first claims a second while the janitor filters and archives, over idle"),
        },
        Extra { name: "archiving_p99_over_idle", value: median(&mut p99s), unit: "×", note: note("the same for p99") },
    ])
}

/// Sixteen filters in memory, asked for keys that none of them holds.
fn look_up_16(keys: u64) -> Extra {
    let each = keys / 16;
    let filters: Vec<Filter> = (0..16)
        .map(|f| {
            let blocks = filter_blocks(each, FPR);
            let mut part = FilterPart::new(blocks, 0, blocks);
            (f * each..(f + 1) * each).for_each(|n| part.insert(&digest(n)));
            let body = part.to_bytes();
            let head = FilterHead {
                filter_id: Uuid::from_u128(1),
                home_id: Uuid::nil(),
                secret_id: [0; 8],
                place: -1,
                blocks,
                keys: each,
                fpr_ppb: 10_000_000,
                body_sum: Sha256::digest(&body).into(),
            };
            Filter::parse(&head.to_bytes(), &body).expect("a filter that was just made")
        })
        .collect();
    let unseen: Vec<Digest> = (0..500_000).map(|n| digest(1 << 40 | n)).collect();
    let mut times = Vec::new();
    let mut maybe = 0_usize;
    for _ in 0..5 {
        let began = Instant::now();
        maybe = unseen.iter().map(|d| filters.iter().filter(|f| f.may_hold(d)).count()).sum();
        times.push(began.elapsed().as_secs_f64() * 1e6 / unseen.len() as f64);
    }
    times.sort_by(f64::total_cmp);
    Extra {
        name: "lookup_16_filters_us",
        value: times[2],
        unit: "µs",
        note: format!("a key, median of 5; {each} keys a filter, {maybe} \"maybe\" of {}", unseen.len() * 16),
    }
}

/// Fills the first segment and says what a row takes.
async fn fill(owner: &Client, keys: u64) -> anyhow::Result<Extra> {
    let began = Instant::now();
    fill_rows(owner, 1, 0, keys).await?;
    say(format!("{keys} rows in {:.1} s", began.elapsed().as_secs_f64()));
    owner.batch_execute("VACUUM ANALYZE dedup.claims_s1").await?;
    let bytes: i64 = owner.query_one("SELECT pg_table_size('dedup.claims_s1') + pg_indexes_size('dedup.claims_s1')", &[]).await?.get(0);
    Ok(Extra {
        name: "warm_bytes_per_key",
        value: bytes as f64 / keys as f64,
        unit: "B",
        note: format!("{keys} checks with their index, inserted in random order"),
    })
}

/// The archive's own filter, as an instance loads it.
async fn false_positives(owner: &Client, keys: u64) -> anyhow::Result<Extra> {
    let row = owner.query_one("SELECT filter_id, chunks, head FROM dedup.filters WHERE place < 0", &[]).await?;
    let (id, chunks, head): (Uuid, i32, Vec<u8>) = (row.get(0), row.get(1), row.get(2));
    let mut body = Vec::new();
    for n in 0..chunks {
        body.extend(
            owner.query_one("SELECT data FROM dedup.filter_chunks WHERE filter_id = $1 AND n = $2", &[&id, &n]).await?.get::<_, Vec<u8>>(0),
        );
    }
    let filter = Filter::parse(&head, &body)?;
    ensure!((0..keys).all(|n| filter.may_hold(&digest(n))), "the filter denies a key");
    let hits = (keys..2 * keys).filter(|n| filter.may_hold(&digest(*n))).count();
    Ok(Extra {
        name: "measured_fpr_over_target",
        value: hits as f64 / keys as f64 / FPR,
        unit: "",
        note: format!("{hits} of {keys} unseen keys; every archived key is held"),
    })
}

/// The home's exact look, for keys that are there and keys that are not.
async fn exact(owner: &Client, args: &ColdArgs) -> anyhow::Result<Vec<Extra>> {
    let n = args.exact.unwrap_or(args.keys).min(args.keys);
    let wrong = async |from: u64, hit: bool| -> anyhow::Result<(i64, f64)> {
        let sql = format!(
            "SELECT count(*) FROM generate_series({from}::bigint, {}) n CROSS JOIN LATERAL dedup.look_cold({SQL_DIGEST}, (SELECT dedup.live_archives('{{}}')), dedup.now_ms()) k WHERE (k.hit = 1) <> {hit}",
            from + n - 1
        );
        let began = Instant::now();
        let count = owner.query_one(&sql, &[]).await?.get(0);
        Ok((count, began.elapsed().as_secs_f64() * 1e6 / n as f64))
    };
    let (false_firsts, us) = wrong(0, true).await?;
    let (false_duplicates, us_unseen) = wrong(args.keys, false).await?;
    Ok(vec![
        Extra {
            name: "false_firsts",
            value: false_firsts as f64,
            unit: "",
            note: format!("of {n} archived keys, by the home's exact look ({us:.1} µs each)"),
        },
        Extra {
            name: "false_duplicates",
            value: false_duplicates as f64,
            unit: "",
            note: format!("of {n} unseen keys, without any filter ({us_unseen:.1} µs each)"),
        },
    ])
}
