//! One documented TOML file per instance, secrets by environment; every mistake reported at once and by name.
//!
//! Reading has two steps. The file is first read as text and numbers as they stand (unknown settings are refused there, with their line).
//! Then each part turns its raw values into typed ones and notes what is wrong in one list, so that a first start shows all mistakes.

mod callers;
mod check;
mod cold;
mod errors;
mod homes;
mod limits;
mod local;
mod log;
mod process;
mod redis;
mod secret;
mod telemetry;

use std::fmt;
use std::path::Path;

use serde::Deserialize;

pub use callers::{CallerConfig, Role, TokenDigest, TopicPattern};
pub use cold::{FiltersConfig, JANITOR_PASSWORD_ENV, JanitorConfig};
pub use errors::{ConfigError, ConfigErrors};
pub use homes::HomeConfig;
pub use limits::LimitsConfig;
pub use local::LocalConfig;
pub use log::{LogConfig, LogFormat};
pub use process::ProcessConfig;
pub use redis::RedisConfig;
pub use secret::{DeploymentSecret, SECRET_ENV};
pub use telemetry::{OtlpConfig, TelemetryConfig};

use check::Checker;

/// Everything one instance is told at its start. Immutable afterwards.
#[derive(Clone, Debug)]
pub struct Config {
    /// The top-level settings: who this process is and where it listens.
    pub process: ProcessConfig,
    /// `[log]`: what is logged and how.
    pub log: LogConfig,
    /// `[limits]`: a limit on everything a caller can send.
    pub limits: LimitsConfig,
    /// `[local]`: the in-process tier.
    pub local: LocalConfig,
    /// `[filters]`: bloom filters of sealed segments and archives.
    pub filters: FiltersConfig,
    /// `[janitor]`: the life of segments.
    pub janitor: JanitorConfig,
    /// `[[homes]]`: every home of the deployment, the same table in all regions. At least one is of the own region.
    pub homes: Vec<HomeConfig>,
    /// `[redis]`: this region's hot tier; `None` without the table.
    pub redis: Option<RedisConfig>,
    /// `[[callers]]`: who may call; empty = no authentication (loopback only).
    pub callers: Vec<CallerConfig>,
    /// `[telemetry]`: what is exported.
    pub telemetry: TelemetryConfig,
    /// The deployment's secret, from `DEDUP_SECRET`; `None` = read it from the own home.
    pub secret: Option<DeploymentSecret>,
}

/// The file as it stands, before any value is judged. The top-level settings come first, as TOML wants it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawConfig {
    region: Option<String>,
    instance: Option<String>,
    listen: Option<String>,
    admin_listen: Option<String>,
    http_workers: Option<i64>,
    request_deadline_ms: Option<i64>,
    shutdown_grace_ms: Option<i64>,
    drain_ms: Option<i64>,
    allow_weak_durability: Option<bool>,
    log: log::RawLog,
    limits: limits::RawLimits,
    local: local::RawLocal,
    filters: cold::RawFilters,
    janitor: cold::RawJanitor,
    homes: Vec<homes::RawHome>,
    redis: Option<redis::RawRedis>,
    callers: Vec<callers::RawCaller>,
    telemetry: telemetry::RawTelemetry,
}

impl Config {
    /// Reads the file at `path` and the secrets `env` knows (pass `|name| std::env::var(name).ok()`).
    ///
    /// An environment variable that is set but empty counts as unset.
    ///
    /// # Errors
    /// All mistakes at once; see [`ConfigErrors`].
    pub fn load(path: impl AsRef<Path>, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigErrors> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigErrors::one(path.display().to_string(), format!("the file cannot be read: {error}")))?;
        Self::parse(&text, env)
    }

    /// As [`Config::load`], from a text already read.
    ///
    /// # Errors
    /// All mistakes at once; see [`ConfigErrors`].
    pub fn parse(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigErrors> {
        let raw = read_raw(text)?;
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let mut check = Checker::default();
        let process = process::check(&raw, &mut check);
        let homes = homes::check(raw.homes, &process.region, &env, &mut check);
        let config = Self {
            log: raw.log.check(&mut check),
            limits: raw.limits.check(&mut check),
            local: raw.local.check(&mut check),
            filters: raw.filters.check(&mut check),
            janitor: raw.janitor.check(&env, &mut check),
            redis: raw.redis.map(|redis| redis.check(&env, &mut check)),
            callers: callers::check(raw.callers, &mut check),
            telemetry: raw.telemetry.check(&mut check),
            secret: secret::check(&env, &mut check),
            process,
            homes,
        };
        for (i, home) in config.homes.iter().enumerate() {
            if home.queue_items < config.limits.batch_items {
                let least = config.limits.batch_items;
                check.note(
                    format!("homes[{i}].queue_items"),
                    format!("must be at least limits.batch_items ({least}), or no full batch is ever taken"),
                );
            }
        }
        check.finish(config)
    }

    /// The homes of this instance's own region, at least one.
    pub fn own_homes(&self) -> impl Iterator<Item = &HomeConfig> {
        self.homes.iter().filter(|home| home.region == self.process.region)
    }

    /// One line for the start-up log: what this instance is and reaches, without any secret or connection text.
    #[must_use]
    pub fn redacted_summary(&self) -> String {
        Summary(self).to_string()
    }
}

fn read_raw(text: &str) -> Result<RawConfig, ConfigErrors> {
    let document = toml::Deserializer::parse(text).map_err(|error| ConfigErrors::syntax(text, "", &error))?;
    serde_path_to_error::deserialize(document).map_err(|error| ConfigErrors::syntax(text, &error.path().to_string(), error.inner()))
}

struct Summary<'a>(&'a Config);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { process, homes, redis, callers, local, .. } = self.0;
        write!(f, "region={} instance={} listen={}", process.region, process.instance, process.listen)?;
        if let Some(admin) = process.admin_listen {
            write!(f, " admin_listen={admin}")?;
        }
        write!(f, " homes=[")?;
        for (at, home) in homes.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{}({}: {})", home.name, home.region, home.prefixes.join(","))?;
        }
        let hot = if redis.is_some() { "on" } else { "off" };
        let secret = if self.0.secret.is_some() { "environment" } else { "own home" };
        write!(f, "] hot={hot} local_bytes={} callers={} secret={secret}", local.bytes, callers.len())
    }
}
