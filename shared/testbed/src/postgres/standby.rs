//! Standbys: copies that follow a primary, and what a failover does with them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::Postgres;
use crate::process::{Spec, run_tool};
use crate::slot::Slot;
use crate::template::Template;
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, ports, programs, user};

const COPY_TIMEOUT: Duration = Duration::from_secs(60);
const PROMOTE_TIMEOUT: Duration = Duration::from_secs(30);

impl Postgres {
    /// Makes and starts a standby of `primary`.
    pub(crate) async fn create_standby(name: &str, dir: &Path, primary: &Self, watchdog: &Arc<Watchdog>) -> Result<Self, Error> {
        std::fs::create_dir(dir).map_err(Error::io(format!("make the folder {}", dir.display())))?;
        let template = Template::get().await?;
        let new = Self {
            slot: Slot::new(&format!("Postgres of {name}"), watchdog),
            program: programs::postgres("postgres")?,
            port: AtomicU16::new(ports::free().map_err(Error::io("find a free port"))?),
            data: dir.join("postgres"),
            log: dir.join("postgres.log"),
            user: template.user,
            password: template.password.clone(),
            disk: None,
            line: None,
            frozen: std::sync::Mutex::default(),
        };
        new.copy_from(primary, watchdog).await?;
        new.start().await?;
        Ok(new)
    }

    /// Ends it, throws its data away and makes it a standby of `primary` on the same port: what an old primary becomes.
    ///
    /// # Errors
    /// If the copy or the start fails.
    pub async fn become_standby_of(&self, primary: &Self) -> Result<(), Error> {
        self.kill9().await;
        self.copy_from(primary, &self.slot.watchdog()).await?;
        self.start().await
    }

    /// Follows another primary from now on.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn follow(&self, primary: &Self) -> Result<(), Error> {
        let client = self.connect("postgres").await;
        let change = format!("ALTER SYSTEM SET primary_conninfo = '{}'", self.conninfo(primary));
        for sql in [change.as_str(), "SELECT pg_reload_conf()"] {
            client.batch_execute(sql).await.map_err(|source| Error::Sql { what: "follow another primary", source })?;
        }
        Ok(())
    }

    /// Changes a setting from now on.
    pub(crate) async fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        use std::io::Write;
        let file = self.data.join("postgresql.conf");
        let mut open = std::fs::OpenOptions::new().append(true).open(&file).map_err(Error::io("open postgresql.conf"))?;
        writeln!(open, "{name} = {value}").map_err(Error::io("write postgresql.conf"))?;
        let client = self.connect("postgres").await;
        client.batch_execute("SELECT pg_reload_conf()").await.map_err(|source| Error::Sql { what: "reload the settings", source })
    }

    /// Makes it the primary and waits until it takes writes.
    ///
    /// # Errors
    /// If it does not become one in time.
    pub async fn promote(&self) -> Result<(), Error> {
        let failed = |source| Error::Sql { what: "promote a standby", source };
        let client = self.try_connect("postgres", "dedup").await.map_err(failed)?;
        client.batch_execute("SELECT pg_promote(false)").await.map_err(failed)?;
        let began = Instant::now();
        while began.elapsed() < PROMOTE_TIMEOUT {
            let row = client.query_one("SELECT pg_is_in_recovery()", &[]).await.map_err(failed)?;
            if !row.get::<_, bool>(0) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(Error::start(self.slot.name(), format!("not promoted after {PROMOTE_TIMEOUT:?}"), &self.log))
    }

    /// How far a standby has received its primary's log.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn received(&self) -> u64 {
        let client = self.connect("postgres").await;
        let row = client.query_one("SELECT (pg_last_wal_receive_lsn() - '0/0'::pg_lsn)::bigint", &[]).await.expect("a standby can tell");
        row.get::<_, Option<i64>>(0).and_then(|n| u64::try_from(n).ok()).unwrap_or_default()
    }

    fn conninfo(&self, primary: &Self) -> String {
        let (port, password) = (primary.port.load(Ordering::Relaxed), &self.password);
        format!("host=127.0.0.1 port={port} user=postgres password={password}")
    }

    async fn copy_from(&self, primary: &Self, watchdog: &Arc<Watchdog>) -> Result<(), Error> {
        std::fs::remove_dir_all(&self.data).ok();
        user::private_dir(&self.data, self.user)?;
        let spec = Spec {
            name: "pg_basebackup".into(),
            kind: Kind::Tool,
            program: programs::postgres("pg_basebackup")?,
            args: ["-h", "127.0.0.1", "-p", &primary.port().to_string(), "-U", "postgres", "-R", "--checkpoint=fast", "--no-sync", "-D"]
                .map(Into::into)
                .into_iter()
                .chain([self.data.clone().into()])
                .collect(),
            // Not as an argument, which everybody on the machine could read.
            env: vec![("PGPASSWORD".into(), self.password.clone())],
            user: self.user,
            log: self.data.with_extension("basebackup.log"),
        };
        run_tool(watchdog, &spec, COPY_TIMEOUT).await?;
        // Its settings are the primary's, as they were given at the start; what was changed since stays with the node it was changed on.
        let auto = self.data.join("postgresql.auto.conf");
        user::private_file(&auto, &format!("primary_conninfo = '{}'\n", self.conninfo(primary)), self.user)
    }
}
