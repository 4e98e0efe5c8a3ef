//! What a topic decides for its keys.

use std::collections::BTreeMap;

use crate::{DigestScope, Group, Secret, Topic, Window};

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
    /// Of the home's copy: another one whenever anything of it changes. A home takes no question that was asked by another copy.
    pub revision: i64,
    /// Part of every digest; raised to forget the whole topic at once.
    pub generation: i64,
    /// The same for single groups; those that were never raised are left out.
    pub groups: BTreeMap<String, i64>,
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
    /// How long a result is kept after its completion, ms; `None`: as long as the record is warm.
    pub keep_results_ms: Option<i64>,
}

impl TopicPolicy {
    /// Generation of a group.
    pub fn group_generation(&self, group: &Group<'_>) -> i64 {
        if self.groups.is_empty() { 0 } else { self.groups.get(group.as_str()).copied().unwrap_or(0) }
    }

    /// What the digests of all keys of a group begin with.
    pub fn scope(&self, secret: &Secret, group: &Group<'_>) -> DigestScope {
        DigestScope::new(secret, &self.topic, self.generation, group, self.group_generation(group))
    }

    /// Whether any generation of `other` is higher.
    pub fn is_behind(&self, other: &Self) -> bool {
        let behind = |(group, generation): (&String, &i64)| self.groups.get(group).copied().unwrap_or(0) < *generation;
        self.generation < other.generation || other.groups.iter().any(behind)
    }

    /// Takes the higher one of each generation.
    pub fn catch_up(&mut self, other: &Self) {
        self.generation = self.generation.max(other.generation);
        for (group, generation) in &other.groups {
            let own = self.groups.entry(group.clone()).or_default();
            *own = (*own).max(*generation);
        }
    }
}
