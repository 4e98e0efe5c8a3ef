//! What nobody looks into any more is removed: tables of segments that are cold or gone, blocks of dead archives, filters without a place.

use std::time::Instant;

use super::freeze::is_lock_timeout;
use super::{Janitor, JanitorError, Round};

/// Blocks removed in one transaction: 16 MB.
const BLOCKS: i64 = 2_000;
/// Results moved or emptied in one transaction.
const RESULTS: i32 = 500;
/// A detach waits for readers of the table, in whose way it then is; so it gives up soon and comes back.
const DETACH_TIMEOUT: &str = "200ms";
const TABLES: [&str; 2] = ["claims", "results"];

impl Janitor {
    /// Segments whose tables nobody looks into. Results lie where they were completed, which is never before their record's own segment; so
    /// only those before every segment that still counts.
    pub(super) async fn leftover_partitions(&self) -> Result<Vec<i32>, JanitorError> {
        let rows = self
            .client
            .query(
                "SELECT segment_id FROM dedup.segments s WHERE state IN ('cold', 'dropped') AND parted \
                   AND NOT EXISTS (SELECT 1 FROM dedup.segments o WHERE o.segment_id < s.segment_id AND o.state IN ('open', 'sealed', 'frozen')) \
                 ORDER BY 1 /* dedup: leftover tables */",
                &[],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// A detach that was begun and not ended, by a timeout or a crash, must be ended before another can begin.
    pub(super) async fn detach_pending(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        let rows = self
            .client
            .query(
                "SELECT p.relname, c.relname FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent JOIN pg_class c ON c.oid = i.inhrelid \
                 WHERE i.inhdetachpending AND i.inhparent IN ('dedup.claims'::regclass, 'dedup.results'::regclass) /* dedup: pending detach */",
                &[],
            )
            .await?;
        for row in &rows {
            let (parent, child): (String, String) = (row.get(0), row.get(1));
            let sql = format!("ALTER TABLE dedup.{parent} DETACH PARTITION dedup.{child} FINALIZE");
            if self.patiently(&sql, round).await? {
                round.deeds.push(format!("ended the detaching of {child}"));
            }
        }
        Ok(())
    }

    /// Runs a statement that may have to wait for somebody; `false`: it did not wait that long.
    async fn patiently(&mut self, sql: &str, round: &mut Round) -> Result<bool, JanitorError> {
        self.space_attempts().await;
        self.client.batch_execute(&format!("SET lock_timeout = '{DETACH_TIMEOUT}'")).await?;
        let done = self.client.batch_execute(sql).await;
        self.client.batch_execute("SET lock_timeout = 0").await?;
        match done {
            Ok(()) => Ok(true),
            Err(error) if is_lock_timeout(&error) => {
                self.last_attempt = Some(Instant::now());
                round.postponed = true;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn sweep(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        for segment in self.leftover_partitions().await? {
            if !self.drop_partition(segment, round).await? {
                break;
            }
        }
        let purged: i32 = self.client.query_one("SELECT dedup.purge_results_v1($1) /* dedup: purge results */", &[&RESULTS]).await?.get(0);
        if purged > 0 {
            round.deeds.push(format!("emptied {purged} results whose time is over"));
        }
        self.sweep_archives(round).await?;
        self.sweep_filters().await?;
        let gave_up = "WITH old AS (DELETE FROM dedup.imports WHERE touched_ms < dedup.now_ms() - 604800000 RETURNING number), \
                       rows AS (DELETE FROM dedup.import_rows r USING old o WHERE r.import = o.number) SELECT count(*) FROM old /* dedup: sweep imports */";
        if self.client.query_one(gave_up, &[]).await?.get::<_, i64>(0) > 0 {
            round.deeds.push("gave up an import that nobody went on with".into());
        }
        // The newest stay, so that no number is given twice.
        self.client
            .execute(
                "DELETE FROM dedup.segments s WHERE state = 'dropped' AND NOT parted AND segment_id < (SELECT current_segment FROM dedup.layout) /* dedup: sweep segments */",
                &[],
            )
            .await?;
        Ok(())
    }

    async fn drop_partition(&mut self, segment: i32, round: &mut Round) -> Result<bool, JanitorError> {
        loop {
            let moved =
                self.client.query_one("SELECT dedup.carry_results_v1($1, $2) /* dedup: carry results */", &[&segment, &RESULTS]).await?;
            (self.reached)("results.carried");
            if moved.get::<_, i32>(0) < RESULTS {
                break;
            }
        }
        for table in TABLES {
            let attached = self
                .client
                .query_opt(
                    "SELECT 1 FROM pg_inherits WHERE inhparent = to_regclass($1) AND inhrelid = to_regclass($2) /* dedup: attached */",
                    &[&format!("dedup.{table}"), &format!("dedup.{table}_s{segment}")],
                )
                .await?;
            (self.reached)("detach.before");
            if attached.is_some()
                && !self
                    .patiently(&format!("ALTER TABLE dedup.{table} DETACH PARTITION dedup.{table}_s{segment} CONCURRENTLY"), round)
                    .await?
            {
                round.deeds.push(format!("the detaching of {table}_s{segment} waits for a reader"));
                return Ok(false);
            }
            (self.reached)("detach.done");
        }
        // Texts of records that end here go with them; those of archived records stay if the topic keeps its keys.
        let there = self
            .client
            .query_one("SELECT to_regclass($1) IS NOT NULL /* dedup: still there */", &[&format!("dedup.claims_s{segment}")])
            .await?;
        if there.get(0) {
            let sql = format!(
                "DELETE FROM dedup.claim_texts t USING dedup.claims_s{segment} c, dedup.segments s WHERE s.segment_id = {segment} AND t.digest = c.digest AND t.fence = c.fence \
                 AND (c.meta & 7 <> 3 OR dedup.t_out(s.origin_ms, c.expires) <= dedup.now_ms()) /* dedup: sweep texts */"
            );
            self.client.execute(&sql, &[]).await?;
        }
        for table in TABLES {
            if !self.patiently(&format!("DROP TABLE IF EXISTS dedup.{table}_s{segment}"), round).await? {
                return Ok(false);
            }
            (self.reached)("drop.done");
        }
        self.client
            .execute("UPDATE dedup.segments SET parted = false WHERE segment_id = $1 AND parted /* dedup: dropped */", &[&segment])
            .await?;
        round.deeds.push(format!("dropped the tables of segment {segment}"));
        Ok(true)
    }

    async fn sweep_archives(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        let dead = self
            .client
            .query("SELECT archive_id FROM dedup.archives WHERE state = 'dead' ORDER BY 1 /* dedup: dead archives */", &[])
            .await?;
        for row in &dead {
            let archive: i32 = row.get(0);
            loop {
                let gone = self
                    .client
                    .execute(
                        "DELETE FROM dedup.blocks WHERE archive_id = $1 AND first IN (SELECT first FROM dedup.blocks WHERE archive_id = $1 ORDER BY first LIMIT $2) /* dedup: sweep blocks */",
                        &[&archive, &BLOCKS],
                    )
                    .await?;
                (self.reached)("sweep.blocks");
                if gone == 0 {
                    break;
                }
            }
            self.client.execute("DELETE FROM dedup.tombstones WHERE place = -$1::int /* dedup: sweep tombstones */", &[&archive]).await?;
            self.client
                .execute("DELETE FROM dedup.archives WHERE archive_id = $1 AND state = 'dead' /* dedup: sweep archive */", &[&archive])
                .await?;
            round.deeds.push(format!("removed what was left of archive {archive}"));
        }
        Ok(())
    }

    async fn sweep_filters(&mut self) -> Result<(), JanitorError> {
        const PLACELESS: &str = "NOT EXISTS (SELECT 1 FROM dedup.segments s WHERE s.filter_id = f.filter_id AND s.state IN ('sealed', 'frozen')) \
             AND NOT EXISTS (SELECT 1 FROM dedup.archives a WHERE a.filter_id = f.filter_id AND a.state IN ('built', 'live'))";
        let tx = self.client.transaction().await?;
        tx.execute(&format!("DELETE FROM dedup.filter_chunks c USING dedup.filters f WHERE c.filter_id = f.filter_id AND {PLACELESS} /* dedup: sweep filters */"), &[])
            .await?;
        tx.execute(&format!("DELETE FROM dedup.filters f WHERE {PLACELESS} /* dedup: sweep filters */"), &[]).await?;
        tx.commit().await?;
        Ok(())
    }
}
