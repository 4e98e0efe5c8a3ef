//! Segments and archives as people see them.

use uuid::Uuid;

/// One of them.
#[derive(Debug, Clone)]
pub struct SegmentInfo {
    /// A segment's number, or minus an archive's.
    pub place: i32,
    /// `prepared`, `open`, `sealed`, `frozen`, `cold` (an archive that counts, or tables that are about to go), `built`, `dead`, `dropped`.
    pub state: String,
    /// From when, home time in ms.
    pub from_ms: Option<i64>,
    /// Until when.
    pub to_ms: Option<i64>,
    /// Keys; estimated where there is no filter.
    pub keys: Option<i64>,
    /// On disk.
    pub bytes: Option<i64>,
    /// Its filter, if it has one.
    pub filter_id: Option<Uuid>,
    /// The filter's size.
    pub filter_bytes: Option<i64>,
    /// Keys in the filter.
    pub filter_keys: Option<i64>,
    /// How often an archive's digests were merged.
    pub level: Option<i32>,
    /// End of an archive's last window, ms.
    pub expires_ms: Option<i64>,
    /// Its tables are there.
    pub partition: Option<bool>,
}

impl SegmentInfo {
    /// False positives to be expected of its filter.
    pub fn estimated_fpr(&self) -> Option<f64> {
        let blocks = u32::try_from(self.filter_bytes? / 32).ok().filter(|b| *b > 0)?;
        Some(dedup_core::filter_fpr(u64::try_from(self.filter_keys?).ok()?, blocks))
    }
}
