//! The one signal to stop, which every task and server of the process listens to.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cheap to clone; all clones are the same signal. Once triggered it stays so.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
}

impl Shutdown {
    /// A signal nobody has triggered yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everybody to stop.
    pub fn trigger(&self) {
        self.token.cancel();
    }

    /// Whether it was triggered.
    #[must_use]
    pub fn is_triggered(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns once it was triggered; at once if that has been.
    pub async fn triggered(&self) {
        self.token.cancelled().await;
    }

    /// The token itself, for code that knows nothing of this crate.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Waits for SIGINT or SIGTERM, or for somebody's [`Shutdown::trigger`], and leaves the signal triggered.
    ///
    /// # Errors
    /// The operating system refuses a signal handler.
    pub async fn wait_for_signal(&self) -> io::Result<StopReason> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let reason = tokio::select! {
            _ = interrupt.recv() => StopReason::Interrupt,
            _ = terminate.recv() => StopReason::Terminate,
            () = self.triggered() => StopReason::Asked,
        };
        tracing::info!(?reason, "stopping");
        self.trigger();
        Ok(reason)
    }
}

/// Why the process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// SIGINT (Ctrl-C).
    Interrupt,
    /// SIGTERM (a service manager).
    Terminate,
    /// A part of the process asked, for example because a task failed.
    Asked,
}
