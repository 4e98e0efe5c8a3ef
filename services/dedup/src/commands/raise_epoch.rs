//! `dedup raise-epoch`: after a home was restored to an earlier state, so that no fence is granted twice.

use std::process::ExitCode;

use anyhow::{Context, bail};
use dedup_store::raise_epoch;

use super::config::ConfigArgs;
use super::migrate::owner_target;
use crate::output::say;

/// What `dedup raise-epoch` takes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needed after a restore that makes no new timeline: from a dump, or from a copy of the data folder. A promotion and a
point-in-time recovery make a new timeline, which fences carry by themselves.

Environment:
  DEDUP_OWNER_PASSWORD  password of --owner"
)]
pub struct RaiseEpochArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The home that was restored
    #[arg(long, value_name = "NAME")]
    home: String,
    /// Log in as this user, who owns the schema (default: the user of the home's `postgres`)
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Why; kept in the audit
    #[arg(long)]
    reason: String,
}

/// Raises it.
pub async fn run(args: RaiseEpochArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.load()?;
    let Some(home) = config.homes.iter().find(|h| h.name == args.home) else {
        bail!("--home {}: no such home", args.home);
    };
    let target = owner_target(home, args.owner.as_deref())?;
    let epoch = raise_epoch(&target, &args.reason).await.with_context(|| format!("home {}", home.name))?;
    say(format!("{}: the epoch is {epoch} from now on; running instances notice within a second or two", home.name));
    Ok(ExitCode::SUCCESS)
}
