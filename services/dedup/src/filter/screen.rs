//! What the user sees on stderr: the run's id, bad lines, troubles, progress, and what came of it.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the numbers beside the bar change.
const REFRESH: Duration = Duration::from_millis(200);

/// What was printed and what was not, in lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub lines: u64,
    pub first: u64,
    pub duplicates: u64,
    pub bad: u64,
    /// Of all these lines.
    pub text_bytes: u64,
}

/// stderr, with a bar below its lines where somebody watches.
#[derive(Debug)]
pub struct Screen {
    bar: ProgressBar,
    begun: Instant,
    refreshed: Cell<Option<Instant>>,
    /// Whether the service was last heard of not to answer: told once for each outage.
    in_trouble: Cell<bool>,
}

impl Screen {
    /// `input_bytes`: size of the input, where it has one.
    pub fn new(quiet: bool, input_bytes: Option<u64>) -> Self {
        // On a terminal the lines themselves are progress enough, and a bar would run into them.
        let watched = !quiet && std::io::stderr().is_terminal() && !std::io::stdout().is_terminal();
        let target = if watched { ProgressDrawTarget::stderr_with_hz(5) } else { ProgressDrawTarget::hidden() };
        let template = match input_bytes {
            Some(_) => "{bar:30} {percent:>3} %  {msg}, ETA {eta}",
            None => "{spinner} {msg}",
        };
        let bar = ProgressBar::with_draw_target(input_bytes, target);
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, begun: Instant::now(), refreshed: Cell::new(None), in_trouble: Cell::new(false) }
    }

    /// One that nobody watches.
    #[cfg(test)]
    pub fn hidden() -> Self {
        Self::new(true, None)
    }

    /// One line. A stderr that went away is no reason to fail.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| writeln!(std::io::stderr().lock(), "dedup: {line}").ok());
    }

    /// The service does not answer; said once until it does.
    pub fn trouble(&self, why: &str, limit: Duration) {
        if !self.in_trouble.replace(true) {
            self.say(&format!("no answer yet ({why}); asking again for up to {} s", limit.as_secs()));
        }
    }

    /// The service answers (again).
    pub fn answered(&self) {
        if self.in_trouble.replace(false) {
            self.say("answers again");
        }
    }

    /// The bar after some more lines.
    pub fn progress(&self, tally: &Tally) {
        if self.bar.is_hidden() || self.refreshed.get().is_some_and(|at| at.elapsed() < REFRESH) {
            return;
        }
        self.refreshed.set(Some(Instant::now()));
        let percent = tally.duplicates.saturating_mul(100).checked_div(tally.lines).unwrap_or(0);
        self.bar.set_message(format!("{} lines, {} lines/s, {percent} % duplicates", tally.lines, self.rate(tally)));
        self.bar.set_position(tally.text_bytes);
        self.bar.tick();
    }

    /// The last line: what came of it.
    pub fn summary(&self, tally: &Tally) {
        self.bar.finish_and_clear();
        let Tally { lines, first, duplicates, bad, .. } = tally;
        let seconds = self.begun.elapsed().as_secs_f64();
        self.say(&format!(
            "{lines} lines: {first} first, {duplicates} duplicates, {bad} bad; {seconds:.1} s, {} lines/s",
            self.rate(tally)
        ));
    }

    fn rate(&self, tally: &Tally) -> u64 {
        let micros = self.begun.elapsed().as_micros().max(1);
        u64::try_from(u128::from(tally.lines) * 1_000_000 / micros).unwrap_or(u64::MAX)
    }
}
