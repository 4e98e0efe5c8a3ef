//! `dedup demo`: three regions on this machine, and consumers that behave as badly as real ones.

mod ask;
mod consumers;
mod hints;
mod incident;
mod oracle;
mod prometheus;
mod ready_file;
mod screen;
mod stats;
mod stop;
mod topics;
mod traffic;
mod world;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use dedup_testbed::{Options, Testbed, discard_template};

use self::ready_file::ReadyFile;
use self::screen::say;
use self::stop::Stop;

/// What `dedup demo` takes.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Start the regions and wait for Ctrl-C; send nothing.
    #[arg(long)]
    no_traffic: bool,
    /// Write addresses, connection strings and process ids to this file (JSON) once all is ready.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Service instances per region.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    instances: u16,
    /// Seconds of traffic; 0 goes on until Ctrl-C. Default 60, with an incident 120.
    #[arg(long)]
    seconds: Option<u64>,
    /// After a while, let the clients of one region retry heavily for a minute; the alert for it fires in Prometheus.
    #[arg(long, conflicts_with = "no_traffic")]
    incident: bool,
    /// Deliveries per second, over all regions and topics.
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
}

/// Runs the demo; when it returns, nothing of it is left on the machine.
///
/// # Errors
/// If a server does not start or stop, or if the traffic's own books show a broken promise.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    args.ready_file.as_deref().map_or(Ok(()), ready_file::check)?;
    let stop = Stop::on_signals().context("cannot listen for signals")?;
    let outcome = with_testbed(&args, &stop).await;
    // Also after an error: the folder of the template is ours.
    discard_template().await.context("cannot remove the Postgres template")?;
    outcome
}

async fn with_testbed(args: &DemoArgs, stop: &Stop) -> anyhow::Result<()> {
    let executable = std::env::current_exe().context("cannot find this executable")?;
    let mut options = Options::new(executable);
    options.instances = usize::from(args.instances);
    options.janitor = true;
    say("Starting regions eu, us and ap: a Postgres, a Redis, a service and a janitor each ...");
    let begun = Instant::now();
    let mut testbed = tokio::select! {
        // Dropping the start half-way ends what it had started.
        () = stop.asked() => {
            say("Stopped before it was ready.");
            return Ok(());
        }
        testbed = Testbed::start(options) => testbed.context("cannot start the regions")?,
    };
    say(&format!("Ready after {:.1} s; data and logs are in {}\n", begun.elapsed().as_secs_f64(), testbed.dir().display()));
    let outcome = async {
        let prometheus = prometheus::start(&mut testbed, args.incident).await?;
        show(&testbed, prometheus.as_deref(), args, stop).await
    };
    let outcome = outcome.await;
    say("Stopping ...");
    testbed.stop().await.context("cannot stop the regions")?;
    say("All processes have ended and the folder is removed.");
    outcome
}

/// Everything between start and stop.
async fn show(testbed: &Testbed, prometheus: Option<&str>, args: &DemoArgs, stop: &Stop) -> anyhow::Result<()> {
    topics::put(testbed).await?;
    hints::print(testbed);
    prometheus::print(prometheus);
    let _ready = args.ready_file.as_deref().map(|path| ReadyFile::write(path, testbed, prometheus)).transpose()?;
    if args.no_traffic {
        say("Waiting for Ctrl-C.");
        stop.asked().await;
        return Ok(());
    }
    let seconds = args.seconds.unwrap_or(if args.incident { 120 } else { 60 });
    let length = (seconds > 0).then(|| Duration::from_secs(seconds));
    traffic::run(testbed, args.rate, length, args.incident, stop).await
}
