//! `dedup bench`: the service beside `redis-benchmark` and `pgbench`, on the same cores, in one run.
//!
//! A figure alone says little about a machine; the ratio to a well-known program that was measured in turn with it says more. Stores,
//! service, load generator and peers share this machine's cores, as they would share one's laptop.

mod cold;
mod cpu;
mod extras;
mod growth;
mod http;
mod isolation;
mod load;
mod overload;
mod peers;
mod remote;
mod report;
mod rows;
mod telemetry;
mod warm;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use report::Report;
use world::World;

/// What `dedup bench` takes.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Without one: the hot path beside its peers
    #[command(subcommand)]
    part: Option<Part>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,
    /// Rounds; ours and the peer's alternate, medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=50))]
    rounds: u64,
    /// Only these rows (names as in the table)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave out idle latency, bytes per key and memory
    #[arg(long)]
    no_extras: bool,
    /// Write the rows to this file (JSON)
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
}

/// Another part of the service.
#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Long memory: bytes a key, speed of filters and archive, and that neither errs
    Cold(cold::ColdArgs),
    /// First claims beside 20 million warm rows and beside few
    Growth(growth::GrowthArgs),
    /// A home at the end of a long line beside one next door
    Remote(remote::RemoteArgs),
    /// What is still done when three times as much is asked as can be done
    Overload(overload::OverloadArgs),
    /// What callers notice of a Redis or another home that dies, and of rolling restarts
    Isolation(isolation::IsolationArgs),
    /// Processor time with all telemetry on and off
    Telemetry(telemetry::TelemetryArgs),
}

/// Runs the benchmark; everything it starts is gone afterwards.
pub async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(part) = &args.part {
        if cfg!(debug_assertions) {
            crate::output::say("DEBUG build: figures mean nothing");
        }
        let extras = match part {
            Part::Cold(cold) => cold::measure(cold).await?,
            Part::Growth(growth) => growth::measure(growth).await?,
            Part::Remote(remote) => remote::measure(remote).await?,
            Part::Overload(overload) => overload::measure(overload).await?,
            Part::Isolation(isolation) => isolation::measure(isolation).await?,
            Part::Telemetry(telemetry) => telemetry::measure(telemetry).await?,
        };
        report::write_extras(&extras, args.json.as_deref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let known: Vec<&str> = rows::ROWS.iter().map(|r| r.name).collect();
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no row {unknown}; there are {}", known.join(", "));
    }
    let chosen = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let world = World::start().await.context("the benchmark's servers did not start")?;
    let mut report = Report::new(&args.seconds, &args.rounds, world.versions().await?);
    for row in rows::ROWS.iter().filter(|row| chosen(row.name)) {
        report.add_row(rows::measure(row, &world, args.seconds, args.rounds).await?);
    }
    if !args.no_extras && args.only.is_empty() {
        for extra in extras::measure(&world).await? {
            report.add_extra(extra);
        }
    }
    world.stop().await?;
    report.print_end();
    if let Some(file) = &args.json {
        report.write(file)?;
    }
    Ok(ExitCode::SUCCESS)
}
