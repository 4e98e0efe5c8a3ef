//! What a topic decides for its keys.

use crate::{Topic, Window};

/// Whether the text of a key is kept beside its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepKey {
    /// While the claim is open or released.
    Open,
    /// As long as the record.
    Always,
    /// Never.
    Never,
}

impl KeepKey {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    /// Parses its word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Open, Self::Always, Self::Never].into_iter().find(|k| k.as_str() == text)
    }
}

/// A topic's policy, as one home has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPolicy {
    /// Name.
    pub topic: Topic,
    /// Rises with every change.
    pub version: i64,
    /// Part of every digest; raised to forget the whole topic at once.
    pub generation: i64,
    /// How long keys are remembered unless the question says otherwise.
    pub window: Window,
    /// Lease of a claim that names none, ms.
    pub lease_ms: i64,
    /// Longest lease a claim may ask for, ms.
    pub lease_max_ms: i64,
    /// Whether key texts are kept.
    pub keep_key: KeepKey,
    /// Prefix of keys that have no known one.
    pub default_region: Option<String>,
}
