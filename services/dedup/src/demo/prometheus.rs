//! Prometheus beside the regions, with the rules that operators use.

use anyhow::Context;
use dedup_testbed::{Prometheus, Rules, Testbed, hasten};

use super::screen::say;

/// The rules' time runs faster by this factor: their five minutes are 2.5 seconds, their past of a day is one of 12 minutes.
const FASTER: u64 = 120;

const RULES: [(&str, &str); 2] = [
    ("dedup.rules.yml", include_str!("../../../../infra/prometheus/dedup.rules.yml")),
    ("dedup.alerts.yml", include_str!("../../../../infra/prometheus/dedup.alerts.yml")),
];

/// Starts it if it is installed; its URL. With an incident to be seen in time the rules are gone through each second, which takes it half a
/// core after some minutes.
pub(super) async fn start(testbed: &mut Testbed, incident: bool) -> anyhow::Result<Option<String>> {
    if !Prometheus::is_installed() {
        return Ok(None);
    }
    let texts = RULES.map(|(name, text)| (name, hasten(text, FASTER)));
    let rules: Vec<Rules<'_>> = texts.iter().map(|(name, text)| Rules { name, text }).collect();
    let prometheus = testbed.start_prometheus(&rules, if incident { 1 } else { 10 }).await.context("cannot start Prometheus")?;
    Ok(Some(prometheus.url()))
}

/// Says where it is.
pub(super) fn print(url: Option<&str>) {
    say(&match url {
        Some(url) => format!("Prometheus: {url}/alerts (its rules run {FASTER} times faster here: five minutes are 2.5 s)\n"),
        None => "Prometheus is not installed (`make setup` does that), so nobody watches.\n".to_owned(),
    });
}
