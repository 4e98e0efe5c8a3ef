//! Sealed to frozen: everything that is not done is carried on first, so that nothing in the segment changes any more.

use uuid::Uuid;

use super::{Janitor, JanitorError, Round};

/// Records carried in one transaction.
const CARRY: usize = 200;
/// More left than this: carry on before freezing.
const LEFT_MAX: usize = 1_000;
/// Looks at what is left before giving up until the next round.
const PASSES: usize = 20;

impl Janitor {
    /// The oldest sealed segment, if it is past the warm horizon and no older one is under way.
    pub(super) async fn freeze_due(&self) -> Result<Option<i32>, JanitorError> {
        let row = self
            .client
            .query_opt(
                "SELECT segment_id FROM dedup.segments s WHERE state = 'sealed' AND filter_id IS NOT NULL AND sealed_at_ms <= dedup.now_ms() - $1 \
                   AND NOT EXISTS (SELECT 1 FROM dedup.segments o WHERE o.segment_id < s.segment_id AND o.state IN ('sealed', 'frozen')) \
                 ORDER BY segment_id LIMIT 1 /* dedup: freeze due */",
                &[&self.settings.warm_ms],
            )
            .await?;
        Ok(row.map(|row| row.get(0)))
    }

    pub(super) async fn freeze(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        let Some(segment) = self.freeze_due().await? else { return Ok(()) };
        let mut carried = 0_i64;
        for _ in 0..PASSES {
            // All that is not done, in one look. What is left of it can only become less: nothing enters a sealed segment, and what is
            // done stays done.
            let left: Vec<Uuid> = self
                .client
                .query(
                    &format!("SELECT digest FROM dedup.claims_s{segment} WHERE meta & 7 <> 3 LIMIT $1 /* dedup: not done */"),
                    &[&i64::try_from(LEFT_MAX * 10).unwrap_or(i64::MAX)],
                )
                .await?
                .iter()
                .map(|row| row.get(0))
                .collect();
            let mut moved = 0_i64;
            for some in left.chunks(CARRY) {
                let row =
                    self.client.query_one("SELECT carried, held FROM dedup.carry_v1($1, $2) /* dedup: carry */", &[&segment, &some]).await;
                match row {
                    Ok(row) => moved += i64::from(row.get::<_, i32>(0)),
                    // The rotation lock was waited for by somebody else meanwhile.
                    Err(error) if is_lock_timeout(&error) => {}
                    Err(error) => return Err(error.into()),
                }
                (self.reached)("carry.batch");
            }
            carried += moved;
            if left.len() <= LEFT_MAX {
                (self.reached)("freeze.before");
                let done = self.change_layout("SELECT dedup.freeze_v1($1, $2) /* dedup: freeze */", &[&segment, &left], round).await?;
                (self.reached)("freeze.done");
                round.deeds.push(format!("freezing of segment {segment}, after {carried} records were carried on: {done}"));
                return Ok(());
            }
        }
        round.postponed = true;
        round.deeds.push(format!("segment {segment} has too many open records to be frozen now; {carried} were carried on"));
        Ok(())
    }
}

pub(super) fn is_lock_timeout(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&tokio_postgres::error::SqlState::LOCK_NOT_AVAILABLE)
}
