//! Where the digests of a new archive come from, rising: a frozen segment, or archives that are merged.

use std::collections::{HashSet, VecDeque};

use dedup_core::{BlockRow, Digest, FOREVER_MS, Key72, read_block};
use tokio_postgres::{Portal, Row, Statement, Transaction};
use uuid::Uuid;

use super::JanitorError;

/// What an archive knows of a key besides its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Class {
    /// Window's end, rounded up.
    pub expires_ms: i64,
    /// 8 failed, 32 a result was stored.
    pub flags: i32,
}

/// Rows read from a frozen segment at a time.
const ROWS: i32 = 20_000;
/// Blocks read from an archive at a time.
const BLOCKS: i64 = 16;

/// A rising stream of digests; the same one may come twice.
pub(super) enum Source<'a> {
    Segment { tx: &'a Transaction<'a>, portal: Portal, base: i64, ended: bool },
    Staged { tx: &'a Transaction<'a>, fetch: Statement, base: i64 },
    Archives { tx: &'a Transaction<'a>, inputs: Vec<Input>, as_of: i64 },
}

/// An archive that is read from its beginning to its end.
pub(super) struct Input {
    pub archive: i32,
    pub classes: Vec<Class>,
    /// What was forgotten of it.
    pub forgotten: HashSet<Key72>,
    next: Option<Uuid>,
    ended: bool,
    entries: VecDeque<(Key72, Class)>,
}

impl Input {
    pub fn new(archive: i32, classes: Vec<Class>, forgotten: HashSet<Key72>) -> Self {
        Self { archive, classes, forgotten, next: Some(Uuid::nil()), ended: false, entries: VecDeque::new() }
    }

    /// The next entries, rising; none: the end.
    pub async fn some(&mut self, tx: &Transaction<'_>, as_of: i64) -> Result<VecDeque<(Key72, Class)>, JanitorError> {
        self.fill(tx, as_of).await?;
        Ok(std::mem::take(&mut self.entries))
    }

    /// Reads on until there is an entry or the end.
    async fn fill(&mut self, tx: &Transaction<'_>, as_of: i64) -> Result<(), JanitorError> {
        while self.entries.is_empty() && !self.ended {
            for row in read_blocks(tx, self.archive, self.next).await? {
                let (row, sum) = row;
                // The chain from `until` to `first` shows a block that is missing.
                if Some(row.first) != self.next {
                    return Err(JanitorError::Block { archive: self.archive, source: dedup_core::BlockError::Order });
                }
                self.next = row.until;
                let entries =
                    read_block(self.archive, &row, &sum).map_err(|source| JanitorError::Block { archive: self.archive, source })?;
                for (key, class) in entries {
                    let class = *self
                        .classes
                        .get(usize::from(class))
                        .ok_or(JanitorError::Block { archive: self.archive, source: dedup_core::BlockError::Shape })?;
                    if class.expires_ms > as_of && !self.forgotten.contains(&key) {
                        self.entries.push_back((key, class));
                    }
                }
                self.ended = self.next.is_none();
            }
        }
        Ok(())
    }
}

/// Some blocks of an archive from `first` on, with their sums.
pub(super) async fn read_blocks(tx: &Transaction<'_>, archive: i32, first: Option<Uuid>) -> Result<Vec<(BlockRow, Vec<u8>)>, JanitorError> {
    let rows = tx
        .query(
            "SELECT first, until, sum, data FROM dedup.blocks WHERE archive_id = $1 AND first >= $2 ORDER BY first LIMIT $3 /* dedup: read blocks */",
            &[&archive, &first.unwrap_or(Uuid::max()), &BLOCKS],
        )
        .await?;
    if rows.is_empty() {
        return Err(JanitorError::Block { archive, source: dedup_core::BlockError::Order });
    }
    rows.iter()
        .map(|row| Ok((BlockRow { first: row.try_get(0)?, until: row.try_get(1)?, data: row.try_get(3)? }, row.try_get(2)?)))
        .collect()
}

/// Rounds a window's end up to a base segment.
pub(super) fn round_up(expires_ms: i64, base: i64) -> i64 {
    if expires_ms == FOREVER_MS {
        FOREVER_MS
    } else {
        expires_ms.div_euclid(base).saturating_add(i64::from(expires_ms.rem_euclid(base) > 0)).saturating_mul(base)
    }
}

impl<'a> Source<'a> {
    /// The done records of a frozen segment whose windows had not ended at `as_of`.
    pub async fn segment(tx: &'a Transaction<'a>, segment: i32, base: i64, as_of: i64) -> Result<Self, JanitorError> {
        let sql = format!(
            "SELECT c.digest, dedup.t_out(s.origin_ms, c.expires), c.meta & 40 FROM dedup.claims_s{segment} c \
             JOIN dedup.segments s ON s.segment_id = {segment} \
             WHERE c.meta & 7 = 3 AND dedup.t_out(s.origin_ms, c.expires) > $1 ORDER BY c.digest /* dedup: archive */"
        );
        let statement = tx.prepare(&sql).await?;
        Ok(Self::Segment { tx, portal: tx.bind(&statement, &[&as_of]).await?, base, ended: false })
    }

    /// What was staged of an import. It is sorted once for all readings: the cursor can go back.
    pub async fn staged(tx: &'a Transaction<'a>, import: i32, base: i64, as_of: i64) -> Result<Self, JanitorError> {
        tx.batch_execute(&format!(
            "DECLARE dedup_staged SCROLL CURSOR FOR SELECT digest, expires_ms, flags::int FROM dedup.import_rows \
             WHERE import = {import} AND expires_ms > {as_of} ORDER BY digest /* dedup: import */"
        ))
        .await?;
        let fetch = tx.prepare(&format!("FETCH {ROWS} FROM dedup_staged /* dedup: import */")).await?;
        Ok(Self::Staged { tx, fetch, base })
    }

    /// To the beginning again, of what was staged.
    pub async fn rewind(&mut self) -> Result<(), JanitorError> {
        if let Self::Staged { tx, .. } = self {
            tx.batch_execute("MOVE ABSOLUTE 0 IN dedup_staged /* dedup: import */").await?;
        }
        Ok(())
    }

    /// Lets go of what was staged: until then nobody may remove it.
    pub async fn close(self) -> Result<(), JanitorError> {
        if let Self::Staged { tx, .. } = self {
            tx.batch_execute("CLOSE dedup_staged /* dedup: import */").await?;
        }
        Ok(())
    }

    /// What still counts of archives.
    pub fn archives(tx: &'a Transaction<'a>, inputs: Vec<Input>, as_of: i64) -> Self {
        Self::Archives { tx, inputs, as_of }
    }

    /// The next digests; none: the end.
    pub async fn next(&mut self) -> Result<Vec<(Key72, Class)>, JanitorError> {
        match self {
            Self::Segment { tx, portal, base, ended } => {
                if *ended {
                    return Ok(Vec::new());
                }
                let rows = tx.query_portal(portal, ROWS).await?;
                *ended = rows.is_empty();
                entries(&rows, *base)
            }
            Self::Staged { tx, fetch, base } => entries(&tx.query(fetch, &[]).await?, *base),
            Self::Archives { tx, inputs, as_of } => {
                let mut out = Vec::with_capacity(ROWS as usize);
                while out.len() < ROWS as usize {
                    for input in inputs.iter_mut() {
                        input.fill(tx, *as_of).await?;
                    }
                    let lowest = inputs.iter_mut().filter(|i| !i.entries.is_empty()).min_by_key(|i| i.entries[0].0);
                    match lowest.and_then(|input| input.entries.pop_front()) {
                        Some(entry) => out.push(entry),
                        None => break,
                    }
                }
                Ok(out)
            }
        }
    }
}

/// Digest, window's end, flags.
fn entries(rows: &[Row], base: i64) -> Result<Vec<(Key72, Class)>, JanitorError> {
    let entry = |row: &Row| {
        let class = Class { expires_ms: round_up(row.try_get(1)?, base), flags: row.try_get(2)? };
        Ok((Key72::of(&Digest(row.try_get(0)?)), class))
    };
    rows.iter().map(entry).collect()
}
