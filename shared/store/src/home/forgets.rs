//! The forget log of one home, in memory: what makes a cached value of a forgotten key a miss.

use std::collections::HashMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use dedup_core::Digest;

use crate::local::DigestBuild;

/// Highest forget position per digest, for as long as any cached value may live.
pub struct Forgets {
    loaded: AtomicBool,
    pos: AtomicI64,
    len: AtomicUsize,
    by_digest: RwLock<HashMap<Digest, (i64, i64), DigestBuild>>,
}

impl Forgets {
    pub fn new() -> Self {
        Self { loaded: AtomicBool::new(false), pos: AtomicI64::new(0), len: AtomicUsize::new(0), by_digest: RwLock::default() }
    }

    /// Position up to which the log is known; 0 before it is loaded.
    pub fn position(&self) -> i64 {
        self.pos.load(Ordering::Acquire)
    }

    /// Adds entries, in order of position, seen at home time `now_ms`; entries older than `keep_ms` are dropped.
    pub fn extend(&self, entries: &[(i64, Digest)], upto: i64, now_ms: i64, keep_ms: i64) {
        if !entries.is_empty() {
            let mut map = self.by_digest.write().expect("no panic while held");
            for (pos, digest) in entries {
                map.insert(*digest, (*pos, now_ms));
            }
            map.retain(|_, (_, at)| *at > now_ms - keep_ms);
            self.len.store(map.len(), Ordering::Release);
        }
        self.pos.fetch_max(upto, Ordering::AcqRel);
        self.loaded.store(true, Ordering::Release);
    }

    /// Starts over, after the home turned out to be another one or on another incarnation.
    pub fn reset(&self) {
        self.loaded.store(false, Ordering::Release);
        self.pos.store(0, Ordering::Release);
        self.by_digest.write().expect("no panic while held").clear();
        self.len.store(0, Ordering::Release);
    }

    /// Whether a value read at position `as_of` may still be believed. Until the log is loaded nothing may.
    pub fn allows(&self, digest: &Digest, as_of: i64) -> bool {
        if !self.loaded.load(Ordering::Acquire) {
            return false;
        }
        self.len.load(Ordering::Acquire) == 0
            || self.by_digest.read().expect("no panic while held").get(digest).is_none_or(|(pos, _)| *pos <= as_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_late_back_fill_of_a_forgotten_key_is_a_miss() {
        let (a, b) = (Digest(Uuid::from_u128(1)), Digest(Uuid::from_u128(2)));
        let forgets = Forgets::new();
        assert!(!forgets.allows(&a, 100), "nothing is believed before the log is loaded");
        forgets.extend(&[(5, a)], 5, 1000, 10_000);
        assert!(!forgets.allows(&a, 4), "read before the forget");
        assert!(forgets.allows(&a, 5), "read after it");
        assert!(forgets.allows(&b, 0));
        forgets.extend(&[(6, b)], 6, 20_000, 10_000);
        assert!(forgets.allows(&a, 4), "older than any cached value can be");
    }
}
