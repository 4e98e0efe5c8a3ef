//! The service's own instruments; the one file of this crate that spells a metric name.
//!
//! Decisions are counted in plain atomics and read by the exporter, so that a decision costs an addition. Labels come from closed sets:
//! regions of the table, registered topics, the words of `dedup_core`.

mod gauges;
mod tally;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use dedup_core::{HomeId, HomeTable, Op, Tier, Topic, Verdict};
use dedup_store::Answer;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundHistogram, Histogram, Meter};

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

/// What is counted of one topic and home.
struct Cells {
    labels: [KeyValue; 3],
    counts: [[[AtomicU64; TIERS]; Counted::ALL.len()]; OPS],
    undecided: [[AtomicU64; UNDECIDED.len()]; OPS],
}

/// What is counted of one topic.
struct TopicCells {
    homes: Vec<Cells>,
    /// Bound to its labels: a duplicate's age is recorded per key.
    age: BoundHistogram<f64>,
}

/// Counters of decisions per topic and home.
pub struct Decisions {
    region: String,
    homes: Arc<HomeTable>,
    topics_max: usize,
    cells: RwLock<HashMap<Topic, Arc<TopicCells>>>,
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
            .u64_observable_counter("dedup_decisions")
            .with_description("Decided questions, each batch item once")
            .with_callback(move |observer| counted.each(|cells| cells.observe(|value, labels| observer.observe(value, labels))))
            .build();
        let counted = Arc::clone(&this);
        meter
            .u64_observable_counter("dedup_undecided")
            .with_description("Questions that could not be decided (503), each batch item once")
            .with_callback(move |observer| counted.each(|cells| cells.observe_undecided(|value, labels| observer.observe(value, labels))))
            .build();
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

    fn each(&self, mut see: impl FnMut(&Cells)) {
        let all: Vec<Arc<TopicCells>> = self.cells.read().expect("no panic while held").values().cloned().collect();
        all.iter().flat_map(|topic| &topic.homes).for_each(&mut see);
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
        let new = || Arc::new(TopicCells::new(&self.region, &self.homes, topic, &self.age));
        Arc::clone(all.entry(topic.clone()).or_insert_with(new))
    }

    /// Makes a topic's counters exist.
    pub fn know(&self, topic: &Topic) {
        self.cells(topic);
    }

    /// Counts decided items.
    pub fn count(&self, topic: &Topic, home: HomeId, op: Op, counted: Counted, tier: Tier) {
        let cells = self.cells(topic);
        cells.homes[usize::from(home.0)].counts[op as usize][counted.index()][tier as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the items of one request.
    pub fn count_answers<'a>(&self, topic: &Topic, op: Op, answers: impl Iterator<Item = (HomeId, &'a Answer)>) {
        let cells = self.cells(topic);
        for (home, answer) in answers {
            cells.homes[usize::from(home.0)].counts[op as usize][Counted::of(answer).index()][answer.tier as usize]
                .fetch_add(1, Ordering::Relaxed);
            if answer.verdict == Verdict::Duplicate {
                let age = (answer.at_ms - answer.record.first_seen_ms).max(0);
                cells.age.record(age as f64 / 1000.0);
            }
        }
    }

    /// Counts an item that could not be decided. A topic that is not known (any more) is counted under the shared label.
    pub fn count_undecided(&self, topic: &Topic, home: HomeId, op: Op, code: Code) {
        let known = self.cells.read().expect("no panic while held").contains_key(topic);
        let cells = if known { self.cells(topic) } else { self.cells(&other()) };
        // How a caller without the right to know is told the same.
        let code = if code == Code::TopicNotPermitted { Code::TopicNotFound } else { code };
        if let Some(at) = UNDECIDED.iter().position(|c| *c == code) {
            cells.homes[usize::from(home.0)].undecided[op as usize][at].fetch_add(1, Ordering::Relaxed);
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

/// The label that topics share which have none of their own.
fn other() -> Topic {
    Topic::parse("other").expect("a valid name")
}

impl TopicCells {
    fn new(region: &str, homes: &HomeTable, topic: &Topic, age: &Histogram<f64>) -> Self {
        let age = age.bind(&[KeyValue::new("region", region.to_owned()), KeyValue::new("topic", topic.to_string())]);
        Self { homes: homes.iter().map(|(_, home)| Cells::new(region, &home.name, topic)).collect(), age }
    }
}

impl Cells {
    fn new(region: &str, home: &str, topic: &Topic) -> Self {
        let labels = [
            KeyValue::new("region", Arc::<str>::from(region)),
            KeyValue::new("home_region", Arc::<str>::from(home)),
            KeyValue::new("topic", Arc::<str>::from(topic.as_str())),
        ];
        Self { labels, counts: Default::default(), undecided: Default::default() }
    }

    /// Pairs that can occur: at 0 from the start for checks and claims, for the ends of claims where there was one.
    fn observe(&self, mut observe: impl FnMut(u64, &[KeyValue])) {
        let [region, home, topic] = &self.labels;
        for op in Op::ALL {
            let shown = matches!(op, Op::Check | Op::Claim) || self.is_used(*op);
            for counted in Counted::ALL {
                for tier in Tier::ALL {
                    let value = self.counts[*op as usize][counted.index()][*tier as usize].load(Ordering::Relaxed);
                    if value > 0 || (shown && counted.can_occur(*op, *tier)) {
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

    /// Whether anything of the operation was counted here.
    fn is_used(&self, op: Op) -> bool {
        let counted = |n: &AtomicU64| n.load(Ordering::Relaxed) > 0;
        self.counts[op as usize].iter().flatten().any(counted) || self.undecided[op as usize].iter().any(counted)
    }

    /// At 0 where the operation is used.
    fn observe_undecided(&self, mut observe: impl FnMut(u64, &[KeyValue])) {
        let [region, home, topic] = &self.labels;
        for op in Op::ALL {
            let used = self.is_used(*op);
            for (at, code) in UNDECIDED.iter().enumerate() {
                let value = self.undecided[*op as usize][at].load(Ordering::Relaxed);
                if value > 0 || (used && *code != Code::TopicNotFound) {
                    let [op, code] = [KeyValue::new("op", op.as_str()), KeyValue::new("code", code.as_str())];
                    observe(value, &[region.clone(), home.clone(), topic.clone(), op, code]);
                }
            }
        }
    }
}
