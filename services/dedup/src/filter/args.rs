//! What `dedup filter` takes.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::value_parser;
use dedup_client::Window;

use super::pointer::Pointer;
use super::run_id::RunId;
use super::topic::parse_window;
use crate::commands::connect::ConnectArgs;

/// Prints the lines whose keys nobody has seen before, byte for byte and in input order.
///
/// A blank line, or one whose key is longer than 512 bytes (region included), not UTF-8 or has control characters, is a bad line. A line's
/// end (LF or CR LF) does not belong to its key.
///
/// Exit codes: 0 all done; 1 a mistake, as said; 3 all done, but there were bad lines; 4 the service went away; 130, 143 SIGINT, SIGTERM. In
/// any case what was printed is the beginning of the right output, in whole lines.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Input; stdin if absent or `-`
    file: Option<PathBuf>,
    /// Topic the keys are unique within
    #[arg(long)]
    pub topic: String,
    /// Makes the topic if it is missing, with this window: 7d, 24h, 15m, 90s, forever
    #[arg(long, value_parser = parse_window)]
    pub window: Option<Window>,
    /// Put in front of each key as `<region>:`; not needed if keys have a known prefix or the topic a default region
    #[arg(long, value_parser = parse_region)]
    pub region: Option<String>,
    /// Consumer group (default: `default`)
    #[arg(long)]
    pub group: Option<String>,
    /// The input is NDJSON, and the key the string or number at this JSON pointer (`/id`); a number counts as it is written
    #[arg(long, value_name = "POINTER", value_parser = Pointer::parse)]
    pub key: Option<Pointer>,
    /// Lines per request
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = parse_batch)]
    pub batch: usize,
    /// Requests at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parse_in_flight)]
    pub in_flight: usize,
    /// Repeats a run that broke off, over the same input and with the same options: prints what that run would have printed, from the beginning.
    /// Works while the topic's window lasts. A fresh id of your own may be given from the start; never use one for another input
    #[arg(long, value_name = "RUN_ID", value_parser = RunId::parse)]
    pub resume: Option<RunId>,
    /// Bad lines: named on stderr and not printed (exit code 3 at the end), or printed unchecked
    #[arg(long, value_enum, default_value_t = OnBadLine::Report)]
    pub on_bad_line: OnBadLine,
    /// How long a service that does not answer is asked again, seconds from the first failure
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u64).range(0..=86_400))]
    retry_seconds: u64,
    /// No progress bar
    #[arg(long)]
    pub quiet: bool,
}

/// What happens to lines that cannot be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnBadLine {
    /// Named on stderr, not printed.
    Report,
    /// Printed.
    Pass,
}

impl FilterArgs {
    /// How long the service may be away.
    pub fn retry(&self) -> Duration {
        Duration::from_secs(self.retry_seconds)
    }

    /// The input, and its size in bytes where it has one.
    pub fn open(&self) -> anyhow::Result<(Box<dyn Read + Send>, Option<u64>)> {
        let Some(path) = self.file.as_deref().filter(|path| path.as_os_str() != "-") else {
            return Ok((Box::new(std::io::stdin()), None));
        };
        let cannot = || format!("{} cannot be read", path.display());
        let file = File::open(path).with_context(cannot)?;
        let about = file.metadata().with_context(cannot)?;
        ensure!(!about.is_dir(), "{} is a folder", path.display());
        Ok((Box::new(file), about.is_file().then_some(about.len())))
    }
}

fn parse_region(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(|c: char| c == ':' || c.is_control()) {
        return Err("a region is named without the colon".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_batch(text: &str) -> Result<usize, String> {
    within(text, 1000)
}

fn parse_in_flight(text: &str) -> Result<usize, String> {
    within(text, 256)
}

fn within(text: &str, max: usize) -> Result<usize, String> {
    text.parse().ok().filter(|number| (1..=max).contains(number)).ok_or_else(|| format!("it is a number from 1 to {max}"))
}
