//! `dedup janitor`: the life of segments in one region.

use std::process::ExitCode;

use super::config::ConfigArgs;
use crate::output::say;

/// What `dedup janitor` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Environment:
  DEDUP_JANITOR_PASSWORD  password of janitor.user")]
pub struct JanitorArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Say what is due now, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// Tends until a signal.
pub async fn run(args: JanitorArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.load()?;
    if args.dry_run {
        for (home, plan) in dedup_janitor::plan(&config).await? {
            if plan.is_empty() {
                say(format!("{home}: nothing is due"));
            }
            for step in plan {
                say(format!("{home}: would {step}"));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    dedup_runtime::logs::init(&config.log);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), region = %config.process.region, "the janitor starts");
    dedup_janitor::tend(&config, reached).await?;
    Ok(ExitCode::SUCCESS)
}

/// Told of each named point on the janitor's way. In the laboratory the file that `DEDUP_FAILPOINT_FILE` names may hold the name of one:
/// there the process dies at once, as by `kill -9`.
#[cfg(feature = "lab")]
fn reached(point: &'static str) {
    let Some(file) = super::config::variable("DEDUP_FAILPOINT_FILE") else { return };
    if std::fs::read_to_string(&file).is_ok_and(|wanted| wanted.trim() == point) {
        // Once: whoever starts the janitor again gets past it.
        let _ = std::fs::remove_file(&file);
        std::process::abort();
    }
}

#[cfg(not(feature = "lab"))]
fn reached(_: &'static str) {}
