//! Real servers on this machine for demo, tests and bench alike: per region a private Postgres, a private Redis and
//! some `dedup serve` instances, each of which can be killed, frozen and started again.
//!
//! Architecture invariant: whatever happens to this process (return, panic, Ctrl-C, `kill -9`), nothing it started
//! survives it, neither a process nor a folder. One small shell script sees to that: `watchdog.sh`.
//!
//! Methods that hurt or probe a server panic with a message when that is impossible: their callers are tests.
//! Methods that start something return [`Error`], which carries the tail of the server's log.

mod config;
mod error;
mod janitor;
mod options;
mod ports;
mod postgres;
mod proc;
mod process;
mod programs;
mod prometheus;
mod provision;
mod proxy;
mod redis;
mod service;
mod slot;
mod template;
mod testbed;
mod user;
mod wait;
mod watchdog;

pub use error::Error;
pub use janitor::Janitor;
pub use options::Options;
pub use postgres::{Lost, Postgres, no_lines_here};
pub use prometheus::{Prometheus, Rules, hasten};
pub use proxy::{Mode, Odds, Proxy};
pub use redis::Redis;
pub use service::Service;
pub use template::discard as discard_template;
pub use testbed::{Region, Testbed};
pub use wait::wait_until;
