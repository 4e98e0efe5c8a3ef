//! The file `dedup topics apply` takes.
//!
//! ```toml
//! [topics.payments]
//! window_ms = 604800000          # milliseconds, or "forever"; required
//! lease_ms = 30000               # lease of a claim that names none, ms (default: 30000, or lease_max_ms if that is less)
//! lease_max_ms = 86400000        # longest lease a claim may ask for, ms (default: 86400000)
//! keep_key = "open"              # key texts beside records: "open" (default), "always", "never"
//! default_region = "eu"          # prefix of keys without a known one (default: none, such keys are refused)
//! keep_results_ms = 2592000000   # how long results are kept after completion, ms (default: as long as the record is warm)
//! ```
//!
//! Defaults are filled in here and sent, so that what a topic is set to depends on the file alone, and a later run can tell whether
//! anything differs.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use dedup_client::{TopicPolicy, Window};
use dedup_core::{KeepKey, Topic};
use serde::Deserialize;

const LEASE_MS: u64 = 30_000;
const LEASE_MAX_MS: u64 = 86_400_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    topics: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    window_ms: Window,
    lease_ms: Option<u64>,
    lease_max_ms: Option<u64>,
    #[serde(default)]
    keep_key: Option<String>,
    default_region: Option<String>,
    keep_results_ms: Option<u64>,
}

/// The topics of the file with their full policies, by name.
///
/// # Errors
/// All topics that are not valid, in one message.
pub fn parse(text: &str) -> anyhow::Result<Vec<(String, TopicPolicy)>> {
    let file: File = toml::from_str(text).context("not a file of topics")?;
    let mut topics = Vec::with_capacity(file.topics.len());
    let mut mistakes = Vec::new();
    for (name, value) in file.topics {
        match policy(&name, value) {
            Ok(policy) => topics.push((name, policy)),
            Err(error) => mistakes.push(format!("topics.{name}: {error:#}")),
        }
    }
    if !mistakes.is_empty() {
        bail!("{}", mistakes.join("; "));
    }
    Ok(topics)
}

fn policy(name: &str, value: toml::Value) -> anyhow::Result<TopicPolicy> {
    Topic::parse(name).context("the name")?;
    let entry: Entry = value.try_into()?;
    let lease_max_ms = entry.lease_max_ms.unwrap_or(LEASE_MAX_MS);
    let keep_key = entry.keep_key.as_deref().unwrap_or("open");
    if KeepKey::parse(keep_key).is_none() {
        bail!("keep_key: {keep_key:?} is not allowed; it is \"open\", \"always\" or \"never\"");
    }
    Ok(TopicPolicy {
        window_ms: Some(entry.window_ms),
        lease_ms: Some(entry.lease_ms.unwrap_or(LEASE_MS.min(lease_max_ms))),
        lease_max_ms: Some(lease_max_ms),
        keep_key: Some(keep_key.to_owned()),
        default_region: entry.default_region,
        keep_results_ms: entry.keep_results_ms,
        ..TopicPolicy::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_filled_in() {
        let topics = parse("[topics.clicks]\nwindow_ms = 86400000").expect("valid");
        let (name, policy) = &topics[0];
        assert_eq!(name, "clicks");
        assert_eq!(policy.window_ms, Some(Window::Ms(86_400_000)));
        assert_eq!(policy.lease_ms, Some(30_000));
        assert_eq!(policy.lease_max_ms, Some(86_400_000));
        assert_eq!(policy.keep_key.as_deref(), Some("open"));
        assert_eq!(policy.default_region, None);
    }

    #[test]
    fn all_settings_are_taken() {
        let text = "[topics.\"a.b\"]\nwindow_ms = \"forever\"\nlease_ms = 1000\nlease_max_ms = 2000\nkeep_key = \"never\"\ndefault_region = \"eu\"";
        let topics = parse(text).expect("valid");
        let (name, policy) = &topics[0];
        assert_eq!(name, "a.b");
        assert_eq!(policy.window_ms, Some(Window::Forever));
        assert_eq!(policy.lease_ms, Some(1000));
        assert_eq!(policy.lease_max_ms, Some(2000));
        assert_eq!(policy.keep_key.as_deref(), Some("never"));
        assert_eq!(policy.default_region.as_deref(), Some("eu"));
    }

    #[test]
    fn a_short_longest_lease_shortens_the_default() {
        let topics = parse("[topics.t]\nwindow_ms = 5000\nlease_max_ms = 4000").expect("valid");
        assert_eq!(topics[0].1.lease_ms, Some(4000));
    }

    #[test]
    fn every_mistake_is_named_with_its_topic() {
        let text = "[topics.a]\nwindow_ms = 1000\nleese_ms = 1\n[topics.b]\nlease_ms = 1000\n[topics.c]\nwindow_ms = \"never\"\n[topics.d]\nwindow_ms = 1000\nkeep_key = \"maybe\"\n[topics.\"e e\"]\nwindow_ms = 1000";
        let error = format!("{:#}", parse(text).expect_err("five mistakes"));
        for expected in ["topics.a: ", "leese_ms", "topics.b: ", "window_ms", "topics.c: ", "topics.d: keep_key", "topics.e e: "] {
            assert!(error.contains(expected), "{expected} is not in {error}");
        }
    }

    #[test]
    fn tables_that_are_not_topics_are_refused() {
        assert!(parse("[topic.a]\nwindow_ms = 1000").is_err());
        assert!(parse("[topics.a]\nwindow_ms = -1").is_err());
        assert!(parse("").is_err());
    }
}
