//! The local tier: done records in this process, within a byte budget.

use std::hash::{BuildHasherDefault, Hasher};

use dedup_core::Digest;
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
}

/// What there is in it.
#[derive(Debug, Clone, Copy)]
pub struct LocalHealth {
    /// Entries, about.
    pub entries: u64,
    /// Bytes, about.
    pub bytes: u64,
}

impl LocalTier {
    /// A tier of at most `bytes`; 0 switches it off.
    pub fn new(bytes: u64) -> Self {
        // No time to live of its own: an entry counts only while home time is below its expiry, and the byte budget evicts the rest. (A
        // time to live would read a clock at each look-up.)
        let cache = (bytes > 0).then(|| {
            Cache::builder().max_capacity(bytes).weigher(|_: &Digest, v: &Cached| v.weight()).build_with_hasher(DigestBuild::default())
        });
        Self { cache }
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Cached> {
        self.cache.as_ref()?.get(digest)
    }

    pub(crate) fn put(&self, digest: Digest, cached: Cached) {
        if let Some(cache) = &self.cache {
            cache.insert(digest, cached);
        }
    }

    pub(crate) fn forget(&self, digest: &Digest) {
        if let Some(cache) = &self.cache {
            cache.invalidate(digest);
        }
    }

    /// What there is in it; `None` when switched off.
    pub fn health(&self) -> Option<LocalHealth> {
        self.cache.as_ref().map(|c| LocalHealth { entries: c.entry_count(), bytes: c.weighted_size() })
    }
}
