//! The wish to end: Ctrl-C or SIGTERM.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Tells everybody who asks, however late they ask.
#[derive(Debug, Clone)]
pub(super) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// From now on a signal is a wish and no longer ends the process.
    pub(super) fn on_signals() -> std::io::Result<Self> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (tell, told) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            tell.send_replace(true);
            // The sender stays, or a waiting receiver would take its end for an error.
            tell.closed().await;
        });
        Ok(Self(told))
    }

    /// Returns once the wish was uttered.
    pub(super) async fn asked(&self) {
        // An error means that the listener is gone, which only happens when the process ends.
        self.0.clone().wait_for(|asked| *asked).await.ok();
    }
}
