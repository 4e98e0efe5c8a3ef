//! The service's own instruments; the one file of this crate that spells a metric name.
//!
//! Decisions are counted in plain atomics and read by the exporter, so that a decision costs an addition. Labels come from closed sets:
//! regions of the table, registered topics, the words of `dedup_core`.

mod tally;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use dedup_core::{HomeId, HomeTable, Op, Tier, Topic, Verdict};
use dedup_store::{Answer, Homes, HotTier, LocalTier};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};

use crate::problem::Code;

/// What a decision is counted as: a verdict, or `replayed` for an answer repeated to its own request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    Verdict(Verdict),
    Replayed,
    /// A completion, release or extension that took effect.
    Applied,
    AlreadyCompleted,
    LeaseLost,
}

impl Counted {
    const ALL: [Self; 8] = [
        Self::Verdict(Verdict::First),
        Self::Verdict(Verdict::Duplicate),
        Self::Verdict(Verdict::InProgress),
        Self::Verdict(Verdict::Mismatch),
        Self::Replayed,
        Self::Applied,
        Self::AlreadyCompleted,
        Self::LeaseLost,
    ];

    fn index(self) -> usize {
        Self::ALL.iter().position(|c| *c == self).unwrap_or_default()
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Verdict(v) => v.as_str(),
            Self::Replayed => "replayed",
            Self::Applied => "applied",
            Self::AlreadyCompleted => "already_completed",
            Self::LeaseLost => "lease_lost",
        }
    }

    /// Which pairs can occur, so exist at 0 from the start.
    fn can_occur(self, op: Op, tier: Tier) -> bool {
        let question = matches!(op, Op::Check | Op::Claim);
        match self {
            Self::Verdict(Verdict::First) => question && tier == Tier::Warm,
            Self::Verdict(Verdict::InProgress) => question && tier == Tier::Warm,
            Self::Verdict(Verdict::Duplicate) => question,
            // The archive keeps no fingerprints.
            Self::Verdict(Verdict::Mismatch) => question && tier != Tier::Cold,
            Self::Replayed => tier == Tier::Warm || (op == Op::Check && tier != Tier::Cold),
            Self::Applied | Self::LeaseLost => !question && tier == Tier::Warm,
            Self::AlreadyCompleted => op == Op::Complete && tier == Tier::Warm,
        }
    }

    /// What an answer counts as.
    pub fn of(answer: &Answer) -> Self {
        if answer.replayed { Self::Replayed } else { Self::Verdict(answer.verdict) }
    }
}

const OPS: usize = Op::ALL.len();
const TIERS: usize = Tier::ALL.len();

struct Cells {
    labels: [KeyValue; 3],
    counts: [[[AtomicU64; TIERS]; Counted::ALL.len()]; OPS],
}

type Undecided = HashMap<(HomeId, Box<str>, Op, Code), u64>;

/// Counters of decisions per topic and home.
pub struct Decisions {
    region: String,
    homes: Arc<HomeTable>,
    topics_max: usize,
    cells: RwLock<HashMap<Topic, Arc<Vec<Cells>>>>,
    undecided: Mutex<Undecided>,
    duration: Histogram<f64>,
    age: Histogram<f64>,
}

impl Decisions {
    /// Creates and registers them.
    pub fn start(meter: &Meter, region: &str, homes: Arc<HomeTable>, topics_max: usize) -> Arc<Self> {
        let this = Arc::new(Self {
            region: region.to_owned(),
            homes,
            topics_max,
            cells: RwLock::default(),
            undecided: Mutex::default(),
            duration: meter
                .f64_histogram("dedup_decision_duration_seconds")
                .with_unit("s")
                .with_description("Time to answer a request, by operation and by the deepest tier it needed")
                .build(),
            age: meter
                .f64_histogram("dedup_duplicate_age_seconds")
                .with_unit("s")
                .with_description("How long after the first a duplicate came: the window that was needed to catch it")
                .build(),
        });
        let counted = Arc::clone(&this);
        meter
            .u64_observable_counter("dedup_decisions")
            .with_description("Decided questions, each batch item once")
            .with_callback(move |observer| {
                for cells in counted.cells.read().expect("no panic while held").values() {
                    for cell in cells.iter() {
                        cell.observe(|value, labels| observer.observe(value, labels));
                    }
                }
            })
            .build();
        let counted = Arc::clone(&this);
        meter
            .u64_observable_counter("dedup_undecided")
            .with_description("Questions that could not be decided (503), each batch item once")
            .with_callback(move |observer| {
                for ((home, topic, op, code), n) in counted.undecided.lock().expect("no panic while held").iter() {
                    observer.observe(
                        *n,
                        &[
                            KeyValue::new("region", counted.region.clone()),
                            KeyValue::new("home_region", counted.homes.get(*home).name.clone()),
                            KeyValue::new("topic", topic.to_string()),
                            KeyValue::new("op", op.as_str()),
                            KeyValue::new("code", code.as_str()),
                        ],
                    );
                }
            })
            .build();
        this
    }

    /// The counters of a topic, at 0 if new. Only topics that exist get here; beyond `topics_max` they share the label `other`.
    fn cells(&self, topic: &Topic) -> Arc<Vec<Cells>> {
        if let Some(cells) = self.cells.read().expect("no panic while held").get(topic) {
            return Arc::clone(cells);
        }
        let mut all = self.cells.write().expect("no panic while held");
        let other = Topic::parse("other").expect("a valid name");
        let topic = if all.len() >= self.topics_max && !all.contains_key(topic) { &other } else { topic };
        let new = || Arc::new(self.homes.iter().map(|(_, home)| Cells::new(&self.region, &home.name, topic)).collect());
        Arc::clone(all.entry(topic.clone()).or_insert_with(new))
    }

    /// Makes a topic's counters exist.
    pub fn know(&self, topic: &Topic) {
        self.cells(topic);
    }

    /// Counts decided items.
    pub fn count(&self, topic: &Topic, home: HomeId, op: Op, counted: Counted, tier: Tier) {
        let cells = self.cells(topic);
        cells[usize::from(home.0)].counts[op as usize][counted.index()][tier as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the items of one request.
    pub fn count_answers<'a>(&self, topic: &Topic, op: Op, answers: impl Iterator<Item = (HomeId, &'a Answer)>) {
        let cells = self.cells(topic);
        for (home, answer) in answers {
            cells[usize::from(home.0)].counts[op as usize][Counted::of(answer).index()][answer.tier as usize]
                .fetch_add(1, Ordering::Relaxed);
            if answer.verdict == Verdict::Duplicate {
                let age = (answer.at_ms - answer.record.first_seen_ms).max(0);
                self.age.record(age as f64 / 1000.0, std::slice::from_ref(&cells[0].labels[2]));
            }
        }
    }

    /// Counts an item that could not be decided.
    pub fn count_undecided(&self, topic: &Topic, home: HomeId, op: Op, code: Code) {
        let known = self.cells.read().expect("no panic while held").contains_key(topic);
        let name = if known { topic.as_str() } else { "other" };
        *self.undecided.lock().expect("no panic while held").entry((home, name.into(), op, code)).or_default() += 1;
    }

    /// Records how long a request took.
    pub fn took(&self, op: Op, deepest: Tier, took: Duration) {
        self.duration.record(took.as_secs_f64(), &[KeyValue::new("op", op.as_str()), KeyValue::new("tier", deepest.as_str())]);
    }
}

impl Cells {
    fn new(region: &str, home: &str, topic: &Topic) -> Self {
        let labels = [
            KeyValue::new("region", region.to_owned()),
            KeyValue::new("home_region", home.to_owned()),
            // Shared text: cloned at each duplicate.
            KeyValue::new("topic", Arc::<str>::from(topic.as_str())),
        ];
        Self { labels, counts: Default::default() }
    }

    fn observe(&self, mut observe: impl FnMut(u64, &[KeyValue])) {
        let [region, home, topic] = &self.labels;
        for op in Op::ALL {
            for counted in Counted::ALL {
                for tier in Tier::ALL {
                    let value = self.counts[*op as usize][counted.index()][*tier as usize].load(Ordering::Relaxed);
                    if value > 0 || counted.can_occur(*op, *tier) {
                        observe(
                            value,
                            &[
                                region.clone(),
                                home.clone(),
                                topic.clone(),
                                KeyValue::new("op", op.as_str()),
                                KeyValue::new("verdict", counted.as_str()),
                                KeyValue::new("tier", tier.as_str()),
                            ],
                        );
                    }
                }
            }
        }
    }
}

/// Gauges of the tiers and homes.
pub fn watch_tiers(meter: &Meter, homes: Homes, local: LocalTier, hot: Option<HotTier>) {
    let up = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
        for home in homes.health() {
            observer.observe(u64::from(home.up), &[KeyValue::new("tier", "warm"), KeyValue::new("home_region", home.name)]);
        }
        if let Some(hot) = &hot {
            observer.observe(u64::from(hot.health().up), &[KeyValue::new("tier", "hot"), KeyValue::new("home_region", "")]);
        }
    };
    meter.u64_observable_gauge("dedup_tier_up").with_description("1 while the tier answers").with_callback(up).build();
    let entries = local.clone();
    let entries = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
        if let Some(health) = entries.health() {
            observer.observe(health.entries, &[]);
        }
    };
    meter.u64_observable_gauge("dedup_local_entries").with_description("Records in the local tier").with_callback(entries).build();
    let bytes = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
        if let Some(health) = local.health() {
            observer.observe(health.bytes, &[]);
        }
    };
    meter
        .u64_observable_gauge("dedup_local_size_bytes")
        .with_unit("By")
        .with_description("Bytes in the local tier, about")
        .with_callback(bytes)
        .build();
}
