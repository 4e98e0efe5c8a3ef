//! `dedup keys lookup`, `dedup keys forget` and `dedup keys force-release`.

use std::process::ExitCode;

use dedup_client::{Client, Lookup, RecordRef};
use serde_json::Value;

use super::connect::{ConnectArgs, explained, shown};
use crate::output::say;

/// What `dedup keys` can do.
#[derive(Debug, clap::Subcommand)]
pub enum KeysCommand {
    /// Show what each tier knows of a key; nothing is claimed
    Lookup {
        #[command(flatten)]
        connect: ConnectArgs,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Forget a key in every tier and region: it may be `first` again. Audited
    Forget {
        #[command(flatten)]
        connect: ConnectArgs,
        #[command(flatten)]
        key: KeyArgs,
        /// Why, for the audit
        #[arg(long)]
        reason: String,
    },
    /// End an open claim of whoever holds it: the next claim is `first`. Make sure its work has stopped. Audited
    ForceRelease {
        #[command(flatten)]
        connect: ConnectArgs,
        #[command(flatten)]
        key: KeyArgs,
        /// Why, for the audit
        #[arg(long)]
        reason: String,
    },
}

/// Which key.
#[derive(Debug, clap::Args)]
pub struct KeyArgs {
    /// Topic it is unique within
    #[arg(long)]
    topic: String,
    /// Consumer group (default: `default`)
    #[arg(long)]
    group: Option<String>,
    /// The key, <region>:<rest>
    key: String,
}

/// Runs it.
pub async fn run(command: KeysCommand) -> anyhow::Result<ExitCode> {
    match command {
        KeysCommand::Lookup { connect, key } => lookup(&connect.client()?, key).await,
        KeysCommand::Forget { connect, key, reason } => forget(&connect.client()?, key, reason).await,
        KeysCommand::ForceRelease { connect, key, reason } => force_release(&connect.client()?, key, reason).await,
    }
}

impl KeyArgs {
    fn record(self, reason: Option<String>) -> RecordRef {
        RecordRef { key: self.key, group: self.group, reason }
    }
}

async fn lookup(client: &Client, key: KeyArgs) -> anyhow::Result<ExitCode> {
    let topic = key.topic.clone();
    let found = client.lookup(&topic, &key.record(None)).await;
    explain(&topic, &found.map_err(explained)?);
    Ok(ExitCode::SUCCESS)
}

async fn forget(client: &Client, key: KeyArgs, reason: String) -> anyhow::Result<ExitCode> {
    let (topic, text) = (key.topic.clone(), key.key.clone());
    let forgotten = client.forget(&topic, &key.record(Some(reason))).await;
    let forgotten = forgotten.map_err(explained)?;
    say(if forgotten.removed { format!("{text}: forgotten in its home") } else { format!("{text}: there was no record to forget") });
    for (region, state) in &forgotten.regions {
        let meaning = if state == "pending" {
            "pending: its caches drop the key as soon as they hear of it, within 1 s while connected"
        } else {
            state
        };
        say(format!("  {region}: {meaning}"));
    }
    for (region, instances) in &forgotten.unheard {
        let names = instances.join(", ");
        say(format!("  {region}: not heard of: {names} (down, so without caches; or cut off, and it may still say duplicate from memory)"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn force_release(client: &Client, key: KeyArgs, reason: String) -> anyhow::Result<ExitCode> {
    let (topic, text) = (key.topic.clone(), key.key.clone());
    let ended = client.force_release(&topic, &key.record(Some(reason))).await.map_err(explained)?;
    let owner = ended.owner.as_deref().unwrap_or("nobody by name");
    say(format!("{text}: attempt {} of {owner} is ended (fence {}); whoever claims next is first", ended.attempt, ended.fence));
    Ok(ExitCode::SUCCESS)
}

/// The tiers in the order in which a question meets them; the home has the last word.
fn explain(topic: &str, found: &Lookup) {
    let get = |name: &str| found.extra.get(name);
    let home = found.home_region.as_deref().unwrap_or("-");
    say(format!(
        "{} in topic {topic}, group {}; home {home}; answered by {}",
        found.key.as_deref().unwrap_or("-"),
        shown(get("group")),
        shown(get("served_by"))
    ));
    for cache in get("caches").and_then(Value::as_array).into_iter().flatten() {
        let state = shown(cache.get("state"));
        let meaning = match state.as_str() {
            "absent" => "holds nothing: the question goes on to the next tier".to_owned(),
            "believed" => format!("answers duplicate from its copy, fence {}", shown(cache.get("fence"))),
            why => format!("holds a copy that is not believed ({why}): the question goes on"),
        };
        say(format!("{:<6} {meaning}", shown(cache.get("tier"))));
    }
    let truth = get("home");
    let state = shown(truth.and_then(|truth| truth.get("state")));
    let meaning = match state.as_str() {
        "absent" => "no record: whoever asks next is first",
        "released" => "given back, by its owner or an operator: whoever asks next is first",
        "expired" => "its window is over: whoever asks next is first",
        "in_progress" => "somebody works on it; when the lease has lapsed, the next to ask takes it over",
        "in_doubt" => "its owner vanished and the topic wants a person to decide",
        "issued" => "an issued token that nobody has used yet",
        "done" => "handled: whoever asks is told duplicate",
        _ => "",
    };
    let at = shown(truth.and_then(|truth| truth.get("at")));
    say(format!("home   {state}: {meaning} (home time {at})"));
    if let Some(record) = truth.and_then(|truth| truth.get("record")).and_then(Value::as_object) {
        // First the story of the record in its own order, then whatever a newer service adds.
        let known = FIELDS.iter().filter_map(|name| Some((*name, record.get(*name)?)));
        let others = record.iter().map(|(name, value)| (name.as_str(), value)).filter(|(name, _)| !FIELDS.contains(name));
        for (name, value) in known.chain(others) {
            let value = match (name, value) {
                ("expires_at", Value::Null) => "never".to_owned(),
                _ => shown(Some(value)),
            };
            say(format!("       {name:<16} {value}"));
        }
    }
}

/// Members of a record in the order in which people read them.
const FIELDS: [&str; 13] = [
    "first_seen_at",
    "first_seen_between",
    "ends_at",
    "expires_at",
    "outcome",
    "fence",
    "attempt",
    "one_shot",
    "has_fingerprint",
    "owner",
    "note",
    "segment",
    "result",
];
