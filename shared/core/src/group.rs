//! Consumer groups: the same key is independent in each.

use std::borrow::Cow;

use crate::{TextError, check_text};

/// Name of a consumer group: 1–255 bytes, printable (no control characters).
/// Borrows the text it was parsed from: most questions are answered without anybody keeping it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group<'a>(Cow<'a, str>);

impl<'a> Group<'a> {
    /// Longest name in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Parses a name.
    pub fn parse(text: &'a str) -> Result<Self, TextError> {
        check_text(text, Self::MAX_BYTES, "without control characters", |c| !c.is_control())?;
        Ok(Self(Cow::Borrowed(text)))
    }

    /// The same, owning its text.
    pub fn into_owned(self) -> Group<'static> {
        Group(Cow::Owned(self.0.into_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Group<'_> {
    fn default() -> Self {
        Self(Cow::Borrowed("default"))
    }
}
