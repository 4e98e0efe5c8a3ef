//! An upper bound of a home's clock, kept from its replies.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// home time ≤ (home time in a reply) + (monotonic time since that request was *sent*). No wall clock of this machine takes part.
pub struct HomeClock {
    base: Instant,
    /// Home milliseconds minus milliseconds since `base`; `i64::MIN` until the first reply.
    offset: AtomicI64,
    /// Milliseconds since `base` when `offset` was set.
    set_at: AtomicI64,
    /// Latest home time that any reply showed.
    highest: AtomicI64,
}

/// After this long even a looser bound replaces the old one, so that a step of the home's clock is followed.
const FRESH_MS: i64 = 1000;

impl HomeClock {
    pub fn new() -> Self {
        Self { base: Instant::now(), offset: AtomicI64::new(i64::MIN), set_at: AtomicI64::new(0), highest: AtomicI64::new(i64::MIN) }
    }

    fn since_base(&self, at: Instant) -> i64 {
        i64::try_from(at.saturating_duration_since(self.base).as_millis()).unwrap_or(i64::MAX / 4)
    }

    /// Takes the home time of a reply to a request sent at `sent`.
    pub fn learn(&self, home_ms: i64, sent: Instant) {
        self.highest.fetch_max(home_ms, Ordering::Relaxed);
        let offset = home_ms - self.since_base(sent);
        let now = self.since_base(Instant::now());
        let old = self.offset.load(Ordering::Relaxed);
        // A bound below a time the home has already shown is wrong: its clock stepped forward.
        let contradicted = old != i64::MIN && old + now + 2 < home_ms;
        if offset <= old || old == i64::MIN || contradicted || now - self.set_at.load(Ordering::Relaxed) > FRESH_MS {
            self.offset.store(offset, Ordering::Relaxed);
            self.set_at.store(now, Ordering::Relaxed);
        }
    }

    /// Home time is at most this; `None` before the first reply.
    pub fn bound_ms(&self) -> Option<i64> {
        let offset = self.offset.load(Ordering::Relaxed);
        // Both sides were cut to whole milliseconds: one each may be missing.
        (offset != i64::MIN).then(|| offset + self.since_base(Instant::now()) + 2)
    }

    /// The same for what caches hold, but never lower than it was: what was once past its window has been given to others since, perhaps, and
    /// does not count again when the home's clock is set back.
    pub fn cache_bound_ms(&self) -> Option<i64> {
        self.bound_ms().map(|bound| bound.max(self.highest.load(Ordering::Relaxed)))
    }

    /// Home time after which a call that may take `left` must do nothing.
    pub fn not_after_ms(&self, left: Duration) -> i64 {
        let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX / 4);
        self.bound_ms().map_or(i64::MAX, |now| now + left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_never_below_home_time() {
        let clock = HomeClock::new();
        assert_eq!(clock.bound_ms(), None);
        assert_eq!(clock.not_after_ms(Duration::from_secs(1)), i64::MAX);
        let sent = Instant::now();
        clock.learn(1_000_000, sent);
        let bound = clock.bound_ms().expect("learnt");
        assert!((1_000_000..1_000_100).contains(&bound), "{bound}");
        // A reply that took long bounds more loosely and does not replace a fresh one; a home clock that stepped does.
        std::thread::sleep(Duration::from_millis(30));
        clock.learn(1_000_010, sent);
        assert!(clock.bound_ms().expect("learnt") < 1_000_000 + i64::try_from(sent.elapsed().as_millis()).expect("short") + 5);
        clock.learn(1_005_000, sent);
        assert!(clock.bound_ms().expect("learnt") >= 1_005_000, "a step forward is followed at once");
        clock.learn(900_000, sent);
        assert!(clock.bound_ms().expect("learnt") < 900_100);
        assert!(clock.cache_bound_ms().expect("learnt") >= 1_005_000, "what was past stays past");
    }
}
