//! `dedup check-config`.

use std::process::ExitCode;

use super::config::ConfigArgs;
use crate::output::say;

/// Prints every mistake on a line of its own, or what the configuration amounts to.
pub fn run(args: &ConfigArgs) -> ExitCode {
    match args.read() {
        Ok(config) => {
            say(format!("ok: {}", config.redacted_summary()));
            ExitCode::SUCCESS
        }
        Err(errors) => {
            errors.0.iter().for_each(|error| say(error.to_string()));
            ExitCode::FAILURE
        }
    }
}
