//! The one view over all instruments: their names, how many series they may have, their buckets.

use opentelemetry_sdk::metrics::{Aggregation, Instrument, InstrumentKind, Stream};

use super::buckets;

/// `None` (a stream the SDK would not accept) falls back to the SDK's defaults.
pub(super) fn stream(instrument: &Instrument, series_max: usize) -> Option<Stream> {
    // The SDK's default of 2,000 series is less than one busy topic table needs.
    let mut stream = Stream::builder().with_name(bare_name(instrument).to_owned()).with_cardinality_limit(series_max);
    if let Some(bounds) = buckets::bounds(instrument) {
        // Minimum and maximum over the life of a process tell nothing, and the text format has no place for them.
        stream = stream.with_aggregation(Aggregation::ExplicitBucketHistogram { boundaries: bounds.to_vec(), record_min_max: false });
    }
    stream.build().ok()
}

/// The name without what the exporter adds: `_total` on counters, then the unit's suffix.
fn bare_name(instrument: &Instrument) -> &str {
    let name = instrument.name();
    let counter = matches!(instrument.kind(), InstrumentKind::Counter | InstrumentKind::ObservableCounter);
    let name = if counter { without(name, "total") } else { name };
    match instrument.unit() {
        "s" => without(name, "seconds"),
        "By" => without(name, "bytes"),
        "1" => without(name, "ratio"),
        _ => name,
    }
}

fn without<'a>(name: &'a str, suffix: &str) -> &'a str {
    name.strip_suffix(suffix).and_then(|rest| rest.strip_suffix(['_', '.'])).unwrap_or(name)
}
