//! Stored results: what a completion leaves for later duplicates.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// The first answer, replayed byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResult {
    /// Status the caller's own API answered with.
    pub status: Option<i16>,
    /// Media type of the body.
    pub media_type: Option<String>,
    /// Headers as a JSON object of strings, in the caller's order.
    pub headers: String,
    /// The body; `None` when it was too large to keep (`omitted`), or none was given. An empty body is `Some` of nothing.
    pub body: Option<Vec<u8>>,
    /// Known to exist, not kept: the body was larger than the limit, or its time is over.
    pub omitted: bool,
    /// Home time until which it is told, ms; `None`: as long as its record is warm.
    pub keep_until_ms: Option<i64>,
}

impl StoredResult {
    /// Tells a repeat of the same completion from another result, also when the body is not kept.
    pub fn hash(&self) -> Uuid {
        let mut hash = Sha256::new();
        let mut part = |tag: u8, bytes: &[u8]| {
            hash.update([tag]);
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        part(1, self.status.map(|s| s.to_string()).unwrap_or_default().as_bytes());
        part(2, self.media_type.as_deref().unwrap_or_default().as_bytes());
        part(3, self.headers.as_bytes());
        part(if self.body.is_some() { 4 } else { 5 }, self.body.as_deref().unwrap_or_default());
        let out = hash.finalize();
        Uuid::from_bytes(out[..16].try_into().expect("16 of 32 bytes"))
    }

    /// Bytes it takes in a cache, roughly.
    pub fn weight(&self) -> usize {
        96 + self.media_type.as_ref().map_or(0, String::len) + self.headers.len() + self.body.as_ref().map_or(0, Vec::len)
    }
}
