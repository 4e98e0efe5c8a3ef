//! `dedup import`: keys that another system has seen become memory of a home.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use dedup_core::{DigestScope, FOREVER_MS, Group, HomeTable, Key, Topic};
use dedup_store::{ImportRow, ImportTopic, home_secret};
use sha2::{Digest as _, Sha256};

use super::config::{self, ConfigArgs};
use crate::output::say;

/// What `dedup import` takes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each line is a key, or a JSON object: {\"key\": \"eu:1\", \"first_seen_ms\": 1796000000000}, the time in milliseconds since 1970.
The same command over the same file goes on where it was broken off.

Environment:
  DEDUP_JANITOR_PASSWORD  password of janitor.user"
)]
pub struct ImportArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Topic of the keys; its window counts from each key's first_seen_ms (without one: from now)
    #[arg(long)]
    topic: String,
    /// Consumer group
    #[arg(long, default_value = "default")]
    group: String,
    /// Home to load into; keys of other homes are left out (default: the region's only home)
    #[arg(long, value_name = "NAME")]
    home: Option<String>,
    /// Lines
    file: PathBuf,
}

/// Keys staged in one transaction.
const CHUNK: usize = 50_000;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: String,
    first_seen_ms: Option<i64>,
}

/// How many of which.
#[derive(Default)]
struct Counts {
    staged: u64,
    foreign: u64,
    past: u64,
}

/// Loads the file; nothing counts before all of it does.
pub async fn run(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.load()?;
    let own: Vec<_> = config.own_homes().filter(|h| args.home.as_ref().is_none_or(|name| *name == h.name)).collect();
    let [home] = own.as_slice() else { bail!("--home must name one home of this region") };
    let table = HomeTable::new(config.homes.iter().map(config::spec).collect())
        .map_err(|p| anyhow::anyhow!("the prefix {p:?} is owned by two homes"))?;
    let secret = match config::secret(&config) {
        Some(secret) => secret,
        None => home_secret(&config::target(home)?).await?.context("the home has no secret yet: run `dedup migrate`")?,
    };
    let topic = Topic::parse(&args.topic).context("--topic")?;
    let group = Group::parse(&args.group).context("--group")?;
    let unset = config.janitor.password.is_none();
    let mut janitor = dedup_janitor::connect(&config, home).await.map_err(|why| {
        let why = anyhow::Error::from(why);
        if unset { why.context("DEDUP_JANITOR_PASSWORD is not set") } else { why }
    })?;
    ensure!(janitor.secret_id() == secret.id(), "the home was made with another secret than DEDUP_SECRET");
    let known = janitor.import_topic(topic.as_str()).await?.with_context(|| format!("there is no topic {topic} in home {}", home.name))?;
    let scope = DigestScope::new(&secret, &topic, known.generation, &group, 0);

    let file = std::fs::File::open(&args.file).with_context(|| args.file.display().to_string())?;
    let about = file.metadata()?;
    let id = Sha256::new()
        .chain_update(format!("{topic}\0{}\0{}\0{}\0{:?}", group.as_str(), args.file.display(), about.len(), about.modified().ok()))
        .finalize();
    let id = uuid::Uuid::from_slice(&id[..16])?;
    let from = u64::try_from(janitor.import_begin(id).await?)?;
    if from > 0 {
        say(format!("goes on at byte {from} of {}", about.len()));
    }
    let mut lines = BufReader::with_capacity(1 << 20, file);
    // What is staged already is only counted, so that lines keep their numbers.
    let mut number = count_lines(&mut lines, from)?;
    let (began, mut counts, mut rows, mut at, mut text) =
        (Instant::now(), Counts::default(), Vec::with_capacity(CHUNK), from, String::new());
    loop {
        text.clear();
        let read = lines.read_line(&mut text).with_context(|| format!("line {}", number + 1))?;
        if read > 0 {
            number += 1;
            at += read as u64;
            let line = text.trim_end_matches(['\n', '\r']);
            if !line.is_empty() {
                let row = parse(line, &known, &scope, &table, &home.name).with_context(|| format!("line {number}"))?;
                match row {
                    None => counts.foreign += 1,
                    Some(row) if row.expires_ms <= known.home_ms => counts.past += 1,
                    Some(row) => rows.push(row),
                }
            }
        }
        if rows.len() == CHUNK || (read == 0 && !rows.is_empty()) {
            janitor.import_some(id, &rows, i64::try_from(at)?).await?;
            counts.staged += rows.len() as u64;
            rows.clear();
            if counts.staged.is_multiple_of(20 * CHUNK as u64) {
                say(format!("{} keys staged, {:.0} a second", counts.staged, counts.staged as f64 / began.elapsed().as_secs_f64()));
            }
        }
        if read == 0 {
            break;
        }
    }
    let archived = janitor.import_end(id, known.topic_id).await?.unwrap_or(0);
    let took = began.elapsed().as_secs_f64();
    say(format!(
        "{}: {archived} different keys are remembered ({} staged now, {} of other homes, {} past their window) in {took:.1} s, {:.0} a second",
        home.name,
        counts.staged,
        counts.foreign,
        counts.past,
        counts.staged as f64 / took
    ));
    Ok(ExitCode::SUCCESS)
}

/// Passes over `bytes` and counts their lines.
fn count_lines(input: &mut impl BufRead, bytes: u64) -> std::io::Result<u64> {
    let (mut left, mut lines) = (bytes, 0);
    while left > 0 {
        let some = input.fill_buf()?;
        let n = some.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if n == 0 {
            break;
        }
        lines += some[..n].iter().filter(|b| **b == b'\n').count() as u64;
        input.consume(n);
        left -= n as u64;
    }
    Ok(lines)
}

/// One line; `None`: of another home.
fn parse(line: &str, topic: &ImportTopic, scope: &DigestScope, table: &HomeTable, home: &str) -> anyhow::Result<Option<ImportRow>> {
    let object: Option<Line> = line.starts_with('{').then(|| serde_json::from_str(line)).transpose().context("is no object with a key")?;
    let (key, first_seen_ms) = match &object {
        Some(object) => (object.key.as_str(), object.first_seen_ms),
        None => (line, None),
    };
    let key = Key::parse(key, 512, topic.default_region.as_deref(), table).context("the key cannot be taken")?;
    if table.get(key.home()).name != home {
        return Ok(None);
    }
    // A key from the future would be remembered longer than the window.
    let first_seen_ms = first_seen_ms.unwrap_or(topic.home_ms).min(topic.home_ms);
    let expires_ms = if topic.window_ms == FOREVER_MS { FOREVER_MS } else { first_seen_ms.saturating_add(topic.window_ms) };
    Ok(Some(ImportRow { digest: scope.digest(&key), expires_ms, first_seen_ms }))
}
