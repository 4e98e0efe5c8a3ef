//! The executable `dedup`: serves a region, and everything its operators do around that.
//!
//! It is thin: each command is one file in [`commands`], and the work itself is done in the crates they call.

#[cfg(feature = "lab")]
mod bench;
mod commands;
#[cfg(feature = "lab")]
mod demo;
mod filter;
mod output;

use std::process::ExitCode;

use clap::Parser;

/// Many small, short-lived allocations per request: mimalloc takes a visible share off each.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// "Am I the first to handle this key?": deduplication over several regions.
#[derive(Debug, Parser)]
#[command(name = "dedup", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    dedup_runtime::tls::install_crypto_provider();
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}
