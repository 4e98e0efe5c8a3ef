//! Keys from elsewhere become memory: staged in chunks that can be resumed, then packed, verified and published as an archive like any other;
//! or, a few at a time, rows of the open segment.

use std::collections::BTreeMap;

use dedup_core::Digest;
use futures_util::pin_mut;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::archive::{self, CLASSES_MAX, Plan};
use super::freeze::is_lock_timeout;
use super::source::{Class, Source, round_up};
use super::{Janitor, JanitorError, Round};

/// What import and export need to know of a topic.
#[derive(Debug, Clone)]
pub struct HomeTopic {
    /// In the home's numbering.
    pub id: i32,
    /// Its name.
    pub name: String,
    /// Part of every digest.
    pub generation: i64,
    /// The same for groups; those that were never raised are left out.
    pub groups: BTreeMap<String, i64>,
    /// The topic's window, ms; `i64::MAX` for ever.
    pub window_ms: i64,
    /// For keys without a known prefix.
    pub default_region: Option<String>,
}

/// An import that was begun.
#[derive(Debug, Clone, Copy)]
pub struct Import {
    number: i32,
    /// How many bytes of its input are done.
    pub bytes: i64,
}

/// One key on its way.
#[derive(Debug, Clone, Copy)]
pub struct ImportRow {
    /// Its digest; of one that was archived the lowest that begins so.
    pub digest: Digest,
    /// Until when it counts, home time in ms; `i64::MAX` for ever.
    pub expires_ms: i64,
    /// When it was first seen, ms.
    pub first_seen_ms: i64,
    /// Its topic, if that is known.
    pub topic: Option<i32>,
    /// It ended in failure.
    pub failed: bool,
}

/// What became of keys on their way into the open segment.
#[derive(Debug, Default)]
pub struct Loaded {
    /// So many are new.
    pub loaded: u64,
    /// Indexes of those that somebody's open transaction holds: nothing is known of them yet.
    pub held: Vec<usize>,
}

/// The home's statement that another took too long to let go of the rotation lock is no failure: it is made again.
const PATIENCE: usize = 50;

impl Janitor {
    /// The home's topics, and its time in ms.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn topics(&self) -> Result<(Vec<HomeTopic>, i64), JanitorError> {
        let rows = self.client.query(TOPICS, &[]).await?;
        Ok((rows.iter().map(topic).collect::<Result<_, _>>()?, self.now_ms().await?))
    }

    /// Begins an import or takes up one that was begun.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn import_begin(&self, import: Uuid) -> Result<Import, JanitorError> {
        self.client
            .execute("INSERT INTO dedup.imports (import_id, bytes, touched_ms) VALUES ($1, 0, dedup.now_ms()) ON CONFLICT DO NOTHING /* dedup: import */", &[&import])
            .await?;
        let row =
            self.client.query_one("SELECT number, bytes FROM dedup.imports WHERE import_id = $1 /* dedup: import */", &[&import]).await?;
        Ok(Import { number: row.try_get(0)?, bytes: row.try_get(1)? })
    }

    /// Stages some keys; `bytes` of the input are done with them.
    ///
    /// # Errors
    /// The connection failed; then none of them is staged.
    pub async fn import_some(&mut self, import: Import, rows: &[ImportRow], bytes: i64) -> Result<(), JanitorError> {
        let tx = self.client.transaction().await?;
        let sink = tx
            .copy_in("COPY dedup.import_rows (digest, expires_ms, first_seen_ms, import, topic_id, flags) FROM STDIN (FORMAT binary)")
            .await?;
        let writer = BinaryCopyInWriter::new(sink, &[Type::UUID, Type::INT8, Type::INT8, Type::INT4, Type::INT4, Type::INT2]);
        pin_mut!(writer);
        for row in rows {
            let (topic, flags) = (row.topic.unwrap_or(0), i16::from(row.failed) * 8);
            writer.as_mut().write(&[&row.digest.0, &row.expires_ms, &row.first_seen_ms, &import.number, &topic, &flags]).await?;
        }
        writer.finish().await?;
        tx.execute(
            "UPDATE dedup.imports SET bytes = $2, touched_ms = dedup.now_ms() WHERE number = $1 /* dedup: import */",
            &[&import.number, &bytes],
        )
        .await?;
        tx.commit().await?;
        (self.reached)("import.staged");
        Ok(())
    }

    /// Loads some different keys, sorted by digest, into the open segment, where they count at once; what counts already is left alone. `bytes` of
    /// the input are done with them (`None`: it goes on).
    ///
    /// # Errors
    /// The connection failed; then it may be repeated.
    pub async fn import_warm(&self, import: Import, rows: &[ImportRow], bytes: Option<i64>) -> Result<Loaded, JanitorError> {
        let digests: Vec<Uuid> = rows.iter().map(|r| r.digest.0).collect();
        let first_seen: Vec<i64> = rows.iter().map(|r| r.first_seen_ms).collect();
        let expires: Vec<i64> = rows.iter().map(|r| r.expires_ms).collect();
        let failed: Vec<bool> = rows.iter().map(|r| r.failed).collect();
        let mut used: BTreeMap<i32, i64> = BTreeMap::new();
        for (topic, until) in rows.iter().filter_map(|r| Some((r.topic?, r.expires_ms))) {
            let last = used.entry(topic).or_insert(until);
            *last = until.max(*last);
        }
        let (topics, until): (Vec<i32>, Vec<i64>) = used.into_iter().unzip();
        let sql = "SELECT loaded, held FROM dedup.import_warm_v1($1, $2, $3, $4, $5, $6, $7, $8) /* dedup: import */";
        let mut tries = 0;
        let row = loop {
            match self.client.query_one(sql, &[&import.number, &bytes, &digests, &first_seen, &expires, &failed, &topics, &until]).await {
                Ok(row) => break row,
                Err(error) if tries < PATIENCE && may_pass(&error) => tries += 1,
                Err(error) => return Err(error.into()),
            }
        };
        (self.reached)("import.loaded");
        let (loaded, held): (i32, Vec<i32>) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Loaded {
            loaded: u64::try_from(loaded).unwrap_or_default(),
            held: held.into_iter().filter_map(|n| usize::try_from(n - 1).ok()).collect(),
        })
    }

    /// Nothing is left to be done for it.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn import_over(&self, import: Import) -> Result<(), JanitorError> {
        self.client.execute("DELETE FROM dedup.imports WHERE number = $1 /* dedup: import */", &[&import.number]).await?;
        Ok(())
    }

    /// Makes an archive of what is staged and lets it count; answers how many keys it has. `None`: nothing that still counts was staged.
    /// `seen_ms`: some may have been first seen later than their rows say, until then.
    ///
    /// # Errors
    /// What failed; the import can be taken up again.
    pub async fn import_end(&mut self, import: Import, seen_ms: Option<i64>) -> Result<Option<u64>, JanitorError> {
        let (whose, reached, mut base) = (self.whose(), self.reached, self.settings.segment_ms);
        let as_of = self.now_ms().await?;
        let tx = self.client.transaction().await?;
        tx.batch_execute("SET LOCAL work_mem = '64MB' /* dedup: import */").await?;
        let classes = "SELECT CASE WHEN r.expires_ms = 9223372036854775807 THEN r.expires_ms ELSE (r.expires_ms + $2::bigint - 1) / $2::bigint * $2::bigint END, \
               r.flags::int, r.topic_id, count(*), min(r.first_seen_ms), max(r.first_seen_ms), max(r.expires_ms) \
             FROM dedup.import_rows r WHERE r.import = $1 AND r.expires_ms > $3 GROUP BY 1, 2, 3 /* dedup: import classes */";
        let (rows, classes) = loop {
            let rows = tx.query(classes, &[&import.number, &base, &as_of]).await?;
            let mut classes = Vec::with_capacity(rows.len());
            for row in &rows {
                classes.push(Class { expires_ms: round_up(row.try_get(0)?, base), flags: row.try_get(1)? });
            }
            classes.sort_unstable();
            classes.dedup();
            if classes.len() <= CLASSES_MAX {
                break (rows, classes);
            }
            // As in `archive_segment`: more classes than a block can number.
            base = base.saturating_mul(4);
        };
        let mut built = None;
        if !rows.is_empty() {
            let archive: i32 = tx.query_one("SELECT nextval('dedup.archive_counter')::int /* dedup: archive */", &[]).await?.get(0);
            let mut plan = Plan { archive, level: 0, inputs: Vec::new(), keys: 0, classes, from_ms: i64::MAX, to_ms: i64::MIN };
            let mut used: BTreeMap<i32, i64> = BTreeMap::new();
            for row in &rows {
                plan.keys += u64::try_from(row.try_get::<_, i64>(3)?).unwrap_or_default();
                plan.from_ms = plan.from_ms.min(row.try_get(4)?);
                plan.to_ms = plan.to_ms.max(row.try_get(5)?);
                let until = used.entry(row.try_get(2)?).or_insert(i64::MIN);
                *until = (*until).max(row.try_get(6)?);
            }
            plan.to_ms = plan.to_ms.max(seen_ms.unwrap_or(i64::MIN).min(as_of));
            for (topic, until) in used.into_iter().filter(|(topic, _)| *topic != 0) {
                tx.execute("SELECT dedup.import_used_v1($1, $2) /* dedup: import */", &[&topic, &round_up(until, base)]).await?;
            }
            let mut source = Source::staged(&tx, import.number, base, as_of).await?;
            let written = archive::write(&tx, &mut source, &plan, whose, reached).await?;
            source.rewind().await?;
            archive::verify(&tx, &mut source, &plan, &written, as_of).await?;
            source.close().await?;
            built = Some((written.archive, written.keys));
        }
        // Whoever else stages anything has a row in `imports` before, so behind this lock the look is sure.
        tx.batch_execute("LOCK TABLE dedup.import_rows IN ACCESS EXCLUSIVE MODE /* dedup: import */").await?;
        let others = tx.query_opt("SELECT 1 FROM dedup.imports WHERE number <> $1 LIMIT 1 /* dedup: import */", &[&import.number]).await?;
        if others.is_none() {
            tx.batch_execute("TRUNCATE dedup.import_rows /* dedup: import */").await?;
        } else {
            tx.execute("DELETE FROM dedup.import_rows WHERE import = $1 /* dedup: import */", &[&import.number]).await?;
        }
        tx.execute("DELETE FROM dedup.imports WHERE number = $1 /* dedup: import */", &[&import.number]).await?;
        tx.commit().await?;
        reached("import.built");
        let Some((archive, keys)) = built else { return Ok(None) };
        // Whoever dies here leaves the rest to the janitor, which publishes what is built.
        loop {
            let mut round = Round::default();
            self.publish(archive, &mut round).await?;
            let live = self
                .client
                .query_opt("SELECT 1 FROM dedup.archives WHERE archive_id = $1 AND state = 'built' /* dedup: import */", &[&archive])
                .await?;
            if live.is_none() {
                return Ok(Some(keys));
            }
        }
    }
}

/// As [`topic`] reads it.
pub(super) const TOPICS: &str =
    "SELECT topic_id, name, generation, groups, window_ms, default_region FROM dedup.import_topics_v1() /* dedup: topics */";

pub(super) fn topic(row: &tokio_postgres::Row) -> Result<HomeTopic, JanitorError> {
    let name: String = row.try_get(1)?;
    let groups = serde_json::from_str(row.try_get(3)?);
    Ok(HomeTopic {
        id: row.try_get(0)?,
        generation: row.try_get(2)?,
        groups: groups.map_err(|_| JanitorError::NotThisHome(format!("the groups of topic {name} cannot be read")))?,
        window_ms: row.try_get(4)?,
        default_region: row.try_get(5)?,
        name,
    })
}

/// Whether the same call may succeed the next time: somebody else was in the way.
fn may_pass(error: &tokio_postgres::Error) -> bool {
    is_lock_timeout(error) || error.code() == Some(&tokio_postgres::error::SqlState::T_R_DEADLOCK_DETECTED)
}
