//! The recorded history: JSON, one line per event.

use std::io::BufRead;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "e", rename_all = "snake_case")]
pub enum Line {
    /// How the history came to be; the first line.
    Run {
        /// What the faults were drawn from.
        seed: u64,
        /// Name of the run.
        name: String,
        /// Nobody moves the homes' clocks, so leases last as long as they should by the recorder's clock, too.
        #[serde(default)]
        steady: bool,
        /// A janitor archives what was granted so long ago; none: nothing is archived. The archive keeps neither fence nor request id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        archived_after_ms: Option<u64>,
    },
    /// Somebody asks.
    Call(Call),
    /// Somebody is told.
    Return(Return),
    /// Something was broken or mended.
    Mark {
        /// Nanoseconds of the recorder's one monotonic clock.
        at: u64,
        /// What.
        what: String,
    },
    /// Every key was read at the end. Without this line nothing is proved.
    End {
        /// Nanoseconds.
        at: u64,
    },
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One-shot "first?".
    Check,
    /// First phase of three.
    Claim,
    /// Ends a claim with a result.
    Complete,
    /// Gives a claim back.
    Release,
    /// Prolongs a lease.
    Extend,
    /// Removes the record.
    Forget,
    /// Forgets a group: its call's key is what all keys of the group begin with.
    ForgetAll,
    /// Reads without changing; the final reading of every key is made of these.
    Read,
}

impl Kind {
    /// Whether it forgets, one key or many.
    #[must_use]
    pub fn forgets(self) -> bool {
        matches!(self, Self::Forget | Self::ForgetAll)
    }
}

/// A question, when it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Joins it with its [`Return`].
    pub op: u64,
    /// Nanoseconds.
    pub at: u64,
    /// The worker.
    pub who: u32,
    /// Instance asked, or `sql`.
    pub node: String,
    /// Topic, group and key in one.
    pub key: String,
    /// What is asked.
    pub kind: Kind,
    /// Request id; empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// Fence of the claim token that is used.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// Fingerprint of the payload; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fp: String,
    /// Lease asked for, or the topic's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lease_ms: i64,
    /// Result given with a completion.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub result: String,
    /// How long the topic keeps that result; none: as long as the record is warm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// Number of the batch, and the place in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<(u64, u32)>,
}

impl Call {
    /// A call with nothing but these; the recorder numbers it and says when.
    #[must_use]
    pub fn new(kind: Kind, who: u32, node: &str, key: String) -> Self {
        Self {
            op: 0,
            at: 0,
            who,
            node: node.into(),
            key,
            kind,
            request: String::new(),
            token: String::new(),
            fp: String::new(),
            lease_ms: 0,
            result: String::new(),
            keep_ms: None,
            batch: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// An answer, when it arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Return {
    /// Of which call.
    pub op: u64,
    /// Nanoseconds.
    pub at: u64,
    /// What was said.
    pub out: Out,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Out {
    /// It was decided.
    Ok(Answer),
    /// It certainly changed nothing.
    No(String),
    /// It may have been applied, now or later.
    Unknown(String),
}

/// What a decided call was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Granted.
    First,
    /// Done before. Of a reading: the record is done.
    Duplicate,
    /// Somebody is at it.
    InProgress,
    /// Another payload.
    Mismatch,
    /// The completion counts.
    Completed,
    /// The claim is given back. Of a reading: the record is released.
    Released,
    /// The lease is prolonged.
    Extended,
    /// The fence is not the current one.
    LeaseLost,
    /// Completed before with another result.
    AlreadyCompleted,
    /// Forgotten everywhere.
    Forgotten,
    /// Of a reading: no record.
    Absent,
}

/// The parts of an answer that promises are made of. Times are home time in ms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// What was decided.
    pub verdict: Verdict,
    /// Said to be a repetition.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// Fence of the record; empty where the answer names none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fence: String,
    /// When the record was accepted. Of a reading: home time of the reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<i64>,
    /// End of its window; none: never, or not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<i64>,
    /// End of its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_end: Option<i64>,
    /// Stored result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub result: String,
    /// In a batch: whose duplicate it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_index: Option<u32>,
    /// Found in the archive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cold: bool,
}

impl Answer {
    /// An answer of that verdict and nothing else.
    #[must_use]
    pub fn new(verdict: Verdict) -> Self {
        Self {
            verdict,
            replayed: false,
            fence: String::new(),
            seen: None,
            expires: None,
            lease_end: None,
            result: String::new(),
            of_index: None,
            cold: false,
        }
    }
}

/// Reads a history.
///
/// # Errors
/// With the number of the line that cannot be read.
pub fn read_history(from: impl BufRead) -> Result<Vec<Line>, String> {
    let parse = |(n, line): (usize, std::io::Result<String>)| {
        let line = line.map_err(|e| format!("line {}: {e}", n + 1))?;
        serde_json::from_str(&line).map_err(|e| format!("line {}: {e}", n + 1))
    };
    from.lines().enumerate().map(parse).collect()
}
