//! Keys from another system become an archive: staged in chunks that can be resumed, then packed, verified and published like any other.

use dedup_core::Digest;
use futures_util::pin_mut;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::archive::{self, Plan};
use super::source::{Class, Source, round_up};
use super::{Janitor, JanitorError, Round};

/// What an import needs to know of its topic.
#[derive(Debug, Clone)]
pub struct ImportTopic {
    /// In the home's numbering.
    pub topic_id: i32,
    /// Part of every digest.
    pub generation: i64,
    /// The topic's window, ms; `i64::MAX` for ever.
    pub window_ms: i64,
    /// For keys without a known prefix.
    pub default_region: Option<String>,
    /// Home time, ms.
    pub home_ms: i64,
}

/// One key on its way.
#[derive(Debug, Clone, Copy)]
pub struct ImportRow {
    /// Its digest.
    pub digest: Digest,
    /// Until when it counts, home time in ms; `i64::MAX` for ever.
    pub expires_ms: i64,
    /// When it was first seen, ms.
    pub first_seen_ms: i64,
}

impl Janitor {
    /// The home's copy of a topic.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn import_topic(&self, name: &str) -> Result<Option<ImportTopic>, JanitorError> {
        let row = self
            .client
            .query_opt(
                "SELECT topic_id, generation, window_ms, default_region, home_ms FROM dedup.import_topic_v1($1) /* dedup: import */",
                &[&name],
            )
            .await?;
        let read = |row: tokio_postgres::Row| -> Result<ImportTopic, JanitorError> {
            Ok(ImportTopic {
                topic_id: row.try_get(0)?,
                generation: row.try_get(1)?,
                window_ms: row.try_get(2)?,
                default_region: row.try_get(3)?,
                home_ms: row.try_get(4)?,
            })
        };
        row.map(read).transpose()
    }

    /// Begins an import or takes up one that was begun; answers how many bytes of its input are staged.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn import_begin(&self, import: Uuid) -> Result<i64, JanitorError> {
        self.client
            .execute("INSERT INTO dedup.imports (import_id, bytes, touched_ms) VALUES ($1, 0, dedup.now_ms()) ON CONFLICT DO NOTHING /* dedup: import */", &[&import])
            .await?;
        Ok(self.client.query_one("SELECT bytes FROM dedup.imports WHERE import_id = $1 /* dedup: import */", &[&import]).await?.get(0))
    }

    /// Stages some keys; `bytes` of the input are staged with them.
    ///
    /// # Errors
    /// The connection failed; then none of them is staged.
    pub async fn import_some(&mut self, import: Uuid, rows: &[ImportRow], bytes: i64) -> Result<(), JanitorError> {
        let tx = self.client.transaction().await?;
        let sink = tx.copy_in("COPY dedup.import_rows (import_id, digest, expires_ms, first_seen_ms) FROM STDIN (FORMAT binary)").await?;
        let writer = BinaryCopyInWriter::new(sink, &[Type::UUID, Type::UUID, Type::INT8, Type::INT8]);
        pin_mut!(writer);
        for row in rows {
            writer.as_mut().write(&[&import, &row.digest.0, &row.expires_ms, &row.first_seen_ms]).await?;
        }
        writer.finish().await?;
        tx.execute(
            "UPDATE dedup.imports SET bytes = $2, touched_ms = dedup.now_ms() WHERE import_id = $1 /* dedup: import */",
            &[&import, &bytes],
        )
        .await?;
        tx.commit().await?;
        (self.reached)("import.staged");
        Ok(())
    }

    /// Makes an archive of what is staged and lets it count; answers how many keys it has. `None`: nothing that still counts was staged.
    ///
    /// # Errors
    /// What failed; the import can be taken up again.
    pub async fn import_end(&mut self, import: Uuid, topic_id: i32) -> Result<Option<u64>, JanitorError> {
        let (whose, reached, base) = (self.whose(), self.reached, self.settings.segment_ms);
        let as_of = self.now_ms().await?;
        let tx = self.client.transaction().await?;
        tx.batch_execute("SET LOCAL work_mem = '64MB' /* dedup: import */").await?;
        let rows = tx
            .query(
                "SELECT CASE WHEN r.expires_ms = 9223372036854775807 THEN r.expires_ms ELSE (r.expires_ms + $2::bigint - 1) / $2::bigint * $2::bigint END, \
                   count(*), min(r.first_seen_ms), max(r.first_seen_ms) \
                 FROM dedup.import_rows r WHERE r.import_id = $1 AND r.expires_ms > $3 GROUP BY 1 /* dedup: import classes */",
                &[&import, &base, &as_of],
            )
            .await?;
        let mut built = None;
        if !rows.is_empty() {
            let archive: i32 = tx.query_one("SELECT nextval('dedup.archive_counter')::int /* dedup: archive */", &[]).await?.get(0);
            let mut plan = Plan { archive, level: 0, inputs: Vec::new(), keys: 0, classes: Vec::new(), from_ms: i64::MAX, to_ms: i64::MIN };
            for row in &rows {
                plan.classes.push(Class { expires_ms: round_up(row.try_get(0)?, base), flags: 0 });
                plan.keys += u64::try_from(row.try_get::<_, i64>(1)?).unwrap_or_default();
                plan.from_ms = plan.from_ms.min(row.try_get(2)?);
                plan.to_ms = plan.to_ms.max(row.try_get(3)?);
            }
            let until = plan.classes.iter().map(|c| c.expires_ms).max().unwrap_or_default();
            tx.execute("SELECT dedup.import_used_v1($1, $2) /* dedup: import */", &[&topic_id, &until]).await?;
            let mut source = Source::staged(&tx, import, base, as_of).await?;
            let written = archive::write(&tx, &mut source, &plan, whose, reached).await?;
            let mut source = Source::staged(&tx, import, base, as_of).await?;
            archive::verify(&tx, &mut source, &plan, &written, as_of).await?;
            built = Some((written.archive, written.keys));
        }
        tx.execute("DELETE FROM dedup.import_rows WHERE import_id = $1 /* dedup: import */", &[&import]).await?;
        tx.execute("DELETE FROM dedup.imports WHERE import_id = $1 /* dedup: import */", &[&import]).await?;
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
