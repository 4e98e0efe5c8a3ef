//! Topics: what a key is unique within.

use crate::{TextError, check_text};

/// Name of a topic: 1–249 of `A-Z a-z 0-9 . _ -`, and neither `.` nor `..`, which no URL can hold as a part of its path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic(Box<str>);

impl Topic {
    /// Longest name in bytes (as in Kafka, so that every topic there can be one here).
    pub const MAX_BYTES: usize = 249;

    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        let allowed = "letters, digits, '.', '_' or '-'";
        check_text(text, Self::MAX_BYTES, allowed, |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))?;
        if let Some(step) = [".", ".."].into_iter().find(|step| *step == text) {
            return Err(TextError::Reserved(step));
        }
        Ok(Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_url_can_hold_are_refused() {
        for name in [".", ".."] {
            assert!(matches!(Topic::parse(name), Err(TextError::Reserved(_))), "{name}");
        }
        for name in ["...", ".a", "a.", "A-z_0.9"] {
            assert!(Topic::parse(name).is_ok(), "{name}");
        }
    }
}
