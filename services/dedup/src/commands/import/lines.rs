//! The lines of an import on their way to rows, read and hashed by a thread of their own beside the loading.

use std::fs::File;
use std::io::{BufRead, BufReader};

use anyhow::{Context, bail, ensure};
use dedup_core::{Digest, FOREVER_MS};
use dedup_store::ImportRow;
use tokio::sync::mpsc;

use crate::commands::memory_file::{END, End, HEADER, Id, Line, Outcome, parse_digest};
use crate::commands::own_home::Scopes;

/// Latest time of a line, ms: what JSON of any language carries exactly, and far from where sums overflow.
const MS_MAX: i64 = 1 << 53;
/// Chunks read ahead.
const AHEAD: usize = 2;

/// How many lines come to be one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// In one transaction each.
    Stage,
    /// In several.
    Load,
}

/// Rows of neighbouring lines.
#[derive(Default)]
pub struct Chunk {
    pub rows: Vec<ImportRow>,
    /// Bytes of the file up to their end.
    pub at: u64,
    /// Lines left out: of other homes,
    pub foreign: u64,
    /// and past their window.
    pub past: u64,
}

/// What a line is.
enum Read {
    Row(ImportRow),
    Foreign,
    Past,
    Other,
}

/// What the lines look like.
enum Form {
    /// A key, or an object with one.
    Keys { topic: String, group: String, window_ms: i64 },
    /// As exported; `over`: its end was read.
    Export { end: End, over: bool },
}

/// How lines are read.
pub struct Lines {
    form: Form,
    scopes: Scopes,
    home_ms: i64,
    warm: bool,
    number: u64,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyLine {
    key: String,
    first_seen_ms: Option<i64>,
}

impl Lines {
    /// Lines of one topic and group, or of an export with this end.
    pub fn new(topic: Option<(&str, &str)>, end: Option<End>, scopes: Scopes, home_ms: i64, warm: bool) -> anyhow::Result<Self> {
        let form = match topic {
            Some((topic, group)) => {
                Form::Keys { topic: topic.into(), group: group.into(), window_ms: scopes.topic(topic).context("--topic")?.window_ms }
            }
            None => Form::Export { end: end.unwrap_or_default(), over: false },
        };
        Ok(Self { form, scopes, home_ms, warm, number: 0 })
    }

    /// Reads all of it and keeps nothing: the first bad line ends it.
    pub fn check(mut self, mut file: BufReader<File>) -> anyhow::Result<Self> {
        let mut text = String::new();
        while self.next(&mut file, &mut text)?.is_some() {}
        self.whole()?;
        if let Form::Export { over, .. } = &mut self.form {
            *over = false;
        }
        self.number = 0;
        Ok(self)
    }

    /// Reads on behind the first `from` bytes, in a thread of its own.
    pub fn start(mut self, file: BufReader<File>, from: u64, purpose: Purpose) -> mpsc::Receiver<anyhow::Result<Chunk>> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = self.read(file, from, purpose, &sender) {
                sender.blocking_send(Err(error)).ok();
            }
        });
        receiver
    }

    fn read(
        &mut self,
        mut file: BufReader<File>,
        from: u64,
        purpose: Purpose,
        sender: &mpsc::Sender<anyhow::Result<Chunk>>,
    ) -> anyhow::Result<()> {
        let size = match purpose {
            Purpose::Stage => 50_000,
            Purpose::Load => 2_000,
        };
        // What is done already is only counted, so that lines keep their numbers.
        self.number = count_lines(&mut file, from)?;
        if let Form::Export { end, over } = &mut self.form {
            *over = self.number == end.dedup_export_end + 2;
        }
        let mut chunk = Chunk { at: from, ..Chunk::default() };
        let mut text = String::new();
        while let Some((read, bytes)) = self.next(&mut file, &mut text)? {
            chunk.at += bytes;
            match read {
                Read::Row(row) => chunk.rows.push(row),
                Read::Foreign => chunk.foreign += 1,
                Read::Past => chunk.past += 1,
                Read::Other => {}
            }
            if chunk.rows.len() == size {
                let at = chunk.at;
                if sender.blocking_send(Ok(std::mem::take(&mut chunk))).is_err() {
                    return Ok(());
                }
                chunk = Chunk { rows: Vec::with_capacity(size), at, ..Chunk::default() };
            }
        }
        self.whole()?;
        sender.blocking_send(Ok(chunk)).ok();
        Ok(())
    }

    /// The next line and its length; `None`: the end of the file.
    fn next(&mut self, file: &mut BufReader<File>, text: &mut String) -> anyhow::Result<Option<(Read, u64)>> {
        text.clear();
        let bytes = file.read_line(text).with_context(|| format!("line {}", self.number + 1))?;
        if bytes == 0 {
            return Ok(None);
        }
        self.number += 1;
        let read = self.line(text.trim_end_matches(['\n', '\r'])).with_context(|| format!("line {}", self.number))?;
        Ok(Some((read, bytes as u64)))
    }

    /// Whether the file had all that it says it has.
    fn whole(&self) -> anyhow::Result<()> {
        let Form::Export { end, over } = &self.form else { return Ok(()) };
        let lines = end.dedup_export_end + 2;
        ensure!(
            *over && self.number == lines,
            "the export should have {lines} lines and has {}: something is missing. Nothing of it counts",
            self.number
        );
        Ok(())
    }

    fn line(&mut self, text: &str) -> anyhow::Result<Read> {
        match &mut self.form {
            Form::Keys { .. } if text.is_empty() => Ok(Read::Other),
            Form::Keys { topic, group, window_ms } => {
                let window_ms = *window_ms;
                let object: Option<KeyLine> =
                    text.starts_with('{').then(|| serde_json::from_str(text)).transpose().context("is no object with a key")?;
                let (key, first_seen_ms) = match &object {
                    Some(object) => (object.key.as_str(), object.first_seen_ms),
                    None => (text, None),
                };
                let Some((topic, digest)) = self.scopes.digest(topic, group, key)? else { return Ok(Read::Foreign) };
                let first_seen_ms = self.first_seen(first_seen_ms)?;
                let expires_ms = if window_ms == FOREVER_MS { FOREVER_MS } else { first_seen_ms.saturating_add(window_ms) };
                Ok(self.row(ImportRow { digest, expires_ms, first_seen_ms, topic: Some(topic), failed: false }))
            }
            Form::Export { over, .. } => {
                ensure!(!*over, "there is a line behind the end of the export");
                if text.starts_with(HEADER) && self.number == 1 {
                    return Ok(Read::Other);
                }
                if text.starts_with(END) {
                    *over = true;
                    return Ok(Read::Other);
                }
                self.exported(text)
            }
        }
    }

    fn exported(&mut self, text: &str) -> anyhow::Result<Read> {
        let line: Line<'_> = serde_json::from_str(text).context("is no line of an export")?;
        let (topic, digest) = match (&line.topic, &line.group, &line.key, &line.digest) {
            (Some(topic), Some(group), Some(key), None) => match self.scopes.digest(topic, group, key)? {
                Some((topic, digest)) => (Some(topic), digest),
                None => return Ok(Read::Foreign),
            },
            (None, None, None, Some(digest)) => (None, self.exported_digest(digest)?),
            _ => bail!("has neither topic, group and key nor a digest alone"),
        };
        ensure!(line.expires_ms == FOREVER_MS || line.expires_ms <= MS_MAX, "expires_ms is too far away; there is \"forever\"");
        let first_seen_ms = self.first_seen(Some(line.first_seen_ms))?;
        Ok(self.row(ImportRow { digest, expires_ms: line.expires_ms, first_seen_ms, topic, failed: line.outcome == Outcome::Failed }))
    }

    fn exported_digest(&self, text: &str) -> anyhow::Result<Digest> {
        match parse_digest(text) {
            Some(Id::Digest(digest)) => Ok(digest),
            Some(Id::Short(_)) if self.warm => {
                bail!(
                    "this digest was archived, and only its first 18 digits were kept: it can be imported into the archive (--into cold), not into rows"
                )
            }
            Some(Id::Short(key)) => Ok(key.lowest()),
            _ => bail!("the digest has neither 32 nor 18 hexadecimal digits"),
        }
    }

    /// A key from the future would be remembered longer than the window.
    fn first_seen(&self, ms: Option<i64>) -> anyhow::Result<i64> {
        let ms = ms.unwrap_or(self.home_ms);
        ensure!((0..=MS_MAX).contains(&ms), "first_seen_ms is no time in milliseconds since 1970");
        Ok(ms.min(self.home_ms))
    }

    fn row(&self, row: ImportRow) -> Read {
        if row.expires_ms <= self.home_ms { Read::Past } else { Read::Row(row) }
    }
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
