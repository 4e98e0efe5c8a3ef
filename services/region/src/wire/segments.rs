//! Segments and archives.

use dedup_store::SegmentInfo;
use serde::Serialize;
use utoipa::ToSchema;

use super::time_text;

/// A segment or an archive.
#[derive(Debug, Serialize, ToSchema)]
pub struct SegmentBody {
    /// Its home.
    pub home_region: String,
    /// `segment 7` or `archive 3`.
    pub place: String,
    /// `prepared`, `open`, `sealed`, `frozen`, `cold`; of archives also `built` (about to count) and `dead` (about to go).
    pub state: String,
    /// Its keys came from this moment on, home time.
    pub from: Option<String>,
    /// … to this one; null: it is open.
    pub to: Option<String>,
    /// Keys; estimated where there is no filter.
    pub keys: Option<i64>,
    /// On disk, indexes included.
    pub bytes: Option<i64>,
    /// Size of its filter; null: it has none, and is looked into for every key.
    pub filter_bytes: Option<i64>,
    /// Share of false positives to be expected of the filter.
    pub estimated_fpr: Option<f64>,
    /// This instance has the filter.
    pub loaded: bool,
    /// How often an archive's digests were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<i32>,
    /// End of an archive's last window; null: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Option<String>>,
}

/// Of all homes.
#[derive(Debug, Serialize, ToSchema)]
pub struct SegmentsBody {
    /// In the order of time, home by home.
    pub segments: Vec<SegmentBody>,
    /// Homes that could not be asked.
    pub incomplete: Vec<String>,
}

impl SegmentBody {
    /// Shapes one.
    pub fn new(home: &str, segment: &SegmentInfo, loaded: bool) -> Self {
        let archive = segment.place < 0;
        Self {
            home_region: home.to_owned(),
            place: format!("{} {}", if archive { "archive" } else { "segment" }, segment.place.unsigned_abs()),
            state: segment.state.clone(),
            from: segment.from_ms.and_then(time_text),
            to: segment.to_ms.and_then(time_text),
            keys: segment.keys,
            bytes: segment.bytes,
            filter_bytes: segment.filter_bytes,
            estimated_fpr: segment.estimated_fpr(),
            loaded,
            level: segment.level,
            expires_at: segment.expires_ms.map(time_text),
        }
    }
}
