//! Prometheus' text format, straight from what the SDK collected: a scrape has thousands of series, and a copy of each is most of its price.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>; names and units as OpenTelemetry maps them to
//! Prometheus: <https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::ops::Range;

use opentelemetry::{Key, KeyValue, Value};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Histogram, Metric, MetricData, ResourceMetrics};

/// All metrics as text: families by name, series by their labels.
pub(super) fn encode(metrics: &ResourceMetrics) -> String {
    let mut families = Families::default();
    families.of("target_info".to_owned(), "gauge", "Who measures").samples([(labels(metrics.resource().iter()), 1)].into_iter());
    for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
        match metric.data() {
            AggregatedMetrics::F64(data) => families.add(metric, data),
            AggregatedMetrics::I64(data) => families.add(metric, data),
            AggregatedMetrics::U64(data) => families.add(metric, data),
        }
    }
    families.text()
}

/// The families so far, by name: crates may measure with instruments of one name and kind.
#[derive(Default)]
struct Families(BTreeMap<String, Family>);

struct Family {
    name: String,
    kind: &'static str,
    help: String,
    /// Series one after the other, each with all its lines, and where each lies.
    text: String,
    series: Vec<Range<usize>>,
}

impl Families {
    fn of(&mut self, name: String, kind: &'static str, help: &str) -> &mut Family {
        let new = || Family { name: name.clone(), kind, help: String::new(), text: String::new(), series: Vec::new() };
        let family = self.0.entry(name.clone()).or_insert_with(new);
        if family.help.is_empty() {
            family.help = escaped(help, false).into_owned();
        }
        family
    }

    fn of_metric(&mut self, metric: &Metric, kind: &'static str, suffix: &str) -> &mut Family {
        self.of(published_name(metric, suffix), kind, metric.description())
    }

    fn add<T: Copy + Display>(&mut self, metric: &Metric, data: &MetricData<T>) {
        match data {
            MetricData::Sum(sum) => {
                let (kind, suffix) = if sum.is_monotonic() { ("counter", "_total") } else { ("gauge", "") };
                let family = self.of_metric(metric, kind, suffix);
                family.samples(sum.data_points().map(|point| (labels_of(point.attributes()), point.value())));
            }
            MetricData::Gauge(gauge) => {
                let family = self.of_metric(metric, "gauge", "");
                family.samples(gauge.data_points().map(|point| (labels_of(point.attributes()), point.value())));
            }
            MetricData::Histogram(histogram) => self.of_metric(metric, "histogram", "").histogram(histogram),
            // No instrument asks for these: the view names the buckets of each histogram.
            MetricData::ExponentialHistogram(_) => {}
        }
    }

    fn text(self) -> String {
        let mut out = String::with_capacity(self.0.values().map(|family| family.text.len() + 256).sum());
        for mut family in self.0.into_values().filter(|family| !family.series.is_empty()) {
            if !family.help.is_empty() {
                write(&mut out, format_args!("# HELP {} {}\n", family.name, family.help));
            }
            write(&mut out, format_args!("# TYPE {} {}\n", family.name, family.kind));
            family.series.sort_by(|a, b| family.text[a.clone()].cmp(&family.text[b.clone()]));
            family.series.into_iter().for_each(|series| out.push_str(&family.text[series]));
        }
        out
    }
}

impl Family {
    fn series(&mut self, lines: impl FnOnce(&mut String, &str)) {
        let from = self.text.len();
        lines(&mut self.text, &self.name);
        self.series.push(from..self.text.len());
    }

    fn samples<T: Display>(&mut self, samples: impl Iterator<Item = (String, T)>) {
        for (labels, value) in samples {
            self.series(|out, name| sample(out, name, "", &labels, None, value));
        }
    }

    fn histogram<T: Copy + Display>(&mut self, histogram: &Histogram<T>) {
        for point in histogram.data_points() {
            let labels = labels_of(point.attributes());
            self.series(|out, name| {
                // Counts of the text format are of all up to a bound.
                let mut up_to = 0;
                let mut bounds = point.bounds();
                for count in point.bucket_counts() {
                    up_to += count;
                    match bounds.next() {
                        Some(bound) => sample(out, name, "_bucket", &labels, Some(&bound), up_to),
                        None => sample(out, name, "_bucket", &labels, Some(&"+Inf"), point.count()),
                    }
                }
                sample(out, name, "_sum", &labels, None, point.sum());
                sample(out, name, "_count", &labels, None, point.count());
            });
        }
    }
}

/// `name_seconds`, `name_bytes`, `name_ratio`, each with `_total` if it is a counter.
fn published_name(metric: &Metric, suffix: &str) -> String {
    let unit = match metric.unit() {
        "s" => "_seconds",
        "By" => "_bytes",
        "1" => "_ratio",
        _ => "",
    };
    let name = clean(metric.name());
    format!("{name}{unit}{suffix}")
}

fn sample(out: &mut String, name: &str, suffix: &str, labels: &str, le: Option<&dyn Display>, value: impl Display) {
    out.push_str(name);
    out.push_str(suffix);
    match (labels, le) {
        ("", None) => {}
        (labels, None) => write(out, format_args!("{{{labels}}}")),
        ("", Some(le)) => write(out, format_args!("{{le=\"{le}\"}}")),
        (labels, Some(le)) => write(out, format_args!("{{{labels},le=\"{le}\"}}")),
    }
    write(out, format_args!(" {value}\n"));
}

fn labels_of<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    labels(attributes.map(|kv| (&kv.key, &kv.value)))
}

/// `a="1",b="2"`.
fn labels<'a>(attributes: impl Iterator<Item = (&'a Key, &'a Value)>) -> String {
    let mut attributes: Vec<_> = attributes.collect();
    attributes.sort_unstable_by_key(|(key, _)| *key);
    let mut out = String::with_capacity(128);
    for (key, value) in attributes {
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(&clean(key.as_str()));
        out.push_str("=\"");
        out.push_str(&escaped(&value.as_str(), true));
        out.push('"');
    }
    out
}

/// With an underscore for what may not stand in a name.
fn clean(name: &str) -> Cow<'_, str> {
    let bad = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    if name.contains(bad) { Cow::Owned(name.replace(bad, "_")) } else { Cow::Borrowed(name) }
}

/// Backslashes and line ends are escaped; quotes in values only.
fn escaped(text: &str, quotes: bool) -> Cow<'_, str> {
    if !text.contains(['\\', '\n', '"']) {
        return Cow::Borrowed(text);
    }
    let text = text.replace('\\', r"\\").replace('\n', r"\n");
    Cow::Owned(if quotes { text.replace('"', "\\\"") } else { text })
}

fn write(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes all");
}
