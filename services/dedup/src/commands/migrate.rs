//! `dedup migrate`: brings homes up to date and gives new ones their identity and the deployment's secret.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use dedup_core::Secret;
use dedup_runtime::Config;
use dedup_runtime::config::{HomeConfig, SECRET_ENV};
use dedup_store::{MigrateError, Migrated, PgTarget, home_secret, migrate};
use rand::TryRng;
use rand::rngs::SysRng;
use secrecy::SecretString;

use super::config::{self, ConfigArgs, variable};
use crate::output::say;

const OWNER_PASSWORD_ENV: &str = "DEDUP_OWNER_PASSWORD";

/// What `dedup migrate` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Environment:
  DEDUP_OWNER_PASSWORD  password of --owner
  DEDUP_SECRET          the deployment's secret, 64 hexadecimal digits; needed for a new home unless another home has it already")]
pub struct MigrateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Log in as this user, who then owns the schema (default: the user of the home's `postgres`)
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Only this home, of whichever region (default: all homes of the own region)
    #[arg(long, value_name = "NAME")]
    home: Option<String>,
}

/// Migrates one home after the other: two at once could each make a secret.
pub async fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.load()?;
    let mut secret = config::secret(&config);
    for home in chosen(&config, args.home.as_deref())? {
        let target = owner_target(home, args.owner.as_deref())?;
        let migrated = one(&config, home, &target, &mut secret).await.with_context(|| format!("home {}", home.name))?;
        report(home, &migrated, args.owner.is_some());
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen<'a>(config: &'a Config, name: Option<&str>) -> anyhow::Result<Vec<&'a HomeConfig>> {
    let Some(name) = name else {
        return Ok(config.own_homes().collect());
    };
    let homes: Vec<&HomeConfig> = config.homes.iter().filter(|h| h.name == name).collect();
    if homes.is_empty() {
        let known: Vec<&str> = config.homes.iter().map(|home| home.name.as_str()).collect();
        bail!("--home {name}: no such home; the configuration has {}", known.join(", "));
    }
    Ok(homes)
}

/// The home as its owner reaches it. The service's password is never sent in the owner's name.
pub(super) fn owner_target(home: &HomeConfig, owner: Option<&str>) -> anyhow::Result<PgTarget> {
    let Some(owner) = owner else {
        return config::target(home);
    };
    let password = variable(OWNER_PASSWORD_ENV).map(SecretString::from);
    let target = PgTarget::parse(&home.postgres, None)?;
    Ok(target.with_user(owner, password.as_ref()))
}

/// Migrates a home. A new one gets the given secret, or that of a home made before, or, as the first of all, a fresh one.
async fn one(config: &Config, home: &HomeConfig, target: &PgTarget, secret: &mut Option<Secret>) -> anyhow::Result<Migrated> {
    let spec = config::spec(home);
    let made = match home_secret(target).await {
        Ok(made) => made,
        Err(error @ MigrateError::Connect(_)) => return Err(error.into()),
        // Half migrated, perhaps: the migration itself will tell.
        Err(_) => None,
    };
    if secret.is_some() || made.is_some() {
        let migrated = migrate(target, &spec, secret.as_ref()).await?;
        *secret = secret.take().or(made);
        return Ok(migrated);
    }
    if let Some(found) = secret_elsewhere(config, home).await {
        return Ok(migrate(target, &spec, Some(secret.insert(found))).await?);
    }
    let (fresh, hex) = fresh_secret()?;
    let migrated = match migrate(target, &spec, Some(&fresh)).await {
        Ok(migrated) => migrated,
        // Somebody else may have made the home meanwhile, with another secret: then that one counts.
        Err(error) => match migrate(target, &spec, None).await {
            Ok(migrated) => migrated,
            Err(_) => return Err(error.into()),
        },
    };
    if migrated.new_home {
        tell_secret(config, home, &hex);
        *secret = Some(fresh);
    } else {
        *secret = home_secret(target).await?;
    }
    Ok(migrated)
}

/// The secret of another home of the deployment, if one is there already and tells us.
async fn secret_elsewhere(config: &Config, new: &HomeConfig) -> Option<Secret> {
    for home in config.homes.iter().filter(|home| home.name != new.name) {
        let Ok(target) = config::target(home) else {
            continue;
        };
        if let Ok(Some(secret)) = home_secret(&target).await {
            say(format!("{}: takes the deployment's secret from home {}", new.name, home.name));
            return Some(secret);
        }
    }
    None
}

fn fresh_secret() -> anyhow::Result<(Secret, String)> {
    let mut bytes = [0; 32];
    SysRng.try_fill_bytes(&mut bytes).context("the operating system gives no random bytes")?;
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes all that is written");
        hex
    });
    Ok((Secret::new(bytes), hex))
}

/// The only place where a secret is ever printed.
fn tell_secret(config: &Config, home: &HomeConfig, hex: &str) {
    say(format!("{}: made the deployment's secret. Store it safely; the home keeps a copy, and it is not shown again.", home.name));
    say("  Every other home and instance needs the same one. Give it to `dedup migrate` and `dedup serve` there as");
    say(format!("    {SECRET_ENV}={hex}"));
    let others: Vec<&str> = config.homes.iter().filter(|other| other.name != home.name).map(|other| other.name.as_str()).collect();
    if !others.is_empty() {
        say(format!(
            "  None of the other homes ({}) was found with a secret. If one has another already, drop schema dedup here and migrate again with that one.",
            others.join(", ")
        ));
    }
}

fn report(home: &HomeConfig, migrated: &Migrated, other_owner: bool) {
    if migrated.applied.is_empty() {
        say(format!("{}: up to date, nothing applied", home.name));
    }
    for version in &migrated.applied {
        say(format!("{}: applied {version}", home.name));
    }
    if migrated.new_home {
        say(format!("{}: is new: home of region {}, prefixes {}", home.name, home.region, home.prefixes.join(", ")));
        if other_owner {
            say("  Let the service in, as the owner: GRANT dedup_service TO the user of the home's `postgres`");
        }
    }
}
