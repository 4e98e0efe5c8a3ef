//! What is printed and written.

use std::path::Path;

use serde_json::json;

use crate::output::say;

/// A measured row.
#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    pub peer_is: &'static str,
    pub ours: f64,
    pub peer: f64,
    pub at_least: f64,
    pub stretch: f64,
    pub batch: usize,
    pub connections: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub service_us_per_key: f64,
    pub postgres_us_per_key: f64,
    pub generator_us_per_key: f64,
}

/// A figure without a peer in the table's sense.
#[derive(Debug)]
pub struct Extra {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub note: String,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.peer
    }

    /// Prints the row as soon as it is known.
    pub fn print(&self) {
        say(format!(
            "\n{}: {:.0} keys/s, peer {:.0} keys/s, ratio {:.2} (at least {}, stretch {})",
            self.name,
            self.ours,
            self.peer,
            self.ratio(),
            self.at_least,
            self.stretch
        ));
        say(format!(
            "  ours: {} key(s) a request, {} connections, latency p50 {:.2} ms, p99 {:.2} ms",
            self.batch, self.connections, self.p50_ms, self.p99_ms
        ));
        say(format!("  peer: {}", self.peer_is));
        say(format!(
            "  processor time per key: service {:.1} µs, Postgres {:.1} µs, load generator {:.1} µs",
            self.service_us_per_key, self.postgres_us_per_key, self.generator_us_per_key
        ));
    }
}

/// Prints a figure as soon as it is known.
pub fn say_extra(extra: &Extra) {
    say(format!("{}: {:.2} {} ({})", extra.name, extra.value, extra.unit, extra.note));
}

/// Puts figures into a file.
pub fn write_extras(extras: &[Extra], file: Option<&Path>) -> anyhow::Result<()> {
    if let Some(file) = file {
        let rows: Vec<serde_json::Value> =
            extras.iter().map(|e| json!({"name": e.name, "value": e.value, "unit": e.unit, "note": e.note})).collect();
        std::fs::write(file, format!("{:#}\n", json!({"rows": rows})))?;
    }
    Ok(())
}

/// All of it.
#[derive(Debug)]
pub struct Report {
    conditions: String,
    rows: Vec<Row>,
    extras: Vec<Extra>,
}

impl Report {
    pub fn new(seconds: &u64, rounds: &u64, versions: String) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let build = if cfg!(debug_assertions) { "DEBUG build: figures mean nothing" } else { "release build" };
        let conditions = format!("{cores} cores for everything; {rounds} rounds of {seconds} s, interleaved, medians; {versions}; {build}");
        say(&conditions);
        Self { conditions, rows: Vec::new(), extras: Vec::new() }
    }

    pub fn add_row(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub fn add_extra(&mut self, extra: Extra) {
        say_extra(&extra);
        self.extras.push(extra);
    }

    /// Prints the table of ratios.
    pub fn print_end(&self) {
        say("");
        let mut table = vec![["row", "ours/s", "peer/s", "ratio", "at least", "stretch"].map(str::to_owned)];
        for r in &self.rows {
            let cell = |v: f64| format!("{v:.2}");
            table.push([
                r.name.into(),
                format!("{:.0}", r.ours),
                format!("{:.0}", r.peer),
                cell(r.ratio()),
                cell(r.at_least),
                cell(r.stretch),
            ]);
        }
        crate::output::table(&table);
    }

    /// Writes the JSON.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        let rows = self.rows.iter().map(|r| {
            json!({"name": r.name, "ours": r.ours, "peer": r.peer, "ratio": r.ratio(), "at_least": r.at_least, "stretch": r.stretch, "peer_is": r.peer_is,
                   "p50_ms": r.p50_ms, "p99_ms": r.p99_ms, "service_us_per_key": r.service_us_per_key, "postgres_us_per_key": r.postgres_us_per_key,
                   "generator_us_per_key": r.generator_us_per_key})
        });
        let extras = self.extras.iter().map(|e| json!({"name": e.name, "value": e.value, "unit": e.unit, "note": e.note}));
        let all = json!({"conditions": self.conditions, "rows": rows.collect::<Vec<_>>(), "extras": extras.collect::<Vec<_>>()});
        std::fs::write(file, format!("{all:#}\n"))?;
        Ok(())
    }
}

/// The middle one; of an even number the lower middle.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}
