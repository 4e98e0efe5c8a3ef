//! Starting one process so that it can never be left behind.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::user::User;
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, proc};

/// Waits for a line on stdin before it becomes the program. If we die after the fork and before the watchdog knows the
/// process, the line never comes and the process ends by itself.
const GATE: &str = "read -r go && exec \"$@\" </dev/null";

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) user: Option<User>,
    /// Both output streams are appended here.
    pub(crate) log: PathBuf,
}

impl Spec {
    /// The same program, run in a namespace (`-m` or `-n`) of the process `holder`.
    pub(crate) fn inside(self, holder: u32, which: &str) -> Self {
        let mut args = vec!["-t".into(), holder.to_string().into(), which.into()];
        if let Some(user) = self.user {
            args.extend(["-S".into(), user.uid.to_string().into(), "-G".into(), user.gid.to_string().into()]);
        }
        args.push(self.program.into());
        args.extend(self.args);
        Self { program: "/usr/bin/nsenter".into(), args, user: None, ..self }
    }
}

/// A child of ours that the watchdog knows.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid: u32,
    watchdog: Arc<Watchdog>,
}

impl Process {
    pub(crate) async fn spawn(watchdog: &Arc<Watchdog>, spec: &Spec) -> Result<Self, Error> {
        let failed = || format!("start {}", spec.name);
        let log = open_log(&spec.log)?;
        let mut command = Command::new("/bin/sh");
        // What a developer exported for a service of their own must not reach ours.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DEDUP_")) {
            command.env_remove(name);
        }
        command
            .args(["-c", GATE, &spec.name])
            .arg(&spec.program)
            .args(&spec.args)
            .envs(spec.env.iter().map(|(k, v)| (k, v)))
            .current_dir(watchdog.dir())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(Error::io(failed()))?)
            .stderr(log)
            .process_group(0);
        if let Some(user) = spec.user {
            command.uid(user.uid).gid(user.gid);
        }
        let mut child = command.spawn().map_err(Error::io(failed()))?;
        let mut gate = child.stdin.take().ok_or(Error::Watchdog("has no gate"))?;
        let pid = child.id().ok_or(Error::Watchdog("was given a process that is gone"))?;
        watchdog.add(pid, spec.kind)?;
        gate.write_all(b"go\n").await.map_err(Error::io(failed()))?;
        Ok(Self { child, pid, watchdog: Arc::clone(watchdog) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it ended.
    pub(crate) async fn wait(&mut self) -> Result<ExitStatus, Error> {
        let status = self.child.wait().await.map_err(Error::io("wait for a process"))?;
        self.watchdog.remove(self.pid);
        Ok(status)
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        let status = self.child.try_wait().map_err(Error::io("look at a process"))?;
        if status.is_some() {
            self.watchdog.remove(self.pid);
        }
        Ok(status)
    }

    /// Sends a signal; nothing happens if it has ended.
    pub(crate) fn signal(&mut self, name: &str) -> Result<(), Error> {
        match self.ended()? {
            Some(_) => Ok(()),
            None => proc::signal(name, &[self.pid]),
        }
    }
}

/// Runs a helper program to its end.
pub(crate) async fn run_tool(watchdog: &Arc<Watchdog>, spec: &Spec, timeout: Duration) -> Result<(), Error> {
    let mut process = Process::spawn(watchdog, spec).await?;
    let why = match tokio::time::timeout(timeout, process.wait()).await {
        Ok(status) => match status? {
            status if status.success() => return Ok(()),
            status => status.to_string(),
        },
        Err(_) => {
            process.signal("KILL")?;
            format!("still running after {timeout:?}")
        }
    };
    Err(Error::tool(&spec.name, why, &spec.log))
}

fn open_log(path: &Path) -> Result<std::fs::File, Error> {
    std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(Error::io(format!("open the log {}", path.display())))
}
