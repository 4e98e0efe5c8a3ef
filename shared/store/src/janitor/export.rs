//! What a home remembers, as it was at one moment: the done records of its segments, then the archives.
//!
//! One REPEATABLE READ transaction sees one layout and the rows of that layout, however the janitor moves them meanwhile: rows that are carried
//! on and blocks that are swept stay visible to it. Only a table that is dropped would be gone, so every segment's is locked (ACCESS SHARE)
//! before anything is handed out; if one was dropped in the moment between, all is begun anew. Tables are read by their own names, never
//! through the parent, so nobody's detaching waits for an export.

use std::collections::{HashSet, VecDeque};
use std::io;

use dedup_core::{Digest, Key72, decode_time};
use tokio_postgres::error::SqlState;
use tokio_postgres::{IsolationLevel, Portal, Row, Transaction};

use super::import::{HomeTopic, TOPICS, topic};
use super::source::{Class, Input};
use super::{Janitor, JanitorError};

/// Rows read at a time.
const ROWS: i32 = 5_000;
/// Begun anew so often, if tables vanish between the look at the layout and the lock.
const TRIES: usize = 10;

/// Which records.
#[derive(Debug, Clone, Default)]
pub struct ExportScope {
    /// Only those whose key is kept beside them, of this topic (in the home's numbering).
    pub topic: Option<i32>,
    /// Of that topic, only this group.
    pub group: Option<String>,
}

/// What an export hands out, in this order.
#[derive(Debug)]
pub enum Exported {
    /// First: the moment of all that follows.
    Begins {
        /// Home time, ms.
        at_ms: i64,
        /// The topics that there were.
        topics: Vec<HomeTopic>,
    },
    /// Then records, some at a time.
    Records(Vec<ExportedRecord>),
    /// Records that were met and are not done: open, released or issued.
    NotDone(u64),
}

/// What is known of a record's key.
#[derive(Debug)]
pub enum ExportedId {
    /// Its digest.
    Digest(Digest),
    /// Of an archived record: the beginning of its digest.
    Short(Key72),
}

/// A key that was kept beside a record.
#[derive(Debug)]
pub struct KeptKey {
    /// Its topic, in the home's numbering.
    pub topic: i32,
    /// Its group.
    pub group: String,
    /// The key.
    pub key: String,
}

/// A done record that counts.
#[derive(Debug)]
pub struct ExportedRecord {
    /// Which.
    pub id: ExportedId,
    /// Its key, where it was kept.
    pub kept: Option<KeptKey>,
    /// When it was first seen, ms; archived: at the earliest.
    pub first_seen_ms: i64,
    /// Until when it counts, ms; `i64::MAX` for ever.
    pub expires_ms: i64,
    /// It ended in failure.
    pub failed: bool,
}

/// What is done with it.
type Take<'t> = &'t mut dyn FnMut(Exported) -> io::Result<()>;

/// The layout at the moment of the export.
struct Layout {
    at_ms: i64,
    /// (number, zero of its times, frozen).
    segments: Vec<(i32, i64, bool)>,
}

impl Janitor {
    /// Hands out everything that counts. Nothing is handed out before all of it is sure to be there to the end.
    ///
    /// # Errors
    /// What failed; then what was handed out is not all.
    pub async fn export(&mut self, scope: &ExportScope, take: Take<'_>) -> Result<(), JanitorError> {
        let reached = self.reached;
        for tries in 1.. {
            let tx = self.client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true).start().await?;
            // A slow reader of ours is no reason to end a session; one that locks a table for long is no reason to wait for ever.
            tx.batch_execute(
                "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '30s' /* dedup: export */",
            )
            .await?;
            let layout = layout(&tx).await?;
            reached("export.snapshot");
            match lock(&tx, &layout).await {
                Ok(()) => {
                    reached("export.locked");
                    export_all(&tx, &layout, scope, take).await?;
                    tx.commit().await?;
                    return Ok(());
                }
                Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) && tries < TRIES => tx.rollback().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

async fn layout(tx: &Transaction<'_>) -> Result<Layout, JanitorError> {
    let rows = tx
        .query(
            "SELECT segment_id, origin_ms, state = 'frozen' FROM dedup.segments WHERE state IN ('open', 'sealed', 'frozen') ORDER BY 1 /* dedup: export */",
            &[],
        )
        .await?;
    let segments = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect::<Result<_, JanitorError>>()?;
    Ok(Layout { at_ms: tx.query_one("SELECT dedup.now_ms() /* dedup: export */", &[]).await?.try_get(0)?, segments })
}

async fn lock(tx: &Transaction<'_>, layout: &Layout) -> Result<(), tokio_postgres::Error> {
    for (segment, ..) in &layout.segments {
        tx.batch_execute(&format!("LOCK TABLE dedup.claims_s{segment} IN ACCESS SHARE MODE /* dedup: export */")).await?;
    }
    Ok(())
}

async fn export_all(tx: &Transaction<'_>, layout: &Layout, scope: &ExportScope, take: Take<'_>) -> Result<(), JanitorError> {
    let topics = tx.query(TOPICS, &[]).await?.iter().map(topic).collect::<Result<_, _>>()?;
    take(Exported::Begins { at_ms: layout.at_ms, topics }).map_err(JanitorError::Taker)?;
    for (segment, origin_ms, frozen) in &layout.segments {
        export_segment(tx, *segment, *origin_ms, *frozen, layout.at_ms, scope, take).await?;
    }
    let archives = "SELECT archive_id, from_ms, class_expires, class_flags FROM dedup.archives WHERE state = 'live' ORDER BY archive_id /* dedup: export */";
    for row in &tx.query(archives, &[]).await? {
        let (expires, flags): (Vec<i64>, Vec<i32>) = (row.try_get(2)?, row.try_get(3)?);
        let classes = expires.into_iter().zip(flags).map(|(expires_ms, flags)| Class { expires_ms, flags }).collect();
        export_archive(tx, row.try_get(0)?, row.try_get(1)?, classes, layout.at_ms, scope, take).await?;
    }
    Ok(())
}

async fn export_segment(
    tx: &Transaction<'_>,
    segment: i32,
    origin_ms: i64,
    frozen: bool,
    as_of: i64,
    scope: &ExportScope,
    take: Take<'_>,
) -> Result<(), JanitorError> {
    // As `dedup.look`: in a frozen segment only what is done counts, unless it was forgotten. A digest has one key, whichever of its records
    // the text was kept for.
    let counts = if frozen {
        format!("c.meta & 7 = 3 AND NOT EXISTS (SELECT 1 FROM dedup.tombstones t WHERE t.digest = c.digest AND t.place = {segment})")
    } else {
        "true".into()
    };
    let sql = format!(
        "SELECT c.digest, c.first_seen, c.expires, c.ends, c.meta, x.topic_id, x.grp, x.key FROM dedup.claims_s{segment} c \
         LEFT JOIN dedup.claim_texts x ON x.digest = c.digest AND x.key IS NOT NULL \
         WHERE {counts} AND ($1::int IS NULL OR x.topic_id = $1 AND ($2::text IS NULL OR x.grp = $2)) /* dedup: export */"
    );
    let statement = tx.prepare(&sql).await?;
    let portal = tx.bind(&statement, &[&scope.topic, &scope.group]).await?;
    loop {
        let rows = tx.query_portal(&portal, ROWS).await?;
        if rows.is_empty() {
            return Ok(());
        }
        let (mut records, mut not_done) = (Vec::with_capacity(rows.len()), 0);
        for row in &rows {
            let meta: i32 = row.try_get(4)?;
            let (expires_ms, ends_ms) = (decode_time(origin_ms, row.try_get(2)?), decode_time(origin_ms, row.try_get(3)?));
            if meta & 7 == 3 {
                if as_of < expires_ms {
                    records.push(ExportedRecord {
                        id: ExportedId::Digest(Digest(row.try_get(0)?)),
                        kept: kept(row, 5)?,
                        first_seen_ms: decode_time(origin_ms, row.try_get(1)?),
                        expires_ms,
                        failed: meta & 8 != 0,
                    });
                }
            } else {
                let until = if matches!(meta & 7, 1 | 2) { expires_ms.max(ends_ms) } else { expires_ms };
                not_done += u64::from(as_of < until);
            }
        }
        take(Exported::Records(records)).and_then(|()| take(Exported::NotDone(not_done))).map_err(JanitorError::Taker)?;
    }
}

/// The key beside a record, from the column `at` on.
fn kept(row: &Row, at: usize) -> Result<Option<KeptKey>, JanitorError> {
    let topic: Option<i32> = row.try_get(at)?;
    let Some(topic) = topic else { return Ok(None) };
    Ok(Some(KeptKey { topic, group: row.try_get(at + 1)?, key: row.try_get(at + 2)? }))
}

async fn export_archive(
    tx: &Transaction<'_>,
    archive: i32,
    from_ms: i64,
    classes: Vec<Class>,
    as_of: i64,
    scope: &ExportScope,
    take: Take<'_>,
) -> Result<(), JanitorError> {
    let forgotten = tx.query("SELECT digest FROM dedup.tombstones WHERE place = -$1::int /* dedup: export */", &[&archive]).await?;
    let forgotten = forgotten.iter().map(|row| Ok(Key72::of(&Digest(row.try_get(0)?)))).collect::<Result<HashSet<_>, JanitorError>>()?;
    let mut input = Input::new(archive, classes, forgotten);
    let mut texts = Texts::new(tx, scope).await?;
    loop {
        let some = input.some(tx, as_of).await?;
        if some.is_empty() {
            return Ok(());
        }
        let mut records = Vec::with_capacity(some.len());
        for (key, class) in some {
            let kept = texts.of(tx, key).await?;
            if scope.topic.is_none() || kept.is_some() {
                let (expires_ms, failed) = (class.expires_ms, class.flags & 8 != 0);
                records.push(ExportedRecord { id: ExportedId::Short(key), kept, first_seen_ms: from_ms, expires_ms, failed });
            }
        }
        take(Exported::Records(records)).map_err(JanitorError::Taker)?;
    }
}

/// Keys that were kept, by rising digest, read beside an archive: those of archived records stay where the topic keeps them for ever.
struct Texts {
    portal: Portal,
    rows: VecDeque<(Key72, KeptKey)>,
    ended: bool,
}

impl Texts {
    async fn new(tx: &Transaction<'_>, scope: &ExportScope) -> Result<Self, JanitorError> {
        let sql = "SELECT digest, topic_id, grp, key FROM dedup.claim_texts \
                   WHERE key IS NOT NULL AND ($1::int IS NULL OR topic_id = $1 AND ($2::text IS NULL OR grp = $2)) ORDER BY digest /* dedup: export */";
        let statement = tx.prepare(sql).await?;
        Ok(Self { portal: tx.bind(&statement, &[&scope.topic, &scope.group]).await?, rows: VecDeque::new(), ended: false })
    }

    /// The key of an archived digest; asked for rising ones.
    async fn of(&mut self, tx: &Transaction<'_>, key: Key72) -> Result<Option<KeptKey>, JanitorError> {
        loop {
            while self.rows.front().is_some_and(|(other, _)| *other < key) {
                self.rows.pop_front();
            }
            if !self.rows.is_empty() || self.ended {
                break;
            }
            let rows = tx.query_portal(&self.portal, ROWS).await?;
            self.ended = rows.is_empty();
            for row in &rows {
                if let Some(kept) = kept(row, 1)? {
                    self.rows.push_back((Key72::of(&Digest(row.try_get(0)?)), kept));
                }
            }
        }
        let found = self.rows.front().is_some_and(|(other, _)| *other == key);
        Ok(if found { self.rows.pop_front().map(|(_, kept)| kept) } else { None })
    }
}
