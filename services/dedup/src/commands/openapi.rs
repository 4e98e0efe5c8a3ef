//! `dedup openapi`.

use std::process::ExitCode;

use crate::output::say;

/// Prints the document.
pub fn run() -> ExitCode {
    say(dedup_region::openapi_json());
    ExitCode::SUCCESS
}
