//! Calls about jobs that forget by time range.

use deadpool_postgres::Client;
use dedup_core::Topic;
use tokio_postgres::Row;
use uuid::Uuid;

use super::calls::Identity;
use super::outcome::{CallError, classify};
use crate::operators::{JobSpec, JobStarted, JobView};

/// Begins a job, or finds it begun; `None`: another home answered.
pub async fn call_start_job(
    client: &Client,
    who: &Identity,
    job: &JobSpec,
    actor: &str,
    reason: &str,
) -> Result<Option<JobStarted>, CallError> {
    let row = client
        .query_one(
            "SELECT dedup.start_job_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) /* dedup: start job */",
            &[
                &who.home_id,
                &who.secret_id.as_slice(),
                &job.id,
                &job.topic.as_str(),
                &job.group,
                &job.from_ms,
                &job.to_ms,
                &job.dry_run,
                &actor,
                &reason,
            ],
        )
        .await
        .map_err(|e| classify(&e))?;
    Ok(match row.get(0) {
        "ok" => Some(JobStarted::Queued),
        "no-topic" => Some(JobStarted::NoTopic),
        "keys-not-kept" => Some(JobStarted::KeysNotKept),
        _ => None,
    })
}

/// A job; the outer `None`: another home answered, the inner one: there is no such job.
pub async fn call_job(client: &Client, who: &Identity, id: Uuid) -> Result<Option<Option<JobView>>, CallError> {
    let row = client
        .query_one("SELECT * FROM dedup.job_v1($1, $2, $3) /* dedup: job */", &[&who.home_id, &who.secret_id.as_slice(), &id])
        .await
        .map_err(|e| classify(&e))?;
    read_job(&row, id).map_err(|e| CallError::Unknown(format!("the home's answer cannot be read: {e}")))
}

fn read_job(row: &Row, id: Uuid) -> Result<Option<Option<JobView>>, tokio_postgres::Error> {
    if row.try_get::<_, &str>("status")? != "ok" {
        return Ok(None);
    }
    let Some(Ok(topic)) = row.try_get::<_, Option<&str>>("topic")?.map(Topic::parse) else { return Ok(Some(None)) };
    Ok(Some(Some(JobView {
        spec: JobSpec {
            id,
            topic,
            group: row.try_get("grp")?,
            from_ms: row.try_get("from_ms")?,
            to_ms: row.try_get("to_ms")?,
            dry_run: row.try_get("dry_run")?,
        },
        state: row.try_get("state")?,
        looked: row.try_get("looked")?,
        matched: row.try_get("matched")?,
        created_ms: row.try_get("created_ms")?,
        changed_ms: row.try_get("changed_ms")?,
    })))
}
