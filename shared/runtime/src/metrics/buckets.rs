//! Where the buckets of each histogram lie.

use opentelemetry_sdk::metrics::{Instrument, InstrumentKind};

/// Times of answers and round trips, seconds: a quarter of a millisecond to a second.
const LATENCY_SECONDS: [f64; 12] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

/// How old duplicates are, seconds: the bounds are windows users choose from.
const DUPLICATE_AGE_SECONDS: [f64; 16] = [
    1.0,
    10.0,
    60.0,
    5.0 * 60.0,
    15.0 * 60.0,
    HOUR,
    6.0 * HOUR,
    12.0 * HOUR,
    DAY,
    2.0 * DAY,
    3.0 * DAY,
    7.0 * DAY,
    14.0 * DAY,
    30.0 * DAY,
    90.0 * DAY,
    365.0 * DAY,
];

/// Items in a batch: powers of two, as batches are cut at 512.
const BATCH_ITEMS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0];

const HOUR: f64 = 3_600.0;
const DAY: f64 = 24.0 * HOUR;

/// The bounds for `instrument`; `None` = not a histogram, or none we have an opinion on.
pub(super) fn bounds(instrument: &Instrument) -> Option<&'static [f64]> {
    if instrument.kind() != InstrumentKind::Histogram {
        return None;
    }
    let name = instrument.name().replace('.', "_");
    if name.starts_with("dedup_duplicate_age") {
        Some(&DUPLICATE_AGE_SECONDS)
    } else if name == "dedup_batch_size" {
        Some(&BATCH_ITEMS)
    } else if instrument.unit() == "s" || name.ends_with("_seconds") {
        Some(&LATENCY_SECONDS)
    } else {
        None
    }
}
