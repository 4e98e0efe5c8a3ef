//! Metrics as Prometheus reads them.

use dedup_runtime::config::TelemetryConfig;
use dedup_runtime::metrics::{Identity, Metrics, SERIES_MAX_DEFAULT};
use opentelemetry::KeyValue;

fn metrics(series_max: usize) -> Metrics {
    Metrics::new(Identity { region: "eu", instance: "eu-1", version: "1.2.3" }, &TelemetryConfig::default(), series_max)
        .expect("a provider")
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
}

#[test]
fn names_are_the_published_ones_however_they_are_spelt() {
    let metrics = metrics(SERIES_MAX_DEFAULT);
    let meter = metrics.meter("dedup-test");
    let verdict = [KeyValue::new("verdict", "first")];
    meter.u64_counter("dedup_decisions_total").build().add(1, &verdict);
    meter.u64_counter("dedup.undecided").build().add(2, &[]);
    meter.f64_histogram("dedup_home_roundtrip_seconds").with_unit("s").build().record(0.003, &[]);
    meter.f64_histogram("dedup.decision.duration").with_unit("s").build().record(0.003, &[]);
    meter.u64_gauge("dedup_local_bytes").with_unit("By").build().record(7, &[]);
    meter.u64_counter("dedup_never_touched_total").build();

    let text = metrics.render().expect("text");
    has(&text, "dedup_decisions_total{verdict=\"first\"} 1");
    has(&text, "dedup_undecided_total 2");
    has(&text, "dedup_home_roundtrip_seconds_bucket{le=\"0.005\"} 1");
    has(&text, "dedup_home_roundtrip_seconds_bucket{le=\"0.0025\"} 0");
    has(&text, "dedup_decision_duration_seconds_bucket{le=\"0.00025\"} 0");
    has(&text, "dedup_decision_duration_seconds_count 1");
    has(&text, "dedup_local_bytes 7");
    has(&text, "target_info{cloud_region=\"eu\",service_instance_id=\"eu-1\",service_name=\"dedup\",service_version=\"1.2.3\"} 1");
    assert!(!text.contains("otel_scope"), "{text}");
}

#[test]
fn buckets_fit_what_is_measured() {
    let metrics = metrics(SERIES_MAX_DEFAULT);
    let meter = metrics.meter("dedup-test");
    meter.u64_histogram("dedup_batch_size").build().record(512, &[]);
    meter.f64_histogram("dedup_duplicate_age_seconds").with_unit("s").build().record(86_400.0, &[]);

    let text = metrics.render().expect("text");
    let bounds = |name: &str| {
        let prefix = format!("{name}_bucket{{le=\"");
        text.lines().filter_map(|line| line.strip_prefix(&prefix)?.split('"').next()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(bounds("dedup_batch_size"), ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "+Inf"]);
    let ages = bounds("dedup_duplicate_age_seconds");
    assert_eq!(ages.len(), 17);
    assert_eq!([&ages[0], &ages[8], &ages[15]], ["1", "86400", "31536000"]);
}

#[test]
fn series_beyond_the_limit_are_summed_up() {
    let count = |series_max: usize, topics: i64| {
        let metrics = metrics(series_max);
        let counter = metrics.meter("dedup-test").u64_counter("dedup_decisions_total").build();
        for topic in 0..topics {
            counter.add(1, &[KeyValue::new("topic", topic)]);
        }
        metrics.render().expect("text").lines().filter(|line| line.starts_with("dedup_decisions_total{")).count()
    };
    assert_eq!(count(SERIES_MAX_DEFAULT, 5_000), 5_000, "the SDK's own limit of 2,000 is raised");
    assert!(count(10, 5_000) <= 11);
}

#[test]
fn two_may_live_in_one_process() {
    let (a, b) = (metrics(10), metrics(10));
    a.meter("x").u64_counter("only_here").build().add(1, &[]);
    assert!(a.render().expect("text").contains("only_here_total 1"));
    assert!(!b.render().expect("text").contains("only_here"));
    a.shutdown().expect("it was open");
}

/// The text of one metric of each kind, to the letter: the format is other programs' to read.
/// Seen to fail with labels in the order they were given, and with values that are not escaped.
#[test]
fn the_text_is_the_format_to_the_letter() {
    let metrics = metrics(10);
    let meter = metrics.meter("x");
    let counter = meter.u64_counter("asked").with_description("A \\ and\nan end").build();
    counter.add(3, &[KeyValue::new("b.c", "say \"\\\"\n"), KeyValue::new("a", 1)]);
    // Another crate's instrument of the same name stands in the same family.
    metrics.meter("y").u64_counter("asked_total").build().add(1, &[]);
    meter.f64_up_down_counter("depth").build().add(-1.5, &[]);
    let took = meter.u64_histogram("dedup_batch_size").build();
    took.record(1, &[KeyValue::new("a", "z")]);
    took.record(5000, &[KeyValue::new("a", "z")]);

    let text = metrics.render().expect("text");
    has(&text, "# HELP asked_total A \\\\ and\\nan end");
    let family = "# TYPE asked_total counter\nasked_total 1\nasked_total{a=\"1\",b_c=\"say \\\"\\\\\\\"\\n\"} 3\n";
    assert!(text.contains(family), "{text}");
    assert!(text.contains("# TYPE depth gauge\ndepth -1.5\n"), "{text}");
    assert!(text.contains("# TYPE dedup_batch_size histogram\ndedup_batch_size_bucket{a=\"z\",le=\"1\"} 1\n"), "{text}");
    let end = "dedup_batch_size_bucket{a=\"z\",le=\"1024\"} 1\ndedup_batch_size_bucket{a=\"z\",le=\"+Inf\"} 2\ndedup_batch_size_sum{a=\"z\"} 5001\n\
               dedup_batch_size_count{a=\"z\"} 2\n";
    assert!(text.contains(end), "{text}");
    assert_eq!(text.matches("# TYPE asked_total").count(), 1);
}

/// Without a scrape configured there is nothing to render, and that is said.
#[test]
fn no_scrape_is_an_error() {
    let config = TelemetryConfig { prometheus: false, ..TelemetryConfig::default() };
    let metrics = Metrics::new(Identity { region: "eu", instance: "eu-1", version: "1.2.3" }, &config, 10).expect("a provider");
    metrics.render().expect_err("nothing is collected");
}
