//! What the demo shows: a table redrawn in place on a terminal, lines elsewhere.

use std::io::{IsTerminal, Write};

use super::ask::Tier;
use super::stats::Counts;
use super::topics::Topic;

const HEADER: &str = "region topic      answers/s  duplicates   local    hot   warm    p50 ms   p99 ms  undecided";

/// Prints a line. A reader that went away (`| head`) is no reason to fail: cleaning up comes first.
pub(super) fn say(line: &str) {
    writeln!(std::io::stdout().lock(), "{line}").ok();
}

/// A table that remembers how many lines it drew.
#[derive(Debug)]
pub(super) struct Screen {
    regions: Vec<String>,
    terminal: bool,
    drawn_lines: usize,
}

impl Screen {
    pub(super) fn new(regions: Vec<String>) -> Self {
        Self { regions, terminal: std::io::stdout().is_terminal(), drawn_lines: 0 }
    }

    /// Shows one second.
    pub(super) fn second(&mut self, second: u64, seconds: f64, counts: &[Counts]) {
        let rows = self.rows(seconds, counts);
        if !self.terminal {
            if second == 1 {
                say(&format!("        {HEADER}"));
            }
            return rows.iter().for_each(|row| say(&format!("{second:>4} s  {row}")));
        }
        let up = if self.drawn_lines > 0 { format!("\x1b[{}A", self.drawn_lines) } else { String::new() };
        let title = format!("second {second}; Ctrl-C ends it");
        let lines: Vec<String> = [title, HEADER.into()].into_iter().chain(rows).collect();
        self.drawn_lines = lines.len();
        // One write, each line cleared as it is overwritten: no flicker.
        let text: String = lines.iter().map(|line| format!("\x1b[2K{line}\n")).collect();
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{up}{text}").as_bytes()).and_then(|()| out.flush()).ok();
    }

    /// Shows the whole run.
    pub(super) fn summary(&self, seconds: f64, counts: &[Counts]) {
        say(&format!("\n{HEADER}"));
        self.rows(seconds, counts).iter().for_each(|row| say(row));
    }

    fn rows(&self, seconds: f64, counts: &[Counts]) -> Vec<String> {
        let names = self.regions.iter().flat_map(|region| Topic::ALL.map(|topic| (region, topic)));
        names.zip(counts).map(|((region, topic), counts)| row(region, topic, seconds, counts)).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn row(region: &str, topic: Topic, seconds: f64, counts: &Counts) -> String {
    format!(
        "{region:<6} {:<10} {:>9.0}  {:>9.1}%  {:>5.0}% {:>5.0}% {:>5.0}%  {:>8.2} {:>8.2}  {:>9}",
        topic.name(),
        counts.decisions() as f64 / seconds,
        counts.duplicate_rate() * 100.0,
        counts.tier_share(Tier::Local) * 100.0,
        counts.tier_share(Tier::Hot) * 100.0,
        counts.tier_share(Tier::Warm) * 100.0,
        counts.latency_ms(0.5),
        counts.latency_ms(0.99),
        counts.undecided,
    )
}
