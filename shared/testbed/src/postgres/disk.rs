//! A file system of one cluster's own, so that it can run full. It is mounted in a mount namespace that ends with its last process, so
//! nothing has to be unmounted, however this process ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::process::{Process, Spec, run_tool};
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, proc};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Holds the namespace; tells that the data has moved by making a file beside the folder.
const HOLD: &str = "mount -t tmpfs -o size=\"$2\"m,mode=700 dedup-disk \"$1.disk\" && cp -a \"$1/.\" \"$1.disk\" && chown --reference=\"$1\" \"$1.disk\" && mount --bind \"$1.disk\" \"$1\" && touch \"$1.moved\" && exec sleep 100000";

#[derive(Debug)]
pub(super) struct Disk {
    holder: Process,
    watchdog: Arc<Watchdog>,
    data: PathBuf,
}

impl Disk {
    /// Moves the data to a file system of `mb` MiB.
    pub(super) async fn create(data: &Path, mb: u32, watchdog: &Arc<Watchdog>) -> Result<Self, Error> {
        let file = |suffix: &str| PathBuf::from(format!("{}.{suffix}", data.display()));
        std::fs::create_dir(file("disk")).map_err(Error::io("make a mount point"))?;
        let spec = Spec {
            name: "a file system of its own".into(),
            kind: Kind::Tool,
            program: "/usr/bin/unshare".into(),
            args: ["-m", "sh", "-c", HOLD, "hold"].map(Into::into).into_iter().chain([data.into(), mb.to_string().into()]).collect(),
            env: Vec::new(),
            user: None,
            log: file("disk.log"),
        };
        let mut holder = Process::spawn(watchdog, &spec).await?;
        let began = std::time::Instant::now();
        while !file("moved").exists() {
            if holder.ended()?.is_some() || began.elapsed() > TIMEOUT {
                return Err(Error::tool(&spec.name, "it could not be mounted (this needs root)", &spec.log));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { holder, watchdog: Arc::clone(watchdog), data: data.into() })
    }

    /// The same program, run where the file system is seen.
    pub(super) fn around(&self, spec: Spec) -> Spec {
        spec.inside(self.holder.pid(), "-m")
    }

    async fn shell(&self, script: &str) -> Result<(), Error> {
        let spec = Spec {
            name: "a shell beside the data".into(),
            kind: Kind::Tool,
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into(), "sh".into(), self.data.clone().into()],
            env: Vec::new(),
            user: None,
            log: PathBuf::from(format!("{}.disk.log", self.data.display())),
        };
        run_tool(&self.watchdog, &self.around(spec), TIMEOUT).await
    }
}

impl super::Postgres {
    /// Leaves no room on the cluster's file system.
    ///
    /// # Panics
    /// If it has none of its own.
    pub async fn fill_disk(&self) {
        let disk = self.disk.as_ref().expect("a testbed with postgres_disk_mb");
        disk.shell("dd if=/dev/zero of=\"$1/ballast\" bs=64k; true").await.expect("the disk can be filled");
    }

    /// Gives the room back.
    ///
    /// # Panics
    /// If it has none of its own.
    pub async fn empty_disk(&self) {
        let disk = self.disk.as_ref().expect("a testbed with postgres_disk_mb");
        disk.shell("rm -f \"$1/ballast\"").await.expect("the disk can be emptied");
    }

    /// Whether the server ended by itself.
    pub async fn is_gone(&self) -> bool {
        matches!(self.slot.ended().await, Ok(Some(_))) || proc::start_ticks(self.pid()).is_none()
    }
}
