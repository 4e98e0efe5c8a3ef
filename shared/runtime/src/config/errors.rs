//! What is wrong with a configuration, as a list an operator can work through.

use std::fmt;

/// One mistake: which setting, and what is allowed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The setting's path in the file (`homes[1].prefixes`, `listen`), or the environment variable's name.
    pub field: String,
    /// What is wrong and what is allowed. Never contains a secret's value.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// All mistakes of one configuration, at least one. `Display` gives one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    pub(super) fn one(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self(vec![ConfigError { field: field.into(), message: message.into() }])
    }

    /// A file that is no TOML of ours. The parser's own `Display` quotes the line, which may hold a password somebody put
    /// there by mistake; so only its message and the line's number are kept.
    pub(super) fn syntax(text: &str, path: &str, error: &toml::de::Error) -> Self {
        let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let field = if path.is_empty() || path == "." { format!("line {line}") } else { format!("{path} (line {line})") };
        Self::one(field, error.message().trim())
    }
}
