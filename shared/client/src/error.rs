//! What a call can end with instead of an answer.

use crate::Problem;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a call can end with instead of an answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No reply arrived (refused, cut, too slow). Whether the call was applied is unknown; ask again with the same request id.
    #[error("no reply from the service")]
    Http(#[from] reqwest::Error),
    /// The service replied that it cannot or will not do this.
    #[error("the service answered {}: {}", .0.status, .0.code)]
    Problem(Box<Problem>),
    /// A reply arrived that cannot be understood.
    #[error("the reply cannot be understood: {0}")]
    Decode(String),
    /// The call cannot be made with these arguments; nothing was sent.
    #[error("bad argument: {0}")]
    Argument(String),
}

impl Error {
    /// The problem, if the service sent one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// The problem's code (`lease-lost`, `home-unavailable`, …), if the service sent one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str())
    }
}
