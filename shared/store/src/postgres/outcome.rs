//! What an error of Postgres means for a question: the one table.

use tokio_postgres::error::SqlState;

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing reached the home.
    #[error("the home could not be reached: {0}")]
    NotSent(String),
    /// The home refused; nothing was changed. `again`: worth asking once more at once.
    #[error("the home refused ({code}): {message}")]
    NotApplied {
        /// SQLSTATE.
        code: String,
        /// The server's message.
        message: String,
        /// A conflict that a repetition settles.
        again: bool,
    },
    /// Not a primary: the wrong node.
    #[error("not a read-write primary")]
    WrongNode,
    /// The statement may have been committed.
    #[error("the outcome is not known: {0}")]
    Unknown(String),
}

impl CallError {
    /// In a word, without anything the server wrote.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotSent(_) => "not sent",
            Self::NotApplied { .. } => "refused",
            Self::WrongNode => "not a primary",
            Self::Unknown(_) => "outcome not known",
        }
    }
}

/// The table of `FAULTS` → meaning. Everything that is not certainly "no" is unknown.
pub fn classify(error: &tokio_postgres::Error) -> CallError {
    let Some(db) = error.as_db_error() else {
        return CallError::Unknown(error.to_string());
    };
    let code = db.code();
    let refused = |again| CallError::NotApplied { code: code.code().to_owned(), message: db.message().to_owned(), again };
    match code {
        // The server ended the session, or could not tell: the commit may have happened.
        &SqlState::ADMIN_SHUTDOWN
        | &SqlState::CRASH_SHUTDOWN
        | &SqlState::IDLE_SESSION_TIMEOUT
        | &SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN => CallError::Unknown(db.to_string()),
        c if c.code().starts_with("08") => CallError::Unknown(db.to_string()),
        // The session was refused before any statement ran.
        &SqlState::TOO_MANY_CONNECTIONS | &SqlState::CANNOT_CONNECT_NOW => CallError::NotSent(db.to_string()),
        &SqlState::READ_ONLY_SQL_TRANSACTION => CallError::WrongNode,
        &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::LOCK_NOT_AVAILABLE => refused(true),
        // One statement, one implicit transaction: any other error reply means that it was rolled back.
        _ => refused(false),
    }
}
