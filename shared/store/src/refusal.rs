//! "Cannot decide": why there is no verdict, and what that means for the record.

/// Whether the question may have changed the home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Certainly not.
    No,
    /// It may have: only the same request id settles it.
    Unknown,
}

impl Applied {
    /// Its word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// Why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The queue of the home is full, or the deadline passed in it.
    Overloaded,
    /// Somebody's open transaction holds the key.
    KeyBusy,
    /// The home cannot be reached, or is not fit to answer.
    HomeUnavailable,
    /// The home answered with an error of its own.
    StoreUnavailable,
    /// A statement was sent and its outcome is not known.
    OutcomeUnknown,
    /// The home knows no such topic (any more).
    TopicUnknown,
}

/// No verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?} (applied: {applied:?})")]
pub struct Refusal {
    /// Why.
    pub kind: RefusalKind,
    /// What it means for the record.
    pub applied: Applied,
}

impl Refusal {
    /// A refusal that changed nothing.
    pub fn not_applied(kind: RefusalKind) -> Self {
        Self { kind, applied: Applied::No }
    }

    /// The outcome is not known.
    pub fn unknown() -> Self {
        Self { kind: RefusalKind::OutcomeUnknown, applied: Applied::Unknown }
    }
}
