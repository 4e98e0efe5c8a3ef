//! What a testbed consists of.

use std::path::PathBuf;

/// What to start. Every field is public: take [`Options::new`] and change what matters to the test.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names of the regions; each is also the name and the only prefix of its home.
    pub regions: Vec<String>,
    /// The deployment's secret, 64 hex digits; `None`: a random one.
    pub secret_hex: Option<String>,
    /// `dedup serve` processes per region.
    pub instances: usize,
    /// Whether each region has a `dedup janitor`; its settings are `[janitor]` of `extra_tables`.
    pub janitor: bool,
    /// Whether each region has a Redis.
    pub redis: bool,
    /// The `dedup` executable.
    pub dedup_bin: PathBuf,
    /// Lines for `postgresql.conf` (name, value as it would stand there, quotes included); they win over the testbed's.
    pub postgres_settings: Vec<(String, String)>,
    /// Whether instances reach each home through a [`crate::Proxy`] that can misbehave.
    pub proxies: bool,
    /// Whether instances reach their Redis through a [`crate::Proxy`].
    pub redis_proxies: bool,
    /// Standbys of each home; instances know all nodes. Synchronous if `postgres_settings` name `synchronous_standby_names`.
    pub standbys: usize,
    /// Each home's data lies on a file system of its own of this size (needs root and user tools of Linux).
    pub postgres_disk_mb: Option<u32>,
    /// Each home's Postgres runs in a network namespace of its own, so that the line to it can be cut: see [`crate::no_lines_here`]. Not
    /// together with proxies, standbys or `postgres_disk_mb`.
    pub postgres_lines: bool,
    /// Arguments for `redis-server`, for instance `["--maxmemory", "64mb"]`.
    pub redis_args: Vec<String>,
    /// TOML for each instance's configuration, placed before its tables: top-level keys.
    pub extra_config: String,
    /// TOML tables placed at the end of each instance's configuration.
    pub extra_tables: String,
    /// Environment of `dedup serve` and `dedup migrate`, on top of the testbed's own.
    pub env: Vec<(String, String)>,
    /// Environment of one instance (its name, variable, value).
    pub instance_env: Vec<(String, String, String)>,
}

impl Options {
    /// Three regions (`eu`, `us`, `ap`) with a Redis and one instance each.
    #[must_use]
    pub fn new(dedup_bin: PathBuf) -> Self {
        Self {
            regions: ["eu", "us", "ap"].map(String::from).to_vec(),
            secret_hex: None,
            instances: 1,
            janitor: false,
            redis: true,
            dedup_bin,
            postgres_settings: Vec::new(),
            proxies: false,
            redis_proxies: false,
            standbys: 0,
            postgres_disk_mb: None,
            postgres_lines: false,
            redis_args: Vec::new(),
            extra_config: String::new(),
            extra_tables: String::new(),
            env: Vec::new(),
            instance_env: Vec::new(),
        }
    }
}
