//! Consumer groups: the same key is independent in each.

use crate::{TextError, check_text};

/// Name of a consumer group: 1–255 bytes, printable (no control characters).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group(Box<str>);

impl Group {
    /// Longest name in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        check_text(text, Self::MAX_BYTES, "without control characters", |c| !c.is_control())?;
        Ok(Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Group {
    fn default() -> Self {
        Self("default".into())
    }
}
