//! `dedup bench growth`: what many warm rows cost the first claims of new keys.
//!
//! Two regions of one deployment, each with its own Postgres: one holds few rows, the other many in several segments. They are asked in
//! turn, so that whatever else this machine does meets both.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dedup_client::Client;
use dedup_testbed::{Options, Testbed};

use super::load;
use super::report::{Extra, median, say_extra};
use super::warm::{FIRSTS, TOPIC, fill_rows, make_topic, rotate, until};
use crate::output::say;

/// What `dedup bench growth` takes.
#[derive(Debug, clap::Args)]
pub struct GrowthArgs {
    /// Warm rows of the large home, in five sealed segments with filters
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(100_000..=500_000_000))]
    rows: u64,
    /// Warm rows of the small home
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..=500_000_000))]
    few: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,
    /// Rounds, small and large in turn; medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=50))]
    rounds: u64,
}

const SEGMENTS: u64 = 5;

/// Measures; what it starts is gone afterwards.
pub async fn measure(args: &GrowthArgs) -> anyhow::Result<Vec<Extra>> {
    let mut options = Options::new(std::env::current_exe()?);
    options.regions = vec!["eu".into(), "us".into()];
    options.redis = false;
    options.janitor = true;
    options.extra_tables = "[janitor]\npause_ms = 50\nlayout_pause_ms = 20\nsegment_rows = 1000000000\n".into();
    options.postgres_settings =
        [("max_wal_size", "4GB"), ("wal_compression", "on")].map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let testbed = Testbed::start(options).await.context("the benchmark's servers did not start")?;
    let outcome = with(&testbed, args).await;
    testbed.stop().await?;
    outcome
}

async fn with(testbed: &Testbed, args: &GrowthArgs) -> anyhow::Result<Vec<Extra>> {
    let small = testbed.region("eu");
    let large = testbed.region("us");
    make_topic(&small.instances[0].url()).await?;
    fill_rows(&small.postgres.connect("postgres").await, 1, 0, args.few).await?;
    let owner = large.postgres.connect("postgres").await;
    let janitor = large.postgres.connect("dedup_jan").await;
    let each = args.rows / SEGMENTS;
    for n in 0..SEGMENTS {
        let segment: i32 = owner.query_one("SELECT current_segment FROM dedup.layout", &[]).await?.get(0);
        let began = Instant::now();
        fill_rows(&owner, segment, n * each, each).await?;
        rotate(&owner, &janitor).await?;
        until(&owner, &format!("SELECT filter_id IS NOT NULL FROM dedup.segments WHERE segment_id = {segment}")).await?;
        say(format!("segment {segment}: {each} rows and their filter in {:.0} s", began.elapsed().as_secs_f64()));
    }
    // Writing all that back is nobody's figure.
    owner.batch_execute("CHECKPOINT").await?;
    loaded(&large.instances[0].url(), "us").await?;
    let (mut few, mut many) = (Vec::new(), Vec::new());
    for home in [(small, "eu"), (large, "us")] {
        load::run(home.0.instances[0].port(), TOPIC, home.1, FIRSTS, 1, rand::random()).await?;
    }
    for _ in 0..args.rounds {
        few.push(load::run(small.instances[0].port(), TOPIC, "eu", FIRSTS, args.seconds, rand::random()).await?.keys_per_s);
        many.push(load::run(large.instances[0].port(), TOPIC, "us", FIRSTS, args.seconds, rand::random()).await?.keys_per_s);
    }
    let (few, many) = (median(&mut few), median(&mut many));
    let extra = Extra {
        name: "growth_ratio",
        value: many / few,
        unit: "",
        note: format!(
            "first claims: {many:.0} keys/s beside {} warm rows in {SEGMENTS} segments with filters, {few:.0} keys/s beside {}; medians of {} × {} s in turn",
            args.rows, args.few, args.rounds, args.seconds
        ),
    };
    say_extra(&extra);
    Ok(vec![extra])
}

/// Until the instance has the filters of every sealed segment of the home.
async fn loaded(url: &str, home: &str) -> anyhow::Result<()> {
    let client = Client::new(url)?.with_timeout(Duration::from_secs(10));
    let began = Instant::now();
    loop {
        let answer = client.segments().await?;
        let sealed = answer["segments"].as_array().into_iter().flatten().filter(|s| s["home_region"] == home && s["state"] == "sealed");
        let (all, without) = sealed.fold((0, 0), |(all, without), s| (all + 1, without + u64::from(s["loaded"] != true)));
        if all >= SEGMENTS && without == 0 {
            return Ok(());
        }
        ensure!(began.elapsed() < Duration::from_secs(120), "{without} of {all} filters are not loaded");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
