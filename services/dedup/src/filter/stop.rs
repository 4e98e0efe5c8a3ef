//! Why a run ends before its input does.

use std::io;

/// Why a run ends early.
#[derive(Debug)]
pub enum Stop {
    /// Asking again would not help.
    Fatal(anyhow::Error),
    /// The service has not answered for as long as we are patient.
    Gone(String),
    /// Nobody takes the output.
    Output(io::Error),
    /// SIGINT (2) or SIGTERM (15).
    Signal(u8),
}

impl Stop {
    /// The exit code, as the help text and the README promise it.
    pub fn code(&self) -> u8 {
        match self {
            Self::Fatal(_) | Self::Output(_) => 1,
            Self::Gone(_) => 4,
            Self::Signal(number) => 128 + number,
        }
    }

    /// What to tell the user.
    pub fn why(&self) -> String {
        match self {
            Self::Fatal(error) => format!("{error:#}"),
            Self::Gone(why) => format!("the service does not answer: {why}"),
            Self::Output(error) => format!("the output cannot be written: {error}"),
            Self::Signal(_) => "stopped by a signal".to_owned(),
        }
    }
}
