//! `dedup bench isolation`: what callers notice of a Redis that dies, of another home that dies, and of instances restarted one after the other.
//!
//! Calls come at a fixed pace, whether the earlier ones were answered or not, and their time counts from when they were due.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dedup_testbed::{Mode, Options, Region, Testbed};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;

use super::http::Connection;
use super::report::{Extra, median, say_extra};
use super::warm::{TOPIC, make_topic};

/// What `dedup bench isolation` takes.
#[derive(Debug, clap::Args)]
pub struct IsolationArgs {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=120))]
    seconds: u64,
    /// Rounds, whole and broken in turn; medians count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=50))]
    rounds: u64,
    /// Calls a second for keys of the region's own home
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=5000))]
    pace: u64,
    /// How often each instance is restarted
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    restarts: u64,
}

/// Calls a second for keys of the other home.
const OTHERS: u64 = 50;
/// Calls that may be under way at once, for each home.
const CONNECTIONS: usize = 128;
const DEADLINE: Duration = Duration::from_secs(1);

/// Measures; what it starts is gone afterwards.
pub async fn measure(args: &IsolationArgs) -> anyhow::Result<Vec<Extra>> {
    let mut options = Options::new(std::env::current_exe()?);
    options.regions = vec!["eu".into(), "us".into()];
    options.instances = 2;
    options.proxies = true;
    options.extra_tables = "[log]\nlevel = \"warn\"\n".into();
    options.extra_config = format!("request_deadline_ms = {}\n", DEADLINE.as_millis());
    let testbed = Testbed::start(options).await.context("the benchmark's servers did not start")?;
    let outcome = with(&testbed, args).await;
    testbed.stop().await?;
    outcome
}

async fn with(testbed: &Testbed, args: &IsolationArgs) -> anyhow::Result<Vec<Extra>> {
    let (eu, us) = (testbed.region("eu"), testbed.region("us"));
    make_topic(&eu.instances[0].url()).await?;
    let mut all = Vec::new();
    all.push(redis_loss(eu, args).await?);
    for (name, p99, told, mode) in [
        ("dead home", "dead_home_others_p99", "dead_home_deadline_share", Mode::Refuse),
        ("silent home", "silent_home_others_p99", "silent_home_deadline_share", Mode::LoseBoth),
    ] {
        all.extend(home_loss(eu, us, args, (name, p99, told), mode).await?);
    }
    all.push(rolling_restart(eu, args).await?);
    Ok(all)
}

/// What became of the calls of one measurement.
struct Calls {
    latency_us: Histogram<u64>,
    decided: u64,
    refused: u64,
    failed: u64,
    retried: u64,
}

impl Calls {
    fn none() -> anyhow::Result<Self> {
        Ok(Self { latency_us: Histogram::new(3)?, decided: 0, refused: 0, failed: 0, retried: 0 })
    }

    fn add(&mut self, more: &Self) -> anyhow::Result<()> {
        self.latency_us.add(&more.latency_us)?;
        self.decided += more.decided;
        self.refused += more.refused;
        self.failed += more.failed;
        self.retried += more.retried;
        Ok(())
    }

    fn ms(&self, quantile: f64) -> f64 {
        self.latency_us.value_at_quantile(quantile) as f64 / 1000.0
    }

    fn total(&self) -> u64 {
        self.decided + self.refused + self.failed
    }
}

/// Whom to ask, how often, for which home's keys.
#[derive(Debug, Clone, Copy)]
struct Paced<'a> {
    ports: &'a [u16],
    prefix: &'a str,
    pace: u64,
    seconds: u64,
    /// A call that failed is made once more, at the next instance, with its request id.
    retry: bool,
}

/// One measurement under way.
struct Run<'a> {
    paced: Paced<'a>,
    began: Instant,
    salt: u64,
    /// Calls taken so far: the n-th is due at n / pace.
    taken: AtomicU64,
}

impl Paced<'_> {
    /// Half new keys, half repeats of a second before.
    async fn run(self) -> anyhow::Result<Calls> {
        let run = Run { paced: self, began: Instant::now(), salt: rand::random(), taken: AtomicU64::new(0) };
        let mut all = Calls::none()?;
        for calls in try_join_all((0..CONNECTIONS).map(|_| run.caller())).await? {
            all.add(&calls)?;
        }
        Ok(all)
    }
}

impl Run<'_> {
    async fn caller(&self) -> anyhow::Result<Calls> {
        let Paced { ports, prefix, pace, seconds, retry } = self.paced;
        let mut connections: Vec<Option<Connection>> = ports.iter().map(|_| None).collect();
        let mut calls = Calls::none()?;
        loop {
            let n = self.taken.fetch_add(1, Ordering::Relaxed);
            let due = self.began + Duration::from_secs_f64(n as f64 / pace as f64);
            if due >= self.began + Duration::from_secs(seconds) {
                return Ok(calls);
            }
            tokio::time::sleep_until(due.into()).await;
            let key = if n % 2 == 1 && n > pace { (n - pace) & !1 } else { n };
            let salt = self.salt;
            let body = format!("{{\"key\":\"{prefix}:{salt:x}-{key}\",\"request_id\":\"{salt:x}-{n}\"}}");
            let first = usize::try_from(n)? % ports.len();
            let mut status = ask(&mut connections[first], ports[first], &body).await;
            if retry && status != Some(200) {
                calls.retried += 1;
                let other = (first + 1) % ports.len();
                status = ask(&mut connections[other], ports[other], &body).await;
            }
            calls.latency_us.record(u64::try_from(due.elapsed().as_micros())?.max(1))?;
            match status {
                Some(200) => calls.decided += 1,
                Some(503) if !retry => calls.refused += 1,
                _ => calls.failed += 1,
            }
        }
    }
}

/// The status of a check; `None`: no connection, or it broke.
async fn ask(connection: &mut Option<Connection>, port: u16, body: &str) -> Option<u16> {
    if connection.is_none() {
        *connection = Connection::open(port).await.ok();
    }
    let status = connection.as_mut()?.status(&format!("/v1/topics/{TOPIC}/checks"), body.as_bytes()).await;
    if status.is_err() {
        *connection = None;
    }
    status.ok()
}

/// Redis dies while calls go on; the same calls with it alive, in turn.
async fn redis_loss(eu: &Region, args: &IsolationArgs) -> anyhow::Result<Extra> {
    let ports = [eu.instances[0].port()];
    let redis = eu.redis.as_ref().context("no Redis")?;
    let paced = Paced { ports: &ports, prefix: "eu", pace: args.pace, seconds: args.seconds, retry: false };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    paced.run().await?;
    for _ in 0..args.rounds {
        let whole = paced.run().await?;
        // In the middle of the calls, so that those under way are hit too.
        let kill = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            redis.kill9().await;
        };
        let (broken, ()) = tokio::join!(paced.run(), kill);
        let broken = broken?;
        redis.start().await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        for calls in [&whole, &broken] {
            ensure!(calls.decided == calls.total(), "{} of {} calls were not decided", calls.total() - calls.decided, calls.total());
        }
        with.push(whole.ms(0.99));
        without.push(broken.ms(0.99));
    }
    let (with, without) = (median(&mut with), median(&mut without));
    let extra = Extra {
        name: "redis_loss_added_p99",
        value: without - with,
        unit: "ms",
        note: format!(
            "p99 {without:.1} ms with Redis killed half a second after the beginning, {with:.1} ms with it; {} checks/s, half of them repeats, all decided; medians of {} × {} s in turn",
            args.pace, args.rounds, args.seconds
        ),
    };
    say_extra(&extra);
    Ok(extra)
}

/// The line to the other home breaks while its keys go on being asked for.
async fn home_loss(
    eu: &Region,
    us: &Region,
    args: &IsolationArgs,
    (what, p99, told): (&str, &'static str, &'static str),
    mode: Mode,
) -> anyhow::Result<[Extra; 2]> {
    let ports = [eu.instances[0].port()];
    let line = us.proxy.as_ref().context("no proxy")?;
    let own = Paced { ports: &ports, prefix: "eu", pace: args.pace, seconds: args.seconds, retry: false };
    let others = Paced { ports: &ports, prefix: "us", pace: OTHERS, seconds: args.seconds, retry: false };
    let (mut whole, mut broken, mut longest, mut refused, mut asked) = (Vec::new(), Vec::new(), 0f64, 0, 0);
    for _ in 0..args.rounds {
        let (calm, _) = tokio::try_join!(own.run(), others.run())?;
        line.set_mode(mode);
        if matches!(mode, Mode::Refuse) {
            line.cut();
        }
        let (hit, lost) = tokio::try_join!(own.run(), others.run())?;
        line.set_mode(Mode::Pass);
        tokio::time::sleep(Duration::from_secs(6)).await;
        ensure!(hit.decided == hit.total(), "{} of {} calls for the other keys were not decided", hit.total() - hit.decided, hit.total());
        ensure!(lost.failed == 0, "{} calls for keys of the {what} were not answered", lost.failed);
        whole.push(calm.ms(0.99));
        broken.push(hit.ms(0.99));
        longest = longest.max(lost.ms(1.0));
        refused += lost.refused;
        asked += lost.total();
    }
    let (whole, broken) = (median(&mut whole), median(&mut broken));
    let how =
        format!("{} checks/s for this home, {OTHERS}/s for the other; medians of {} × {} s in turn", args.pace, args.rounds, args.seconds);
    let extras = [
        Extra {
            name: p99,
            value: broken / whole,
            unit: "×",
            note: format!("p99 {broken:.1} ms beside a {what}, {whole:.1} ms otherwise; {how}"),
        },
        Extra {
            name: told,
            value: longest / DEADLINE.as_secs_f64() / 1000.0,
            unit: "of the deadline",
            note: format!(
                "the longest of {asked} calls for keys of the {what} took {longest:.0} ms, {refused} of them were told 503; deadline {} ms",
                DEADLINE.as_millis()
            ),
        },
    ];
    extras.iter().for_each(say_extra);
    Ok(extras)
}

/// Both instances are restarted in turn, as a deployment does it.
async fn rolling_restart(eu: &Region, args: &IsolationArgs) -> anyhow::Result<Extra> {
    let ports = [eu.instances[0].port(), eu.instances[1].port()];
    let paced = Paced { ports: &ports, prefix: "eu", pace: args.pace, seconds: 2, retry: true };
    let done = AtomicBool::new(false);
    let calling = async {
        let mut all = Calls::none()?;
        while !done.load(Ordering::Relaxed) {
            all.add(&paced.run().await?)?;
        }
        anyhow::Ok(all)
    };
    let restarting = async {
        for _ in 0..args.restarts {
            for instance in &eu.instances {
                tokio::time::sleep(Duration::from_millis(700)).await;
                let ended = instance.sigterm_and_wait(Duration::from_secs(20)).await;
                ensure!(ended.success(), "an instance ended with {ended}");
                instance.start().await?;
            }
        }
        done.store(true, Ordering::Relaxed);
        Ok(())
    };
    let (all, ()) = tokio::try_join!(calling, restarting)?;
    let extra = Extra {
        name: "rolling_restart_failed",
        value: all.failed as f64,
        unit: "calls",
        note: format!(
            "of {} while each of two instances was restarted {} times in turn; {} were made a second time, at the other instance with the same request id",
            all.total(),
            args.restarts,
            all.retried
        ),
    };
    say_extra(&extra);
    Ok(extra)
}
