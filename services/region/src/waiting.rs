//! Claims that wait for somebody else's open claim. However many wait for one key in this instance, one of them looks, for all.
//!
//! The others are woken when a look finds a change and then ask for themselves: each needs a verdict of its own, and only one of them can
//! be the next owner. Whoever looked and leaves (answered, out of time, hung up) makes way for the next in line.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dedup_core::{Digest, Verdict};
use dedup_store::{Answer, Query, Refusal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::fold;

/// Pause between two looks at a key.
const STEP: Duration = Duration::from_millis(100);
/// Less than this is not worth another look.
const LEAST: Duration = Duration::from_millis(5);

/// Keys that somebody waits for.
#[derive(Default)]
pub struct Waiting {
    keys: Mutex<HashMap<Digest, Arc<Line>>>,
    ending: CancellationToken,
}

/// All who wait for one key.
struct Line {
    /// Held by the one who looks: when it last did.
    looked: tokio::sync::Mutex<Instant>,
    /// What it saw last, while that is still `in_progress`.
    seen: Mutex<Option<Arc<Answer>>>,
    /// Rises when a look found a change.
    changes: watch::Sender<u64>,
}

/// A place in a line; the line ends with its last place.
struct Place<'a> {
    waiting: &'a Waiting,
    digest: Digest,
    line: Arc<Line>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut keys = self.waiting.keys.lock().expect("no panic while held");
        // The map's own and this one's.
        if Arc::strong_count(&self.line) == 2 {
            keys.remove(&self.digest);
        }
    }
}

impl Waiting {
    /// Ends all waits, those to come too: the service is about to stop, and nobody should wait for it longer than needed.
    pub fn end(&self) {
        self.ending.cancel();
    }

    fn join(&self, digest: Digest) -> Place<'_> {
        let new = || {
            let looked = tokio::sync::Mutex::new(Instant::now());
            Arc::new(Line { looked, seen: Mutex::default(), changes: watch::Sender::new(0) })
        };
        let mut keys = self.keys.lock().expect("no panic while held");
        let line = Arc::clone(keys.entry(digest).or_insert_with(new));
        Place { waiting: self, digest, line }
    }

    /// Waits while the answer is `in_progress`, at most until `until`; `ask` asks the question anew. What is answered at the end was seen
    /// during the wait, less than [`STEP`] and a look ago.
    pub async fn wait(
        &self,
        mut answer: Answer,
        query: &Query<'_>,
        until: Instant,
        mut ask: impl AsyncFnMut() -> Result<Answer, Refusal>,
    ) -> Result<Answer, Refusal> {
        if answer.verdict != Verdict::InProgress || left(until) < LEAST {
            return Ok(answer);
        }
        let place = self.join(answer.digest);
        let line = &place.line;
        let mut changes = line.changes.subscribe();
        loop {
            tokio::select! {
                () = self.ending.cancelled() => return Ok(answer),
                mut looked = line.looked.lock() => return line.look(answer, until, &mut looked, &self.ending, ask).await,
                _ = changes.changed() => match ask().await {
                    // The caller's time ended during this look: the one before stands.
                    Err(_) if Instant::now() >= until => return Ok(answer),
                    newer => answer = newer?,
                },
                () = tokio::time::sleep(left(until)) => {
                    let seen = line.seen.lock().expect("no panic while held").clone();
                    return Ok(seen.map_or(answer, |seen| fold::follow(&seen, query)));
                }
            }
            if answer.verdict != Verdict::InProgress || left(until) < LEAST {
                return Ok(answer);
            }
        }
    }
}

impl Line {
    /// Looks for all until there is a change, or this one's time is over.
    async fn look(
        &self,
        mut answer: Answer,
        until: Instant,
        looked: &mut Instant,
        ending: &CancellationToken,
        mut ask: impl AsyncFnMut() -> Result<Answer, Refusal>,
    ) -> Result<Answer, Refusal> {
        loop {
            // No later than the lease's end: then one of those who wait takes over.
            let lease = Duration::from_millis(u64::try_from(answer.record.ends_ms - answer.at_ms).unwrap_or(0)).max(LEAST);
            let pause = STEP.min(lease).saturating_sub(looked.elapsed()).min(left(until));
            let stops = tokio::select! {
                () = ending.cancelled() => true,
                () = tokio::time::sleep(pause) => false,
            };
            if stops || left(until) < LEAST {
                return Ok(answer);
            }
            *looked = Instant::now();
            match ask().await {
                Err(_) if Instant::now() >= until => return Ok(answer),
                Err(refusal) => return Err(refusal),
                Ok(newer) if newer.verdict == Verdict::InProgress => {
                    *self.seen.lock().expect("no panic while held") = Some(Arc::new(newer.clone()));
                    answer = newer;
                }
                Ok(newer) => {
                    self.changes.send_modify(|n| *n += 1);
                    return Ok(newer);
                }
            }
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
