//! The commands, one file each.

mod check_config;
mod claims;
mod config;
pub mod connect;
mod doctor;
mod export;
mod import;
mod janitor;
mod keys;
mod memory_file;
mod migrate;
mod openapi;
mod own_home;
mod raise_epoch;
mod segments;
mod serve;
mod topics;
mod topics_file;

use std::process::ExitCode;

use clap::Subcommand;

/// What the executable can be asked to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve one region over REST until SIGINT or SIGTERM
    Serve(serve::ServeArgs),
    /// Tend the segments of the own region's homes until SIGINT or SIGTERM: make, rotate, filter, archive, merge, drop
    Janitor(janitor::JanitorArgs),
    /// Load keys that another system has seen, or what was exported, into a home's memory
    Import(import::ImportArgs),
    /// Write what a home remembers to a file that `import` takes
    Export(export::ExportArgs),
    /// Show segments and archives of all homes
    Segments(segments::SegmentsArgs),
    /// Say what is wrong with a configuration file, all at once
    CheckConfig(config::ConfigArgs),
    /// Bring the homes of the own region up to date; run by their owner
    Migrate(migrate::MigrateArgs),
    /// Raise a home's epoch after it was restored to an earlier state; run by its owner
    RaiseEpoch(raise_epoch::RaiseEpochArgs),
    /// Connect to everything the configuration names and say what is to be mended
    Doctor(config::ConfigArgs),
    /// Policies of topics
    #[command(subcommand)]
    Topics(topics::TopicsCommand),
    /// Open claims
    #[command(subcommand)]
    Claims(claims::ClaimsCommand),
    /// Look at a key in all tiers, forget it, or end its open claim
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Print the lines whose keys nobody has seen before
    Filter(Box<crate::filter::FilterArgs>),
    /// Print the OpenAPI document of the REST interface (JSON)
    Openapi,
    /// Measure the service beside redis-benchmark and pgbench on this machine
    #[cfg(feature = "lab")]
    Bench(crate::bench::BenchArgs),
    /// Run three regions with live traffic on this machine
    #[cfg(feature = "lab")]
    Demo(crate::demo::DemoArgs),
}

impl Command {
    /// Runs it; answers the exit code.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Serve(args) => serve::run(args),
            Self::Janitor(args) => block_on(janitor::run(args)),
            Self::Import(args) => block_on(import::run(args)),
            Self::Export(args) => block_on(export::run(args)),
            Self::Segments(args) => block_on(segments::run(args)),
            Self::CheckConfig(args) => Ok(check_config::run(&args)),
            Self::Migrate(args) => block_on(migrate::run(args)),
            Self::RaiseEpoch(args) => block_on(raise_epoch::run(args)),
            Self::Doctor(args) => block_on(doctor::run(args)),
            Self::Topics(command) => block_on(topics::run(command)),
            Self::Claims(command) => block_on(claims::run(command)),
            Self::Keys(command) => block_on(keys::run(command)),
            Self::Filter(args) => block_on(crate::filter::run(*args)),
            Self::Openapi => Ok(openapi::run()),
            #[cfg(feature = "lab")]
            Self::Bench(args) => block_on(crate::bench::run(args)),
            #[cfg(feature = "lab")]
            Self::Demo(args) => {
                // Its consumers should not wait for each other.
                let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
                runtime.block_on(crate::demo::run(args)).map(|()| ExitCode::SUCCESS)
            }
        }
    }
}

/// A command does one thing after the other: one thread is enough.
fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
