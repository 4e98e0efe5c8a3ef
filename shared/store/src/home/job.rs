//! What a waiting caller and the batcher share: a place for each answer, and how far each question got.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use opentelemetry::trace::SpanContext;
use tokio::sync::oneshot;

use crate::trace;
use crate::{Refusal, RefusalKind};

/// How far a question got that has no answer yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was sent (or what was sent certainly did nothing).
    Waiting,
    /// The home said that somebody's open transaction holds the key.
    Held,
    /// An attempt may have reached the home. Sticky: only a verdict ends it.
    MaybeApplied,
}

enum Slot<A> {
    Open(Phase),
    Answered(Result<A, Refusal>),
}

struct Inner<A> {
    slots: Vec<Slot<A>>,
    open: usize,
    abandoned: bool,
    done: Option<oneshot::Sender<()>>,
}

/// The questions of one caller to one home.
pub struct Job<A> {
    inner: Mutex<Inner<A>>,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// When the caller began to.
    pub asked: Instant,
    /// The caller's request, if it is traced.
    pub trace: Option<SpanContext>,
}

impl<A> Job<A> {
    /// A job with `n` open places; the receiver fires when all are answered.
    pub fn new(n: usize, deadline: Instant) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (done, all) = oneshot::channel();
        let slots = (0..n).map(|_| Slot::Open(Phase::Waiting)).collect();
        let inner = Inner { slots, open: n, abandoned: false, done: Some(done) };
        (Arc::new(Self { inner: Mutex::new(inner), deadline, asked: Instant::now(), trace: trace::current() }), all)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner<A>> {
        self.inner.lock().expect("no panic while held")
    }

    /// About to be sent; `false`: nobody waits any more, so it must not be.
    pub fn sending(&self, i: usize) -> bool {
        let mut inner = self.lock();
        if inner.abandoned {
            return false;
        }
        if let Some(Slot::Open(phase)) = inner.slots.get_mut(i) {
            *phase = Phase::MaybeApplied;
        }
        true
    }

    /// The attempt certainly did nothing. `before`: an earlier attempt may have, which stays so.
    pub fn not_applied(&self, i: usize, before: bool, held: bool) {
        if let Some(Slot::Open(phase)) = self.lock().slots.get_mut(i) {
            *phase = match (before, held) {
                (true, _) => Phase::MaybeApplied,
                (false, true) => Phase::Held,
                (false, false) => Phase::Waiting,
            };
        }
    }

    /// Puts an answer in its place.
    pub fn answer(&self, i: usize, answer: Result<A, Refusal>) {
        let mut inner = self.lock();
        if let Some(slot @ Slot::Open(_)) = inner.slots.get_mut(i) {
            *slot = Slot::Answered(answer);
            inner.open -= 1;
            if inner.open == 0
                && let Some(done) = inner.done.take()
            {
                let _ = done.send(());
            }
        }
    }

    /// Takes all answers, at the end or at the deadline. What has none is refused by how far it got, and not sent from now on.
    pub fn take(&self, waiting_means: RefusalKind) -> Vec<Result<A, Refusal>> {
        let mut inner = self.lock();
        inner.abandoned = true;
        std::mem::take(&mut inner.slots)
            .into_iter()
            .map(|slot| match slot {
                Slot::Answered(answer) => answer,
                Slot::Open(Phase::Waiting) => Err(Refusal::not_applied(waiting_means)),
                Slot::Open(Phase::Held) => Err(Refusal::not_applied(RefusalKind::KeyBusy)),
                Slot::Open(Phase::MaybeApplied) => Err(Refusal::unknown()),
            })
            .collect()
    }

    /// Whether the caller has gone.
    pub fn is_abandoned(&self) -> bool {
        self.lock().abandoned
    }
}
