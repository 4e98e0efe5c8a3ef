//! The local tier: done records in this process, within a byte budget.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedup_core::Digest;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::cached::Cached;

/// Digests are uniformly random already: their first 8 bytes are the hash.
#[derive(Default)]
pub(crate) struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 ^= u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) type DigestBuild = BuildHasherDefault<DigestHasher>;

/// In-process cache of done records.
#[derive(Clone)]
pub struct LocalTier {
    cache: Option<Cache<Digest, Cached, DigestBuild>>,
    counts: Arc<Counts>,
}

/// What went in, and what left otherwise than by eviction. (An eviction listener would lock the key at each insertion.)
#[derive(Default)]
struct Counts {
    inserted: AtomicU64,
    forgotten: AtomicU64,
    evicted: AtomicU64,
}

/// What there is in it.
#[derive(Debug, Clone, Copy)]
pub struct LocalHealth {
    /// Entries, about.
    pub entries: u64,
    /// Bytes, about.
    pub bytes: u64,
    /// Records evicted, or not taken in, for want of room since the start, about.
    pub evicted: u64,
}

impl LocalTier {
    /// A tier of at most `bytes`; 0 switches it off.
    pub fn new(bytes: u64) -> Self {
        // No time to live of its own: an entry counts only while home time is below its expiry, and the byte budget evicts the rest. (A
        // time to live would read a clock at each look-up.)
        let cache = (bytes > 0).then(|| {
            // The least recently used goes first: a message is redelivered soon or not at all. (Moka's own policy would refuse what is new as
            // long as the old was asked for more often, and answer a first repetition from the home.)
            Cache::builder()
                .eviction_policy(EvictionPolicy::lru())
                .max_capacity(bytes)
                .weigher(|_: &Digest, v: &Cached| v.weight())
                .build_with_hasher(DigestBuild::default())
        });
        Self { cache, counts: Arc::default() }
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Cached> {
        self.cache.as_ref()?.get(digest)
    }

    pub(crate) fn put(&self, digest: Digest, cached: Cached) {
        if let Some(cache) = &self.cache {
            self.counts.inserted.fetch_add(1, Ordering::Relaxed);
            cache.insert(digest, cached);
        }
    }

    pub(crate) fn forget(&self, digest: &Digest) {
        if let Some(cache) = &self.cache
            && cache.remove(digest).is_some()
        {
            self.counts.forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What there is in it; `None` when switched off.
    pub fn health(&self) -> Option<LocalHealth> {
        let cache = self.cache.as_ref()?;
        let Counts { inserted, forgotten, evicted } = &*self.counts;
        // Read before the entries are counted: what comes in between makes the difference too small, never too large.
        let inserted = inserted.load(Ordering::Relaxed);
        cache.run_pending_tasks();
        let entries = cache.entry_count();
        let gone = inserted.saturating_sub(forgotten.load(Ordering::Relaxed) + entries);
        let evicted = evicted.fetch_max(gone, Ordering::Relaxed).max(gone);
        Some(LocalHealth { entries, bytes: cache.weighted_size(), evicted })
    }
}
