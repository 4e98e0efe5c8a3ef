//! Batches: many items in one call, each with its own answer or problem, in order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Answer, Problem};

/// Many items with some fields in common; what an item says itself goes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Batch<T> {
    /// Consumer group of all items that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// How much each answer tells; absent = full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
    /// At most 1,000 items.
    pub items: Vec<T>,
}

impl<T> Batch<T> {
    /// The items with nothing in common.
    #[must_use]
    pub fn new(items: Vec<T>) -> Self {
        Self { group: None, detail: None, items }
    }
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// How much each answer of a batch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// Everything.
    Full,
    /// The verdict alone.
    Verdict,
}

/// The answers of a batch, in the order of its items.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct BatchAnswer<T = Answer> {
    /// One for each item.
    pub results: Vec<BatchItem<T>>,
    /// How many of each: verdicts, and `undecided`.
    #[serde(default = "BTreeMap::new")]
    pub counts: BTreeMap<String, u64>,
}

/// What one item got.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum BatchItem<T = Answer> {
    /// No answer, and why. Its neighbours are not harmed.
    Problem {
        /// Why.
        problem: Box<Problem>,
    },
    /// The answer.
    Answer(Box<T>),
}

impl<T> BatchItem<T> {
    /// The answer, or the problem.
    ///
    /// # Errors
    /// The problem, if that is what the item got.
    pub fn as_result(&self) -> Result<&T, &Problem> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Problem { problem } => Err(problem),
        }
    }
}
