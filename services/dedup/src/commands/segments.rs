//! `dedup segments`: segments and archives of all homes.

use std::process::ExitCode;

use serde_json::Value;

use super::connect::{ConnectArgs, explained, shown};
use crate::output::{complain, table};

/// What `dedup segments` takes.
#[derive(Debug, clap::Args)]
pub struct SegmentsArgs {
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Exit code 1 if a home could not be asked.
pub async fn run(args: SegmentsArgs) -> anyhow::Result<ExitCode> {
    let answer = args.connect.client()?.segments().await.map_err(explained)?;
    let columns =
        ["home_region", "place", "state", "from", "to", "keys", "bytes", "filter_bytes", "estimated_fpr", "loaded", "level", "expires_at"];
    let mut rows = vec![columns.map(str::to_uppercase)];
    for segment in answer["segments"].as_array().into_iter().flatten() {
        rows.push(columns.map(|column| shown(segment.get(column))));
    }
    table(&rows);
    let missing: Vec<&str> = answer["incomplete"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if missing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    complain(&anyhow::anyhow!("not all homes could be asked; missing: {}", missing.join(", ")));
    Ok(ExitCode::FAILURE)
}
