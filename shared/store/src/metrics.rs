//! The store's own instruments; the one file of this crate that spells a metric name.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

/// Instruments of the tiers and homes.
#[derive(Clone)]
pub struct StoreMetrics {
    inner: Arc<Instruments>,
}

struct Instruments {
    roundtrip: Histogram<f64>,
    batch: Histogram<u64>,
    hot_errors: Counter<u64>,
    hot_forged: Counter<u64>,
    hot_dropped: Counter<u64>,
    takeovers: Counter<u64>,
    lease_lost: Counter<u64>,
    unknown: Counter<u64>,
    held: Counter<u64>,
    filter_refused: Counter<u64>,
}

impl StoreMetrics {
    /// Creates them. Counters without labels start at 0.
    pub fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, what: &'static str| meter.u64_counter(name).with_description(what).build();
        let inner = Instruments {
            roundtrip: meter
                .f64_histogram("dedup_home_roundtrip_seconds")
                .with_unit("s")
                .with_description("Time of one call to a home's Postgres")
                .build(),
            batch: meter.u64_histogram("dedup_batch_size").with_description("Keys that shared one call (and one commit) to a home").build(),
            hot_errors: counter("dedup_hot_errors", "Failed or timed-out calls to Redis"),
            hot_forged: counter("dedup_hot_forged", "Values in Redis that this deployment did not write for that key"),
            hot_dropped: counter("dedup_hot_dropped", "Back-fills to Redis dropped because it is down or slow"),
            takeovers: counter("dedup_lease_takeovers", "Lapsed leases that were taken over"),
            lease_lost: counter("dedup_lease_lost", "Completions, releases and extensions by a fence that is not the current one"),
            unknown: counter("dedup_home_unknown_outcomes", "Calls to a home whose outcome is not known"),
            held: counter("dedup_held_keys", "Keys found held by somebody's open transaction"),
            filter_refused: counter("dedup_filter_refused", "Filters of a home that could not be loaded: missing, damaged or another's"),
        };
        for zero in [
            &inner.hot_errors,
            &inner.hot_forged,
            &inner.hot_dropped,
            &inner.takeovers,
            &inner.lease_lost,
            &inner.unknown,
            &inner.held,
            &inner.filter_refused,
        ] {
            zero.add(0, &[]);
        }
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn roundtrip(&self, home: &str, took: Duration, keys: usize) {
        let label = [KeyValue::new("home_region", home.to_owned())];
        self.inner.roundtrip.record(took.as_secs_f64(), &label);
        self.inner.batch.record(keys as u64, &label);
    }

    pub(crate) fn hot_error(&self) {
        self.inner.hot_errors.add(1, &[]);
    }

    pub(crate) fn hot_forged(&self) {
        self.inner.hot_forged.add(1, &[]);
    }

    pub(crate) fn hot_dropped(&self) {
        self.inner.hot_dropped.add(1, &[]);
    }

    pub(crate) fn takeover(&self) {
        self.inner.takeovers.add(1, &[]);
    }

    pub(crate) fn lease_lost(&self) {
        self.inner.lease_lost.add(1, &[]);
    }

    pub(crate) fn unknown(&self) {
        self.inner.unknown.add(1, &[]);
    }

    pub(crate) fn filter_refused(&self) {
        self.inner.filter_refused.add(1, &[]);
    }

    pub(crate) fn held(&self) {
        self.inner.held.add(1, &[]);
    }
}
