//! The place of one server's process: empty, running or frozen; its port and files stay when the process goes.

use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::process::{Process, Spec};
use crate::watchdog::Watchdog;
use crate::{Error, proc};

/// Pause between two looks at something that is about to change.
pub(crate) const POLL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Slot {
    name: String,
    watchdog: Arc<Watchdog>,
    process: Mutex<Option<Process>>,
    /// The running or last process, readable without waiting.
    pid: AtomicU32,
}

impl Slot {
    pub(crate) fn new(name: &str, watchdog: &Arc<Watchdog>) -> Self {
        Self { name: name.into(), watchdog: Arc::clone(watchdog), process: Mutex::new(None), pid: AtomicU32::new(0) }
    }

    pub(crate) fn watchdog(&self) -> Arc<Watchdog> {
        Arc::clone(&self.watchdog)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Starts the process unless one runs; `true` if it was started.
    pub(crate) async fn launch(&self, spec: &Spec) -> Result<bool, Error> {
        let mut slot = self.process.lock().await;
        if let Some(process) = slot.as_mut()
            && process.ended()?.is_none()
        {
            return Ok(false);
        }
        let process = Process::spawn(&self.watchdog, spec).await?;
        self.pid.store(process.pid(), Ordering::Relaxed);
        *slot = Some(process);
        Ok(true)
    }

    /// How the process ended; `None` while it runs.
    pub(crate) async fn ended(&self) -> Result<Option<ExitStatus>, Error> {
        match self.process.lock().await.as_mut() {
            Some(process) => process.ended(),
            None => Ok(None),
        }
    }

    /// Waits until `answers` does, or the process ended, or time is up; the error holds the tail of the log.
    pub(crate) async fn until_ready<Fut>(&self, spec: &Spec, timeout: Duration, answers: impl Fn() -> Fut) -> Result<(), Error>
    where
        Fut: Future<Output = Result<(), String>>,
    {
        let deadline = Instant::now() + timeout;
        let mut last = String::from("no answer");
        while Instant::now() < deadline {
            if let Some(status) = self.ended().await? {
                return Err(Error::start(&self.name, format!("it ended: {status}"), &spec.log));
            }
            match tokio::time::timeout(Duration::from_secs(5), answers()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => last = why,
                Err(_) => last = "no answer for 5 s".into(),
            }
            tokio::time::sleep(POLL).await;
        }
        Err(Error::start(&self.name, format!("not ready after {timeout:?}: {last}"), &spec.log))
    }

    /// Signals the process and waits for its end. A frozen process is thawed so that it hears the signal.
    ///
    /// # Panics
    /// If no process was started, or it does not end in time.
    pub(crate) async fn end(&self, signal: &str, timeout: Duration) -> ExitStatus {
        let mut slot = self.process.lock().await;
        let process = slot.as_mut().unwrap_or_else(|| panic!("{} was never started", self.name));
        let pid = process.pid();
        process.signal(signal).and_then(|()| process.signal("CONT")).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        tokio::time::timeout(timeout, process.wait())
            .await
            .unwrap_or_else(|_| panic!("{} (process {pid}) did not end within {timeout:?} of SIG{signal}", self.name))
            .unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// Signals the process.
    ///
    /// # Panics
    /// If it is not running.
    pub(crate) async fn signal(&self, signal: &str) {
        let mut slot = self.process.lock().await;
        let process = slot.as_mut().unwrap_or_else(|| panic!("{} was never started", self.name));
        let ended = process.ended().unwrap_or_else(|e| panic!("{}: {e}", self.name));
        assert!(ended.is_none(), "{} is not running: {ended:?}", self.name);
        proc::signal(signal, &[process.pid()]).unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }
}
