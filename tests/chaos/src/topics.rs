//! The topics of a run, and where in them a key is.

/// A window of a day.
pub const LONG: &str = "chaos";
/// A window of three seconds.
pub const SHORT: &str = "chaos-short";
/// A window of a day, with groups that are forgotten as a whole, and results that are kept for [`KEEP_MS`].
pub const GROUPED: &str = "chaos-grouped";

/// How long [`GROUPED`] keeps stored results.
pub const KEEP_MS: u64 = 4000;

/// Name and what is put of each.
pub fn all() -> [(&'static str, serde_json::Value); 3] {
    [
        (LONG, serde_json::json!({"window_ms": 86_400_000})),
        (SHORT, serde_json::json!({"window_ms": 3000})),
        (GROUPED, serde_json::json!({"window_ms": 86_400_000, "keep_results_ms": KEEP_MS})),
    ]
}

/// A key with its topic and group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub topic: &'static str,
    /// None: the default group.
    pub group: Option<String>,
    pub key: String,
}

impl Place {
    /// In the default group.
    pub fn of(topic: &'static str, key: String) -> Self {
        Self { topic, group: None, key }
    }

    /// As the history names it: a group's keys all begin with [`recorded_group`].
    pub fn recorded(&self) -> String {
        match &self.group {
            Some(group) => format!("{}{}", recorded_group(self.topic, group), self.key),
            None => format!("{}/{}", self.topic, self.key),
        }
    }

    /// The name of its group as the service knows it.
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or("default")
    }

    /// How long results are kept here, if the topic says so.
    pub fn keep_ms(&self) -> Option<u64> {
        (self.topic == GROUPED).then_some(KEEP_MS)
    }
}

/// What the keys of a group begin with in the history.
pub fn recorded_group(topic: &str, group: &str) -> String {
    format!("{topic}/{group}/")
}
