//! `dedup claims list`.

use std::process::ExitCode;

use dedup_client::{ClaimFilter, Client, OpenClaim};

use super::connect::{ConnectArgs, explained};
use crate::output::{complain, table};

/// What `dedup claims` can do.
#[derive(Debug, clap::Subcommand)]
pub enum ClaimsCommand {
    /// Show claims that are not done, over all homes
    List {
        #[command(flatten)]
        connect: ConnectArgs,
        #[command(flatten)]
        which: WhichArgs,
    },
}

/// Which claims.
#[derive(Debug, clap::Args)]
pub struct WhichArgs {
    /// Of this topic (default: of all granted ones)
    #[arg(long)]
    topic: Option<String>,
    /// in_progress, lapsed or released (default: the first two)
    #[arg(long)]
    state: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// Most entries of one call.
const PAGE: u32 = 1_000;

/// Runs it.
pub async fn run(command: ClaimsCommand) -> anyhow::Result<ExitCode> {
    match command {
        ClaimsCommand::List { connect, which } => list(&connect.client()?, which).await,
    }
}

/// Exit code 1 if a home could not be asked: whoever counts the lines must notice that some are missing.
async fn list(client: &Client, which: WhichArgs) -> anyhow::Result<ExitCode> {
    let header = ["HOME", "TOPIC", "GROUP", "KEY", "STATE", "OWNER", "ATTEMPT", "AGE_S", "LEASE_S", "FENCE", "NOTE"];
    let mut rows = vec![header.map(str::to_owned)];
    let mut filter = ClaimFilter { topic: which.topic, state: which.state, limit: None, cursor: None };
    let mut left = which.limit;
    let incomplete = loop {
        filter.limit = Some(left.min(PAGE));
        let page = client.open_claims(&filter).await.map_err(explained)?;
        left -= left.min(u32::try_from(page.claims.len()).unwrap_or(left));
        rows.extend(page.claims.into_iter().map(row));
        match page.next_cursor {
            Some(cursor) if left > 0 => filter.cursor = Some(cursor),
            next => {
                if next.is_some() {
                    complain(&anyhow::anyhow!("there are more; raise --limit"));
                }
                break page.incomplete;
            }
        }
    };
    table(&rows);
    if incomplete.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    complain(&anyhow::anyhow!("not all homes could be asked; missing: {}", incomplete.join(", ")));
    Ok(ExitCode::FAILURE)
}

fn row(claim: OpenClaim) -> [String; 11] {
    let text = |text: Option<String>| text.map_or_else(|| "-".to_owned(), |text| one_line(&text));
    let seconds = |ms: i64| format!("{}.{}", ms / 1000, ms % 1000 / 100);
    [
        claim.home_region,
        claim.topic,
        claim.group,
        text(claim.key),
        claim.state,
        text(claim.owner),
        claim.attempt.to_string(),
        seconds(claim.age_ms),
        claim.lease_ms_left.map_or_else(|| "-".to_owned(), seconds),
        claim.fence,
        text(claim.note),
    ]
}

/// Notes may have line breaks; a row may not.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
