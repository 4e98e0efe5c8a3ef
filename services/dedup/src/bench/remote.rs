//! `dedup bench remote`: a home at the end of a long line beside one next door, asked by the same instance in turn.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dedup_testbed::{Options, Testbed};
use hdrhistogram::Histogram;

use super::http::Connection;
use super::load::{self, Keys, Load};
use super::report::{Extra, median, say_extra};
use super::warm::{TOPIC, make_topic};

/// What `dedup bench remote` takes.
#[derive(Debug, clap::Args)]
pub struct RemoteArgs {
    /// Round trip to the remote home, ms
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(2..=2000))]
    rtt_ms: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,
    /// Rounds, local and remote in turn; medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=50))]
    rounds: u64,
    /// Connections that ask for keys of the local home
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1000))]
    connections: u64,
    /// Connections that ask for keys of the remote home: enough to keep its line full, and less than its queue takes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1000))]
    remote_connections: u64,
}

/// Single duplicates of remote keys.
const ASKS: u64 = 2_000;

/// Measures; what it starts is gone afterwards.
pub async fn measure(args: &RemoteArgs) -> anyhow::Result<Vec<Extra>> {
    let mut options = Options::new(std::env::current_exe()?);
    options.regions = vec!["eu".into(), "us".into()];
    options.proxies = true;
    options.extra_tables = "[log]\nlevel = \"warn\"\n".into();
    let testbed = Testbed::start(options).await.context("the benchmark's servers did not start")?;
    let outcome = with(&testbed, args).await;
    testbed.stop().await?;
    outcome
}

async fn with(testbed: &Testbed, args: &RemoteArgs) -> anyhow::Result<Vec<Extra>> {
    let service = &testbed.region("eu").instances[0];
    make_topic(&service.url()).await?;
    let line = testbed.region("us").proxy.as_ref().context("no proxy")?;
    line.set_delay(Duration::from_micros(args.rtt_ms * 500));
    // An instance believes only slowly that a line became longer (a busy moment looks the same), so it begins with this one.
    service.kill9().await;
    service.start().await?;
    let firsts = |connections: u64| Load { keys: Keys::New, batch: 256, connections: usize::try_from(connections).unwrap_or(1) };
    let (near, far) = (firsts(args.connections), firsts(args.remote_connections));
    // Connections are opened, statements prepared.
    load::run(service.port(), TOPIC, "eu", near, 1, rand::random()).await?;
    load::run(service.port(), TOPIC, "us", far, 4, rand::random()).await?;
    let (mut local, mut remote, mut p50) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        local.push(load::run(service.port(), TOPIC, "eu", near, args.seconds, rand::random()).await?.keys_per_s);
        let outcome = load::run(service.port(), TOPIC, "us", far, args.seconds, rand::random()).await?;
        remote.push(outcome.keys_per_s);
        p50.push(outcome.latency_us.value_at_quantile(0.5) as f64 / 1000.0);
    }
    let (local, remote) = (median(&mut local), median(&mut remote));
    let ratio = Extra {
        name: "remote_over_local",
        value: remote / local,
        unit: "",
        note: format!(
            "first claims, 256 keys a request: {remote:.0} keys/s at {} ms round trip ({} connections, p50 {:.0} ms), {local:.0} keys/s at the local home ({} connections); both through a proxy; medians of {} × {} s in turn",
            args.rtt_ms,
            args.remote_connections,
            median(&mut p50),
            args.connections,
            args.rounds,
            args.seconds
        ),
    };
    say_extra(&ratio);
    let duplicates = duplicates(service.port()).await?;
    say_extra(&duplicates);
    Ok(vec![ratio, duplicates])
}

/// A repeat of a remote key is answered in the serving region.
async fn duplicates(port: u16) -> anyhow::Result<Extra> {
    let mut http = Connection::open(port).await?;
    let path = format!("/v1/topics/{TOPIC}/checks");
    let bodies: Vec<String> = (0..100).map(|k| format!("{{\"key\":\"us:again-{k}\"}}")).collect();
    for body in &bodies {
        http.post(&path, body.as_bytes()).await?;
    }
    let mut latency = Histogram::<u64>::new(3)?;
    for i in 0..ASKS {
        let body = &bodies[usize::try_from(i).unwrap_or(0) % bodies.len()];
        let began = Instant::now();
        let answer = http.post(&path, body.as_bytes()).await?;
        latency.record(u64::try_from(began.elapsed().as_micros())?)?;
        ensure!(super::http::count(answer, b"\"duplicate\"") == 1, "unexpected: {}", String::from_utf8_lossy(answer));
    }
    let ms = |q: f64| latency.value_at_quantile(q) as f64 / 1000.0;
    Ok(Extra {
        name: "remote_duplicate_p99",
        value: ms(0.99),
        unit: "ms",
        note: format!("repeats of remote keys, one at a time, {ASKS}: p50 {:.2} ms", ms(0.5)),
    })
}
