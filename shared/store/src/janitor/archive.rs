//! Frozen to cold: the digests of an immutable segment are packed, read back and compared, and only then count.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use dedup_core::{BlockBuilder, BlockRow, FILTER_BLOCK_BYTES, FilterPart, Key72, block_sum, filter_blocks, read_block};
use futures_util::future::{MaybeDone, maybe_done};
use futures_util::pin_mut;
use sha2::{Digest as _, Sha256};
use tokio_postgres::Transaction;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::filter::{CHUNK_BLOCKS, FilterWriter, Whose};
use super::pace::Pace;
use super::source::{Class, Source, read_blocks, round_up};
use super::{Janitor, JanitorError, Round};

/// Blocks written at a time: about 1 MB.
const WRITE: usize = 128;
/// Classes that a block can number.
pub(super) const CLASSES_MAX: usize = 65_536;

/// What is known of an archive before its digests are read.
pub(super) struct Plan {
    pub archive: i32,
    pub level: i32,
    pub inputs: Vec<i32>,
    /// At most so many keys.
    pub keys: u64,
    pub classes: Vec<Class>,
    pub from_ms: i64,
    pub to_ms: i64,
}

/// What was written.
pub(super) struct Built {
    pub archive: i32,
    pub keys: u64,
    pub blocks: i32,
    pub filter_bytes: u64,
    filter_blocks: u32,
    filter: Uuid,
    filter_sum: [u8; 32],
}

/// Digests without repetitions: of the same one, the memory that lasts longer.
struct Distinct<'s, 'a> {
    source: &'s mut Source<'a>,
    held: Option<(Key72, Class)>,
    ended: bool,
    pace: Pace,
}

impl<'s, 'a> Distinct<'s, 'a> {
    fn new(source: &'s mut Source<'a>) -> Self {
        Self { source, held: None, ended: false, pace: Pace::new() }
    }

    /// Between two steps; not where somebody waits for the end, as of an import.
    async fn rest(&mut self) {
        if !matches!(self.source, Source::Staged { .. }) {
            self.pace.rest().await;
        }
    }

    /// The next digests; none: the end.
    async fn next(&mut self) -> Result<Vec<(Key72, Class)>, JanitorError> {
        while !self.ended {
            let some = self.source.next().await?;
            self.ended = some.is_empty();
            let mut out = Vec::with_capacity(some.len() + 1);
            for (key, class) in some {
                match &mut self.held {
                    Some((held, kept)) if *held == key => *kept = (*kept).max(class),
                    held => out.extend(held.replace((key, class))),
                }
            }
            if self.ended {
                out.extend(self.held.take());
            }
            if !out.is_empty() {
                return Ok(out);
            }
        }
        Ok(Vec::new())
    }
}

/// Writes an archive, its filter and its row (state `built`) within a transaction.
pub(super) async fn write(
    tx: &Transaction<'_>,
    source: &mut Source<'_>,
    plan: &Plan,
    whose: Whose,
    reached: fn(&'static str),
) -> Result<Built, JanitorError> {
    let archive = plan.archive;
    let numbers: HashMap<Class, u16> = plan.classes.iter().zip(0_u16..).map(|(class, n)| (*class, n)).collect();
    let mut held = vec![0_i64; plan.classes.len()];
    let mut builder = BlockBuilder::new(plan.classes.len());
    let mut filter = FilterWriter::new();
    let filter_total = filter_blocks(plan.keys, whose.fpr);
    let mut part = FilterPart::new(filter_total, 0, CHUNK_BLOCKS);
    let mut rows: Vec<BlockRow> = Vec::new();
    let (mut keys, mut blocks) = (0_u64, 0_i32);
    // Neighbours are often of one class.
    let mut last: Option<(Class, u16)> = None;
    let mut distinct = Distinct::new(source);
    let mut some = distinct.next().await?;
    while !some.is_empty() {
        distinct.rest().await;
        // The home reads on while these are packed; nothing else is asked of the connection before that is here.
        let mut next = pin!(maybe_done(distinct.next()));
        begin(next.as_mut()).await;
        let mut chunks = Vec::new();
        for (key, class) in some {
            let number = match last {
                Some((same, number)) if same == class => number,
                _ => *numbers.get(&class).ok_or_else(|| JanitorError::Verification(format!("a class that was not there: {class:?}")))?,
            };
            last = Some((class, number));
            held[usize::from(number)] += 1;
            keys += 1;
            rows.extend(builder.push(key, number).map_err(|source| JanitorError::Block { archive, source })?);
            let digest = key.lowest();
            while part.block_of(&digest) >= part.end() {
                chunks.push(part.to_bytes());
                part = FilterPart::new(filter_total, part.end(), CHUNK_BLOCKS);
            }
            part.insert(&digest);
        }
        next.as_mut().await;
        some = next.take_output().transpose()?.unwrap_or_default();
        for chunk in chunks {
            filter.chunk(tx, &chunk).await?;
        }
        if rows.len() >= WRITE {
            blocks += store(tx, archive, &rows).await?;
            rows.clear();
        }
    }
    rows.push(builder.finish());
    blocks += store(tx, archive, &rows).await?;
    reached("archive.blocks");
    loop {
        filter.chunk(tx, &part.to_bytes()).await?;
        if part.end() == filter_total {
            break;
        }
        part = FilterPart::new(filter_total, part.end(), CHUNK_BLOCKS);
    }
    let (filter, filter_sum) = filter.finish(tx, &whose, -archive, keys, filter_total).await?;
    let expires: Vec<i64> = plan.classes.iter().map(|c| c.expires_ms).collect();
    let flags: Vec<i32> = plan.classes.iter().map(|c| c.flags).collect();
    let last = expires.iter().zip(&held).filter(|(_, n)| **n > 0).map(|(e, _)| *e).max().unwrap_or(0);
    tx.execute(
        "INSERT INTO dedup.archives (archive_id, state, level, inputs, keys, blocks, from_ms, to_ms, expires_ms, filter_id, class_expires, class_flags, class_keys) \
         VALUES ($1, 'built', $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) /* dedup: archive */",
        &[
            &archive,
            &plan.level,
            &plan.inputs,
            &i64::try_from(keys).unwrap_or(i64::MAX),
            &blocks,
            &plan.from_ms,
            &plan.to_ms,
            &last,
            &filter,
            &expires,
            &flags,
            &held,
        ],
    )
    .await?;
    Ok(Built {
        archive,
        keys,
        blocks,
        filter_bytes: u64::from(filter_total) * FILTER_BLOCK_BYTES as u64,
        filter_blocks: filter_total,
        filter,
        filter_sum,
    })
}

/// Lets a question leave without waiting for its answer.
async fn begin<F: Future>(mut question: Pin<&mut MaybeDone<F>>) {
    poll_fn(|context| Poll::Ready(question.as_mut().poll(context).is_ready())).await;
    tokio::task::yield_now().await;
}

async fn store(tx: &Transaction<'_>, archive: i32, rows: &[BlockRow]) -> Result<i32, JanitorError> {
    let sink = tx.copy_in("COPY dedup.blocks (first, until, sum, archive_id, data) FROM STDIN (FORMAT binary)").await?;
    let writer = BinaryCopyInWriter::new(sink, &[Type::UUID, Type::UUID, Type::BYTEA, Type::INT4, Type::BYTEA]);
    pin_mut!(writer);
    for row in rows {
        let sum = block_sum(archive, &row.first, row.until.as_ref(), &row.data);
        writer.as_mut().write(&[&row.first, &row.until, &sum.as_slice(), &archive, &row.data]).await?;
    }
    writer.finish().await?;
    Ok(i32::try_from(rows.len()).unwrap_or(i32::MAX))
}

/// Reads an archive back: every digest of the source is in the blocks with its class and in the filter, and there is nothing else. The
/// function that looks for claims is asked for the first, a middle and the last digest of every block.
pub(super) async fn verify(
    tx: &Transaction<'_>,
    source: &mut Source<'_>,
    plan: &Plan,
    built: &Built,
    as_of: i64,
) -> Result<(), JanitorError> {
    let wrong = |what: &str| JanitorError::Verification(format!("archive {}: {what}", built.archive));
    let mut distinct = Distinct::new(source);
    let mut expected: std::vec::IntoIter<(Key72, Class)> = Vec::new().into_iter();
    let mut filter = FilterBack::new(built);
    let mut next = Some(Uuid::nil());
    let mut keys = 0_u64;
    while next.is_some() {
        distinct.rest().await;
        let mut probes: Vec<Uuid> = Vec::new();
        for (row, sum) in read_blocks(tx, built.archive, next).await? {
            if Some(row.first) != next {
                return Err(wrong("a block is missing"));
            }
            next = row.until;
            let entries = read_block(built.archive, &row, &sum).map_err(|source| JanitorError::Block { archive: built.archive, source })?;
            if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
                probes.extend([first, &entries[entries.len() / 2], last].map(|(key, _)| key.lowest().0));
            }
            for (key, class) in entries {
                if expected.len() == 0 {
                    expected = distinct.next().await?.into_iter();
                }
                if plan.classes.get(usize::from(class)).is_none_or(|class| expected.next() != Some((key, *class))) {
                    return Err(wrong("a digest is missing or is not one of its source"));
                }
                if !filter.holds(tx, &key).await? {
                    return Err(wrong("the filter denies a digest"));
                }
                keys += 1;
            }
        }
        let lost: i64 = tx
            .query_one(
                "SELECT count(*) FROM unnest($1::uuid[]) d(digest) CROSS JOIN LATERAL dedup.look_cold(d.digest, ARRAY[$2::int], $3) k WHERE k.hit <> 1 /* dedup: verify */",
                &[&probes, &built.archive, &as_of],
            )
            .await?
            .get(0);
        if lost > 0 {
            return Err(wrong("a look does not find a digest"));
        }
    }
    if expected.len() > 0 || !distinct.next().await?.is_empty() || keys != built.keys {
        return Err(wrong("digests are missing at the end"));
    }
    filter.finish(tx).await
}

/// A stored filter read back chunk by chunk, as digests rise.
struct FilterBack<'b> {
    built: &'b Built,
    part: Option<FilterPart>,
    n: i32,
    sum: Sha256,
}

impl<'b> FilterBack<'b> {
    fn new(built: &'b Built) -> Self {
        Self { built, part: None, n: 0, sum: Sha256::new() }
    }

    async fn advance(&mut self, tx: &Transaction<'_>) -> Result<(), JanitorError> {
        let row = tx
            .query_one(
                "SELECT data FROM dedup.filter_chunks WHERE filter_id = $1 AND n = $2 /* dedup: verify filter */",
                &[&self.built.filter, &self.n],
            )
            .await?;
        let bytes: &[u8] = row.try_get(0)?;
        self.sum.update(bytes);
        let first = self.part.as_ref().map_or(0, FilterPart::end);
        self.part = Some(FilterPart::from_bytes(self.built.filter_blocks, first, bytes));
        self.n += 1;
        Ok(())
    }

    async fn holds(&mut self, tx: &Transaction<'_>, key: &Key72) -> Result<bool, JanitorError> {
        let digest = key.lowest();
        loop {
            match &self.part {
                Some(part) if part.block_of(&digest) < part.end() => return Ok(part.may_hold(&digest)),
                _ => self.advance(tx).await?,
            }
        }
    }

    async fn finish(mut self, tx: &Transaction<'_>) -> Result<(), JanitorError> {
        while self.part.as_ref().is_none_or(|part| part.end() < self.built.filter_blocks) {
            self.advance(tx).await?;
        }
        if self.sum.finalize()[..] != self.built.filter_sum {
            Err(JanitorError::Verification("the stored filter has another sum".into()))
        } else {
            Ok(())
        }
    }
}

impl Janitor {
    /// The frozen segment, of which there is at most one.
    pub(super) async fn frozen(&self) -> Result<Option<i32>, JanitorError> {
        let row = self
            .client
            .query_opt("SELECT segment_id FROM dedup.segments WHERE state = 'frozen' ORDER BY 1 LIMIT 1 /* dedup: frozen */", &[])
            .await?;
        Ok(row.map(|row| row.get(0)))
    }

    pub(super) async fn archive_frozen(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        let Some(segment) = self.frozen().await? else { return Ok(()) };
        let built = self
            .client
            .query_opt(
                "SELECT archive_id FROM dedup.archives WHERE state = 'built' AND level = 0 AND inputs = ARRAY[$1::int] /* dedup: built */",
                &[&segment],
            )
            .await?;
        let archive = match built {
            Some(row) => Some(row.get(0)),
            None => self.archive_segment(segment, round).await?,
        };
        match archive {
            Some(archive) => self.publish(archive, round).await,
            None => {
                let done = self.change_layout("SELECT dedup.retire_v1($1) /* dedup: retire */", &[&segment], round).await?;
                (self.reached)("retire.done");
                round.deeds.push(format!("segment {segment} has nothing that still counts: {done}"));
                Ok(())
            }
        }
    }

    pub(super) async fn publish(&mut self, archive: i32, round: &mut Round) -> Result<(), JanitorError> {
        let done = self.change_layout("SELECT dedup.publish_v1($1) /* dedup: publish */", &[&archive], round).await?;
        (self.reached)("publish.done");
        if matches!(done.as_str(), "stale" | "forgets") {
            self.client
                .execute(
                    "UPDATE dedup.archives SET state = 'dead' WHERE archive_id = $1 AND state = 'built' /* dedup: give up an archive */",
                    &[&archive],
                )
                .await?;
        }
        round.deeds.push(format!("publishing of archive {archive}: {done}"));
        Ok(())
    }

    /// Builds and verifies the archive of a frozen segment, in one transaction, so that nothing of it is ever there in part. `None`: there
    /// is nothing to archive.
    async fn archive_segment(&mut self, segment: i32, round: &mut Round) -> Result<Option<i32>, JanitorError> {
        let (whose, reached) = (self.whose(), self.reached);
        let as_of = self.now_ms().await?;
        let mut base = self.settings.segment_ms;
        let mut pace = Pace::new();
        let tx = self.client.transaction().await?;
        tx.batch_execute("SET LOCAL work_mem = '64MB' /* dedup: archive */").await?;
        let sql = format!(
            "SELECT dedup.t_out(s.origin_ms, c.expires), c.meta & 40, count(*), min(dedup.t_out(s.origin_ms, c.first_seen)), max(dedup.t_out(s.origin_ms, c.first_seen)) \
             FROM dedup.claims_s{segment} c JOIN dedup.segments s ON s.segment_id = {segment} \
             WHERE c.meta & 7 = 3 AND dedup.t_out(s.origin_ms, c.expires) > $1 GROUP BY 1, 2 /* dedup: classes */"
        );
        // Rounded in the database, so that a segment with a window of its own for each key does not come here row by row.
        let sql = sql.replacen("dedup.t_out(s.origin_ms, c.expires), c.meta & 40", &rounded("dedup.t_out(s.origin_ms, c.expires)"), 1);
        let plan = loop {
            let rows = tx.query(&sql, &[&as_of, &base]).await?;
            if rows.is_empty() {
                return Ok(None);
            }
            if rows.len() <= CLASSES_MAX {
                let archive: i32 = tx.query_one("SELECT nextval('dedup.archive_counter')::int /* dedup: archive */", &[]).await?.get(0);
                let mut plan = Plan {
                    archive,
                    level: 0,
                    inputs: vec![segment],
                    keys: 0,
                    classes: Vec::with_capacity(rows.len()),
                    from_ms: i64::MAX,
                    to_ms: i64::MIN,
                };
                for row in &rows {
                    plan.classes.push(Class { expires_ms: round_up(row.try_get(0)?, base), flags: row.try_get(1)? });
                    plan.keys += u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or_default();
                    plan.from_ms = plan.from_ms.min(row.try_get(3)?);
                    plan.to_ms = plan.to_ms.max(row.try_get(4)?);
                }
                break plan;
            }
            // Only where base segments are of seconds and windows differ by key: more classes than a block can number.
            base = base.saturating_mul(4);
        };
        pace.rest().await;
        let built = {
            let mut source = Source::segment(&tx, segment, base, as_of).await?;
            write(&tx, &mut source, &plan, whose, reached).await?
        };
        {
            let mut source = Source::segment(&tx, segment, base, as_of).await?;
            verify(&tx, &mut source, &plan, &built, as_of).await?;
        }
        reached("archive.verified");
        tx.commit().await?;
        reached("archive.built");
        round.deeds.push(format!(
            "archived segment {segment} as {}: {} keys in {} blocks, filter {} bytes",
            built.archive, built.keys, built.blocks, built.filter_bytes
        ));
        Ok(Some(built.archive))
    }
}

/// A window's end rounded up to the base segment ($2), and the flags, in SQL; as `round_up`.
fn rounded(expires: &str) -> String {
    format!(
        "CASE WHEN {expires} = 9223372036854775807 THEN {expires} ELSE ({expires} + $2::bigint - 1) / $2::bigint * $2::bigint END, c.meta & 40"
    )
}

/// Digests forgotten of some places, as an archive under construction leaves them out.
pub(super) async fn forgotten(tx: &Transaction<'_>, place: i32, seen_by: i32) -> Result<HashSet<Key72>, JanitorError> {
    let rows = tx
        .query("SELECT digest FROM dedup.tombstones WHERE place = $1 AND seen_by = $2 /* dedup: forgotten */", &[&place, &seen_by])
        .await?;
    rows.iter().map(|row| Ok(Key72::of(&dedup_core::Digest(row.try_get(0)?)))).collect()
}
