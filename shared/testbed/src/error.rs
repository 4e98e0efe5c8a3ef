//! What can go wrong while servers are started or stopped.

use std::path::Path;

/// How much of a log an error shows.
const TAIL_BYTES: usize = 4_000;

/// Why the testbed could not do what it was asked.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program is not installed.
    #[error("`{program}` was not found; {hint}")]
    Missing {
        /// The executable looked for.
        program: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// The operating system refused something.
    #[error("cannot {what}")]
    Io {
        /// What was attempted, as the rest of a sentence.
        what: String,
        /// The refusal.
        source: std::io::Error,
    },
    /// A server ended, or did not answer in time, while it was started.
    #[error("{name} did not start ({why}); its log ends with:\n{log_tail}")]
    Start {
        /// Which server.
        name: String,
        /// What was seen.
        why: String,
        /// The last lines it wrote.
        log_tail: String,
    },
    /// A helper program (initdb, cp, `dedup migrate`) failed.
    #[error("{name} failed ({why}); it said:\n{log_tail}")]
    Tool {
        /// Which program.
        name: String,
        /// How it ended.
        why: String,
        /// The last lines it wrote.
        log_tail: String,
    },
    /// A statement of the set-up failed in a new cluster.
    #[error("cannot {what} in Postgres")]
    Sql {
        /// What was attempted, as the rest of a sentence.
        what: &'static str,
        /// The driver's error.
        source: tokio_postgres::Error,
    },
    /// A proxy could not listen.
    #[error("a proxy cannot listen: {0}")]
    Proxy(String),
    /// The process that cleans up could not be used.
    #[error("the watchdog {0}")]
    Watchdog(&'static str),
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn start(name: &str, why: impl Into<String>, log: &Path) -> Self {
        Self::Start { name: name.into(), why: why.into(), log_tail: tail(log) }
    }

    pub(crate) fn tool(name: &str, why: impl Into<String>, log: &Path) -> Self {
        Self::Tool { name: name.into(), why: why.into(), log_tail: tail(log) }
    }
}

/// As for people, because tests show it by `expect`: a log in one escaped line helps nobody.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")?;
        match std::error::Error::source(self) {
            Some(source) => write!(f, "\n{source:?}"),
            None => Ok(()),
        }
    }
}

/// The last lines of a log file; a log that cannot be read is described instead, because this runs inside an error.
pub(crate) fn tail(log: &Path) -> String {
    match std::fs::read(log) {
        Ok(bytes) => String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]).into_owned(),
        Err(e) => format!("({} cannot be read: {e})", log.display()),
    }
}
