//! The Redis of one region: a cache only, nothing is saved.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::Spec;
use crate::slot::Slot;
use crate::template::hex;
use crate::user::{self, User};
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, ports, programs};

const START_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const PORT_TRIES: usize = 5;

/// A private Redis. Its port and password stay the same over kills and restarts, its contents do not.
#[derive(Debug)]
pub struct Redis {
    slot: Slot,
    program: PathBuf,
    port: AtomicU16,
    config: PathBuf,
    log: PathBuf,
    user: Option<User>,
    password: String,
    args: Vec<String>,
}

impl Redis {
    pub(crate) async fn create(region: &str, dir: &Path, args: &[String], watchdog: &Arc<Watchdog>) -> Result<Self, Error> {
        let user = User::for_stores()?;
        let data = dir.join("redis");
        user::private_dir(&data, user)?;
        let new = Self {
            slot: Slot::new(&format!("Redis of {region}"), watchdog),
            program: programs::redis()?,
            port: AtomicU16::new(0),
            config: data.join("redis.conf"),
            log: dir.join("redis.log"),
            user,
            password: hex(&rand::random::<[u8; 16]>()),
            args: args.to_vec(),
        };
        let mut tries = 0;
        loop {
            tries += 1;
            new.port.store(ports::free().map_err(Error::io("find a free port"))?, Ordering::Relaxed);
            // A file, because everybody on the machine can read command lines.
            user::private_file(&new.config, &new.config_text(&data), user)?;
            match new.start().await {
                Err(Error::Start { log_tail, .. }) if ports::was_taken(&log_tail) && tries < PORT_TRIES => {}
                other => return other.map(|()| new),
            }
        }
    }

    /// TCP port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    /// `redis://` URL with user and password (`redis-cli` takes an absent user for an empty name).
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://default:{}@127.0.0.1:{}", self.password, self.port())
    }

    /// The password of the default user.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Process id of the server that runs, or ran last.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.slot.pid()
    }

    /// The server's log, over all its starts.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Kills it; all it held is lost.
    ///
    /// # Panics
    /// If it was never started.
    pub async fn kill9(&self) {
        self.slot.end("KILL", STOP_TIMEOUT).await;
    }

    /// Starts it, empty, on its port and waits until it answers. Nothing happens if it runs.
    ///
    /// # Errors
    /// If it does not come up, with the tail of its log.
    pub async fn start(&self) -> Result<(), Error> {
        let mut args = vec![self.config.clone().into()];
        args.extend(self.args.iter().map(Into::into));
        let spec = Spec {
            name: self.slot.name().into(),
            kind: Kind::Redis,
            program: self.program.clone(),
            args,
            env: Vec::new(),
            user: self.user,
            log: self.log.clone(),
        };
        self.slot.launch(&spec).await?;
        self.slot.until_ready(&spec, START_TIMEOUT, || self.ping()).await
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

    fn config_text(&self, data: &Path) -> String {
        format!(
            "bind 127.0.0.1\nport {}\nrequirepass {}\nsave \"\"\nappendonly no\ndaemonize no\ndir {}\n",
            self.port(),
            self.password,
            data.display()
        )
    }

    async fn ping(&self) -> Result<(), String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).await.map_err(|e| e.to_string())?;
        let hello = format!("AUTH {}\r\nPING\r\nQUIT\r\n", self.password);
        stream.write_all(hello.as_bytes()).await.map_err(|e| e.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(|e| e.to_string())?;
        if answer.starts_with("+OK\r\n+PONG") { Ok(()) } else { Err(answer) }
    }
}
