//! The service's own instruments; the one file of this crate that spells a metric name.
//!
//! Counters of decisions are bound to their labels once, so that a run of equal decisions costs two additions and a scrape looks no label up.
//! Labels come from closed sets: regions of the table, registered topics, the words of `dedup_core`.

mod gauges;
mod tally;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use dedup_core::{HomeId, HomeTable, Op, Tier, Topic, Verdict};
use dedup_store::Answer;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Counter, Histogram, Meter};

pub use gauges::{Sources, watch_tiers};

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
/// Problems that mean "not decided", in the order of their cells.
const UNDECIDED: [Code; 6] = [
    Code::Overloaded,
    Code::KeyBusy,
    Code::HomeUnavailable,
    Code::StoreUnavailable,
    Code::ClaimOutcomeUnknown,
    // A home that has not got the topic yet.
    Code::TopicNotFound,
];
/// Statuses of answers are counted from 100 to 599.
const STATUSES: usize = 500;

/// One series: its sum, which statistics read, and its counter, once it can occur or did.
#[derive(Default)]
struct Count {
    total: AtomicU64,
    series: OnceLock<BoundCounter<u64>>,
}

/// What is counted of one operation, topic and home.
#[derive(Default)]
struct OpCells {
    decided: [[Count; TIERS]; Counted::ALL.len()],
    undecided: [Count; UNDECIDED.len()],
}

/// What is counted of one topic and home.
struct Cells {
    region: Arc<str>,
    home: Arc<str>,
    topic: Arc<str>,
    ops: [OpCells; OPS],
}

/// What is counted of one topic.
struct TopicCells {
    homes: Vec<Cells>,
    /// Bound to its labels: a duplicate's age is recorded per key.
    age: BoundHistogram<f64>,
}

/// What the cells are bound to.
struct Counters {
    decided: Counter<u64>,
    undecided: Counter<u64>,
}

/// Counters of decisions per topic and home.
pub struct Decisions {
    region: String,
    homes: Arc<HomeTable>,
    topics_max: usize,
    cells: RwLock<HashMap<Topic, Arc<TopicCells>>>,
    counters: Counters,
    /// By operation and tier.
    durations: Vec<BoundHistogram<f64>>,
    age: Histogram<f64>,
    statuses: Box<[AtomicU64]>,
}

impl Decisions {
    /// Creates and registers them.
    pub fn start(meter: &Meter, region: &str, homes: Arc<HomeTable>, topics_max: usize) -> Arc<Self> {
        let duration = meter
            .f64_histogram("dedup_decision_duration_seconds")
            .with_unit("s")
            .with_description("Time to answer a request, by operation and by the deepest tier it needed")
            .build();
        let by_tier = |op: &Op| {
            let bind = |tier: &Tier| {
                let labels =
                    [KeyValue::new("region", region.to_owned()), KeyValue::new("op", op.as_str()), KeyValue::new("tier", tier.as_str())];
                duration.bind(&labels)
            };
            Tier::ALL.iter().map(bind).collect::<Vec<_>>()
        };
        let this = Arc::new(Self {
            region: region.to_owned(),
            homes,
            topics_max,
            cells: RwLock::default(),
            counters: Counters {
                decided: meter.u64_counter("dedup_decisions").with_description("Decided questions, each batch item once").build(),
                undecided: meter
                    .u64_counter("dedup_undecided")
                    .with_description("Questions that could not be decided (503), each batch item once")
                    .build(),
            },
            durations: Op::ALL.iter().flat_map(by_tier).collect(),
            age: meter
                .f64_histogram("dedup_duplicate_age_seconds")
                .with_unit("s")
                .with_description("How long after the first a duplicate came: the window that was needed to catch it")
                .build(),
            statuses: (0..STATUSES).map(|_| AtomicU64::new(0)).collect(),
        });
        // The label that topics beyond the limit, and ones that have gone, share.
        this.cells(&other());
        let counted = Arc::clone(&this);
        meter
            .u64_observable_counter("dedup_http_responses")
            .with_description("Answers below /v1 by HTTP status")
            .with_callback(move |observer| {
                for (status, count) in (100_i64..).zip(counted.statuses.iter()) {
                    let count = count.load(Ordering::Relaxed);
                    if count > 0 || [200, 503].contains(&status) {
                        observer.observe(count, &[KeyValue::new("region", counted.region.clone()), KeyValue::new("status", status)]);
                    }
                }
            })
            .build();
        let counted = Arc::clone(&this);
        meter
            .u64_observable_gauge("dedup_topics")
            .with_description("Topics with a label of their own; the limit is the setting topics_max")
            .with_callback(move |observer| {
                // Without the shared one.
                let topics = counted.cells.read().expect("no panic while held").len().saturating_sub(1);
                observer.observe(topics as u64, &[KeyValue::new("region", counted.region.clone())]);
            })
            .build();
        let limit = Arc::clone(&this);
        meter
            .u64_observable_gauge("dedup_topics_max")
            .with_description("Topics that may have a label of their own")
            .with_callback(move |observer| observer.observe(limit.topics_max as u64, &[KeyValue::new("region", limit.region.clone())]))
            .build();
        this
    }

    /// The counters of a topic, at 0 if new. Only topics that exist get here; beyond `topics_max` they share the label `other`.
    fn cells(&self, topic: &Topic) -> Arc<TopicCells> {
        if let Some(cells) = self.cells.read().expect("no panic while held").get(topic) {
            return Arc::clone(cells);
        }
        let mut all = self.cells.write().expect("no panic while held");
        let other = other();
        // One place is the shared label's own.
        let topic = if all.len() > self.topics_max && !all.contains_key(topic) { &other } else { topic };
        let new = || Arc::new(TopicCells::new(self, topic));
        Arc::clone(all.entry(topic.clone()).or_insert_with(new))
    }

    /// Makes a topic's counters exist.
    pub fn know(&self, topic: &Topic) {
        self.cells(topic);
    }

    /// Counts one decided item.
    pub fn count(&self, topic: &Topic, home: HomeId, op: Op, counted: Counted, tier: Tier) {
        self.cells(topic).homes[usize::from(home.0)].count(&self.counters, op, counted, tier, 1);
    }

    /// Counts the items of one request.
    pub fn count_answers<'a>(&self, topic: &Topic, op: Op, answers: impl Iterator<Item = (HomeId, &'a Answer)>) {
        let cells = self.cells(topic);
        let add = |(home, counted, tier): (HomeId, Counted, Tier), n| {
            cells.homes[usize::from(home.0)].count(&self.counters, op, counted, tier, n);
        };
        // Neighbours are mostly alike: a run of them is one addition.
        let mut run: Option<((HomeId, Counted, Tier), u64)> = None;
        for (home, answer) in answers {
            let of = (home, Counted::of(answer), answer.tier);
            match &mut run {
                Some((same, n)) if *same == of => *n += 1,
                _ => {
                    if let Some((of, n)) = run.replace((of, 1)) {
                        add(of, n);
                    }
                }
            }
            if answer.verdict == Verdict::Duplicate {
                let age = (answer.at_ms - answer.record.first_seen_ms).max(0);
                cells.age.record(age as f64 / 1000.0);
            }
        }
        if let Some((of, n)) = run {
            add(of, n);
        }
    }

    /// Counts an item that could not be decided. A topic that is not known (any more) is counted under the shared label.
    pub fn count_undecided(&self, topic: &Topic, home: HomeId, op: Op, code: Code) {
        let known = self.cells.read().expect("no panic while held").contains_key(topic);
        let cells = if known { self.cells(topic) } else { self.cells(&other()) };
        // How a caller without the right to know is told the same.
        let code = if code == Code::TopicNotPermitted { Code::TopicNotFound } else { code };
        if let Some(at) = UNDECIDED.iter().position(|c| *c == code) {
            cells.homes[usize::from(home.0)].count_undecided(&self.counters, op, at, 1);
        }
    }

    /// Records how long a request took.
    pub fn took(&self, op: Op, deepest: Tier, took: Duration) {
        self.durations[op as usize * TIERS + deepest as usize].record(took.as_secs_f64());
    }

    /// Counts an answer by its status.
    pub fn responded(&self, status: u16) {
        if let Some(count) = self.statuses.get(usize::from(status).wrapping_sub(100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The label that topics share which have none of their own: no topic may be called so.
pub const OTHER_TOPICS: &str = "other";

fn other() -> Topic {
    Topic::parse(OTHER_TOPICS).expect("a valid name")
}

impl TopicCells {
    fn new(decisions: &Decisions, topic: &Topic) -> Self {
        let region = &decisions.region;
        let age = decisions.age.bind(&[KeyValue::new("region", region.clone()), KeyValue::new("topic", topic.to_string())]);
        let homes = decisions.homes.iter().map(|(_, home)| Cells::new(&decisions.counters, region, &home.name, topic)).collect();
        Self { homes, age }
    }
}

impl Cells {
    /// Decisions that can occur, and questions that cannot be decided, exist at 0 from the start: a rate misses nothing of what comes first.
    fn new(counters: &Counters, region: &str, home: &str, topic: &Topic) -> Self {
        let cells = Self { region: region.into(), home: home.into(), topic: topic.as_str().into(), ops: Default::default() };
        for op in Op::ALL {
            for counted in Counted::ALL {
                for tier in Tier::ALL.iter().filter(|tier| counted.can_occur(*op, **tier)) {
                    cells.count(counters, *op, counted, *tier, 0);
                }
            }
            // Two megabytes are enough for a scrape: alerts are about questions.
            let question = matches!(op, Op::Check | Op::Claim);
            for at in (0..UNDECIDED.len()).filter(|at| question && UNDECIDED[*at] != Code::TopicNotFound) {
                cells.count_undecided(counters, *op, at, 0);
            }
        }
        cells
    }

    fn count(&self, counters: &Counters, op: Op, counted: Counted, tier: Tier, n: u64) {
        self.ops[op as usize].decided[counted.index()][tier as usize].add(n, || self.decided(counters, op, counted, tier));
    }

    fn count_undecided(&self, counters: &Counters, op: Op, at: usize, n: u64) {
        self.ops[op as usize].undecided[at].add(n, || self.undecided(counters, op, at));
    }

    fn decided(&self, counters: &Counters, op: Op, counted: Counted, tier: Tier) -> BoundCounter<u64> {
        let [home, region, topic] = self.labels();
        let [op, tier] = [KeyValue::new("op", op.as_str()), KeyValue::new("tier", tier.as_str())];
        counters.decided.bind(&[home, op, region, tier, topic, KeyValue::new("verdict", counted.as_str())])
    }

    fn undecided(&self, counters: &Counters, op: Op, at: usize) -> BoundCounter<u64> {
        let [home, region, topic] = self.labels();
        counters.undecided.bind(&[KeyValue::new("code", UNDECIDED[at].as_str()), home, KeyValue::new("op", op.as_str()), region, topic])
    }

    /// Labels are given in their order: the SDK keeps a second copy of what comes in another.
    fn labels(&self) -> [KeyValue; 3] {
        let label = |name, value: &Arc<str>| KeyValue::new(name, Arc::clone(value));
        [label("home_region", &self.home), label("region", &self.region), label("topic", &self.topic)]
    }
}

impl Count {
    fn add(&self, n: u64, bind: impl FnOnce() -> BoundCounter<u64>) {
        self.total.fetch_add(n, Ordering::Relaxed);
        self.series.get_or_init(bind).add(n);
    }

    fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}
