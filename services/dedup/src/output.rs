//! The one place that writes to the terminal: results to stdout, complaints to stderr.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Prints a line of a result. A reader that went away (`| head`) is no reason to fail; one that cannot take it (a full disk) is.
pub fn say(line: impl AsRef<str>) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{}", line.as_ref())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        complain(&anyhow::Error::from(error).context("stdout"));
        std::process::exit(1);
    }
}

/// Prints an error and its causes as one line.
pub fn complain(error: &anyhow::Error) {
    let text = format!("{error:#}");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    writeln!(std::io::stderr().lock(), "dedup: {}", lines.join("; ")).ok();
}

/// Prints rows in columns as wide as their widest cell; the first row is the header.
pub fn table<const N: usize>(rows: &[[String; N]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        say(cells.join("  ").trim_end());
    }
}

/// Prints a line about the work to stderr, where the result itself may go to stdout.
pub fn note(line: &str) {
    writeln!(std::io::stderr().lock(), "dedup: {line}").ok();
}

/// How far long work is, on stderr where somebody watches.
pub struct Progress {
    what: &'static str,
    watched: bool,
    began: Instant,
    shown: Option<Instant>,
    done: u64,
}

impl Progress {
    /// `what` is counted.
    pub fn new(what: &'static str) -> Self {
        Self { what, watched: std::io::stderr().is_terminal(), began: Instant::now(), shown: None, done: 0 }
    }

    /// So many more.
    pub fn add(&mut self, more: u64) {
        const REFRESH: Duration = Duration::from_millis(500);
        self.done += more;
        if self.watched && self.shown.is_none_or(|shown| shown.elapsed() >= REFRESH) {
            self.shown = Some(Instant::now());
            let rate = self.done as f64 / self.began.elapsed().as_secs_f64();
            write!(std::io::stderr().lock(), "\r{} {}, {rate:.0} a second ", self.done, self.what).ok();
        }
    }

    /// The line is free for others.
    pub fn end(&mut self) {
        if self.shown.take().is_some() {
            writeln!(std::io::stderr().lock()).ok();
        }
    }
}
