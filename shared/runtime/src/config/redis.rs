//! `[redis]`: the region's hot tier. Without the table there is none, and only latency changes.

use secrecy::SecretString;
use serde::Deserialize;

use super::check::Checker;

const PASSWORD_ENV: &str = "DEDUP_REDIS_PASSWORD";

/// `[redis]`: the region's hot tier of done records.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `url`: `redis://host:port` or `rediss://host:port` (TLS); never with a password. Required.
    pub url: String,
    /// From the environment variable `DEDUP_REDIS_PASSWORD`; `None` = Redis asks for none.
    pub password: Option<SecretString>,
    /// `timeout_ms`: how long one call may take before the tier is passed over, milliseconds, 1..=1,000. Default 20.
    pub timeout_ms: u64,
    /// `ttl_ms_max`: longest time a record stays in Redis, milliseconds, 1,000..=2,592,000,000. Default 86,400,000 (24 hours).
    pub ttl_ms_max: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRedis {
    url: String,
    timeout_ms: Option<i64>,
    ttl_ms_max: Option<i64>,
}

impl RawRedis {
    pub fn check(self, env: &impl Fn(&str) -> Option<String>, check: &mut Checker) -> RedisConfig {
        // The text is never quoted: a password may stand in it.
        let rest = self.url.strip_prefix("redis://").or_else(|| self.url.strip_prefix("rediss://"));
        match rest {
            None | Some("") => check.note("redis.url", "write redis://host:port, or rediss://host:port for TLS"),
            Some(rest) if rest.contains('@') => {
                check.note(
                    "redis.url",
                    format!("must not contain a user or password; set the password in the environment as {PASSWORD_ENV}"),
                );
            }
            Some(_) => {}
        }
        RedisConfig {
            url: self.url,
            password: env(PASSWORD_ENV).map(SecretString::from),
            timeout_ms: check.number("redis.timeout_ms", self.timeout_ms, 20, 1..=1_000),
            ttl_ms_max: check.number("redis.ttl_ms_max", self.ttl_ms_max, 86_400_000, 1_000..=2_592_000_000),
        }
    }
}
