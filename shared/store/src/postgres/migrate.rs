//! Migrations: run by the owner only, one runner at a time.

use dedup_core::{HomeSpec, Secret};

use super::connect::{ConnectError, PgTarget, connect_once};
use super::hello::SCHEMA_VERSION;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// Oldest program that can use a home at [`SCHEMA_VERSION`].
const MIN_CLIENT: i32 = 1;

/// Why a migration failed.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A statement failed.
    #[error("a statement of the migration failed")]
    Postgres(#[from] tokio_postgres::Error),
    /// A migration failed, or what was applied differs from what this program has.
    #[error("a migration failed")]
    Refinery(#[from] refinery::Error),
    /// The home has no secret yet and none was given.
    #[error("the home is new and no secret was given: set DEDUP_SECRET to 64 hexadecimal digits (the same in all homes)")]
    NoSecret,
}

/// What was done.
#[derive(Debug)]
pub struct Migrated {
    /// Versions applied now.
    pub applied: Vec<String>,
    /// The home had no identity before.
    pub new_home: bool,
}

/// Brings one home up to [`SCHEMA_VERSION`] and gives it its identity. Two at once are safe: the second waits.
pub async fn migrate(target: &PgTarget, home: &HomeSpec, secret: Option<&Secret>) -> Result<Migrated, MigrateError> {
    let mut client = connect_once(target).await?;
    client.batch_execute("SELECT pg_advisory_lock(1684366453, 2) /* dedup: one migration at a time */").await?;
    client.batch_execute("CREATE SCHEMA IF NOT EXISTS dedup").await?;
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name("dedup.schema_history");
    let report = runner.run_async(&mut client).await?;
    let known = client.query_opt("SELECT 1 FROM dedup.home /* dedup: known home */", &[]).await?.is_some();
    if !known && secret.is_none() {
        return Err(MigrateError::NoSecret);
    }
    let bytes = secret.map(|s| s.expose().as_slice());
    client
        .execute(
            "SELECT dedup.init_home($1, $2, $3, $4, $5, $6) /* dedup: identity */",
            &[&home.name, &home.region, &home.prefixes, &bytes, &SCHEMA_VERSION, &MIN_CLIENT],
        )
        .await?;
    let applied = report.applied_migrations().iter().map(|m| format!("V{} {}", m.version(), m.name())).collect();
    Ok(Migrated { applied, new_home: !known })
}

/// Raises the home's epoch, as its owner: fences granted from now on are above all granted before, and caches of this home count no more.
/// Answers the new one.
pub async fn raise_epoch(target: &PgTarget, reason: &str) -> Result<i32, MigrateError> {
    let client = connect_once(target).await?;
    Ok(client.query_one("SELECT dedup.raise_epoch_v1($1) /* dedup: raise epoch */", &[&reason]).await?.try_get(0)?)
}
