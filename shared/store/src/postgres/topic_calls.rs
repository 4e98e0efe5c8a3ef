//! Calls about topics.

use deadpool_postgres::Client;
use dedup_core::{KeepKey, Topic, TopicPolicy, Window};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::calls::Identity;
use super::outcome::{CallError, classify};

/// A topic as a home has it, tombstones too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRow {
    pub policy: TopicPolicy,
    pub stamp: Uuid,
    pub deleted: bool,
    pub changed_ms: i64,
}

impl TopicRow {
    /// What settles which copy is newer.
    pub fn rank(&self) -> (i64, Uuid) {
        (self.policy.version, self.stamp)
    }
}

/// All topics of a home.
pub async fn call_topics(client: &impl GenericClient) -> Result<Vec<TopicRow>, tokio_postgres::Error> {
    let rows = client.query("SELECT * FROM dedup.topics_v1() /* dedup: topics */", &[]).await?;
    Ok(rows.iter().map(read).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn read(row: &Row) -> Result<Option<TopicRow>, tokio_postgres::Error> {
    // A row this program cannot understand (made by a newer one) is left out, not guessed at.
    let (Ok(topic), Some(keep_key)) = (Topic::parse(row.try_get("name")?), KeepKey::parse(row.try_get("keep_key")?)) else {
        return Ok(None);
    };
    let Ok(groups) = serde_json::from_str(row.try_get("groups")?) else { return Ok(None) };
    let policy = TopicPolicy {
        topic,
        version: row.try_get("version")?,
        revision: row.try_get("revision")?,
        generation: row.try_get("generation")?,
        groups,
        window: Window::from_stored(row.try_get("window_ms")?),
        lease_ms: row.try_get("lease_ms")?,
        lease_max_ms: row.try_get("lease_max_ms")?,
        keep_key,
        default_region: row.try_get("default_region")?,
        keep_results_ms: Some(row.try_get("keep_results_ms")?).filter(|ms| *ms >= 0),
    };
    Ok(Some(TopicRow { policy, stamp: row.try_get("stamp")?, deleted: row.try_get("deleted")?, changed_ms: row.try_get("changed_ms")? }))
}

/// Offers a copy; answers whether the home keeps this very one.
pub async fn call_put_topic(client: &Client, row: &TopicRow, next: bool) -> Result<(i64, Uuid), CallError> {
    let p = &row.policy;
    let kept = client
        .query_one(
            "SELECT version, stamp FROM dedup.put_topic_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) /* dedup: put topic */",
            &[
                &p.topic.as_str(),
                &p.version,
                &row.stamp,
                &p.generation,
                &groups_text(p),
                &row.deleted,
                &p.window.to_stored(),
                &p.lease_ms,
                &p.lease_max_ms,
                &p.keep_key.as_str(),
                &p.default_region,
                &p.keep_results_ms.unwrap_or(-1),
                &next,
            ],
        )
        .await
        .map_err(|e| classify(&e))?;
    Ok((kept.get(0), kept.get(1)))
}

fn groups_text(policy: &TopicPolicy) -> String {
    serde_json::to_string(&policy.groups).expect("names and numbers are JSON")
}

/// How a raising of generations went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raised {
    /// They are that high now; the forget log's position for it.
    Done(i64),
    /// Somebody's open transaction is in the way: nothing was changed.
    Busy,
    /// The home has no such topic (yet).
    NoTopic,
    /// Another home answered.
    WrongHome,
}

/// Raises the generations of a topic and its groups to those of `policy` at least. Everything of a lower one is forgotten.
pub async fn call_raise_generation(
    client: &Client,
    who: &Identity,
    policy: &TopicPolicy,
    actor: &str,
    group: &str,
    reason: &str,
) -> Result<Raised, CallError> {
    let row = client
        .query_one(
            "SELECT status, pos FROM dedup.raise_generation_v1($1, $2, $3, $4, $5, $6, $7, $8) /* dedup: raise generation */",
            &[
                &who.home_id,
                &who.secret_id.as_slice(),
                &policy.topic.as_str(),
                &policy.generation,
                &groups_text(policy),
                &actor,
                &group,
                &reason,
            ],
        )
        .await
        .map_err(|e| classify(&e))?;
    let (status, pos): (&str, Option<i64>) = (row.get(0), row.get(1));
    Ok(match (status, pos) {
        ("ok", Some(pos)) => Raised::Done(pos),
        ("held" | "busy", _) => Raised::Busy,
        ("no-topic", _) => Raised::NoTopic,
        _ => Raised::WrongHome,
    })
}

/// Whether records of the topic may still live in the home.
pub async fn call_topic_in_use(client: &Client, topic: &Topic) -> Result<bool, CallError> {
    let row = client
        .query_one("SELECT dedup.topic_in_use_v1($1) /* dedup: topic in use */", &[&topic.as_str()])
        .await
        .map_err(|e| classify(&e))?;
    Ok(row.get(0))
}
