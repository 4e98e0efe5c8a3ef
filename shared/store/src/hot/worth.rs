//! Whether look-ups in Redis are worth their way.

use std::sync::atomic::{AtomicU32, Ordering};

/// Where nearly all keys are new, a look-up in Redis finds nothing and is one more trip before the one to the home, which has to be made anyway.
/// Counts what look-ups found of late; while it is next to nothing, few are made, to see when that changes.
#[derive(Default)]
pub struct Worth {
    asked: AtomicU32,
    found: AtomicU32,
    left_out: AtomicU32,
}

/// Digests after which there is an opinion.
const OPINION: u32 = 1024;
/// Digests after which the past counts half.
const MEMORY: u32 = 8192;
/// One found in so many is worth it: a home's call costs a caller about as much as several look-ups, and Postgres far more than Redis.
const ONE_IN: u32 = 64;
/// Of calls that are not worth it one in so many is made all the same.
const TRY_ONE_IN: u32 = 16;

impl Worth {
    /// Whether the next call should ask.
    pub fn asks(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        asked < OPINION
            || self.found.load(Ordering::Relaxed).saturating_mul(ONE_IN) >= asked
            || self.left_out.fetch_add(1, Ordering::Relaxed) % TRY_ONE_IN == TRY_ONE_IN - 1
    }

    /// Of `asked` digests `found` were there. (Calls that cross here may lose some of their counts: it is an estimate.)
    pub fn learn(&self, asked: usize, found: usize) {
        let add = |to: &AtomicU32, n: usize| to.fetch_add(u32::try_from(n).unwrap_or(MEMORY), Ordering::Relaxed);
        add(&self.found, found);
        if add(&self.asked, asked) >= MEMORY {
            self.asked.store(self.asked.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            self.found.store(self.found.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks_of(worth: &Worth, calls: usize) -> usize {
        (0..calls).filter(|_| worth.asks()).count()
    }

    #[test]
    fn what_never_hits_is_tried_now_and_then_and_what_hits_is_asked() {
        let worth = Worth::default();
        worth.learn(1000, 0);
        assert_eq!(asks_of(&worth, 100), 100, "too early to tell");
        worth.learn(7000, 0);
        assert_eq!(asks_of(&worth, 160), 10);
        // Duplicates begin: what is tried finds them.
        for _ in 0..16 * 150 {
            if worth.asks() {
                worth.learn(1, 1);
            }
        }
        assert_eq!(asks_of(&worth, 100), 100);
    }

    #[test]
    fn a_few_hits_are_enough_and_the_past_fades() {
        let worth = Worth::default();
        (0..100).for_each(|_| worth.learn(100, 2));
        assert_eq!(asks_of(&worth, 100), 100);
        (0..400).for_each(|_| worth.learn(100, 0));
        assert!(asks_of(&worth, 160) < 20, "the hits are long ago");
    }
}
