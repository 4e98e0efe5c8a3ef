//! A limit on everything; the defaults of the API.

/// Sizes in bytes, times in milliseconds. Configuration may lower or raise them where its documentation says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Full key.
    pub key_bytes: usize,
    /// Request id.
    pub request_id_bytes: usize,
    /// Owner.
    pub owner_bytes: usize,
    /// Items of one batch.
    pub batch_items: usize,
    /// Body of a request.
    pub body_bytes: usize,
    /// Raw bytes of a stored result.
    pub result_bytes: usize,
    /// Note of a release or extension.
    pub note_bytes: usize,
    /// Nesting of a JSON body.
    pub json_depth: usize,
    /// Shortest lease.
    pub lease_ms_min: i64,
    /// Longest lease.
    pub lease_ms_max: i64,
    /// Shortest window.
    pub window_ms_min: i64,
    /// Longest window other than forever.
    pub window_ms_max: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes: 512,
            request_id_bytes: 128,
            owner_bytes: 128,
            batch_items: 1000,
            body_bytes: 1 << 20,
            result_bytes: 64 << 10,
            note_bytes: 4 << 10,
            json_depth: 16,
            lease_ms_min: 1000,
            lease_ms_max: 86_400_000,
            window_ms_min: 1000,
            window_ms_max: 365 * 86_400_000,
        }
    }
}
