//! `dedup doctor`: a checklist over everything the configuration names.

use std::process::ExitCode;
use std::time::Duration;

use dedup_runtime::Config;
use dedup_runtime::config::{HomeConfig, RedisConfig};
use dedup_store::{Finding, Grade, HomeProbe, HotSettings, probe_home, probe_redis};

use super::config::{self, ConfigArgs};
use crate::output::say;

/// Prints the checklist; exit code 1 if anything must be mended before the service works.
pub async fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    let mut list = Checklist::default();
    let config = match args.read() {
        Ok(config) => config,
        Err(errors) => {
            for error in &errors.0 {
                let found = Finding::fail(error.to_string(), "correct the configuration");
                list.add("config", &found);
            }
            return Ok(list.end());
        }
    };
    list.add("config", &Finding::ok(config.redacted_summary()));
    homes(&config, &mut list).await?;
    match &config.redis {
        Some(redis) => {
            for found in probe_redis(&hot(redis)).await {
                list.add("redis", &found);
            }
        }
        None => list.add("redis", &Finding::ok("not configured: no hot tier")),
    }
    Ok(list.end())
}

/// Own homes first: without `DEDUP_SECRET` theirs is the one the others are compared with, as `dedup serve` does it.
async fn homes(config: &Config, list: &mut Checklist) -> anyhow::Result<()> {
    let mut secret_id = config::secret(config).map(|secret| secret.id());
    let own = |home: &&HomeConfig| home.region == config.process.region;
    let others = config.homes.iter().filter(|home| !own(home));
    for home in config.own_homes().chain(others) {
        let (target, spec) = (config::target(home)?, config::spec(home));
        let probe = HomeProbe {
            target: &target,
            spec: &spec,
            password_env: &home.password_env(),
            secret_id,
            connections: home.connections,
            allow_weak_durability: config.process.allow_weak_durability,
        };
        let report = probe_home(&probe).await;
        secret_id = secret_id.or(report.secret_id);
        for found in &report.findings {
            list.add(&format!("home {}", home.name), found);
        }
    }
    Ok(())
}

fn hot(redis: &RedisConfig) -> HotSettings {
    HotSettings {
        url: redis.url.clone(),
        password: redis.password.clone(),
        timeout: Duration::from_millis(redis.timeout_ms),
        ttl_max: Duration::from_millis(redis.ttl_ms_max),
    }
}

#[derive(Default)]
struct Checklist {
    failures: usize,
    warnings: usize,
}

impl Checklist {
    fn add(&mut self, of: &str, found: &Finding) {
        let grade = match found.grade {
            Grade::Ok => "ok",
            Grade::Warn => {
                self.warnings += 1;
                "warn"
            }
            Grade::Fail => {
                self.failures += 1;
                "FAIL"
            }
        };
        let mend = found.mend.as_ref().map_or_else(String::new, |mend| format!("  -> {mend}"));
        say(format!("{grade:<4}  {of}: {}{mend}", found.what));
    }

    fn end(&self) -> ExitCode {
        say(format!("{} to mend, {} to consider", self.failures, self.warnings));
        if self.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
