//! The calls of a service instance to a home. Each is one statement, so one round trip and one implicit transaction.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Client;
use dedup_core::{Digest, Fingerprint, Outcome, Record, StoredResult, Window};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use super::outcome::{CallError, classify};
use super::rows::{self, Facts, array};
use crate::home::{FilterSet, Told};
use crate::{Ask, Basis, Finish, FinishAnswer, FinishOp, Looked, Previous};

/// Who the home must be: sent with each call, so that a connection that ends up elsewhere changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub home_id: Uuid,
    pub secret_id: [u8; 8],
}

/// What came back, with what every reply tells of the home.
#[derive(Debug)]
pub struct Called<T> {
    /// `None`: the home did nothing, `status` says why.
    pub answers: Option<T>,
    pub status: String,
    pub as_of: i64,
    pub incarnation: i32,
    pub home_ms: i64,
}

/// What became of one asked digest.
#[derive(Debug)]
pub enum Decided {
    /// Granted now.
    Granted { record: Arc<Record>, previous: Option<Box<Previous>>, at_ms: i64 },
    /// The same grant, its lease renewed.
    Renewed { record: Arc<Record>, at_ms: i64 },
    /// As found.
    Found { record: Arc<Record>, owner: Option<Box<str>>, at_ms: i64 },
    /// Found in the archive: it is done. Times: first seen between `first_seen_ms` and `ends_ms`.
    Archived { record: Arc<Record>, at_ms: i64 },
    /// The archive cannot be read.
    Unreadable,
    /// Held by somebody's open transaction.
    Busy,
}

const DECIDE: &str = "SELECT *, dedup.confirmed_v1() AS confirmed FROM dedup.decide_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20) /* dedup: decide */";
const FINISH: &str = "SELECT *, dedup.confirmed_v1() AS confirmed FROM dedup.finish_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) /* dedup: finish */";

/// Longest a statement's preparation is waited for.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(2);

async fn prepare(client: &Client, sql: &str) -> Result<Statement, CallError> {
    let prepared = tokio::time::timeout(PREPARE_TIMEOUT, client.prepare_cached(sql)).await;
    prepared.map_err(|_| CallError::NotSent("no reply to the preparation of a statement".into()))?.map_err(|e| match classify(&e) {
        // Preparing changes nothing.
        CallError::Unknown(why) => CallError::NotSent(why),
        other => other,
    })
}

/// Makes the connection know the statement of [`call_decide`].
pub async fn prepare_decide(client: &Client) -> Result<(), CallError> {
    prepare(client, DECIDE).await.map(drop)
}

/// Makes the connection know the statement of [`call_finish`].
pub async fn prepare_finish(client: &Client) -> Result<(), CallError> {
    prepare(client, FINISH).await.map(drop)
}

async fn one(client: &Client, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row, CallError> {
    let statement = prepare(client, sql).await?;
    client.query_one(&statement, params).await.map_err(|e| classify(&e))
}

/// Only what a primary says that its standbys stand by counts: another may be the primary by now, or what it said may be lost with it.
fn confirmed(row: Row) -> Result<Row, CallError> {
    match row.try_get("confirmed").map_err(unreadable)? {
        true => Ok(row),
        false => Err(CallError::Unknown("no standby has confirmed this primary of late".into())),
    }
}

fn unreadable(error: tokio_postgres::Error) -> CallError {
    // The call may well have committed; only its answer cannot be read.
    CallError::Unknown(format!("the home's answer cannot be read: {error}"))
}

/// Where something is in a list, from 1; it is put there if it is not.
fn place<T: PartialEq>(list: &mut Vec<T>, wanted: T) -> i32 {
    let at = list.iter().position(|one| *one == wanted).unwrap_or_else(|| {
        list.push(wanted);
        list.len() - 1
    });
    i32::try_from(at + 1).expect("batches are small")
}

/// Asks for a batch of different digests, sorted by digest. `filters`: one set for the whole call.
pub async fn call_decide(
    client: &Client,
    who: &Identity,
    not_after_ms: i64,
    asks: &[&Ask],
    filters: &FilterSet,
) -> Result<Called<HashMap<Digest, Decided>>, CallError> {
    let n = asks.len();
    let mut topics: Vec<(&str, i64)> = Vec::with_capacity(1);
    // What is asked on the same terms, which is most of a call as a rule, names them once.
    let mut terms: Vec<(i32, bool, i64, i64)> = Vec::with_capacity(1);
    let (mut digests, mut on_terms, mut request, mut fp) =
        (Vec::with_capacity(n), Vec::with_capacity(n), Vec::with_capacity(n), Vec::with_capacity(n));
    let (mut text_item, mut groups, mut keys, mut owners) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (i, ask) in asks.iter().enumerate() {
        let topic = place(&mut topics, (ask.topic.topic.as_str(), ask.topic.revision));
        let asked = (topic, ask.claim, ask.window.map_or(-1, Window::to_stored), ask.lease_ms.unwrap_or(-1));
        digests.push(ask.digest.0);
        on_terms.push(place(&mut terms, asked));
        request.push(ask.request.get());
        fp.push(Fingerprint::to_stored(ask.fingerprint));
        if let Some(texts) = &ask.texts {
            text_item.push(i32::try_from(i + 1).expect("batches are small"));
            groups.push(texts.group.as_str());
            keys.push(texts.key.as_str());
            owners.push(texts.owner.as_deref());
        }
    }
    let (names, revisions): (Vec<&str>, Vec<i64>) = topics.into_iter().unzip();
    let topic: Vec<i32> = terms.iter().map(|t| t.0).collect();
    let claim: Vec<bool> = terms.iter().map(|t| t.1).collect();
    let window: Vec<i64> = terms.iter().map(|t| t.2).collect();
    let lease: Vec<i64> = terms.iter().map(|t| t.3).collect();
    // What may be left out, never where to look: of what is not named here the home looks into everything.
    let Told { used, maybe_item, maybe_place } = filters.tell(asks.iter().map(|ask| &ask.digest));
    let row = one(
        client,
        DECIDE,
        &[
            &who.home_id,
            &who.secret_id.as_slice(),
            &not_after_ms,
            &used,
            &names,
            &revisions,
            &topic,
            &claim,
            &window,
            &lease,
            &digests,
            &on_terms,
            &request,
            &fp,
            &maybe_item,
            &maybe_place,
            &text_item,
            &groups,
            &keys,
            &owners,
        ],
    )
    .await?;
    let row = confirmed(row)?;
    let called = read_decided(&row).map_err(unreadable)?;
    if called.answers.as_ref().is_some_and(|answers| asks.iter().any(|ask| !answers.contains_key(&ask.digest))) {
        return Err(not_ours());
    }
    if let (Some(answers), false) = (&called.answers, used.is_empty()) {
        // A key granted for the first time was in no segment: whatever did not exclude it was wrong (or remembers what is past).
        let is_new = |digest: &Digest| matches!(answers.get(digest), Some(Decided::Granted { record, .. }) if record.attempt == 1);
        let new = asks.iter().filter(|ask| is_new(&ask.digest)).count();
        let maybes =
            maybe_item.iter().filter(|item| asks.get(usize::try_from(**item - 1).unwrap_or(usize::MAX)).is_some_and(|a| is_new(&a.digest)));
        filters.judged(new, maybes.count());
    }
    Ok(called)
}

#[derive(serde::Deserialize)]
struct Extras {
    previous: Option<HashMap<String, Previous>>,
    owners: Option<HashMap<String, Owner>>,
}

#[derive(serde::Deserialize)]
struct Owner {
    owner: String,
}

fn read_decided(row: &Row) -> Result<Called<HashMap<Digest, Decided>>, tokio_postgres::Error> {
    let status: String = row.try_get("status")?;
    let head = |answers, status| {
        Ok(Called {
            answers,
            status,
            as_of: row.try_get::<_, Option<i64>>("as_of")?.unwrap_or_default(),
            incarnation: row.try_get::<_, Option<i32>>("incarnation")?.unwrap_or_default(),
            home_ms: row.try_get("home_ms")?,
        })
    };
    if status != "ok" {
        return head(None, status);
    }
    let mut results = read_results(row)?;
    let mut extras: Option<Extras> = row.try_get::<_, Option<&str>>("extras")?.and_then(|text| serde_json::from_str(text).ok());
    let facts = Facts::read(row)?;
    let kinds: Vec<i32> = array(row, "kind")?;
    let mut answers = HashMap::with_capacity(facts.len());
    for (i, kind) in kinds.iter().enumerate() {
        let Some(digest) = facts.digest(i) else { continue };
        let at_ms = facts.at_ms(i);
        let record = facts.record(i, &mut results).map(Arc::new);
        let decided = match (kind, record) {
            (1, Some(record)) => {
                let previous =
                    extras.as_mut().and_then(|e| e.previous.as_mut()).and_then(|p| p.remove(&digest.0.to_string())).map(Box::new);
                Decided::Granted { record, previous, at_ms }
            }
            (2, Some(record)) => Decided::Renewed { record, at_ms },
            (0, Some(record)) => {
                let owner = extras.as_mut().and_then(|e| e.owners.as_mut()).and_then(|o| o.remove(&digest.0.to_string()));
                Decided::Found { record, owner: owner.map(|o| o.owner.into_boxed_str()), at_ms }
            }
            (6, Some(record)) => Decided::Archived { record, at_ms },
            (5, _) => Decided::Unreadable,
            _ => Decided::Busy,
        };
        answers.insert(digest, decided);
    }
    head(Some(answers), status)
}

fn read_results(row: &Row) -> Result<HashMap<Digest, Arc<StoredResult>>, tokio_postgres::Error> {
    let digests: Vec<Uuid> = array(row, "r_digest")?;
    if digests.is_empty() {
        return Ok(HashMap::new());
    }
    let status: Vec<Option<i32>> = array(row, "r_status")?;
    let omitted: Vec<bool> = array(row, "r_omitted")?;
    let keep: Vec<Option<i64>> = array(row, "r_keep")?;
    let media: Vec<Option<String>> = array(row, "r_media")?;
    let headers: Vec<String> = array(row, "r_headers")?;
    let body: Vec<Option<Vec<u8>>> = array(row, "r_body")?;
    let parts = digests.into_iter().zip(status).zip(omitted).zip(keep).zip(media).zip(headers).zip(body);
    Ok(parts
        .map(|((((((digest, status), omitted), keep_until_ms), media_type), headers), body)| {
            let status = status.and_then(|s| i16::try_from(s).ok());
            (Digest(digest), Arc::new(StoredResult { status, media_type, headers, body, omitted, keep_until_ms }))
        })
        .collect())
}

/// Ends or prolongs a batch of claims: one kind of operation, different digests, sorted by digest. Answers in the same order; `None`
/// for one that is held by somebody's open transaction.
pub async fn call_finish(
    client: &Client,
    who: &Identity,
    not_after_ms: i64,
    asks: &[&Finish],
) -> Result<Called<Vec<Option<FinishAnswer>>>, CallError> {
    let op = match asks.first().map(|a| &a.op) {
        Some(FinishOp::Complete { .. }) => "complete",
        Some(FinishOp::Release { .. }) => "release",
        _ => "extend",
    };
    let digests: Vec<Uuid> = asks.iter().map(|a| a.token.digest.0).collect();
    let fences: Vec<i64> = asks.iter().map(|a| a.token.fence.0).collect();
    let failed: Vec<bool> = asks.iter().map(|a| matches!(a.op, FinishOp::Complete { outcome: Outcome::Failed, .. })).collect();
    let lease: Vec<i64> =
        asks.iter().map(|a| if let FinishOp::Extend { lease_ms: Some(ms), .. } = a.op { ms } else { a.topic_lease_ms }).collect();
    let notes: Vec<Option<&str>> = asks
        .iter()
        .map(|a| match &a.op {
            FinishOp::Release { note } | FinishOp::Extend { note, .. } => note.as_deref(),
            FinishOp::Complete { .. } => None,
        })
        .collect();
    let results: Vec<Option<&Arc<StoredResult>>> =
        asks.iter().map(|a| if let FinishOp::Complete { result, .. } = &a.op { result.as_ref() } else { None }).collect();
    let hash: Vec<Option<Uuid>> =
        asks.iter().map(|a| if let FinishOp::Complete { result_hash, .. } = a.op { result_hash } else { None }).collect();
    let status: Vec<Option<i32>> = results.iter().map(|r| r.and_then(|r| r.status).map(i32::from)).collect();
    let omitted: Vec<Option<bool>> = results.iter().map(|r| r.map(|r| r.omitted)).collect();
    let media: Vec<Option<&str>> = results.iter().map(|r| r.and_then(|r| r.media_type.as_deref())).collect();
    let headers: Vec<Option<&str>> = results.iter().map(|r| r.map(|r| r.headers.as_str())).collect();
    let body: Vec<Option<&[u8]>> = results.iter().map(|r| r.filter(|r| !r.omitted).and_then(|r| r.body.as_deref())).collect();
    let row = one(
        client,
        FINISH,
        &[
            &who.home_id,
            &who.secret_id.as_slice(),
            &not_after_ms,
            &op,
            &digests,
            &fences,
            &failed,
            &lease,
            &notes,
            &hash,
            &status,
            &omitted,
            &media,
            &headers,
            &body,
        ],
    )
    .await?;
    let row = confirmed(row)?;
    let told: Vec<Option<Uuid>> = array(&row, "digest").map_err(unreadable)?;
    let ours = |(told, asked): (&Option<Uuid>, &Uuid)| told.is_none_or(|told| told == *asked);
    if !told.is_empty() && (told.len() != digests.len() || !told.iter().zip(&digests).all(ours)) {
        return Err(not_ours());
    }
    read_finished(&row, &results).map_err(unreadable)
}

/// An answer that does not speak of what was asked. What became of that nobody knows.
fn not_ours() -> CallError {
    CallError::Unknown("the home's answer is to another question".into())
}

/// How a result is kept, as finish_v1 tells it.
const UNTIL: i32 = 1;
const NOT_KEPT: i32 = 2;

fn read_finished(row: &Row, results: &[Option<&Arc<StoredResult>>]) -> Result<Called<Vec<Option<FinishAnswer>>>, tokio_postgres::Error> {
    let status: String = row.try_get("status")?;
    let mut answers = None;
    if status == "ok" {
        let facts = Facts::read(row)?;
        let outcomes: Vec<String> = array(row, "outcome")?;
        let forgotten: Vec<bool> = array(row, "forgotten")?;
        let keeping: Vec<i32> = array(row, "keeping")?;
        let basis = Basis {
            as_of: row.try_get::<_, Option<i64>>("as_of")?.unwrap_or_default(),
            incarnation: row.try_get::<_, Option<i32>>("incarnation")?.unwrap_or_default(),
        };
        let answer = |(i, outcome): (usize, &String)| {
            // The result of a completion is the one just given (it is equal if the home says `replayed`).
            let keeping = keeping.get(i).copied().unwrap_or_default();
            let given = results[i].filter(|_| keeping != NOT_KEPT).cloned();
            let mut given: HashMap<_, _> = facts.digest(i).zip(given).into_iter().collect();
            let record = facts.record(i, &mut given).map(Arc::new);
            let at_ms = facts.at_ms(i);
            Some(match (outcome.as_str(), record) {
                ("busy", _) => return None,
                ("lease-lost", record) => FinishAnswer::LeaseLost { record, forgotten: forgotten.get(i).copied().unwrap_or_default() },
                ("already-completed", Some(record)) => FinishAnswer::AlreadyCompleted { record },
                (word, Some(record)) => {
                    FinishAnswer::Applied { record, replayed: word == "replayed", at_ms, basis, bounded: keeping == UNTIL }
                }
                (_, None) => return None,
            })
        };
        answers = Some(outcomes.iter().enumerate().map(answer).collect());
    }
    Ok(Called {
        answers,
        status,
        as_of: row.try_get::<_, Option<i64>>("as_of")?.unwrap_or_default(),
        incarnation: row.try_get::<_, Option<i32>>("incarnation")?.unwrap_or_default(),
        home_ms: row.try_get("home_ms")?,
    })
}

/// Reads one record without claiming.
pub async fn call_lookup(client: &Client, who: &Identity, digest: Digest) -> Result<Called<Looked>, CallError> {
    let row = one(
        client,
        "SELECT *, dedup.confirmed_v1() AS confirmed FROM dedup.lookup_v1($1, $2, $3) /* dedup: lookup */",
        &[&who.home_id, &who.secret_id.as_slice(), &digest.0],
    )
    .await?;
    let row = confirmed(row)?;
    read_lookup(&row).map_err(unreadable)
}

fn read_lookup(row: &Row) -> Result<Called<Looked>, tokio_postgres::Error> {
    let status: String = row.try_get("status")?;
    let home_ms: i64 = row.try_get("home_ms")?;
    let found: Option<Uuid> = row.try_get("digest")?;
    let mut looked = Looked { record: None, segment: None, owner: None, note: None, home_ms };
    if found.is_some() {
        let result = match row.try_get::<_, Option<bool>>("r_omitted")? {
            Some(omitted) => Some(Arc::new(StoredResult {
                status: row.try_get::<_, Option<i32>>("r_status")?.and_then(|s| i16::try_from(s).ok()),
                media_type: row.try_get("r_media")?,
                headers: row.try_get("r_headers")?,
                body: row.try_get("r_body")?,
                omitted,
                keep_until_ms: row.try_get("r_keep")?,
            })),
            None => None,
        };
        looked.record = rows::record(
            row.try_get("fence")?,
            row.try_get("request_hash")?,
            row.try_get("fingerprint")?,
            row.try_get("first_seen")?,
            row.try_get("expires")?,
            row.try_get("ends")?,
            row.try_get("meta")?,
            result,
        )
        .map(Arc::new);
        looked.segment = Some((row.try_get("segment_id")?, row.try_get("segment_state")?));
        looked.owner = row.try_get("owner")?;
        looked.note = row.try_get("note")?;
    }
    Ok(Called {
        answers: (status == "ok").then_some(looked),
        status,
        as_of: row.try_get("as_of")?,
        incarnation: row.try_get("incarnation")?,
        home_ms,
    })
}

/// Forgets one record; answers whether a live one was removed, and the position in the forget log.
pub async fn call_forget(
    client: &Client,
    who: &Identity,
    digest: Digest,
    actor: &str,
    topic: &str,
    group: &str,
    reason: &str,
) -> Result<Option<(bool, i64)>, CallError> {
    let row = one(
        client,
        "SELECT * FROM dedup.forget_v1($1, $2, $3, $4, $5, $6, $7) /* dedup: forget */",
        &[&who.home_id, &who.secret_id.as_slice(), &digest.0, &actor, &topic, &group, &reason],
    )
    .await?;
    let status: &str = row.try_get("status").map_err(unreadable)?;
    if status != "ok" {
        return Ok(None);
    }
    Ok(Some((row.try_get("removed").map_err(unreadable)?, row.try_get("pos").map_err(unreadable)?)))
}

/// How far a home is.
pub struct Pulse {
    pub home_ms: i64,
    pub forget_pos: i64,
    pub topics_change: i64,
    pub segments_change: i64,
    pub incarnation: i32,
    pub durable: bool,
}

/// Has the primary prove itself, where synchronous standbys are required; answers whether its word counts. `warnings`: how many the server
/// sent over this connection so far.
pub async fn call_heartbeat(client: &tokio_postgres::Client, warnings: impl Fn() -> u64) -> Result<bool, tokio_postgres::Error> {
    let before = warnings();
    let proof: Option<String> = client.query_one("SELECT dedup.heartbeat_v1() /* dedup: heartbeat */", &[]).await?.try_get(0)?;
    if let Some(proof) = proof {
        // A warning means that somebody cancelled the wait: no standby need have it.
        if warnings() == before {
            client.execute("SELECT dedup.confirm_v1($1) /* dedup: confirm */", &[&proof]).await?;
        } else {
            call_doubt(client).await?;
        }
    }
    client.query_one("SELECT dedup.confirmed_v1() /* dedup: confirmed */", &[]).await?.try_get(0)
}

/// Tells the home that a wait for its standbys was cancelled.
pub async fn call_doubt(client: &tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
    client.execute("SELECT dedup.doubt_v1() /* dedup: doubt */", &[]).await.map(drop)
}

/// Asks how far the home is.
pub async fn call_pulse(client: &tokio_postgres::Client) -> Result<Pulse, tokio_postgres::Error> {
    let row = client
        .query_one(
            "SELECT home_ms, forget_pos, topics_change, segments_change, incarnation, durable FROM dedup.pulse_v1() /* dedup: pulse */",
            &[],
        )
        .await?;
    Ok(Pulse {
        home_ms: row.try_get(0)?,
        forget_pos: row.try_get(1)?,
        topics_change: row.try_get(2)?,
        segments_change: row.try_get(3)?,
        incarnation: row.try_get(4)?,
        durable: row.try_get(5)?,
    })
}

/// Entries of the forget log after `pos` and not older than `since_ms`.
pub async fn call_forgets(client: &tokio_postgres::Client, pos: i64, since_ms: i64) -> Result<Vec<(i64, Digest)>, tokio_postgres::Error> {
    let rows = client.query("SELECT pos, digest FROM dedup.forgets_v1($1, $2) /* dedup: forget feed */", &[&pos, &since_ms]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, Digest(row.try_get(1)?)))).collect()
}
