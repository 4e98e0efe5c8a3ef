//! What may happen to a home: a crash, an orderly stop, a freeze.

use std::sync::PoisonError;
use std::time::Duration;

use super::Postgres;
use crate::proc;
use crate::slot::POLL;

const STOP_TIMEOUT: Duration = Duration::from_secs(60);

impl Postgres {
    /// Kills the postmaster and every backend at the same moment, as a crash of the machine would end them, and waits
    /// until all are gone.
    ///
    /// # Panics
    /// If it was never started.
    pub async fn kill9(&self) {
        if matches!(self.slot.ended().await, Ok(Some(_))) {
            // By now its process id may be somebody else's.
            return;
        }
        let backends = proc::children(self.pid());
        let running = || backends.iter().filter(|(pid, start)| proc::runs(*pid, *start)).map(|(pid, _)| *pid);
        self.slot.end("KILL", STOP_TIMEOUT).await;
        // The postmaster's end already makes them exit; a frozen or busy one would take its time.
        proc::signal("KILL", &running().collect::<Vec<_>>()).expect("the shell can send a signal");
        while running().next().is_some() {
            tokio::time::sleep(POLL).await;
        }
        self.take_frozen();
    }

    /// Fast shutdown: sessions are cut off, a checkpoint is written.
    ///
    /// # Panics
    /// If it was never started, or does not end within a minute.
    pub async fn stop_fast(&self) {
        self.thaw();
        self.slot.end("INT", STOP_TIMEOUT).await;
    }

    /// Freezes the whole cluster, backends included: connections stay open and nothing answers.
    ///
    /// # Panics
    /// If it is not running.
    pub async fn sigstop(&self) {
        // The postmaster first, so that no backend is born while we look.
        self.slot.signal("STOP").await;
        let backends = proc::children(self.pid());
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&backends);
        let pids: Vec<u32> = backends.iter().map(|(pid, _)| *pid).collect();
        proc::signal("STOP", &pids).expect("the shell can send a signal");
    }

    /// Lets a frozen cluster go on.
    ///
    /// # Panics
    /// If it is not running.
    pub async fn sigcont(&self) {
        self.thaw();
        self.slot.signal("CONT").await;
    }

    /// Lets frozen backends go on, so that they can end.
    pub(crate) fn thaw(&self) {
        let pids: Vec<u32> = self.take_frozen().into_iter().filter(|(pid, start)| proc::runs(*pid, *start)).map(|(pid, _)| pid).collect();
        // Also called while a test panics, so it must not.
        proc::signal("CONT", &pids).ok();
    }

    fn take_frozen(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut *self.frozen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
