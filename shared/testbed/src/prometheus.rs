//! A private Prometheus that scrapes every instance of a testbed, with rules.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::Spec;
use crate::slot::Slot;
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, Region, ports, programs};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const PORT_TRIES: usize = 5;

/// A Prometheus of its own, with its data in the testbed's folder.
#[derive(Debug)]
pub struct Prometheus {
    slot: Slot,
    program: PathBuf,
    port: AtomicU16,
    dir: PathBuf,
}

/// A file of rules: its name and its text.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// For instance `dedup.rules.yml`.
    pub name: &'a str,
    /// YAML.
    pub text: &'a str,
}

impl Prometheus {
    /// Whether there is a `prometheus` to start.
    #[must_use]
    pub fn is_installed() -> bool {
        programs::prometheus().is_ok()
    }

    pub(crate) async fn start(
        regions: &[Region],
        rules: &[Rules<'_>],
        rules_s: u32,
        dir: &Path,
        watchdog: &Arc<Watchdog>,
    ) -> Result<Self, Error> {
        let dir = dir.join("prometheus");
        std::fs::create_dir(&dir).map_err(Error::io(format!("make the folder {}", dir.display())))?;
        let new = Self { slot: Slot::new("Prometheus", watchdog), program: programs::prometheus()?, port: AtomicU16::new(0), dir };
        for rules in rules {
            new.write(rules.name, rules.text)?;
        }
        new.write("prometheus.yml", &config(regions, rules, rules_s))?;
        let mut tries = 0;
        loop {
            tries += 1;
            new.port.store(ports::free().map_err(Error::io("find a free port"))?, Ordering::Relaxed);
            match new.launch().await {
                Err(Error::Start { log_tail, .. }) if ports::was_taken(&log_tail) && tries < PORT_TRIES => {}
                other => return other.map(|()| new),
            }
        }
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.load(Ordering::Relaxed))
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.dir.join(name);
        std::fs::write(&path, text).map_err(Error::io(format!("write {}", path.display())))
    }

    async fn launch(&self) -> Result<(), Error> {
        let flag = |name: &str, value: String| format!("--{name}={value}").into();
        let spec = Spec {
            name: self.slot.name().into(),
            kind: Kind::Service,
            program: self.program.clone(),
            args: vec![
                flag("config.file", self.dir.join("prometheus.yml").display().to_string()),
                flag("storage.tsdb.path", self.dir.join("data").display().to_string()),
                flag("web.listen-address", format!("127.0.0.1:{}", self.port.load(Ordering::Relaxed))),
                flag("log.level", "warn".into()),
            ],
            env: Vec::new(),
            user: None,
            log: self.dir.join("log"),
        };
        self.slot.launch(&spec).await?;
        self.slot.until_ready(&spec, START_TIMEOUT, || self.ready()).await
    }

    async fn ready(&self) -> Result<(), String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.load(Ordering::Relaxed))).await.map_err(|e| e.to_string())?;
        stream.write_all(b"GET /-/ready HTTP/1.0\r\n\r\n").await.map_err(|e| e.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(|e| e.to_string())?;
        match answer.split(' ').nth(1) {
            Some("200") => Ok(()),
            _ => Err(format!("/-/ready says {answer}")),
        }
    }
}

/// Scrapes each second: a demo is over in minutes.
fn config(regions: &[Region], rules: &[Rules<'_>], rules_s: u32) -> String {
    let mut text = format!("global:\n  scrape_interval: 1s\n  evaluation_interval: {rules_s}s\nrule_files:\n");
    let mut line = |args: std::fmt::Arguments<'_>| text.write_fmt(args).expect("a string takes all that is written");
    for rules in rules {
        line(format_args!("  - {}\n", rules.name));
    }
    line(format_args!("scrape_configs:\n  - job_name: dedup\n    static_configs:\n"));
    for instance in regions.iter().flat_map(|region| &region.instances) {
        // The instance's name is easier on the eye than its port.
        line(format_args!("      - targets: ['127.0.0.1:{}']\n        labels: {{ instance: {} }}\n", instance.port(), instance.name()));
    }
    text
}

/// The same rules in another time: every duration is divided by `factor`, so that an alert that waits minutes shows in seconds and a past
/// of hours is one of minutes. For demo and tests, which cannot wait.
#[must_use]
pub fn hasten(rules: &str, factor: u64) -> String {
    let mut text = String::with_capacity(rules.len());
    let mut before = ' ';
    let mut rest = rules;
    while let Some(first) = rest.chars().next() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let unit = rest[digits..].chars().next().and_then(|unit| ms_of(unit).filter(|_| digits > 0));
        let after = rest[digits..].chars().nth(1).unwrap_or(' ');
        // A duration stands by itself (`[5m]`, `for: 15m`); a digit within a name (`rate5m`) does not begin one.
        let alone = !before.is_alphanumeric() && before != '_' && before != '.' && !after.is_alphanumeric() && after != '_';
        match unit {
            Some(ms) if alone => {
                let value: u64 = rest[..digits].parse().unwrap_or(0);
                text.push_str(&format!("{}ms", (value * ms / factor).max(u64::from(value > 0))));
                before = rest[digits..].chars().next().unwrap_or(' ');
                rest = &rest[digits + 1..];
            }
            _ => {
                let taken = digits.max(first.len_utf8());
                text.push_str(&rest[..taken]);
                before = rest[..taken].chars().last().unwrap_or(' ');
                rest = &rest[taken..];
            }
        }
    }
    text
}

fn ms_of(unit: char) -> Option<u64> {
    match unit {
        's' => Some(1_000),
        'm' => Some(60_000),
        'h' => Some(3_600_000),
        'd' => Some(86_400_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::hasten;

    #[test]
    fn durations_shrink_and_names_stay() {
        let rules = "- record: a:b:rate5m\n  expr: avg_over_time(a:b:rate5m[1d] offset 1h) > 3 * c[5m] * 300 > 0.05\n  for: 15m\n";
        let expected = "- record: a:b:rate5m\n  expr: avg_over_time(a:b:rate5m[1440000ms] offset 60000ms) > 3 * c[5000ms] * 300 > 0.05\n  for: 15000ms\n";
        assert_eq!(hasten(rules, 60), expected);
        assert_eq!(hasten("for: 0s", 60), "for: 0ms");
    }
}
