//! Whether Redis is worth asking right now.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Opens on the first failure and lets one probe through every second: a broken Redis then costs one question in a while a few
/// milliseconds, and the others nothing.
pub struct Breaker {
    base: Instant,
    /// Milliseconds since `base` before which nobody asks; 0 = closed.
    open_until: AtomicI64,
    failures: AtomicU64,
}

const PAUSE: Duration = Duration::from_secs(1);

impl Breaker {
    pub fn new() -> Self {
        Self { base: Instant::now(), open_until: AtomicI64::new(0), failures: AtomicU64::new(0) }
    }

    fn now(&self) -> i64 {
        i64::try_from(self.base.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// Whether this question may ask. While open, exactly one caller a pause gets `true`.
    pub fn may_ask(&self) -> bool {
        let until = self.open_until.load(Ordering::Relaxed);
        if until == 0 {
            return true;
        }
        let now = self.now();
        now >= until && self.open_until.compare_exchange(until, now + pause(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub fn succeeded(&self) {
        if self.open_until.load(Ordering::Relaxed) != 0 {
            self.open_until.store(0, Ordering::Relaxed);
        }
    }

    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.open_until.store(self.now() + pause(), Ordering::Relaxed);
    }

    pub fn is_open(&self) -> bool {
        self.open_until.load(Ordering::Relaxed) != 0
    }
}

/// Jittered, so that instances do not probe in step.
fn pause() -> i64 {
    let ms = i64::try_from(PAUSE.as_millis()).unwrap_or(1000);
    ms * 3 / 4 + rand::random_range(0..ms / 2)
}
