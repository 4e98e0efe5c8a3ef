//! Gauges of the tiers and homes: read when somebody scrapes, from what is in memory.

use dedup_store::{Figures, HomeFigures, Homes, HotTier, LocalTier};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};

/// What the gauges read.
#[derive(Clone)]
pub struct Sources {
    pub region: String,
    pub homes: Homes,
    pub local: LocalTier,
    pub hot: Option<HotTier>,
    pub figures: Figures,
    /// Memory for filters, bytes (a setting).
    pub filter_bytes_max: u64,
}

type Observer<'a> = &'a dyn AsyncInstrument<u64>;

impl Sources {
    fn region(&self) -> KeyValue {
        KeyValue::new("region", self.region.clone())
    }

    fn of_tier(&self, tier: &'static str, home: &str) -> [KeyValue; 3] {
        [self.region(), KeyValue::new("tier", tier), KeyValue::new("home_region", home.to_owned())]
    }

    fn of_home(&self, home: &str) -> [KeyValue; 2] {
        [self.region(), KeyValue::new("home_region", home.to_owned())]
    }

    fn each_home(&self, mut see: impl FnMut(&HomeFigures, [KeyValue; 2])) {
        for (name, figures) in self.figures.homes() {
            see(&figures, self.of_home(&name));
        }
    }

    fn each_segment_state(&self, observer: Observer<'_>, value: impl Fn(&dedup_store::SegmentFigures) -> i64) {
        self.each_home(|figures, [region, home]| {
            for state in &figures.segments {
                observer.observe(whole(value(state)), &[region.clone(), home.clone(), KeyValue::new("state", state.state.clone())]);
            }
        });
    }
}

fn whole(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "ages in milliseconds are far below 2^53")]
fn seconds(ms: i64) -> f64 {
    ms.max(0) as f64 / 1000.0
}

/// Registers them.
pub fn watch_tiers(meter: &Meter, sources: &Sources) {
    tiers(meter, sources);
    homes(meter, sources);
}

fn gauge(
    meter: &Meter,
    sources: &Sources,
    (name, unit, what): (&'static str, &'static str, &'static str),
    see: impl Fn(&Sources, Observer<'_>) + Send + Sync + 'static,
) {
    let sources = sources.clone();
    let built = meter.u64_observable_gauge(name).with_description(what).with_callback(move |observer| see(&sources, observer));
    if unit.is_empty() {
        built.build()
    } else {
        built.with_unit(unit).build()
    };
}

fn tiers(meter: &Meter, sources: &Sources) {
    gauge(meter, sources, ("dedup_tier_up", "", "1 while the tier answers"), |s, observer| {
        for home in s.homes.health() {
            observer.observe(u64::from(home.up), &s.of_tier("warm", &home.name));
        }
        if let Some(hot) = &s.hot {
            observer.observe(u64::from(hot.health().up), &s.of_tier("hot", ""));
        }
        if s.local.health().is_some() {
            observer.observe(1, &s.of_tier("local", ""));
        }
    });
    let what = "Records in the local tier, about; keys in Redis' database, others' included";
    gauge(meter, sources, ("dedup_tier_entries", "", what), |s, observer| {
        if let Some(local) = s.local.health() {
            observer.observe(local.entries, &s.of_tier("local", ""));
        }
        if let Some(hot) = s.figures.hot() {
            observer.observe(hot.keys, &s.of_tier("hot", ""));
        }
    });
    let what = "Bytes of the local tier, about; of all Redis uses; of the home's database (own region only)";
    gauge(meter, sources, ("dedup_tier_size_bytes", "By", what), |s, observer| {
        if let Some(local) = s.local.health() {
            observer.observe(local.bytes, &s.of_tier("local", ""));
        }
        if let Some(hot) = s.figures.hot() {
            observer.observe(hot.bytes, &s.of_tier("hot", ""));
        }
        for (name, figures) in s.figures.homes() {
            observer.observe(whole(figures.database_bytes), &s.of_tier("warm", &name));
        }
    });
    let evictions = sources.clone();
    meter
        .u64_observable_counter("dedup_tier_evictions")
        .with_description("Records the local tier evicted or did not take in for want of room, about; keys Redis evicted")
        .with_callback(move |observer| {
            let s = &evictions;
            if let Some(local) = s.local.health() {
                observer.observe(local.evicted, &s.of_tier("local", ""));
            }
            if let Some(hot) = s.figures.hot() {
                observer.observe(hot.evicted, &s.of_tier("hot", ""));
            }
        })
        .build();
}

fn homes(meter: &Meter, sources: &Sources) {
    gauge(meter, sources, ("dedup_home_queued", "", "Questions that wait for a home or are in flight to it"), |s, observer| {
        for home in s.homes.health() {
            observer.observe(home.queued as u64, &s.of_home(&home.name));
        }
    });
    let what = "Claims in progress in a home of this region, lease alive (in_progress) or lapsed and not taken over (lapsed)";
    gauge(meter, sources, ("dedup_open_claims", "", what), |s, observer| {
        s.each_home(|figures, [region, home]| {
            for (state, n) in [("in_progress", figures.in_progress), ("lapsed", figures.lapsed)] {
                observer.observe(whole(n), &[region.clone(), home.clone(), KeyValue::new("state", state)]);
            }
        });
    });
    let s = sources.clone();
    meter
        .f64_observable_gauge("dedup_open_claim_age_seconds")
        .with_unit("s")
        .with_description("Age of the oldest claim in progress in a home of this region; 0 if there is none")
        .with_callback(move |observer| s.each_home(|figures, home| observer.observe(seconds(figures.oldest_claim_ms), &home)))
        .build();
    gauge(meter, sources, ("dedup_segments", "", "Segments of a home of this region"), |s, observer| {
        s.each_segment_state(observer, |f| f.segments);
    });
    gauge(meter, sources, ("dedup_segment_rows", "", "Rows of a home's segments, as Postgres estimates them"), |s, observer| {
        s.each_segment_state(observer, |f| f.rows);
    });
    let what = "Bytes of a home's segments: records, results and their indexes";
    gauge(meter, sources, ("dedup_segment_size_bytes", "By", what), |s, observer| s.each_segment_state(observer, |f| f.bytes));
    filters(meter, sources);
    let s = sources.clone();
    meter
        .f64_observable_gauge("dedup_open_segment_age_seconds")
        .with_unit("s")
        .with_description("How long a home's open segment has been open")
        .with_callback(move |observer| s.each_home(|figures, home| observer.observe(seconds(figures.open_segment_ms), &home)))
        .build();
}

fn filters(meter: &Meter, sources: &Sources) {
    gauge(meter, sources, ("dedup_filters", "", "Filters of a home's segments and archives that are loaded"), |s, observer| {
        for (name, filters) in s.homes.filters() {
            observer.observe(filters.filters as u64, &s.of_home(&name));
        }
    });
    gauge(meter, sources, ("dedup_filter_size_bytes", "By", "Bytes of a home's loaded filters"), |s, observer| {
        for (name, filters) in s.homes.filters() {
            observer.observe(filters.bytes, &s.of_home(&name));
        }
    });
    gauge(meter, sources, ("dedup_filter_size_max_bytes", "By", "Bytes that all filters together may take (a setting)"), |s, observer| {
        observer.observe(s.filter_bytes_max, &[s.region()]);
    });
    let s = sources.clone();
    meter
        .f64_observable_gauge("dedup_filter_estimated_fpr")
        .with_description("Highest share of false positives that a loaded filter of a home has by its keys and size")
        .with_callback(move |observer| {
            for (name, filters) in s.homes.filters() {
                observer.observe(filters.fpr, &s.of_home(&name));
            }
        })
        .build();
}
