//! `dedup bench telemetry`: what telemetry costs.
//!
//! Two instances of one region share Postgres and Redis: one exports everything (a scrape and OTLP metrics every five seconds, traces), the
//! other nothing. They are asked in turn, in pairs whose order alternates, and the processor time of each per decided key is compared.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use dedup_testbed::{Options, Region, Service, Testbed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::cpu;
use super::load::{self, Keys, Load};
use super::report::{Extra, median, say_extra};
use super::warm::{TOPIC, make_topic};

/// What `dedup bench telemetry` takes.
#[derive(Debug, clap::Args)]
pub struct TelemetryArgs {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,
    /// Pairs, telemetry on and off in turn
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u64).range(1..=101))]
    pairs: u64,
}

const LOADS: [(&str, Load); 2] = [
    ("telemetry_cost_duplicates_batch", Load { keys: Keys::Known, batch: 256, connections: 8 }),
    ("telemetry_cost_first_batch", Load { keys: Keys::New, batch: 256, connections: 16 }),
];

/// Measures; what it starts is gone afterwards.
pub async fn measure(args: &TelemetryArgs) -> anyhow::Result<Vec<Extra>> {
    let collector = swallow().await?;
    let mut options = Options::new(std::env::current_exe()?);
    options.regions = vec!["eu".into()];
    options.instances = 2;
    options.extra_tables = format!(
        "[log]\nlevel = \"warn\"\n[telemetry]\nprometheus = true\notlp_endpoint = \"http://127.0.0.1:{collector}\"\notlp_interval_ms = 5000\ntrace_ratio = 1.0\n"
    );
    let testbed = Testbed::start(options).await.context("the benchmark's servers did not start")?;
    let outcome = with(testbed.region("eu"), args).await;
    testbed.stop().await?;
    outcome
}

async fn with(region: &Region, args: &TelemetryArgs) -> anyhow::Result<Vec<Extra>> {
    let [on, off] = [&region.instances[0], &region.instances[1]];
    off.kill9().await;
    without_telemetry(off.config_path())?;
    off.start().await?;
    make_topic(&on.url()).await?;
    let url = on.url();
    let scraper = tokio::spawn(async move {
        let Ok(client) = dedup_client::Client::new(&url) else { return };
        loop {
            client.metrics_text().await.ok();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let mut extras = Vec::new();
    for (name, load) in LOADS {
        for service in [on, off] {
            load::prepare_known(service.port(), TOPIC).await?;
            load::run(service.port(), TOPIC, "eu", load, 1, rand::random()).await?;
        }
        let (mut costs, mut cost_on, mut cost_off) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..args.pairs {
            let (a, b) = if pair % 2 == 0 { (on, off) } else { (off, on) };
            let (a, b) = (per_key(a, load, args.seconds).await?, per_key(b, load, args.seconds).await?);
            let (with, without) = if pair % 2 == 0 { (a, b) } else { (b, a) };
            costs.push((with / without - 1.0) * 100.0);
            cost_on.push(with);
            cost_off.push(without);
        }
        let cost = median(&mut costs);
        let note = format!(
            "service {:.3} µs a key with a scrape and OTLP metrics every 5 s and up to 50 traces a second, {:.3} without; medians of {} pairs of {} s in turn, from {:.1} to {:.1} %",
            median(&mut cost_on),
            median(&mut cost_off),
            args.pairs,
            args.seconds,
            costs[0],
            costs[costs.len() - 1]
        );
        let extra = Extra { name, value: cost, unit: "%", note };
        say_extra(&extra);
        extras.push(extra);
    }
    scraper.abort();
    Ok(extras)
}

/// Processor time of the service, user and system, per decided key, microseconds.
async fn per_key(service: &Service, load: Load, seconds: u64) -> anyhow::Result<f64> {
    let before = cpu::of_process(service.pid());
    let outcome = load::run(service.port(), TOPIC, "eu", load, seconds, rand::random()).await?;
    Ok((cpu::of_process(service.pid()) - before) * 1e6 / (outcome.keys_per_s * seconds as f64))
}

/// Takes the export out of an instance's configuration.
fn without_telemetry(config: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(config)?;
    let at = text.find("[telemetry]").context("the instance has no [telemetry]")?;
    std::fs::write(config, format!("{}[telemetry]\nprometheus = false\n", &text[..at]))?;
    Ok(())
}

/// A collector that takes everything and keeps nothing; its port.
async fn swallow() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = Vec::new();
                loop {
                    match stream.read_buf(&mut buffer).await {
                        Ok(1..) => {}
                        _ => return,
                    }
                    let Some(head) = super::http::find(&buffer, b"\r\n\r\n") else { continue };
                    let length = super::http::content_length(&buffer[..head]).unwrap_or(0);
                    if buffer.len() < head + 4 + length {
                        continue;
                    }
                    buffer.clear();
                    if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(port)
}
