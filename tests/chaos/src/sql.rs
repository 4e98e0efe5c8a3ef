//! Callers in SQL: the question inside a transaction of their own, which they commit, roll back or keep open.

use std::sync::Arc;
use std::time::Duration;

use dedup_checker::{Answer, Out, Verdict};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

use crate::caller::Held;
use crate::topics::Place;
use crate::work::{World, own};

/// Connections of SQL callers to the first home.
#[derive(Debug, Clone)]
pub struct Callers {
    /// Where the home is: all its nodes, the primary wanted.
    pub dsn: String,
    /// Name of the home.
    pub home: String,
    idle: Arc<Mutex<Vec<Client>>>,
}

impl Callers {
    pub fn new(dsn: String, home: String) -> Self {
        Self { dsn, home, idle: Arc::default() }
    }

    async fn take(&self) -> Option<Client> {
        if let Some(client) = self.idle.lock().await.pop().filter(|c| !c.is_closed()) {
            return Some(client);
        }
        let connecting = tokio_postgres::connect(&self.dsn, NoTls);
        let (client, connection) = tokio::time::timeout(Duration::from_secs(2), connecting).await.ok()?.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    async fn give(&self, client: Client) {
        self.idle.lock().await.push(client);
    }
}

const COLUMNS: &str = "(a).verdict, coalesce((a).replayed, false), coalesce((a).fence, ''), \
    round(extract(epoch FROM (a).first_seen_at) * 1000)::bigint, round(extract(epoch FROM (a).expires_at) * 1000)::bigint, \
    round(extract(epoch FROM (a).lease_expires_at) * 1000)::bigint, coalesce(convert_from((a).result_body, 'UTF8'), ''), (a).claim_token";

/// One transaction with one question.
pub async fn call(world: &World, rng: &mut StdRng, me: u32) {
    let claim = rng.random_bool(0.5);
    let mut question = world.question(rng, claim, "s");
    if !question.place.key.starts_with(&format!("{}:", world.sql.home)) {
        question.place = Place { key: format!("{}:s-{}", world.sql.home, rng.random_range(0..u32::MAX)), ..question.place };
        world.note(&question.place);
    }
    let lingers = rng.random_range(0..100) < world.mix.lingering;
    let hold = if lingers { rng.random_range(100..700) } else { rng.random_range(0..8) };
    let commits = rng.random_bool(0.85);
    let Some(client) = world.sql.take().await else {
        tokio::time::sleep(Duration::from_millis(20)).await;
        return;
    };
    if lingers {
        // Others shall meet the open transaction.
        world.look_again(&question.place, Duration::from_millis(10));
    }
    let op = world.net.recorder.call(question.call(me, "sql"));
    let sql = match claim {
        true => format!("SELECT {COLUMNS} FROM dedup.claim($1, $2, request_id => $3, lease_ms => $4, grp => $5) a"),
        false => format!("SELECT {COLUMNS} FROM dedup.check($1, $2, request_id => $3, grp => $5) a WHERE $4::bigint IS NOT NULL"),
    };
    let out = tokio::time::timeout(Duration::from_secs(4), async {
        client.batch_execute("BEGIN").await.map_err(|_| Out::No("no transaction".into()))?;
        let asked = client
            .query_one(&sql, &[&question.place.topic, &question.place.key, &question.request, &question.lease_ms, &question.place.group()])
            .await;
        let row = asked.map_err(|e| Out::No(e.code().map_or("connection lost".into(), |c| c.code().to_owned())))?;
        tokio::time::sleep(Duration::from_millis(hold)).await;
        if !commits {
            // What it was told counts for nothing, and neither does what it did.
            let _ = client.batch_execute("ROLLBACK").await;
            return Err(Out::No("rolled back".into()));
        }
        client.batch_execute("COMMIT").await.map_err(|e| match e.code() {
            // Refused while it was still a transaction: nothing was committed.
            Some(c) if c.code().starts_with("40") && c.code() != "40003" => Out::No(c.code().to_owned()),
            _ => Out::Unknown("commit".into()),
        })?;
        Ok(row)
    })
    .await;
    let mut token: Option<String> = None;
    let out = match out {
        Ok(Ok(row)) => {
            token = row.get(7);
            let verdict = match row.get::<_, &str>(0) {
                "first" => Verdict::First,
                "duplicate" => Verdict::Duplicate,
                "in_progress" => Verdict::InProgress,
                _ => Verdict::Mismatch,
            };
            let mut answer = Answer { replayed: row.get(1), fence: row.get(2), ..Answer::new(verdict) };
            (answer.seen, answer.expires, answer.lease_end) = (row.get(3), row.get(4), row.get(5));
            answer.result = row.get(6);
            // (Only what is archived has no fence.)
            answer.cold = verdict == Verdict::Duplicate && answer.fence.is_empty();
            if verdict != Verdict::First {
                answer.lease_end = None;
            }
            Out::Ok(answer)
        }
        Ok(Err(out)) => out,
        // Dropping the connection ends the transaction, if it had not been committed by then.
        Err(_) => Out::Unknown("no answer".into()),
    };
    world.net.recorder.back(op, out.clone());
    match out {
        Out::Unknown(_) => world.open.lock().expect("no panic while held").push(question),
        Out::Ok(answer) => {
            world.sql.give(client).await;
            if let (Some(token), true) = (token, answer.verdict == Verdict::First && question.claim) {
                // Claimed in SQL, ended by REST.
                let held = Held { place: question.place.clone(), fence: answer.fence, token };
                own(world, rng, me, &question, held).await;
            }
        }
        Out::No(_) => {
            if client.batch_execute("ROLLBACK").await.is_ok() {
                world.sql.give(client).await;
            }
        }
    }
}
