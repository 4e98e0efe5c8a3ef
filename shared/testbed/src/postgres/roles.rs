//! Database and roles, as an operator would make them around `dedup migrate`.

use tokio_postgres::Client;

use crate::Error;

/// Before the migration: the owner of an empty database. Group roles are the migration's own business, hence CREATEROLE.
pub(crate) async fn create_owner(superuser: &Client, password: &str) -> Result<(), Error> {
    let owner = format!("CREATE ROLE dedup_owner LOGIN CREATEROLE PASSWORD '{password}'");
    run(superuser, "create the role dedup_owner", &owner).await?;
    run(superuser, "create the database dedup", "CREATE DATABASE dedup OWNER dedup_owner").await
}

/// After the migration: one login for each group role it made.
pub(crate) async fn create_logins(superuser: &Client, password: &str) -> Result<(), Error> {
    for (login, group) in [("dedup_svc", "dedup_service"), ("dedup_caller", "dedup_app"), ("dedup_jan", "dedup_janitor")] {
        let role = format!("CREATE ROLE {login} LOGIN PASSWORD '{password}' IN ROLE {group}");
        run(superuser, "create a login role", &role).await?;
    }
    Ok(())
}

async fn run(client: &Client, what: &'static str, sql: &str) -> Result<(), Error> {
    client.batch_execute(sql).await.map_err(|source| Error::Sql { what, source })
}
