//! The process kit every role starts with: configuration, logs, metrics, shutdown, named tasks and the TLS provider.
//!
//! A role's `main` is short: [`tls::install_crypto_provider`], [`Config::load`], [`logs::init`], [`Metrics::new`], then its own work
//! under [`Tasks`] until [`Shutdown::wait_for_signal`] returns.
//!
//! Architecture invariants: this crate knows nothing about keys, tiers or verdicts; it is the only one that reads environment variables
//! and the only one that imports a telemetry SDK or exporter. Everybody else gets an [`opentelemetry::metrics::Meter`] and OpenTelemetry's
//! current context.

pub mod config;
pub mod logs;
pub mod metrics;
pub mod shutdown;
pub mod tasks;
pub mod tls;
pub mod traces;

pub use config::{Config, ConfigError, ConfigErrors};
pub use metrics::{Identity, Metrics};
pub use shutdown::Shutdown;
pub use tasks::Tasks;
pub use traces::Traces;
