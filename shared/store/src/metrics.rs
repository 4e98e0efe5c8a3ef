//! The store's own instruments; the one file of this crate that spells a metric name.

use std::sync::Arc;
use std::time::Duration;

use dedup_core::{HomeTable, Tier};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Meter};

/// Instruments of the tiers and homes.
#[derive(Clone)]
pub struct StoreMetrics {
    inner: Arc<Instruments>,
}

struct Instruments {
    homes: Vec<HomeInstruments>,
    hot_errors: BoundCounter<u64>,
    hot_forged: BoundCounter<u64>,
    hot_dropped: BoundCounter<u64>,
    takeovers: BoundCounter<u64>,
    lease_lost: BoundCounter<u64>,
    filter_refused: BoundCounter<u64>,
}

/// What is told apart by home. Bound to their labels once: looking labels up at each call would cost more than the count.
struct HomeInstruments {
    name: String,
    roundtrip: BoundHistogram<f64>,
    wait: BoundHistogram<f64>,
    batch: BoundHistogram<u64>,
    errors: BoundCounter<u64>,
    unknown: BoundCounter<u64>,
    held: BoundCounter<u64>,
    filter_tests: BoundCounter<u64>,
    filter_wrong: BoundCounter<u64>,
}

impl StoreMetrics {
    /// Creates them, counters at 0. `region`: the one this process serves.
    pub fn new(meter: &Meter, region: &str, homes: &HomeTable) -> Self {
        let region = KeyValue::new("region", region.to_owned());
        let counter = |name: &'static str, what: &'static str| meter.u64_counter(name).with_description(what).build();
        let bound = |name, what| {
            let bound = counter(name, what).bind(std::slice::from_ref(&region));
            bound.add(0);
            bound
        };
        let errors = counter("dedup_tier_errors", "Failed or timed-out calls to Redis (hot) and to a home (warm)");
        let unknown = counter("dedup_home_unknown_outcomes", "Questions whose call to a home may or may not have been applied");
        let held = counter("dedup_held_keys", "Keys found held by somebody's open transaction");
        let filter_tests = counter("dedup_filter_tests", "Filters asked about a key that turned out to be new");
        let filter_wrong = counter("dedup_filter_false_positives", "Filters that did not exclude a key that turned out to be new");
        let seconds = |name: &'static str, what: &'static str| meter.f64_histogram(name).with_unit("s").with_description(what).build();
        let roundtrip = seconds("dedup_home_roundtrip_seconds", "Time of one call to a home's Postgres");
        let wait = seconds("dedup_pool_wait_seconds", "How long the oldest question of a call waited for its turn");
        let batch =
            meter.u64_histogram("dedup_batch_size").with_description("Keys that shared one call (and one commit) to a home").build();
        let home = |name: &str| {
            let labels = [region.clone(), KeyValue::new("home_region", name.to_owned())];
            let [r, h] = labels.clone();
            let one = HomeInstruments {
                name: name.to_owned(),
                roundtrip: roundtrip.bind(&labels),
                wait: wait.bind(&labels),
                batch: batch.bind(&labels),
                errors: errors.bind(&[r, KeyValue::new("tier", Tier::Warm.as_str()), h]),
                unknown: unknown.bind(&labels),
                held: held.bind(&labels),
                filter_tests: filter_tests.bind(&labels),
                filter_wrong: filter_wrong.bind(&labels),
            };
            [&one.errors, &one.unknown, &one.held, &one.filter_tests, &one.filter_wrong].iter().for_each(|zero| zero.add(0));
            one
        };
        let hot = [region.clone(), KeyValue::new("tier", Tier::Hot.as_str()), KeyValue::new("home_region", "")];
        let hot_errors = errors.bind(&hot);
        hot_errors.add(0);
        let inner = Instruments {
            homes: homes.iter().map(|(_, spec)| home(&spec.name)).collect(),
            hot_errors,
            hot_forged: bound("dedup_hot_forged", "Values in Redis that this deployment did not write for that key"),
            hot_dropped: bound("dedup_hot_dropped", "Back-fills to Redis dropped because it is down or slow"),
            takeovers: bound("dedup_lease_takeovers", "Lapsed leases that were taken over"),
            lease_lost: bound("dedup_lease_lost", "Completions, releases and extensions by a fence that is not the current one"),
            filter_refused: bound("dedup_filter_refused", "Filters of a home that could not be loaded: missing, damaged or another's"),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A deployment has few homes: looking through their names is cheaper than a map.
    fn with_home(&self, home: &str, what: impl FnOnce(&HomeInstruments)) {
        if let Some(found) = self.inner.homes.iter().find(|h| h.name == home) {
            what(found);
        }
    }

    pub(crate) fn roundtrip(&self, home: &str, took: Duration, keys: usize) {
        self.with_home(home, |h| {
            h.roundtrip.record(took.as_secs_f64());
            h.batch.record(keys as u64);
        });
    }

    pub(crate) fn waited(&self, home: &str, oldest: Duration) {
        self.with_home(home, |h| h.wait.record(oldest.as_secs_f64()));
    }

    pub(crate) fn filters(&self, home: &str, (tests, wrong): (u64, u64)) {
        if tests > 0 {
            self.with_home(home, |h| {
                h.filter_tests.add(tests);
                h.filter_wrong.add(wrong);
            });
        }
    }

    pub(crate) fn home_error(&self, home: &str) {
        self.with_home(home, |h| h.errors.add(1));
    }

    pub(crate) fn unknown(&self, home: &str) {
        self.with_home(home, |h| h.unknown.add(1));
    }

    pub(crate) fn held(&self, home: &str) {
        self.with_home(home, |h| h.held.add(1));
    }

    pub(crate) fn hot_error(&self) {
        self.inner.hot_errors.add(1);
    }

    pub(crate) fn hot_forged(&self) {
        self.inner.hot_forged.add(1);
    }

    pub(crate) fn hot_dropped(&self) {
        self.inner.hot_dropped.add(1);
    }

    pub(crate) fn takeover(&self) {
        self.inner.takeovers.add(1);
    }

    pub(crate) fn lease_lost(&self) {
        self.inner.lease_lost.add(1);
    }

    pub(crate) fn filter_refused(&self) {
        self.inner.filter_refused.add(1);
    }
}
