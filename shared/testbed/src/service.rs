//! One `dedup serve` process.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::{self, Home, Instance};
use crate::process::Spec;
use crate::slot::Slot;
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, Options, ports, user};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const PORT_TRIES: usize = 5;

/// An instance. Its port, configuration and log file stay the same over kills and restarts.
#[derive(Debug)]
pub struct Service {
    slot: Slot,
    port: AtomicU16,
    program: PathBuf,
    env: Vec<(String, String)>,
    config: PathBuf,
    ready_file: PathBuf,
    log: PathBuf,
}

impl Service {
    pub(crate) async fn create(
        instance: &Instance,
        dir: &Path,
        homes: &[Home],
        env: Vec<(String, String)>,
        options: &Options,
        watchdog: &Arc<Watchdog>,
    ) -> Result<Self, Error> {
        let file = |suffix: &str| dir.join(format!("{}.{suffix}", instance.name));
        let new = Self {
            slot: Slot::new(&instance.name, watchdog),
            port: AtomicU16::new(0),
            program: options.dedup_bin.clone(),
            env,
            config: file("toml"),
            ready_file: file("ready.json"),
            log: file("log"),
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let port = ports::free().map_err(Error::io("find a free port"))?;
            new.port.store(port, Ordering::Relaxed);
            let text = config::text(instance, port, homes, &options.extra_config, &options.extra_tables);
            user::private_file(&new.config, &text, None)?;
            match new.start().await {
                Err(Error::Start { log_tail, .. }) if ports::was_taken(&log_tail) && tries < PORT_TRIES => {}
                other => return other.map(|()| new),
            }
        }
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// TCP port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    /// The instance's name, for instance `eu-1`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.slot.name()
    }

    /// Process id of the instance that runs, or ran last.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.slot.pid()
    }

    /// What it writes to stdout and stderr, over all its starts.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Its configuration file; a change counts from the next start.
    #[must_use]
    pub fn config_path(&self) -> &Path {
        &self.config
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

    /// Starts it on its port and waits until `/readyz` answers 200. Nothing happens if it runs.
    ///
    /// # Errors
    /// If it does not come up, with the tail of its log.
    pub async fn start(&self) -> Result<(), Error> {
        let spec = Spec {
            name: self.name().into(),
            kind: Kind::Service,
            program: self.program.clone(),
            args: vec![
                "serve".into(),
                "--config".into(),
                self.config.clone().into(),
                "--ready-file".into(),
                self.ready_file.clone().into(),
            ],
            env: self.env.clone(),
            user: None,
            log: self.log.clone(),
        };
        // One of an earlier start would say "ready" too soon.
        std::fs::remove_file(&self.ready_file).ok();
        self.slot.launch(&spec).await?;
        self.slot.until_ready(&spec, START_TIMEOUT, || self.ready()).await
    }

    /// Freezes it: connections stay open and nothing answers.
    ///
    /// # Panics
    /// If it is not running.
    pub async fn sigstop(&self) {
        self.slot.signal("STOP").await;
    }

    /// Lets it go on.
    ///
    /// # Panics
    /// If it is not running.
    pub async fn sigcont(&self) {
        self.slot.signal("CONT").await;
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }

    async fn ready(&self) -> Result<(), String> {
        let listen = self.listening()?;
        let mut stream = TcpStream::connect(&listen).await.map_err(|e| e.to_string())?;
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(|e| e.to_string())?;
        match answer.split(' ').nth(1) {
            Some("200") => Ok(()),
            _ => Err(format!("/readyz says {answer}")),
        }
    }

    /// The address that answers `/readyz`, from the ready file: the administrators' own one if there is one.
    fn listening(&self) -> Result<String, String> {
        let text = std::fs::read_to_string(&self.ready_file).map_err(|e| format!("no ready file yet: {e}"))?;
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("ready file: {e}"))?;
        let address = ["admin_listen", "listen"].iter().find_map(|name| json[name].as_str());
        address.map(String::from).ok_or_else(|| format!("ready file without an address: {text}"))
    }
}
