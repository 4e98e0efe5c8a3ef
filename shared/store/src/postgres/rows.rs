//! Parallel arrays of facts as the home's functions return them.

use std::collections::HashMap;
use std::sync::Arc;

use dedup_core::{Digest, Fence, Fingerprint, Record, RequestHash, StoredResult};
use tokio_postgres::Row;
use uuid::Uuid;

/// A column, by name; an absent array is an empty one.
pub fn array<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, name: &str) -> Result<Vec<T>, tokio_postgres::Error> {
    Ok(row.try_get::<_, Option<Vec<T>>>(name)?.unwrap_or_default())
}

/// Facts of one row of the arrays.
pub struct Facts {
    digest: Vec<Option<Uuid>>,
    fence: Vec<Option<i64>>,
    request: Vec<Option<i64>>,
    fingerprint: Vec<Option<i32>>,
    first_seen: Vec<Option<i64>>,
    expires: Vec<Option<i64>>,
    ends: Vec<Option<i64>>,
    meta: Vec<Option<i32>>,
    at: Vec<Option<i64>>,
}

impl Facts {
    pub fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            digest: array(row, "digest")?,
            fence: array(row, "fence")?,
            request: array(row, "request_hash")?,
            fingerprint: array(row, "fingerprint")?,
            first_seen: array(row, "first_seen")?,
            expires: array(row, "expires")?,
            ends: array(row, "ends")?,
            meta: array(row, "meta")?,
            at: array(row, "at_ms")?,
        })
    }

    pub fn len(&self) -> usize {
        self.digest.len()
    }

    pub fn digest(&self, i: usize) -> Option<Digest> {
        self.digest[i].map(Digest)
    }

    pub fn at_ms(&self, i: usize) -> i64 {
        self.at[i].unwrap_or_default()
    }

    /// The record of row `i`; `None` where the row carries none.
    pub fn record(&self, i: usize, results: &mut HashMap<Digest, Arc<StoredResult>>) -> Option<Record> {
        let digest = self.digest(i)?;
        record(
            self.fence[i]?,
            self.request[i]?,
            self.fingerprint[i]?,
            self.first_seen[i]?,
            self.expires[i]?,
            self.ends[i]?,
            self.meta[i]?,
            results.remove(&digest),
        )
    }
}

/// A record from its columns; `None` for a state this program does not know.
#[expect(clippy::too_many_arguments, reason = "the columns of one row, named at each call")]
pub fn record(
    fence: i64,
    request: i64,
    fingerprint: i32,
    first_seen: i64,
    expires: i64,
    ends: i64,
    meta: i32,
    result: Option<Arc<StoredResult>>,
) -> Option<Record> {
    let (state, outcome, one_shot, has_result, attempt) = Record::unpack_meta(meta)?;
    // A result is known of and not there any more: say so rather than pretend there was none.
    let gone =
        || Arc::new(StoredResult { status: None, media_type: None, headers: "{}".into(), body: None, omitted: true, keep_until_ms: None });
    Some(Record {
        fence: Fence(fence),
        request: RequestHash::from_stored(request),
        fingerprint: Fingerprint::from_stored(fingerprint),
        state,
        outcome,
        one_shot,
        attempt,
        first_seen_ms: first_seen,
        expires_ms: expires,
        ends_ms: ends,
        result: if has_result { Some(result.unwrap_or_else(gone)) } else { None },
    })
}
