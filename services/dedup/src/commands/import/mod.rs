//! `dedup import`: keys that another system has seen, or what another home remembered, become memory of a home.

mod input;
mod lines;
mod load;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use super::config::ConfigArgs;
use super::own_home::OwnHome;
use crate::output::say;
use input::Input;
use lines::{Lines, Purpose};

/// What `dedup import` takes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --topic each line is a key, or a JSON object: {\"key\": \"eu:1\", \"first_seen_ms\": 1796000000000}, the time in milliseconds since 1970.
Without it the file is one that `dedup export` wrote, whose lines say topic, group and end of the window themselves. Digests in it are taken only where
the secret is the one they were made with, keys anywhere. Nothing of a file counts that was cut off.
The same command over the same file goes on where it was broken off.

Environment:
  DEDUP_JANITOR_PASSWORD      password of janitor.user
  DEDUP_HOME_<NAME>_PASSWORD  password of the home's own user, unless DEDUP_SECRET is set
  DEDUP_SECRET                the secret of the digests, if the configuration does not leave it to the home"
)]
pub struct ImportArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Topic of the keys; its window counts from each key's first_seen_ms (without one: from now)
    #[arg(long)]
    topic: Option<String>,
    /// Consumer group of the keys (default: default)
    #[arg(long, requires = "topic")]
    group: Option<String>,
    /// Home to load into; keys of other homes are left out (default: the region's only home)
    #[arg(long, value_name = "NAME")]
    home: Option<String>,
    /// cold: one archive, which counts as a whole when all is loaded. warm: rows, which count one after the other; slower, for up to some
    /// million keys
    #[arg(long, value_enum, default_value_t = Into::Cold)]
    into: Into,
    /// Lines
    file: PathBuf,
}

/// Which memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Into {
    Cold,
    Warm,
}

/// Loads the file.
pub async fn run(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let OwnHome { name, mut janitor, home_ms, scopes } = OwnHome::open(&args.config, args.home.as_deref()).await?;
    let group = args.group.as_deref().unwrap_or("default");
    let topic = args.topic.as_deref().map(|topic| (topic, group));
    let input = Input::open(&args.file, topic.is_none())?;
    if let Some((header, end)) = &input.export {
        input::check(header, end, args.into == Into::Warm, janitor.secret_id(), &scopes)?;
    }
    let mut lines = Lines::new(topic, input.export.as_ref().map(|(_, end)| end.clone()), scopes, home_ms, args.into == Into::Warm)?;
    let import = janitor.import_begin(input.id(topic, args.into == Into::Warm)).await?;
    let from = u64::try_from(import.bytes)?;
    if args.into == Into::Warm {
        // Here keys count as they come, so the file is read through before the first does.
        lines = tokio::task::spawn_blocking({
            let input = input.reopen()?;
            move || lines.check(input)
        })
        .await??;
    }
    if from > 0 {
        say(format!("goes on at byte {from} of {}", input.bytes));
    }
    let began = Instant::now();
    let seen_ms = input.export.as_ref().filter(|(_, end)| end.short_digests > 0).map(|(header, _)| header.exported_at_ms);
    let file = input.reopen()?;
    let counts = match args.into {
        Into::Cold => load::cold(&mut janitor, import, lines.start(file, from, Purpose::Stage), seen_ms).await?,
        Into::Warm => load::warm(&janitor, import, lines.start(file, from, Purpose::Load)).await?,
    };
    let took = began.elapsed().as_secs_f64();
    let rate = counts.taken as f64 / took;
    let (foreign, past, taken) = (counts.foreign, counts.past, counts.taken);
    say(match args.into {
        Into::Cold => format!(
            "{name}: {} different keys are remembered ({taken} staged now, {foreign} of other homes, {past} past their window) in {took:.1} s, {rate:.0} a second",
            counts.kept
        ),
        Into::Warm => format!(
            "{name}: {} of {taken} keys are new ({} were known or claimed and stay as they are, {foreign} of other homes, {past} past their window) in {took:.1} s, \
             {rate:.0} a second",
            counts.kept,
            taken - counts.kept
        ),
    });
    Ok(ExitCode::SUCCESS)
}
