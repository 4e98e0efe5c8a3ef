//! `[log]`: what is logged and how.

use serde::Deserialize;
use tracing_subscriber::EnvFilter;

use super::check::Checker;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// `[log]`: what is logged and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `level`: a level (`info`) or filter directives (`info,dedup_store=debug`). Default `info`.
    pub level: String,
    /// `format`: `json` (one object a line) or `text` (for a terminal). Default `json`.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Json }
    }
}

/// How a log line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Readable text.
    Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLog {
    level: Option<String>,
    format: Option<String>,
}

impl RawLog {
    pub fn check(self, check: &mut Checker) -> LogConfig {
        let default = LogConfig::default();
        let level = self.level.unwrap_or(default.level);
        if !is_filter(&level) {
            check.note(
                "log.level",
                format!("{level:?} is not allowed; write one of {LEVELS:?} or directives like \"info,dedup_store=debug\""),
            );
        }
        let format = match self.format.as_deref() {
            None => default.format,
            Some("json") => LogFormat::Json,
            Some("text") => LogFormat::Text,
            Some(other) => {
                check.note("log.format", format!("{other:?} is not allowed; it is \"json\" or \"text\""));
                default.format
            }
        };
        LogConfig { level, format }
    }
}

/// The filter's own parser takes a misspelt level for the name of a module and then logs nothing at all; a single word must be a level.
fn is_filter(level: &str) -> bool {
    let single_word = !level.contains(['=', ',', '[']);
    (!single_word || LEVELS.contains(&level)) && EnvFilter::try_new(level).is_ok()
}
