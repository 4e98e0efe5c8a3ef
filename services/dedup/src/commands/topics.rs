//! `dedup topics apply` and `dedup topics list`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use dedup_client::{Client, TopicPolicy, TopicView, Window};
use serde_json::Value;

use super::connect::{ConnectArgs, PENDING, explained, shown};
use super::topics_file;
use crate::output::{complain, say, table};

/// What `dedup topics` can do.
#[derive(Debug, clap::Subcommand)]
pub enum TopicsCommand {
    /// Make the topics what a file says; topics it does not name stay as they are. Exit code 1: a topic failed; 5: a home could not be
    /// reached and takes its topics later, by itself
    Apply {
        #[command(flatten)]
        connect: ConnectArgs,
        /// TOML: [topics.NAME] with window_ms (or "forever"), lease_ms, lease_max_ms, keep_key, default_region, keep_results_ms
        file: PathBuf,
    },
    /// Show all topics
    List {
        #[command(flatten)]
        connect: ConnectArgs,
    },
}

/// Runs it.
pub async fn run(command: TopicsCommand) -> anyhow::Result<ExitCode> {
    match command {
        TopicsCommand::Apply { connect, file } => apply(&connect.client()?, &file).await,
        TopicsCommand::List { connect } => list(&connect.client()?).await,
    }
}

/// What became of a topic, for people, and whether every home has it.
struct Applied {
    line: String,
    everywhere: bool,
}

/// One topic after the other; one that fails does not keep the next from being applied.
async fn apply(client: &Client, file: &Path) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let topics = topics_file::parse(&text).with_context(|| file.display().to_string())?;
    let (mut failed, mut pending) = (false, false);
    for (topic, policy) in &topics {
        match apply_one(client, topic, policy).await {
            Ok(applied) => {
                say(applied.line);
                pending |= !applied.everywhere;
            }
            Err(error) => {
                say(format!("{topic}: failed"));
                complain(&error.context(topic.clone()));
                failed = true;
            }
        }
    }
    if pending {
        complain(&anyhow::anyhow!("not every home has all of it yet; the service goes on trying"));
    }
    Ok(match (failed, pending) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(PENDING),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// Puts a topic that is not yet so. Each PUT is a new version, so one that changes nothing is not sent.
async fn apply_one(client: &Client, topic: &str, policy: &TopicPolicy) -> anyhow::Result<Applied> {
    let before = match client.get_topic(topic).await {
        Ok(view) => Some(view),
        Err(error) if error.code() == Some("topic-not-found") => None,
        Err(error) => return Err(explained(error)),
    };
    if let Some(view) = before.as_ref().filter(|view| is_so(view, policy)) {
        let version = view.version.unwrap_or_default();
        let state = |has: &Value| match has.as_u64() == view.version {
            true => "applied",
            false => "pending",
        };
        let homes: Vec<_> = homes(view).map(|(home, has)| (home.clone(), state(has).to_owned())).collect();
        return Ok(applied(topic, "unchanged", version, &homes));
    }
    let put = client.put_topic(topic, policy).await.map_err(explained)?;
    let did = if before.is_some() { "updated" } else { "created" };
    let homes: Vec<_> = put.homes.iter().map(|(home, state)| (home.clone(), state.to_string())).collect();
    Ok(applied(topic, did, put.version, &homes))
}

fn applied(topic: &str, did: &str, version: u64, homes: &[(String, String)]) -> Applied {
    let texts: Vec<String> = homes.iter().map(|(home, state)| format!("{home} {state}")).collect();
    let line = format!("{topic}: {did}, version {version} ({})", texts.join(", "));
    Applied { line, everywhere: homes.iter().all(|(_, state)| state == "applied") }
}

fn is_so(view: &TopicView, policy: &TopicPolicy) -> bool {
    let is = &view.policy;
    is.window_ms == policy.window_ms
        && is.lease_ms == policy.lease_ms
        && is.lease_max_ms == policy.lease_max_ms
        && is.keep_key == policy.keep_key
        && is.default_region == policy.default_region
        && is.keep_results_ms == policy.keep_results_ms
}

/// The version each home has.
fn homes(view: &TopicView) -> impl Iterator<Item = (&String, &Value)> {
    let homes = view.policy.other.get("homes").and_then(Value::as_object);
    homes.into_iter().flatten()
}

async fn list(client: &Client) -> anyhow::Result<ExitCode> {
    let topics = client.list_topics().await.map_err(explained)?.topics;
    let header = ["TOPIC", "VERSION", "WINDOW_MS", "LEASE_MS", "LEASE_MAX_MS", "KEEP_KEY", "DEFAULT_REGION", "KEEP_RESULTS_MS", "HOMES"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(topics.iter().map(row));
    table(&rows);
    Ok(ExitCode::SUCCESS)
}

fn row(view: &TopicView) -> [String; 9] {
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let policy = &view.policy;
    let window = match policy.window_ms {
        Some(Window::Forever) => "forever".to_owned(),
        Some(Window::Ms(ms)) => ms.to_string(),
        None => "-".to_owned(),
    };
    // A home that lags shows the version it has.
    let homes: Vec<String> = homes(view)
        .map(|(home, has)| match has.as_u64() == view.version {
            true => home.clone(),
            false => format!("{home}@{}", shown(Some(has))),
        })
        .collect();
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    [
        text(&view.topic),
        number(view.version),
        window,
        number(policy.lease_ms),
        number(policy.lease_max_ms),
        text(&policy.keep_key),
        text(&policy.default_region),
        number(policy.keep_results_ms),
        homes.join(","),
    ]
}
