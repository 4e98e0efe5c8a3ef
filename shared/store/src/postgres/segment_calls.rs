//! Calls about segments, archives and filters.

use deadpool_postgres::Client;
use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::outcome::{CallError, classify};
use crate::segments::SegmentInfo;

/// A filter of the home's list.
#[derive(Debug, Clone)]
pub struct FilterRow {
    pub filter_id: Uuid,
    pub place: i32,
    pub bytes: u64,
    pub chunks: i32,
    pub head: Vec<u8>,
}

/// The filters that count.
pub async fn call_filters(client: &impl GenericClient) -> Result<Vec<FilterRow>, tokio_postgres::Error> {
    let rows = client.query("SELECT filter_id, place, bytes, chunks, head FROM dedup.filters_v1() /* dedup: filters */", &[]).await?;
    rows.iter()
        .map(|row| {
            Ok(FilterRow {
                filter_id: row.try_get(0)?,
                place: row.try_get(1)?,
                bytes: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or(u64::MAX),
                chunks: row.try_get(3)?,
                head: row.try_get(4)?,
            })
        })
        .collect()
}

/// One chunk of a filter; `None`: it is not there (any more).
pub async fn call_filter_chunk(client: &impl GenericClient, filter: Uuid, n: i32) -> Result<Option<Vec<u8>>, tokio_postgres::Error> {
    client.query_one("SELECT dedup.filter_chunk_v1($1, $2) /* dedup: filter chunk */", &[&filter, &n]).await?.try_get(0)
}

/// Segments and archives.
pub async fn call_segments(client: &Client) -> Result<Vec<SegmentInfo>, CallError> {
    let rows = client
        .query("SELECT * FROM dedup.segments_v1() ORDER BY to_ms NULLS LAST, place /* dedup: segments */", &[])
        .await
        .map_err(|e| classify(&e))?;
    let read = |row: &tokio_postgres::Row| {
        Ok(SegmentInfo {
            place: row.try_get("place")?,
            state: row.try_get("state")?,
            from_ms: row.try_get("from_ms")?,
            to_ms: row.try_get("to_ms")?,
            keys: row.try_get("keys")?,
            bytes: row.try_get("bytes")?,
            filter_id: row.try_get("filter_id")?,
            filter_bytes: row.try_get("filter_bytes")?,
            filter_keys: row.try_get("filter_keys")?,
            level: row.try_get("level")?,
            expires_ms: row.try_get("expires_ms")?,
            partition: row.try_get("partition")?,
        })
    };
    rows.iter()
        .map(read)
        .collect::<Result<_, tokio_postgres::Error>>()
        .map_err(|e| CallError::Unknown(format!("the home's answer cannot be read: {e}")))
}
