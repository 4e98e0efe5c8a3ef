//! `dedup keys`: look-up, the ways to forget, and forced release.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use dedup_client::{Client, ForgetAll, ForgetJob, Job, JobInHome, Lookup, RecordRef};
use serde_json::Value;

use super::connect::{ConnectArgs, PENDING, explained, shown};
use crate::output::{complain, say};

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
    /// Forget all keys of a topic, or of one of its groups, at once in every tier and region. Audited. Exit code 5: a home could not be reached and
    /// forgets later, by itself
    ForgetAll {
        #[command(flatten)]
        connect: ConnectArgs,
        #[command(flatten)]
        keys: KeysArgs,
    },
    /// Forget what was first seen within a range of time, of a topic with keep_key = "always": a job of the janitors, watched until it is done.
    /// Audited. Exit code 5: it is not in every home
    ForgetRange {
        #[command(flatten)]
        connect: ConnectArgs,
        #[command(flatten)]
        keys: KeysArgs,
        /// First seen from here on, like 2026-12-24T18:00:00Z (default: from the beginning; this or --to must be given)
        #[arg(long)]
        from: Option<String>,
        /// And before this (default: now)
        #[arg(long)]
        to: Option<String>,
        /// Only count
        #[arg(long)]
        dry_run: bool,
        /// Go on watching (and, in homes that it has not reached, begin) this job
        #[arg(long, value_name = "UUID")]
        job: Option<String>,
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

/// Which keys, and why.
#[derive(Debug, clap::Args)]
pub struct KeysArgs {
    /// Topic
    #[arg(long)]
    topic: String,
    /// Only this consumer group (default: all of them)
    #[arg(long)]
    group: Option<String>,
    /// Why, for the audit
    #[arg(long)]
    reason: String,
}

/// Runs it.
pub async fn run(command: KeysCommand) -> anyhow::Result<ExitCode> {
    match command {
        KeysCommand::Lookup { connect, key } => lookup(&connect.client()?, key).await,
        KeysCommand::Forget { connect, key, reason } => forget(&connect.client()?, key, reason).await,
        KeysCommand::ForgetAll { connect, keys: KeysArgs { topic, group, reason } } => {
            forget_all(&connect.client()?, &topic, &ForgetAll { group, reason }).await
        }
        KeysCommand::ForgetRange { connect, keys: KeysArgs { topic, group, reason }, from, to, dry_run, job } => {
            // An id of our own, so that a repetition of the call begins no second job.
            let job = Some(job.unwrap_or_else(dedup_client::new_request_id));
            forget_range(&connect.client()?, &topic, &ForgetJob { job_id: job, group, from, to, dry_run, reason }).await
        }
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
    say_regions(&forgotten.regions, &forgotten.unheard);
    Ok(ExitCode::SUCCESS)
}

/// Whose caches have heard of it.
fn say_regions(regions: &BTreeMap<String, String>, unheard: &BTreeMap<String, Vec<String>>) {
    for (region, state) in regions {
        let meaning =
            if state == "pending" { "pending: its caches forget as soon as they hear of it, within 1 s while connected" } else { state };
        say(format!("  caches of {region}: {meaning}"));
    }
    for (region, instances) in unheard {
        let names = instances.join(", ");
        say(format!(
            "  caches of {region}: not heard of: {names} (down, so without caches; or cut off, and it may still say duplicate from memory)"
        ));
    }
}

async fn forget_all(client: &Client, topic: &str, what: &ForgetAll) -> anyhow::Result<ExitCode> {
    let done = client.forget_all(topic, what).await.map_err(explained)?;
    let of = what.group.as_ref().map_or_else(|| format!("topic {topic}"), |group| format!("group {group} of topic {topic}"));
    let homes: Vec<String> = done.homes.iter().map(|(home, state)| format!("{home} {state}")).collect();
    say(format!("{of}: all keys are forgotten (generation {}; in the homes: {})", done.generation, homes.join(", ")));
    say_regions(&done.regions, &done.unheard);
    let pending = done.homes.values().any(|state| state != "applied");
    Ok(if pending { ExitCode::from(PENDING) } else { ExitCode::SUCCESS })
}

async fn forget_range(client: &Client, topic: &str, what: &ForgetJob) -> anyhow::Result<ExitCode> {
    let started = client.start_forget_job(topic, what).await.map_err(explained)?;
    say(format!("job {}", started.job_id));
    let mut last = String::new();
    loop {
        let job: Job = client.job(&started.job_id).await.map_err(explained)?;
        let line = |(home, at): (&String, &JobInHome)| {
            format!("{home} {}: {} looked at, {} {}", at.state, at.looked, at.matched, if what.dry_run { "meant" } else { "forgotten" })
        };
        let line: Vec<String> = job.homes.iter().map(line).collect();
        let line = line.join("; ");
        if line != last {
            say(&line);
            last = line;
        }
        if job.homes.values().all(|at| !matches!(at.state.as_str(), "queued" | "running")) {
            let everywhere = job.homes.values().all(|at| at.state == "done");
            if !everywhere {
                complain(&anyhow::anyhow!("not every home has it: repeat the command with --job {}", started.job_id));
            }
            return Ok(if everywhere { ExitCode::SUCCESS } else { ExitCode::from(PENDING) });
        }
        tokio::time::sleep(WATCH_PAUSE).await;
    }
}

/// Between two looks at a job.
const WATCH_PAUSE: Duration = Duration::from_millis(500);

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
