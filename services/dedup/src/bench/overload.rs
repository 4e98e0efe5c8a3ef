//! `dedup bench overload`: what an instance still does when three times as much is asked as it can do.
//!
//! Service and generator have a core each. First the peak: callers who ask again as soon as they were answered. Then calls that come at three
//! times that pace, whether the earlier ones were answered or not, each with a deadline; what is refused or comes late does not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dedup_testbed::{Options, Testbed};

use super::http::Connection;
use super::load::{self, Keys, Load};
use super::report::{Extra, median, say_extra};
use super::warm::{TOPIC, make_topic};

/// What `dedup bench overload` takes.
#[derive(Debug, clap::Args)]
pub struct OverloadArgs {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,
    /// Rounds, peak and overload in turn; medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=50))]
    rounds: u64,
    /// How many times the peak is offered
    #[arg(long, default_value_t = 3.0)]
    times: f64,
}

/// Single claims of new keys: the dearest question there is.
const PEAK: Load = Load { keys: Keys::New, batch: 1, connections: 64 };
/// Calls that may be under way: more than the home's queue takes.
const CONNECTIONS: u64 = 3_000;
const QUEUE: u64 = 1_024;
const DEADLINE: Duration = Duration::from_secs(1);
/// A call that is so late already is not sent.
const UNSENT: Duration = Duration::from_millis(20);

/// Measures; what it starts is gone afterwards.
pub async fn measure(args: &OverloadArgs) -> anyhow::Result<Vec<Extra>> {
    let mut options = Options::new(std::env::current_exe()?);
    options.regions = vec!["eu".into()];
    options.redis = false;
    options.extra_tables = "[log]\nlevel = \"warn\"\n".into();
    options.extra_config = format!("request_deadline_ms = {}\n", DEADLINE.as_millis());
    let testbed = Testbed::start(options).await.context("the benchmark's servers did not start")?;
    let outcome = with(&testbed, args).await;
    testbed.stop().await?;
    outcome
}

/// Binds all threads of a process to one core.
fn pin(pid: u32, core: usize) -> anyhow::Result<()> {
    let done = std::process::Command::new("taskset").args(["-a", "-p", "-c", &core.to_string(), &pid.to_string()]).output()?;
    ensure!(done.status.success(), "taskset: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

async fn with(testbed: &Testbed, args: &OverloadArgs) -> anyhow::Result<Vec<Extra>> {
    let service = &testbed.region("eu").instances[0];
    service.kill9().await;
    let text = std::fs::read_to_string(service.config_path())?;
    std::fs::write(service.config_path(), with_queue(&text)?)?;
    service.start().await?;
    make_topic(&service.url()).await?;
    pin(service.pid(), 0)?;
    pin(std::process::id(), 1)?;
    load::run(service.port(), TOPIC, "eu", PEAK, 1, rand::random()).await?;
    let (mut peaks, mut goodputs, mut p99) = (Vec::new(), Vec::new(), Vec::new());
    let (mut refused, mut late, mut unsent, mut offered) = (0, 0, 0, 0);
    for _ in 0..args.rounds {
        let peak = load::run(service.port(), TOPIC, "eu", PEAK, args.seconds, rand::random()).await?.keys_per_s;
        let storm = storm(service.port(), peak * args.times, args.seconds).await?;
        peaks.push(peak);
        goodputs.push(storm.good as f64 / storm.seconds);
        p99.push(storm.p99_ms);
        refused += storm.refused;
        late += storm.late;
        unsent += storm.unsent;
        offered += storm.offered;
    }
    let (peak, good) = (median(&mut peaks), median(&mut goodputs));
    let extra = Extra {
        name: "goodput_over_peak",
        value: good / peak,
        unit: "",
        note: format!(
            "{good:.0} claims/s within {} ms (p99 {:.0} ms) at {} times the peak of {peak:.0}; of {offered} calls {refused} were refused, {late} late, for {unsent} none of {CONNECTIONS} connections was free; service and generator pinned to one core each (Postgres on both); medians of {} × {} s in turn",
            DEADLINE.as_millis(),
            median(&mut p99),
            args.times,
            args.rounds,
            args.seconds
        ),
    };
    say_extra(&extra);
    Ok(vec![extra])
}

/// The configuration with a shorter queue in its first home.
fn with_queue(config: &str) -> anyhow::Result<String> {
    let at = config.find("[[homes]]").context("no [[homes]]")? + "[[homes]]\n".len();
    Ok(format!("{}queue_items = {QUEUE}\n{}", &config[..at], &config[at..]))
}

struct Storm {
    good: u64,
    refused: u64,
    late: u64,
    unsent: u64,
    offered: u64,
    seconds: f64,
    p99_ms: f64,
}

#[derive(Default)]
struct Counts {
    good: AtomicU64,
    refused: AtomicU64,
    late: AtomicU64,
    unsent: AtomicU64,
    /// Calls taken so far: the n-th is due at n / pace.
    taken: AtomicU64,
}

/// Calls at a pace of their own.
async fn storm(port: u16, pace: f64, seconds: u64) -> anyhow::Result<Storm> {
    let counts = Arc::new(Counts::default());
    let salt: u64 = rand::random();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(port).await?);
    }
    let began = Instant::now();
    let until = began + Duration::from_secs(seconds);
    let callers: Vec<_> =
        connections.into_iter().map(|connection| tokio::spawn(caller(connection, Arc::clone(&counts), began, until, pace, salt))).collect();
    let mut latency = hdrhistogram::Histogram::<u64>::new(3)?;
    for done in futures_util::future::join_all(callers).await {
        latency.add(done??)?;
    }
    let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
    Ok(Storm {
        good: get(&counts.good),
        refused: get(&counts.refused),
        late: get(&counts.late),
        unsent: get(&counts.unsent),
        offered: get(&counts.good) + get(&counts.refused) + get(&counts.late) + get(&counts.unsent),
        seconds: seconds as f64,
        p99_ms: latency.value_at_quantile(0.99) as f64 / 1000.0,
    })
}

async fn caller(
    mut connection: Connection,
    counts: Arc<Counts>,
    began: Instant,
    until: Instant,
    pace: f64,
    salt: u64,
) -> anyhow::Result<hdrhistogram::Histogram<u64>> {
    let mut latency = hdrhistogram::Histogram::new(3)?;
    let path = format!("/v1/topics/{TOPIC}/claims");
    loop {
        let n = counts.taken.fetch_add(1, Ordering::Relaxed);
        let due = began + Duration::from_secs_f64(n as f64 / pace);
        if due >= until || Instant::now() >= until {
            return Ok(latency);
        }
        tokio::time::sleep_until(due.into()).await;
        // No connection was free: this caller did not get through at all. One that waited here would only measure this queue.
        if due.elapsed() >= UNSENT {
            counts.unsent.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let status = connection.status(&path, format!("{{\"key\":\"eu:storm-{salt:x}-{n}\"}}").as_bytes()).await?;
        let took = due.elapsed();
        match status {
            200 if took < DEADLINE && Instant::now() < until => {
                latency.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1))?;
                counts.good.fetch_add(1, Ordering::Relaxed);
            }
            200 => _ = counts.late.fetch_add(1, Ordering::Relaxed),
            503 => _ = counts.refused.fetch_add(1, Ordering::Relaxed),
            other => anyhow::bail!("the service answered {other}"),
        }
    }
}
