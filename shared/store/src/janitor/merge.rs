//! Cold to merged: four neighbours of a level become one of the next, so that a year of days is at most twelve archives and a digest is
//! written anew at most four times. What has ended or was forgotten is left behind.

use super::archive::{self, Plan, forgotten};
use super::source::{Class, Input, Source};
use super::{Janitor, JanitorError, Round};

/// Archives merged into one.
const FAN_IN: i64 = 4;
/// Classes that a block can number.
const CLASSES_MAX: usize = 65_536;

impl Janitor {
    /// The oldest four of the lowest level that has so many.
    pub(super) async fn merge_due(&self) -> Result<Option<Vec<i32>>, JanitorError> {
        let row = self
            .client
            .query_opt(
                "SELECT (array_agg(archive_id ORDER BY to_ms, archive_id))[1:($1::bigint)::int] FROM dedup.archives WHERE state = 'live' AND expires_ms > dedup.now_ms() \
                 GROUP BY level HAVING count(*) >= $1::bigint ORDER BY level LIMIT 1 /* dedup: merge due */",
                &[&FAN_IN],
            )
            .await?;
        Ok(row.map(|row| row.get(0)))
    }

    pub(super) async fn merge(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        let built = self
            .client
            .query_opt(
                "SELECT archive_id FROM dedup.archives WHERE state = 'built' AND (level > 0 OR cardinality(inputs) = 0) ORDER BY 1 LIMIT 1 /* dedup: built */",
                &[],
            )
            .await?;
        if let Some(row) = built {
            return self.publish(row.get(0), round).await;
        }
        let Some(inputs) = self.merge_due().await? else { return Ok(()) };
        match self.merge_archives(inputs, round).await? {
            Some(archive) => self.publish(archive, round).await,
            None => Ok(()),
        }
    }

    async fn merge_archives(&mut self, inputs: Vec<i32>, round: &mut Round) -> Result<Option<i32>, JanitorError> {
        let (whose, reached) = (self.whose(), self.reached);
        let as_of = self.now_ms().await?;
        let tx = self.client.transaction().await?;
        let id: i32 = tx.query_one("SELECT nextval('dedup.archive_counter')::int /* dedup: archive */", &[]).await?.get(0);
        // What this transaction sees as forgotten it leaves out, and says so; what is forgotten from now on moves along when it is published.
        tx.execute(
            "UPDATE dedup.tombstones SET seen_by = $2 WHERE place IN (SELECT -i FROM unnest($1::int[]) i) /* dedup: merge */",
            &[&inputs, &id],
        )
        .await?;
        let rows = tx
            .query(
                "SELECT archive_id, level, from_ms, to_ms, class_expires, class_flags, class_keys FROM dedup.archives WHERE archive_id = ANY ($1) AND state = 'live' ORDER BY to_ms /* dedup: merge */",
                &[&inputs],
            )
            .await?;
        let mut plan =
            Plan { archive: id, level: 0, inputs: inputs.clone(), keys: 0, classes: Vec::new(), from_ms: i64::MAX, to_ms: i64::MIN };
        let mut classes_of: Vec<(i32, Vec<Class>)> = Vec::new();
        for row in &rows {
            let (expires, flags, keys): (Vec<i64>, Vec<i32>, Vec<i64>) = (row.try_get(4)?, row.try_get(5)?, row.try_get(6)?);
            let classes: Vec<Class> = expires.into_iter().zip(flags).map(|(expires_ms, flags)| Class { expires_ms, flags }).collect();
            for (class, keys) in classes.iter().zip(keys).filter(|(class, keys)| class.expires_ms > as_of && *keys > 0) {
                plan.classes.push(*class);
                plan.keys += u64::try_from(keys).unwrap_or_default();
            }
            plan.level = plan.level.max(row.try_get::<_, i32>(1)? + 1);
            plan.from_ms = plan.from_ms.min(row.try_get(2)?);
            plan.to_ms = plan.to_ms.max(row.try_get(3)?);
            classes_of.push((row.try_get(0)?, classes));
        }
        plan.classes.sort_unstable();
        plan.classes.dedup();
        if plan.keys == 0 || plan.classes.len() > CLASSES_MAX {
            return Ok(None);
        }
        let mut sources = Vec::new();
        for _ in 0..2 {
            let mut read = Vec::new();
            for (archive, classes) in &classes_of {
                read.push(Input::new(*archive, classes.clone(), forgotten(&tx, -archive, id).await?));
            }
            sources.push(Source::archives(&tx, read, as_of));
        }
        let [mut once, mut again] = sources.try_into().unwrap_or_else(|_| unreachable!("two were made"));
        let built = archive::write(&tx, &mut once, &plan, whose, reached).await?;
        archive::verify(&tx, &mut again, &plan, &built, as_of).await?;
        drop((once, again));
        reached("merge.verified");
        tx.commit().await?;
        reached("merge.built");
        round.deeds.push(format!("merged the archives {inputs:?} into {}: {} keys in {} blocks", built.archive, built.keys, built.blocks));
        Ok(Some(built.archive))
    }

    /// Archives whose last window ended long enough ago.
    pub(super) async fn past_archives(&self) -> Result<Vec<i32>, JanitorError> {
        let rows = self
            .client
            .query(
                "SELECT archive_id FROM dedup.archives WHERE state = 'live' AND expires_ms <= dedup.now_ms() - $1 ORDER BY 1 /* dedup: past archives */",
                &[&self.settings.drop_margin_ms],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(super) async fn expire(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        for archive in self.past_archives().await? {
            let margin = self.settings.drop_margin_ms;
            let done =
                self.change_layout("SELECT dedup.drop_archive_v1($1, $2) /* dedup: drop archive */", &[&archive, &margin], round).await?;
            (self.reached)("expire.done");
            round.deeds.push(format!("dropping of archive {archive}, whose last window has ended: {done}"));
        }
        Ok(())
    }
}
