//! SQL callers: the same rules inside a caller's own transaction, beside REST on the same keys.

mod example;
mod interop;
mod many;
mod refusals;
mod transactions;
mod words;

use dedup_testbed::Testbed;
use tokio_postgres::{Client, Error, GenericClient, Row};

use crate::harness::shared;

/// SQLSTATE of an error.
fn code(error: &Error) -> &str {
    error.code().map_or("", |c| c.code())
}

/// A session of a caller in the home of `eu`.
async fn caller() -> Client {
    shared().await.region("eu").postgres.connect("dedup_caller").await
}

async fn sql_check(client: &impl GenericClient, topic: &str, key: &str) -> Result<String, Error> {
    Ok(client.query_one("SELECT verdict FROM dedup.check($1, $2)", &[&topic, &key]).await?.get(0))
}

/// Verdict, replayed, fence, claim token, owner of a claim.
async fn sql_claim(client: &impl GenericClient, topic: &str, key: &str, request_id: Option<&str>) -> Result<Row, Error> {
    let sql = "SELECT verdict, replayed, fence, claim_token, owner, attempt, previous::text FROM dedup.claim($1, $2, request_id => $3, owner => 'sql', fingerprint => 'f1')";
    client.query_one(sql, &[&topic, &key, &request_id]).await
}

fn text(row: &Row, column: &str) -> String {
    row.get::<_, Option<String>>(column).unwrap_or_default()
}

/// A schema of the caller's own with a table of effects.
async fn effects(testbed: &Testbed, schema: &str) {
    let superuser = testbed.region("eu").postgres.connect("postgres").await;
    superuser.batch_execute(&format!("CREATE SCHEMA {schema} AUTHORIZATION dedup_caller")).await.unwrap();
    let caller = testbed.region("eu").postgres.connect("dedup_caller").await;
    caller.batch_execute(&format!("CREATE TABLE {schema}.effects (key text NOT NULL)")).await.unwrap();
}

/// Rows that the home has of a key, in all its tables.
async fn traces(testbed: &Testbed, topic: &str, key: &str) -> i64 {
    let owner = testbed.region("eu").postgres.connect("dedup_owner").await;
    let sql = "WITH k AS (SELECT dedup.digest_v1($1, 0, 'default', 0, $2) AS d) \
               SELECT (SELECT count(*) FROM dedup.claims, k WHERE digest = d) + (SELECT count(*) FROM dedup.claim_texts, k WHERE digest = d) \
                    + (SELECT count(*) FROM dedup.results, k WHERE digest = d) \
                    + (SELECT count(*) FROM dedup.topic_use u JOIN dedup.topics t USING (topic_id) WHERE t.name = $1)";
    owner.query_one(sql, &[&topic, &key]).await.unwrap().get(0)
}
