//! The forget log of one home, in memory: what makes a cached value of a forgotten key a miss.

use std::collections::HashMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicUsize, Ordering};

use dedup_core::Digest;

use crate::local::DigestBuild;

/// Highest forget position per digest, for as long as the log is remembered.
pub struct Forgets {
    loaded: AtomicBool,
    /// Incarnation of the home whose log this is; 0 before the first.
    incarnation: AtomicI32,
    pos: AtomicI64,
    /// Entries up to here are not remembered (any more), so a value read before it counts no more, whatever its key.
    floor: AtomicI64,
    len: AtomicUsize,
    by_digest: RwLock<HashMap<Digest, (i64, i64), DigestBuild>>,
}

impl Forgets {
    pub fn new() -> Self {
        Self {
            loaded: AtomicBool::new(false),
            incarnation: AtomicI32::new(0),
            pos: AtomicI64::new(0),
            floor: AtomicI64::new(0),
            len: AtomicUsize::new(0),
            by_digest: RwLock::default(),
        }
    }

    /// Position up to which the log is known; 0 before it is loaded.
    pub fn position(&self) -> i64 {
        self.pos.load(Ordering::Acquire)
    }

    /// Which log is known, and how far: incarnation and position.
    pub fn read(&self) -> (i32, i64) {
        (self.incarnation.load(Ordering::Acquire), self.position())
    }

    /// Whether the log was read since the start or the last [`Forgets::reset`].
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// Adds what was read after [`Forgets::position`], in order of position, at home time `now_ms`; entries seen longer than `keep_ms` ago
    /// are dropped. What is missing between the position and the first entry, or up to `upto` where there is none, is a gap: it raises the
    /// floor.
    pub fn extend(&self, entries: &[(i64, Digest)], upto: i64, now_ms: i64, keep_ms: i64) {
        let gap = entries.first().map_or(upto, |(pos, _)| pos - 1);
        if gap > self.position() {
            self.floor.fetch_max(gap, Ordering::AcqRel);
        }
        let mut map = self.by_digest.write().expect("no panic while held");
        for (pos, digest) in entries {
            map.insert(*digest, (*pos, now_ms));
        }
        map.retain(|_, (pos, at)| {
            let kept = *at > now_ms - keep_ms;
            if !kept {
                self.floor.fetch_max(*pos, Ordering::AcqRel);
            }
            kept
        });
        self.len.store(map.len(), Ordering::Release);
        drop(map);
        self.pos.fetch_max(upto, Ordering::AcqRel);
        self.loaded.store(true, Ordering::Release);
    }

    /// Adds a forget this very instance caused, before the log is read as far as that.
    pub fn note(&self, pos: i64, digest: Digest, now_ms: i64) {
        let mut map = self.by_digest.write().expect("no panic while held");
        let (highest, at) = map.entry(digest).or_insert((pos, now_ms));
        (*highest, *at) = ((*highest).max(pos), now_ms);
        self.len.store(map.len(), Ordering::Release);
    }

    /// Starts over, after the home turned out to be another one.
    pub fn reset(&self) {
        self.loaded.store(false, Ordering::Release);
        let mut map = self.by_digest.write().expect("no panic while held");
        map.clear();
        self.len.store(0, Ordering::Release);
        self.pos.store(0, Ordering::Release);
        self.floor.store(0, Ordering::Release);
    }

    /// Starts over if the home is on another incarnation than the one whose log this is: a promoted standby, or a restored home, may have
    /// lost the log's end, and gives its positions to other forgets.
    pub fn follow(&self, incarnation: i32) {
        let old = self.incarnation.swap(incarnation, Ordering::AcqRel);
        if old != incarnation && old != 0 {
            self.reset();
        }
    }

    /// Whether a value read at position `as_of` may still be believed. Until the log is loaded nothing may.
    pub fn allows(&self, digest: &Digest, as_of: i64) -> bool {
        if !self.is_loaded() || as_of < self.floor.load(Ordering::Acquire) {
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

    const A: Digest = Digest(Uuid::from_u128(1));
    const B: Digest = Digest(Uuid::from_u128(2));

    #[test]
    fn a_late_back_fill_of_a_forgotten_key_is_a_miss() {
        let forgets = Forgets::new();
        assert!(!forgets.allows(&A, 100), "nothing is believed before the log is loaded");
        forgets.note(2, A, 1000);
        assert!(!forgets.allows(&B, 100), "an own forget is no log");
        forgets.extend(&[(1, B), (2, A)], 2, 1000, 10_000);
        assert!(!forgets.allows(&A, 1), "read before the forget");
        assert!(forgets.allows(&A, 2), "read after it");
        assert!(!forgets.allows(&B, 0));
        assert!(forgets.allows(&B, 1));
    }

    #[test]
    fn what_is_not_remembered_is_not_believed() {
        let forgets = Forgets::new();
        forgets.extend(&[(5, A)], 5, 1000, 10_000);
        assert!(!forgets.allows(&B, 3), "the log before 5 was too old to be read");
        assert!(forgets.allows(&B, 4));
        forgets.extend(&[(6, B)], 6, 20_000, 10_000);
        assert!(!forgets.allows(&A, 4), "its forget is dropped, and the value is older");
        assert!(forgets.allows(&A, 5));
        forgets.extend(&[], 9, 21_000, 10_000);
        assert!(!forgets.allows(&A, 8), "7 to 9 were missed");
        assert!(forgets.allows(&A, 9));
    }

    #[test]
    fn another_incarnation_has_a_log_of_its_own() {
        let forgets = Forgets::new();
        forgets.follow(1);
        forgets.extend(&[(1, A)], 1, 1000, 10_000);
        forgets.follow(1);
        assert_eq!(forgets.position(), 1);
        forgets.follow(2);
        assert_eq!((forgets.position(), forgets.is_loaded()), (0, false));
    }
}
