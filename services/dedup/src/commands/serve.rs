//! `dedup serve`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::config::ConfigArgs;

/// What `dedup serve` takes.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Write the bound addresses to this file (JSON) once it listens
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

/// Serves until a signal; the role builds its own runtime.
pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.load()?;
    dedup_runtime::logs::init(&config.log);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %config.redacted_summary(), "starting");
    let code = dedup_region::serve(config, args.ready_file)?;
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}
