//! The configuration file as the commands take it.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use dedup_core::{HomeSpec, Secret};
use dedup_runtime::config::HomeConfig;
use dedup_runtime::{Config, ConfigErrors};
use dedup_store::PgTarget;

/// The configuration file.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// The configuration of an instance (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

impl ConfigArgs {
    /// Reads the file, with secrets from the environment.
    pub fn read(&self) -> Result<Config, ConfigErrors> {
        Config::load(&self.config, variable)
    }

    /// As [`ConfigArgs::read`], with all mistakes in one error.
    pub fn load(&self) -> anyhow::Result<Config> {
        self.read().map_err(|errors| {
            let mistakes: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            anyhow!("{}", mistakes.join("; ")).context(format!("{} is not valid", self.config.display()))
        })
    }
}

/// A variable of the environment; empty counts as unset.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The deployment's secret, if the environment has it.
pub fn secret(config: &Config) -> Option<Secret> {
    let secret = config.secret.as_ref()?;
    Some(Secret::new(*secret.expose_bytes()))
}

/// What the table of homes says of a home.
pub fn spec(home: &HomeConfig) -> HomeSpec {
    HomeSpec { name: home.name.clone(), region: home.region.clone(), prefixes: home.prefixes.clone() }
}

/// The home's Postgres, as the service logs in.
pub fn target(home: &HomeConfig) -> anyhow::Result<PgTarget> {
    PgTarget::parse(&home.postgres, home.password.as_ref()).with_context(|| format!("home {}", home.name))
}
