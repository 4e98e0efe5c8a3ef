//! `dedup export`: what a home remembers, as lines that `dedup import` takes.

mod writer;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use anyhow::Context;
use dedup_store::ExportScope;

use super::config::ConfigArgs;
use super::own_home::OwnHome;
use crate::output::{Progress, note};
use writer::{Told, Writer};

/// What `dedup export` takes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "One JSON object a line: a header, a line for each done record that still counts, and an end with their number. A record is its topic, group and
key where the key text is kept (topics with keep_key = \"always\"), otherwise its digest: 32 digits, of archived ones the 18 that are kept. Digests can
only be imported where the secret is the same. Not exported: open and released claims, what was forgotten or has ended, stored results, fingerprints.

Environment:
  DEDUP_JANITOR_PASSWORD      password of janitor.user
  DEDUP_HOME_<NAME>_PASSWORD  password of the home's own user, unless DEDUP_SECRET is set
  DEDUP_SECRET                the secret of the digests, if the configuration does not leave it to the home"
)]
pub struct ExportArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Home to export (default: the region's only home)
    #[arg(long, value_name = "NAME")]
    home: Option<String>,
    /// Only records of this topic whose key text is kept (of the others nobody can tell the topic)
    #[arg(long)]
    topic: Option<String>,
    /// Only this consumer group of the topic
    #[arg(long, requires = "topic")]
    group: Option<String>,
    /// File to write (default: stdout); it is FILE.part until all is written
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Batches on their way to the file.
const BATCHES: usize = 4;

/// Writes all of it, as it is at one moment.
pub async fn run(args: ExportArgs) -> anyhow::Result<ExitCode> {
    let OwnHome { name, mut janitor, scopes, .. } = OwnHome::open(&args.config, args.home.as_deref()).await?;
    let topic = args.topic.as_deref().map(|topic| scopes.topic(topic).map(|known| known.id)).transpose()?;
    if topic.is_some() {
        note(
            "only records whose key text is kept (keep_key = \"always\") are written: rows hold digests, so of the others nobody can tell the topic",
        );
    }
    let scope = ExportScope { topic, group: args.group };
    let part = args.output.as_deref().map(|path| (part_of(path), path));
    let out: Box<dyn Write + Send> = match &part {
        Some((part, _)) => Box::new(File::create(part).with_context(|| part.display().to_string())?),
        None => Box::new(io::stdout()),
    };
    let began = Instant::now();
    // Lines are made and written beside the reading.
    let (sender, receiver) = sync_channel(BATCHES);
    let writer = Writer::new(BufWriter::with_capacity(1 << 20, out), name.clone(), janitor.secret_id(), scopes);
    let writing = std::thread::spawn(move || writer.write_all(&receiver));
    let mut progress = Progress::new("records");
    let exported = janitor
        .export(&scope, &mut |some| {
            if let dedup_store::Exported::Records(records) = &some {
                progress.add(records.len() as u64);
            }
            sender.send(Told::Some(some)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
        })
        .await;
    progress.end();
    // The last line is written only if this is told.
    if exported.is_ok() {
        sender.send(Told::Over).ok();
    }
    drop(sender);
    let written = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let wrong = || part.as_ref().map_or_else(|| "stdout".to_owned(), |(part, _)| part.display().to_string());
    let (end, left) = match (exported, written) {
        (Ok(()), written) => written.with_context(wrong)?,
        // Whose fault it is that nobody takes more.
        (Err(dedup_store::JanitorError::Taker(_)), Err(error)) => return Err(error).with_context(wrong),
        (Err(error), _) => return Err(error.into()),
    };
    if let Some((part, path)) = &part {
        File::open(part)
            .and_then(|file| file.sync_all())
            .and_then(|()| std::fs::rename(part, path))
            .with_context(|| path.display().to_string())?;
    }
    let took = began.elapsed().as_secs_f64();
    note(&format!(
        "{name}: {} records ({} keys, {} digests, {} short digests of archived records) in {took:.1} s, {:.0} a second; left out: {} open, released or issued, {} of \
         topics that were deleted or forgotten since",
        end.dedup_export_end,
        end.keys,
        end.digests,
        end.short_digests,
        end.dedup_export_end as f64 / took,
        left.not_done,
        left.gone
    ));
    Ok(ExitCode::SUCCESS)
}

fn part_of(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    part.into()
}
