//! What the process itself takes, from `/proc`; names as Prometheus' own client libraries have them.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

/// Clock ticks a second on every Linux that Debian ships for servers.
const TICKS_A_SECOND: f64 = 100.0;

/// Registers the gauges. Where `/proc` is missing they show nothing.
pub(super) fn watch(meter: &Meter, region: &str) {
    let region = [KeyValue::new("region", Arc::<str>::from(region))];
    let label = region.clone();
    meter
        .f64_observable_counter("process_cpu")
        .with_unit("s")
        .with_description("User and system time of the process")
        .with_callback(move |observer| {
            if let Some(ticks) = stat().and_then(|s| Some(s.get(11)? + s.get(12)?)) {
                observer.observe(ticks / TICKS_A_SECOND, &label);
            }
        })
        .build();
    let label = region.clone();
    meter
        .u64_observable_gauge("process_resident_memory")
        .with_unit("By")
        .with_description("Resident memory of the process")
        .with_callback(move |observer| {
            if let Some(bytes) = resident_bytes() {
                observer.observe(bytes, &label);
            }
        })
        .build();
    let label = region.clone();
    meter
        .u64_observable_gauge("process_open_fds")
        .with_description("Open files and sockets of the process")
        .with_callback(move |observer| {
            if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
                observer.observe(files.count() as u64, &label);
            }
        })
        .build();
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    meter
        .f64_observable_gauge("process_start_time")
        .with_unit("s")
        .with_description("When the process began, seconds since 1970")
        .with_callback(move |observer| observer.observe(started, &region))
        .build();
}

/// The fields of `/proc/self/stat` after the name in parentheses.
fn stat() -> Option<Vec<f64>> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split(' ').map(|field| field.trim().parse().unwrap_or(0.0)).collect())
}

fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}
