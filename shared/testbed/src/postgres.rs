//! The Postgres of one region.

mod cluster;
mod disk;
mod faults;
mod line;
mod roles;
mod standby;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

use crate::process::Spec;
use crate::slot::{POLL, Slot};
use crate::template::Template;
use crate::user::User;
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, Options, ports, programs};

pub use line::{Lost, no_lines_here};

/// Crash recovery included.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// After a kill the backends need a moment to let go of the shared memory; until then a start is refused.
const STALE_LOCK_TIMEOUT: Duration = Duration::from_secs(15);
const PORT_TRIES: usize = 5;

/// A private cluster with the database `dedup`. Its port and data stay the same over kills and restarts.
#[derive(Debug)]
pub struct Postgres {
    slot: Slot,
    program: PathBuf,
    port: AtomicU16,
    data: PathBuf,
    log: PathBuf,
    user: Option<User>,
    password: String,
    /// The file system its data lies on, if it has one of its own.
    disk: Option<disk::Disk>,
    /// The network namespace it runs in, if it has one of its own.
    line: Option<line::Line>,
    /// Backends stopped by [`Postgres::sigstop`], with their start.
    frozen: Mutex<Vec<(u32, u64)>>,
}

impl Postgres {
    /// Makes and starts a cluster with the database and its owner.
    pub(crate) async fn create(
        region: &str,
        dir: &Path,
        settings: &[(String, String)],
        options: &Options,
        watchdog: &Arc<Watchdog>,
    ) -> Result<Self, Error> {
        let template = Template::get().await?;
        let data = dir.join("postgres");
        let line = if options.postgres_lines { Some(line::Line::create(dir, watchdog).await?) } else { None };
        let settings: Vec<_> = settings.iter().cloned().chain(line.as_ref().map(line::Line::listen)).collect();
        cluster::create(&template, &data, &settings, watchdog).await?;
        if line.is_some() {
            line::Line::admit(&data)?;
        }
        let disk = match options.postgres_disk_mb {
            Some(mb) => Some(disk::Disk::create(&data, mb, watchdog).await?),
            None => None,
        };
        let new = Self {
            slot: Slot::new(&format!("Postgres of {region}"), watchdog),
            program: programs::postgres("postgres")?,
            port: AtomicU16::new(0),
            data,
            log: dir.join("postgres.log"),
            user: template.user,
            password: template.password.clone(),
            disk,
            line,
            frozen: Mutex::default(),
        };
        new.first_start().await?;
        let superuser = new.try_connect("postgres", "postgres").await;
        let superuser = superuser.map_err(|source| Error::Sql { what: "log in as superuser", source })?;
        roles::create_owner(&superuser, &new.password).await?;
        Ok(new)
    }

    /// Creates `dedup_svc`, `dedup_caller` and `dedup_jan` in the group roles that a migration made.
    /// [`Testbed::start`](crate::Testbed::start) has done it; needed only after `start_stores` and a migration of one's own.
    ///
    /// # Errors
    /// If a group role is missing, or a login role exists already.
    pub async fn create_login_roles(&self) -> Result<(), Error> {
        let superuser = self.try_connect("postgres", "dedup").await;
        let superuser = superuser.map_err(|source| Error::Sql { what: "log in as superuser", source })?;
        roles::create_logins(&superuser, &self.password).await
    }

    /// Where tests reach it: 127.0.0.1, unless it has a line of its own.
    #[must_use]
    pub fn host(&self) -> String {
        self.line.as_ref().map_or_else(|| "127.0.0.1".into(), line::Line::sure_host)
    }

    /// Where instances reach it.
    #[must_use]
    pub fn host_for_instances(&self) -> String {
        self.line.as_ref().map_or_else(|| "127.0.0.1".into(), line::Line::cuttable_host)
    }

    /// TCP port on [`Postgres::host`].
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    /// Connection string (key=value form, password included) for the database `dedup`.
    /// Users: `postgres` (superuser), `dedup_owner`, `dedup_svc`, `dedup_caller`, `dedup_jan`.
    #[must_use]
    pub fn dsn(&self, user: &str) -> String {
        let (host, port, password) = (self.host(), self.port(), &self.password);
        format!("host={host} port={port} user={user} password={password} dbname=dedup")
    }

    /// The password of every role here.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Process id of the postmaster that runs, or ran last.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.slot.pid()
    }

    /// The server's log, over all its starts.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// A new connection to the database `dedup`; it ends when the client is dropped.
    ///
    /// # Panics
    /// If the server refuses it.
    pub async fn connect(&self, user: &str) -> Client {
        self.try_connect(user, "dedup").await.unwrap_or_else(|e| panic!("{}: {user} cannot log in: {e:?}", self.slot.name()))
    }

    /// Starts it on its port and waits until it answers; recovery and a stale lock are waited for. Nothing happens if it runs.
    ///
    /// # Errors
    /// If it does not come up, with the tail of its log.
    pub async fn start(&self) -> Result<(), Error> {
        let spec = self.spec();
        let lock_deadline = Instant::now() + STALE_LOCK_TIMEOUT;
        loop {
            self.slot.launch(&spec).await?;
            let ready = self.slot.until_ready(&spec, START_TIMEOUT, || async {
                self.try_connect("postgres", "postgres").await.map(drop).map_err(|e| format!("{e:?}"))
            });
            match ready.await {
                Err(Error::Start { log_tail, .. }) if stale_lock(&log_tail) && Instant::now() < lock_deadline => {
                    tokio::time::sleep(POLL * 5).await;
                }
                other => return other,
            }
        }
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Finds a port along with the start: between our look and the server's bind somebody else may take it.
    async fn first_start(&self) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            let port = ports::free().map_err(Error::io("find a free port"))?;
            self.port.store(port, Ordering::Relaxed);
            match self.start().await {
                Err(Error::Start { log_tail, .. }) if ports::was_taken(&log_tail) && tries < PORT_TRIES => {}
                other => return other,
            }
        }
    }

    fn spec(&self) -> Spec {
        let spec = Spec {
            name: self.slot.name().into(),
            kind: Kind::Postgres,
            program: self.program.clone(),
            args: vec!["-D".into(), self.data.clone().into(), "-p".into(), self.port().to_string().into()],
            env: Vec::new(),
            user: self.user,
            log: self.log.clone(),
        };
        match (&self.disk, &self.line) {
            (Some(disk), _) => disk.around(spec),
            (None, Some(line)) => line.around(spec),
            (None, None) => spec,
        }
    }

    async fn try_connect(&self, user: &str, database: &str) -> Result<Client, tokio_postgres::Error> {
        let mut config = tokio_postgres::Config::new();
        config.host(self.host()).port(self.port()).user(user).password(&self.password).dbname(database);
        let (client, connection) = config.connect(NoTls).await?;
        // It ends with the client; its error reaches the client's next call.
        tokio::spawn(connection);
        Ok(client)
    }
}

fn stale_lock(log_tail: &str) -> bool {
    log_tail.contains("lock file \"postmaster.pid\" already exists") || log_tail.contains("pre-existing shared memory block")
}
