//! One `dedup janitor` process.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{self, Home, Instance};
use crate::process::Spec;
use crate::slot::Slot;
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, Options, user};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A janitor. Its configuration and log stay the same over kills and restarts.
#[derive(Debug)]
pub struct Janitor {
    slot: Slot,
    program: PathBuf,
    env: Vec<(String, String)>,
    config: PathBuf,
    failpoint: PathBuf,
    log: PathBuf,
}

impl Janitor {
    /// Where it may be told to die, by [`Janitor::fail_at`].
    pub const POINTS: [&str; 19] = [
        "prepare.done",
        "rotate.done",
        "filter.built",
        "filter.published",
        "carry.batch",
        "freeze.before",
        "freeze.done",
        "archive.blocks",
        "archive.verified",
        "archive.built",
        "publish.done",
        "detach.before",
        "detach.done",
        "drop.done",
        "merge.verified",
        "merge.built",
        "sweep.blocks",
        "retire.done",
        "expire.done",
    ];

    pub(crate) async fn create(
        region: &str,
        dir: &Path,
        homes: &[Home],
        mut env: Vec<(String, String)>,
        options: &Options,
        watchdog: &Arc<Watchdog>,
    ) -> Result<Self, Error> {
        let name = format!("{region}-janitor");
        let file = |suffix: &str| dir.join(format!("{name}.{suffix}"));
        let failpoint = file("failpoint");
        env.push(("DEDUP_FAILPOINT_FILE".into(), failpoint.display().to_string()));
        let instance = Instance { region: region.into(), name: name.clone(), redis_port: None };
        let text = config::text(&instance, 0, homes, &options.extra_config, &options.extra_tables);
        let new = Self {
            slot: Slot::new(&name, watchdog),
            program: options.dedup_bin.clone(),
            env,
            config: file("toml"),
            failpoint,
            log: file("log"),
        };
        user::private_file(&new.config, &text, None)?;
        new.start().await?;
        Ok(new)
    }

    /// Starts it. Nothing happens if it runs.
    ///
    /// # Errors
    /// If it ends at once, with the tail of its log.
    pub async fn start(&self) -> Result<(), Error> {
        let spec = Spec {
            name: self.slot.name().into(),
            kind: Kind::Service,
            program: self.program.clone(),
            args: vec!["janitor".into(), "--config".into(), self.config.clone().into()],
            env: self.env.clone(),
            user: None,
            log: self.log.clone(),
        };
        let before = self.said("the janitor starts");
        if !self.slot.launch(&spec).await? {
            return Ok(());
        }
        let up = || async { if self.said("the janitor starts") > before { Ok(()) } else { Err("it has not said that it starts".into()) } };
        match self.slot.until_ready(&spec, START_TIMEOUT, up).await {
            // A failpoint may lie very early on its way.
            Err(_) if self.said("the janitor starts") > before => Ok(()),
            other => other,
        }
    }

    /// How often its log has this text.
    #[must_use]
    pub fn said(&self, text: &str) -> usize {
        std::fs::read_to_string(&self.log).map_or(0, |log| log.matches(text).count())
    }

    /// Kills it without a word.
    ///
    /// # Panics
    /// If it was never started.
    pub async fn kill9(&self) {
        self.slot.end("KILL", STOP_TIMEOUT).await;
    }

    /// Asks it to end in good order and waits for that.
    ///
    /// # Panics
    /// If it is still there after `timeout`.
    pub async fn sigterm_and_wait(&self, timeout: Duration) -> ExitStatus {
        self.slot.end("TERM", timeout).await
    }

    /// Lets it die, once, when it comes to the point of this name.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn fail_at(&self, point: &str) {
        std::fs::write(&self.failpoint, point).expect("the testbed's folder can be written to");
    }

    /// Takes [`Janitor::fail_at`] back; `true` if it had not come there.
    #[must_use]
    pub fn fail_no_more(&self) -> bool {
        std::fs::remove_file(&self.failpoint).is_ok()
    }

    /// How it ended; `None` while it runs.
    ///
    /// # Panics
    /// If it cannot be looked at.
    pub async fn ended(&self) -> Option<ExitStatus> {
        self.slot.ended().await.expect("a child can be looked at")
    }

    /// Its log, over all its starts.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Its configuration file; a change counts from the next start.
    #[must_use]
    pub fn config_path(&self) -> &Path {
        &self.config
    }

    /// Process id of the janitor that runs, or ran last.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.slot.pid()
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }
}
