//! Calls that operators cause: open claims, forced releases, the audit, and how far instances have read the forget log.

use deadpool_postgres::Client;
use dedup_core::{Digest, Fence};
use tokio_postgres::Row;
use uuid::Uuid;

use super::calls::Identity;
use super::outcome::{CallError, classify};
use super::rows::array;
use crate::operators::{AuditEntry, Deed, ForceReleased, OpenAt, OpenClaim, OpenPage, OpenState};
use crate::{HomeFigures, SegmentFigures};

fn unreadable(error: tokio_postgres::Error) -> CallError {
    CallError::Unknown(format!("the home's answer cannot be read: {error}"))
}

/// What to list.
pub struct OpenQuery<'a> {
    pub topics: &'a [&'a str],
    pub states: &'a [OpenState],
    pub after: OpenAt,
    pub limit: i32,
    /// Texts to look at, at most.
    pub scan: i32,
}

/// A page of open claims; `None`: another home answered.
pub async fn call_open_claims(client: &Client, who: &Identity, query: &OpenQuery<'_>) -> Result<Option<OpenPage>, CallError> {
    let states: Vec<&str> = query.states.iter().map(|s| s.as_str()).collect();
    let row = client
        .query_one(
            "SELECT * FROM dedup.open_claims_v1($1, $2, $3, $4, $5, $6, $7, $8) /* dedup: open claims */",
            &[
                &who.home_id,
                &who.secret_id.as_slice(),
                &query.topics,
                &states,
                &query.after.topic_id,
                &query.after.digest,
                &query.limit,
                &query.scan,
            ],
        )
        .await
        .map_err(|e| classify(&e))?;
    read_open(&row).map_err(unreadable)
}

fn read_open(row: &Row) -> Result<Option<OpenPage>, tokio_postgres::Error> {
    if row.try_get::<_, &str>("status")? != "ok" {
        return Ok(None);
    }
    let at_ms: i64 = row.try_get("home_ms")?;
    let topic: Vec<String> = array(row, "topic")?;
    let group: Vec<String> = array(row, "grp")?;
    let key: Vec<Option<String>> = array(row, "key")?;
    let owner: Vec<Option<String>> = array(row, "owner")?;
    let note: Vec<Option<String>> = array(row, "note")?;
    let state: Vec<String> = array(row, "state")?;
    let fence: Vec<i64> = array(row, "fence")?;
    let first_seen: Vec<i64> = array(row, "first_seen")?;
    let expires: Vec<i64> = array(row, "expires")?;
    let ends: Vec<i64> = array(row, "ends")?;
    let meta: Vec<i32> = array(row, "meta")?;
    let texts = topic.into_iter().zip(group).zip(key).zip(owner).zip(note);
    let claim = |(i, ((((topic, group), key), owner), note))| {
        Some(OpenClaim {
            topic,
            group,
            key,
            owner,
            note,
            state: OpenState::parse(state.get(i).map(String::as_str)?)?,
            fence: Fence(*fence.get(i)?),
            attempt: *meta.get(i)? >> 8,
            first_seen_ms: *first_seen.get(i)?,
            expires_ms: *expires.get(i)?,
            ends_ms: *ends.get(i)?,
            at_ms,
        })
    };
    let claims = texts.enumerate().filter_map(claim).collect();
    let next = match (row.try_get("at_topic")?, row.try_get("at_digest")?) {
        (Some(topic_id), Some(digest)) => Some(OpenAt { topic_id, digest }),
        _ => None,
    };
    Ok(Some(OpenPage { claims, next }))
}

/// Ends an open claim of whoever holds it; `None`: another home answered.
pub async fn call_force_release(
    client: &Client,
    who: &Identity,
    digest: Digest,
    deed: &Deed<'_>,
) -> Result<Option<ForceReleased>, CallError> {
    let row = client
        .query_one(
            "SELECT * FROM dedup.force_release_v1($1, $2, $3, $4, $5, $6, $7) /* dedup: force release */",
            &[&who.home_id, &who.secret_id.as_slice(), &digest.0, &deed.actor, &deed.topic.as_str(), &deed.group.as_str(), &deed.reason],
        )
        .await
        .map_err(|e| classify(&e))?;
    read_force_release(&row).map_err(unreadable)
}

fn read_force_release(row: &Row) -> Result<Option<ForceReleased>, tokio_postgres::Error> {
    if row.try_get::<_, &str>("status")? != "ok" {
        return Ok(None);
    }
    Ok(Some(match row.try_get("outcome")? {
        "released" => {
            ForceReleased::Released { attempt: row.try_get("attempt")?, fence: Fence(row.try_get("fence")?), owner: row.try_get("owner")? }
        }
        _ => ForceReleased::NotOpen { state: row.try_get("state")? },
    }))
}

/// Deeds before an id, newest first.
pub async fn call_audit(
    client: &Client,
    who: &Identity,
    topic: Option<&str>,
    before: i64,
    limit: i32,
) -> Result<Vec<AuditEntry>, CallError> {
    let rows = client
        .query(
            "SELECT id, at_ms, actor, action, topic, grp, digest, reason FROM dedup.audit_v1($1, $2, $3, $4, $5) /* dedup: audit */",
            &[&who.home_id, &who.secret_id.as_slice(), &topic, &before, &limit],
        )
        .await
        .map_err(|e| classify(&e))?;
    rows.iter().map(|row| read_deed(row).map_err(unreadable)).collect()
}

fn read_deed(row: &Row) -> Result<AuditEntry, tokio_postgres::Error> {
    Ok(AuditEntry {
        id: row.try_get(0)?,
        at_ms: row.try_get(1)?,
        actor: row.try_get(2)?,
        action: row.try_get(3)?,
        topic: row.try_get(4)?,
        group: row.try_get(5)?,
        digest: row.try_get(6)?,
        reason: row.try_get(7)?,
    })
}

/// One process, as the home heard of it.
#[derive(Debug, Clone)]
pub struct FeedRow {
    pub region: String,
    pub instance: String,
    /// Heard of within 10 s.
    pub live: bool,
    /// It has read as far as was asked about.
    pub passed: bool,
}

/// Who has read the forget log as far as `pos`.
pub async fn call_feeds(client: &Client, pos: i64) -> Result<Vec<FeedRow>, CallError> {
    let statement = client
        .prepare_cached("SELECT region, instance, live, passed FROM dedup.feeds_v1($1) /* dedup: feeds */")
        .await
        .map_err(|e| classify(&e))?;
    let rows = client.query(&statement, &[&pos]).await.map_err(|e| classify(&e))?;
    let read =
        |row: &Row| Ok(FeedRow { region: row.try_get(0)?, instance: row.try_get(1)?, live: row.try_get(2)?, passed: row.try_get(3)? });
    rows.iter().map(|row| read(row).map_err(unreadable)).collect()
}

/// Tells a home how far this process has read its forget log.
pub async fn call_feed_seen(
    client: &tokio_postgres::Client,
    process: Uuid,
    instance: &str,
    region: &str,
    (incarnation, pos): (i32, i64),
) -> Result<(), tokio_postgres::Error> {
    let sql = "SELECT dedup.feed_seen_v1($1, $2, $3, $4, $5) /* dedup: feed seen */";
    client.query_one(sql, &[&process, &instance, &region, &incarnation, &pos]).await.map(drop)
}

/// Tells a home that this process ends, and its caches with it.
pub async fn call_feed_gone(client: &tokio_postgres::Client, process: Uuid) -> Result<(), tokio_postgres::Error> {
    client.query_one("SELECT dedup.feed_gone_v1($1) /* dedup: feed gone */", &[&process]).await.map(drop)
}

/// What gauges show of a home; `None`: another home answered. `scan`: claim texts to look at, at most.
pub async fn call_gauges(client: &Client, who: &Identity, scan: i32) -> Result<Option<HomeFigures>, CallError> {
    let sql = "SELECT * FROM dedup.gauges_v1($1, $2, $3) /* dedup: gauges */";
    let statement = client.prepare_cached(sql).await.map_err(|e| classify(&e))?;
    let row = client.query_one(&statement, &[&who.home_id, &who.secret_id.as_slice(), &scan]).await.map_err(|e| classify(&e))?;
    read_gauges(&row).map_err(unreadable)
}

fn read_gauges(row: &Row) -> Result<Option<HomeFigures>, tokio_postgres::Error> {
    if row.try_get::<_, &str>("status")? != "ok" {
        return Ok(None);
    }
    let (states, segments): (Vec<String>, Vec<i64>) = (array(row, "state")?, array(row, "segments")?);
    let (rows, bytes): (Vec<i64>, Vec<i64>) = (array(row, "seg_rows")?, array(row, "seg_bytes")?);
    let by_state = states.into_iter().zip(segments).zip(rows).zip(bytes);
    let number = |name: &str| row.try_get::<_, Option<i64>>(name).map(Option::unwrap_or_default);
    Ok(Some(HomeFigures {
        database_bytes: number("database_bytes")?,
        segments: by_state.map(|(((state, segments), rows), bytes)| SegmentFigures { state, segments, rows, bytes }).collect(),
        open_segment_ms: number("open_segment_ms")?,
        in_progress: number("in_progress")?,
        lapsed: number("lapsed")?,
        oldest_claim_ms: number("oldest_ms")?,
    }))
}
