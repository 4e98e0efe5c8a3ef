//! The filter of a sealed segment: its digests are streamed once or more, the filter is stored and published in one transaction.

use dedup_core::{Digest, FILTER_BLOCK_BYTES, FilterHead, FilterPart, filter_blocks};
use futures_util::{TryStreamExt, pin_mut};
use sha2::{Digest as _, Sha256};
use tokio_postgres::Transaction;
use tokio_postgres::binary_copy::BinaryCopyOutStream;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::pace::Pace;
use super::{Janitor, JanitorError, Round};

/// Blocks of a stored chunk: 256 KiB.
pub(super) const CHUNK_BLOCKS: u32 = 8_192;

/// Writes the chunks of one filter, in order.
pub(super) struct FilterWriter {
    pub id: Uuid,
    pub chunks: i32,
    sum: Sha256,
}

impl FilterWriter {
    pub fn new() -> Self {
        Self { id: Uuid::new_v4(), chunks: 0, sum: Sha256::new() }
    }

    pub async fn chunk(&mut self, tx: &Transaction<'_>, bytes: &[u8]) -> Result<(), JanitorError> {
        self.sum.update(bytes);
        tx.execute(
            "INSERT INTO dedup.filter_chunks (filter_id, n, data) VALUES ($1, $2, $3) /* dedup: filter chunk */",
            &[&self.id, &self.chunks, &bytes],
        )
        .await?;
        self.chunks += 1;
        Ok(())
    }

    pub async fn finish(
        self,
        tx: &Transaction<'_>,
        janitor: &Whose,
        place: i32,
        keys: u64,
        blocks: u32,
    ) -> Result<(Uuid, [u8; 32]), JanitorError> {
        let body_sum = self.sum.finalize().into();
        let head = FilterHead {
            filter_id: self.id,
            home_id: janitor.home_id,
            secret_id: janitor.secret_id,
            place,
            blocks,
            keys,
            fpr_ppb: (janitor.fpr * 1e9) as u32,
            body_sum,
        };
        let (keys, bytes) = (i64::try_from(keys).unwrap_or(i64::MAX), i64::try_from(head.body_bytes()).unwrap_or(i64::MAX));
        tx.execute(
            "INSERT INTO dedup.filters (filter_id, place, keys, bytes, chunks, head) VALUES ($1, $2, $3, $4, $5, $6) /* dedup: filter */",
            &[&self.id, &place, &keys, &bytes, &self.chunks, &head.to_bytes().as_slice()],
        )
        .await?;
        Ok((self.id, body_sum))
    }
}

/// What a filter's head says of its maker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whose {
    pub home_id: Uuid,
    pub secret_id: [u8; 8],
    pub fpr: f64,
}

impl Janitor {
    pub(super) fn whose(&self) -> Whose {
        Whose { home_id: self.home_id, secret_id: self.secret_id, fpr: self.settings.filter_fpr }
    }

    /// Sealed segments without a filter, oldest first.
    pub(super) async fn unfiltered(&self) -> Result<Vec<i32>, JanitorError> {
        let rows = self
            .client
            .query(
                "SELECT segment_id FROM dedup.segments WHERE state = 'sealed' AND filter_id IS NULL ORDER BY 1 /* dedup: unfiltered */",
                &[],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(super) async fn build_filters(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        for segment in self.unfiltered().await? {
            let mut pace = Pace::new();
            let (keys, bytes) = self.build_filter(segment).await?;
            pace.rest().await;
            round.deeds.push(format!("built the filter of segment {segment}: {keys} keys, {bytes} bytes"));
        }
        Ok(())
    }

    async fn build_filter(&mut self, segment: i32) -> Result<(u64, u64), JanitorError> {
        let (whose, reached, budget) = (self.whose(), self.reached, self.settings.filter_build_bytes);
        let tx = self.client.transaction().await?;
        // Nothing enters a sealed segment any more, so what is counted now is the most it will ever hold.
        let keys: i64 = tx.query_one(&format!("SELECT count(*) FROM dedup.claims_s{segment} /* dedup: filter size */"), &[]).await?.get(0);
        let keys = u64::try_from(keys).unwrap_or_default();
        let blocks = filter_blocks(keys, whose.fpr);
        let stretch = u32::try_from(budget / FILTER_BLOCK_BYTES as u64).unwrap_or(u32::MAX).max(CHUNK_BLOCKS);
        let mut writer = FilterWriter::new();
        let mut first = 0;
        while first < blocks {
            let mut part = FilterPart::new(blocks, first, stretch);
            let sql = format!("COPY (SELECT digest FROM dedup.claims_s{segment}) TO STDOUT (FORMAT binary)");
            let rows = BinaryCopyOutStream::new(tx.copy_out(&sql).await?, &[Type::UUID]);
            pin_mut!(rows);
            while let Some(row) = rows.try_next().await? {
                part.insert(&Digest(row.try_get(0)?));
            }
            for chunk in part.to_bytes().chunks(CHUNK_BLOCKS as usize * FILTER_BLOCK_BYTES) {
                writer.chunk(&tx, chunk).await?;
            }
            first = part.end();
        }
        let (id, _) = writer.finish(&tx, &whose, segment, keys, blocks).await?;
        // The compare-and-set that publishes it. Whoever does not have it yet looks into the segment, as before.
        let set = tx
            .execute(
                "UPDATE dedup.segments SET filter_id = $2 WHERE segment_id = $1 AND state = 'sealed' AND filter_id IS NULL /* dedup: publish filter */",
                &[&segment, &id],
            )
            .await?;
        if set != 1 {
            return Err(JanitorError::Verification(format!("segment {segment} is no longer without a filter")));
        }
        tx.execute("SELECT dedup.changed('segments') /* dedup: publish filter */", &[]).await?;
        reached("filter.built");
        tx.commit().await?;
        reached("filter.published");
        Ok((keys, u64::from(blocks) * FILTER_BLOCK_BYTES as u64))
    }
}
