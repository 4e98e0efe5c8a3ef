//! The process that outlives this one just long enough to clean up after it.
//!
//! `Drop` alone is not enough: Ctrl-C, `abort` and `kill -9` run no destructors. The kernel however closes our end of
//! a pipe in every case, so a shell script that reads from that pipe learns of our end whatever its cause. A normal
//! stop takes the same way, so that there is only one way to test.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::{Error, proc};

const SCRIPT: &str = include_str!("watchdog.sh");

/// How a process is ended: see the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Service,
    Tool,
    Redis,
    Postgres,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Tool => "tool",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }
}

/// A running watchdog and the folder it will remove.
#[derive(Debug)]
pub(crate) struct Watchdog {
    dir: PathBuf,
    script: Mutex<Option<(Child, ChildStdin)>>,
}

impl Watchdog {
    /// Starts the script; it makes the folder itself, so that there is no moment in which nobody would remove it.
    pub(crate) fn start() -> Result<Self, Error> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "dedup-testbed-watchdog"])
            .arg(std::env::temp_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Out of reach of a Ctrl-C on the terminal and of a kill of our whole group.
            .process_group(0)
            .spawn()
            .map_err(Error::io("run /bin/sh as a watchdog"))?;
        let stdin = child.stdin.take().ok_or(Error::Watchdog("has no stdin"))?;
        let stdout = child.stdout.take().ok_or(Error::Watchdog("has no stdout"))?;
        let mut dir = String::new();
        BufReader::new(stdout).read_line(&mut dir).map_err(Error::io("read from the watchdog"))?;
        let dir = PathBuf::from(dir.trim_end_matches('\n'));
        if dir.as_os_str().is_empty() {
            return Err(Error::Watchdog("could not make a folder for temporary files"));
        }
        Ok(Self { dir, script: Mutex::new(Some((child, stdin))) })
    }

    /// The folder that goes when this process goes.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// From now on the process ends with us.
    pub(crate) fn add(&self, pid: u32, kind: Kind) -> Result<(), Error> {
        let start = proc::start_ticks(pid).ok_or(Error::Watchdog("was given a process that is gone"))?;
        self.tell(&format!("add {pid} {start} {}\n", kind.word()))
    }

    /// The process ended and was waited for. After a close there is nobody to tell, which is fine.
    pub(crate) fn remove(&self, pid: u32) {
        self.tell(&format!("del {pid}\n")).ok();
    }

    /// The network link that is about to be made goes with us, too.
    pub(crate) fn add_link(&self, name: &str) -> Result<(), Error> {
        self.tell(&format!("link {name}\n"))
    }

    /// Ends all that is registered, removes the folder, and returns when that is done. The second call does nothing.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let taken = self.script.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((mut child, stdin)) = taken else {
            return Ok(());
        };
        drop(stdin);
        let status = child.wait().map_err(Error::io("wait for the watchdog"))?;
        if status.success() { Ok(()) } else { Err(Error::Watchdog("could not remove its folder")) }
    }

    fn tell(&self, line: &str) -> Result<(), Error> {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, stdin) = script.as_mut().ok_or(Error::Watchdog("was already closed"))?;
        stdin.write_all(line.as_bytes()).map_err(Error::io("write to the watchdog"))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.close().ok();
    }
}
