//! The role `janitor`: the life of segments in one region.
//!
//! Several may run; at each home one leads, by an advisory lock of its connection, and the others wait. A janitor that is killed at any
//! point leaves nothing half done: the next one goes on.
//!
//! Architecture invariant: no SQL here. What is due and how it is done is the store's; this is the process around it.

use std::time::Duration;

use dedup_runtime::Config;
use dedup_runtime::config::{HomeConfig, JanitorConfig};
use dedup_runtime::shutdown::Shutdown;
use dedup_store::{ConnectError, Janitor, JanitorError, JanitorSettings, PgTarget, chain};
use tokio_util::sync::CancellationToken;

/// Why it did not start.
#[derive(Debug, thiserror::Error)]
pub enum TendError {
    /// A home's connection string.
    #[error("homes.{home}.postgres is not valid")]
    Target {
        /// Which home.
        home: String,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// A home could not be asked (dry run only: otherwise it is tried again).
    #[error("home {home}")]
    Home {
        /// Which home.
        home: String,
        /// Why.
        #[source]
        source: JanitorError,
    },
}

/// After a failure.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

fn settings(config: &JanitorConfig) -> JanitorSettings {
    let ms = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    JanitorSettings {
        segment_ms: ms(config.segment_ms),
        segment_rows: ms(config.segment_rows),
        ahead: ms(config.segments_ahead),
        warm_ms: ms(config.warm_ms),
        filter_fpr: config.filter_fpr_ppm as f64 / 1e6,
        filter_build_bytes: config.filter_build_bytes,
        drop_margin_ms: ms(config.drop_margin_ms),
        layout_pause: Duration::from_millis(config.layout_pause_ms),
        clock_hold: Duration::from_millis(config.clock_hold_ms),
    }
}

fn target(home: &HomeConfig, janitor: &JanitorConfig) -> Result<PgTarget, TendError> {
    let target = PgTarget::parse(&home.postgres, None).map_err(|source| TendError::Target { home: home.name.clone(), source })?;
    Ok(target.with_user(&janitor.user, janitor.password.as_ref()))
}

/// Tends the region's homes until SIGINT or SIGTERM. `reached` is told of each named point on the way.
///
/// # Errors
/// The configuration cannot be used. A home that cannot be reached is tried again.
pub async fn tend(config: &Config, reached: fn(&'static str)) -> Result<(), TendError> {
    let shutdown = Shutdown::new();
    let mut tasks = tokio::task::JoinSet::new();
    for home in config.own_homes() {
        let (home, janitor, target) = (home.clone(), config.janitor.clone(), target(home, &config.janitor)?);
        tasks.spawn(tend_home(home, janitor, target, reached, shutdown.token()));
    }
    if let Err(error) = shutdown.wait_for_signal().await {
        tracing::error!(error = &error as &dyn std::error::Error, "signals cannot be heard");
        shutdown.trigger();
    }
    tasks.join_all().await;
    tracing::info!("stopped");
    Ok(())
}

/// A janitor's connection to a home, for what is not part of its rounds.
///
/// # Errors
/// No connection, or another home.
pub async fn connect(config: &Config, home: &HomeConfig) -> Result<Janitor, TendError> {
    let failed = |source| TendError::Home { home: home.name.clone(), source };
    Janitor::connect(&target(home, &config.janitor)?, &home.name, &home.region, settings(&config.janitor), |_| {}).await.map_err(failed)
}

/// What would be done at each home now.
///
/// # Errors
/// The first home that cannot be asked.
pub async fn plan(config: &Config) -> Result<Vec<(String, Vec<String>)>, TendError> {
    let mut plans = Vec::new();
    for home in config.own_homes() {
        let failed = |source| TendError::Home { home: home.name.clone(), source };
        let janitor = connect(config, home).await?;
        plans.push((home.name.clone(), janitor.plan().await.map_err(failed)?));
    }
    Ok(plans)
}

async fn tend_home(home: HomeConfig, config: JanitorConfig, target: PgTarget, reached: fn(&'static str), stop: CancellationToken) {
    while !stop.is_cancelled() {
        let ended = tokio::select! {
            ended = follow(&home, &config, &target, reached) => ended,
            // Whatever it is doing is rolled back when the connection closes, and done by whoever leads next.
            () = stop.cancelled() => return,
        };
        if let Err(error) = ended {
            tracing::warn!(home = %home.name, error = chain(&error), "the janitor stopped short; it starts over");
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE_AFTER_FAILURE) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// One connection's life.
async fn follow(home: &HomeConfig, config: &JanitorConfig, target: &PgTarget, reached: fn(&'static str)) -> Result<(), JanitorError> {
    let pause = Duration::from_millis(config.pause_ms);
    let mut janitor = Janitor::connect(target, &home.name, &home.region, settings(config), reached).await?;
    while !janitor.lead().await? {
        tokio::time::sleep(pause.min(Duration::from_secs(1))).await;
    }
    tracing::info!(home = %home.name, "leads");
    loop {
        let round = janitor.round().await?;
        for deed in &round.deeds {
            tracing::info!(home = %home.name, deed = %deed, "did");
        }
        if round.postponed {
            tracing::info!(home = %home.name, "a change waits for somebody's open transaction");
        }
        tokio::time::sleep(pause).await;
    }
}
