//! Jobs that forget what was first seen within a range of time, a few records at a time beside the traffic.

use super::freeze::is_lock_timeout;
use super::{Janitor, JanitorError, Round};

/// Texts looked at in one transaction.
const TEXTS: i32 = 500;
/// Transactions in one round, so that the segments are looked after meanwhile.
const STEPS: usize = 40;

impl Janitor {
    /// Goes on with the oldest job.
    pub(super) async fn jobs(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        for _ in 0..STEPS {
            let step = self.client.query_one("SELECT job::text, ended FROM dedup.job_step_v1($1) /* dedup: job */", &[&TEXTS]).await;
            let row = match step {
                // Somebody's open transaction holds a record that is meant: later.
                Err(error) if is_lock_timeout(&error) => return Ok(()),
                step => step?,
            };
            (self.reached)("job.step");
            let Some(job) = row.get::<_, Option<String>>(0) else { return Ok(()) };
            if row.get::<_, Option<bool>>(1) == Some(true) {
                round.deeds.push(format!("forget job {job} is done"));
            }
        }
        Ok(())
    }
}
