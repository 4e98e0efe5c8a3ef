//! Windows: how long a key is remembered.

use crate::FOREVER_MS;

/// How long a key is remembered after an accepted `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Milliseconds of home time.
    Ms(i64),
    /// Never forgotten by time.
    Forever,
}

/// A window outside the configured range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be between {min_ms} and {max_ms} ms, or \"forever\"")]
pub struct WindowError {
    /// Shortest allowed.
    pub min_ms: i64,
    /// Longest allowed.
    pub max_ms: i64,
}

impl Window {
    /// Checks a number of milliseconds against the allowed range. Nothing is clamped.
    pub fn from_ms(ms: i64, min_ms: i64, max_ms: i64) -> Result<Self, WindowError> {
        if ms < min_ms || ms > max_ms { Err(WindowError { min_ms, max_ms }) } else { Ok(Self::Ms(ms)) }
    }

    /// As the home stores it.
    pub fn to_stored(self) -> i64 {
        match self {
            Self::Ms(ms) => ms,
            Self::Forever => FOREVER_MS,
        }
    }

    /// From the home.
    pub fn from_stored(stored: i64) -> Self {
        if stored == FOREVER_MS { Self::Forever } else { Self::Ms(stored) }
    }
}
