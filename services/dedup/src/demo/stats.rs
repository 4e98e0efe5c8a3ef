//! What the consumers saw, per serving region and topic: the last second, and the whole run.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

use super::ask::{Tier, Verdict};
use super::topics::Topic;

/// Longest latency told apart, in microseconds.
const LATENCY_US_MAX: u64 = 60_000_000;

/// Answers over some time.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    pub(super) firsts: u64,
    pub(super) duplicates: u64,
    /// A grant repeated for the same request id: no new decision.
    pub(super) replays: u64,
    pub(super) in_progress: u64,
    /// Asked and not told, so far; asked again.
    pub(super) undecided: u64,
    /// Decisions by tier: local, hot, warm, cold.
    pub(super) tiers: [u64; 4],
    /// One entry a request, in microseconds.
    pub(super) latency_us: Histogram<u64>,
}

impl Counts {
    fn new() -> Self {
        Self {
            firsts: 0,
            duplicates: 0,
            replays: 0,
            in_progress: 0,
            undecided: 0,
            tiers: [0; 4],
            latency_us: Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).expect("the bounds are in order"),
        }
    }

    fn decision(&mut self, verdict: &Verdict, tier: Option<Tier>) {
        match verdict {
            Verdict::First { replayed: true, .. } => self.replays += 1,
            Verdict::First { .. } => self.firsts += 1,
            Verdict::Duplicate => self.duplicates += 1,
            Verdict::InProgress { .. } => self.in_progress += 1,
        }
        if let Some(tier) = tier {
            self.tiers[tier as usize] += 1;
        }
    }

    fn add(&mut self, other: &Self) {
        self.firsts += other.firsts;
        self.duplicates += other.duplicates;
        self.replays += other.replays;
        self.in_progress += other.in_progress;
        self.undecided += other.undecided;
        self.tiers.iter_mut().zip(other.tiers).for_each(|(sum, n)| *sum += n);
        self.latency_us.add(&other.latency_us).expect("both have the same bounds");
    }

    /// Answers that decided something.
    pub(super) fn decisions(&self) -> u64 {
        self.firsts + self.duplicates + self.in_progress
    }

    /// duplicate / (first + duplicate).
    pub(super) fn duplicate_rate(&self) -> f64 {
        share(self.duplicates, self.firsts + self.duplicates)
    }

    /// Part of the answers that came from a tier.
    pub(super) fn tier_share(&self, tier: Tier) -> f64 {
        share(self.tiers[tier as usize], self.tiers.iter().sum())
    }

    /// Milliseconds within which this part (0 to 1) of the requests was answered.
    pub(super) fn latency_ms(&self, quantile: f64) -> f64 {
        Duration::from_micros(self.latency_us.value_at_quantile(quantile)).as_secs_f64() * 1_000.0
    }
}

/// Shared books of all consumers.
#[derive(Debug)]
pub(super) struct Stats {
    regions: usize,
    cells: Mutex<Vec<Cell>>,
}

#[derive(Debug)]
struct Cell {
    now: Counts,
    total: Counts,
}

impl Stats {
    pub(super) fn new(regions: usize) -> Self {
        let cells = (0..regions * Topic::ALL.len()).map(|_| Cell { now: Counts::new(), total: Counts::new() });
        Self { regions, cells: Mutex::new(cells.collect()) }
    }

    /// One request's answers.
    pub(super) fn answered<'a>(
        &self,
        region: usize,
        topic: Topic,
        took: Duration,
        answers: impl IntoIterator<Item = (&'a Verdict, Option<Tier>)>,
    ) {
        self.with(region, topic, |now| {
            let us = u64::try_from(took.as_micros()).unwrap_or(LATENCY_US_MAX);
            now.latency_us.saturating_record(us.max(1));
            answers.into_iter().for_each(|(verdict, tier)| now.decision(verdict, tier));
        });
    }

    /// A question without an answer.
    pub(super) fn undecided(&self, region: usize, topic: Topic) {
        self.with(region, topic, |now| now.undecided += 1);
    }

    /// The counts since the last call, by region and topic, in the order of [`Topic::ALL`].
    pub(super) fn turn(&self) -> Vec<Counts> {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells
            .iter_mut()
            .map(|cell| {
                cell.total.add(&cell.now);
                std::mem::replace(&mut cell.now, Counts::new())
            })
            .collect()
    }

    /// The counts of the whole run up to the last [`Stats::turn`].
    pub(super) fn totals(&self) -> Vec<Counts> {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells.iter().map(|cell| cell.total.clone()).collect()
    }

    fn with(&self, region: usize, topic: Topic, change: impl FnOnce(&mut Counts)) {
        debug_assert!(region < self.regions, "regions are numbered as in the testbed");
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut cells[region * Topic::ALL.len() + topic as usize].now);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
