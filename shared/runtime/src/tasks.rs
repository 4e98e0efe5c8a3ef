//! Named background tasks: none dies silently, all are waited for at the end.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::Shutdown;

/// The process's background tasks. Cheap to clone; all clones are the same set.
///
/// A task that panics stops the whole process (a janitor or batcher that is gone would be missed much later, and by somebody else),
/// and [`Drained::exit_code`] is then not zero, so that a service manager restarts it.
#[derive(Clone, Debug)]
pub struct Tasks {
    shutdown: Shutdown,
    tracker: TaskTracker,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    running: BTreeMap<u64, &'static str>,
    panicked: Vec<&'static str>,
}

impl Tasks {
    /// No tasks yet; `shutdown` is triggered when one panics.
    #[must_use]
    pub fn new(shutdown: Shutdown) -> Self {
        Self { shutdown, tracker: TaskTracker::new(), state: Arc::default() }
    }

    /// The signal that tasks should watch to end in time.
    #[must_use]
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Starts `task` under `name`. It should return soon after [`Tasks::shutdown`] is triggered.
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let id = self.state().start(name);
        let tasks = self.clone();
        let span = tracing::info_span!("task", name);
        self.tracker.spawn(
            async move {
                let ended = AssertUnwindSafe(task).catch_unwind().await;
                tasks.state().running.remove(&id);
                if ended.is_err() {
                    tracing::error!(task = name, "a background task panicked; the process stops");
                    tasks.state().panicked.push(name);
                    tasks.shutdown.trigger();
                }
            }
            .instrument(span),
        );
    }

    /// Triggers the shutdown and waits up to `timeout` for all tasks to return.
    pub async fn drain(&self, timeout: Duration) -> Drained {
        self.shutdown.trigger();
        self.tracker.close();
        // Running out of time shows in `left`.
        _ = tokio::time::timeout(timeout, self.tracker.wait()).await;
        let state = self.state();
        let drained = Drained { panicked: state.panicked.clone(), left: state.running.values().copied().collect() };
        if !drained.left.is_empty() {
            tracing::error!(left = ?drained.left, ?timeout, "tasks did not end in time");
        }
        drained
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn start(&mut self, name: &'static str) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.running.insert(id, name);
        id
    }
}

/// How the tasks ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Names of tasks that panicked, in order.
    pub panicked: Vec<&'static str>,
    /// Names of tasks that were still running when the time was over.
    pub left: Vec<&'static str>,
}

impl Drained {
    /// Whether every task returned by itself.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.panicked.is_empty() && self.left.is_empty()
    }

    /// Success if clean, failure otherwise.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
