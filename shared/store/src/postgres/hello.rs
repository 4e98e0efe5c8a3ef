//! Is this the right home, and is it fit to answer?

use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::connect::{ConnectError, PgTarget, connect_once};

/// What this program is, in the numbering of the homes' `min_client`.
pub const CLIENT_VERSION: i32 = 1;
/// What this program's migrations offer, and what it needs of a home.
pub const SCHEMA_VERSION: i32 = 10;

/// What a home says of itself.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "columns of dedup.hello_v1, named there")]
pub struct Hello {
    pub home_id: Uuid,
    pub name: String,
    pub region: String,
    pub prefixes: Vec<String>,
    pub secret_id: Vec<u8>,
    pub secret: Vec<u8>,
    pub epoch: i32,
    pub schema: i32,
    pub min_client: i32,
    pub home_ms: i64,
    pub incarnation: i32,
    pub in_recovery: bool,
    pub fsync: bool,
    pub full_page_writes: bool,
    pub synchronous_commit: String,
    pub encoding: String,
}

/// Why a home is not used. Each names what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HomeProblem {
    /// Never migrated.
    #[error("the database has no dedup schema, or this role may not use it: run `dedup migrate`, and grant dedup_service to the role")]
    NotMigrated,
    /// Somebody else's database.
    #[error("the database is the home {found:?} of region {region:?}; the table of homes expects {expected:?}")]
    WrongHome {
        /// Its name.
        found: String,
        /// Its region.
        region: String,
        /// What the configuration says.
        expected: String,
    },
    /// The prefixes differ.
    #[error("the database owns the prefixes {found:?}; the table of homes says {expected:?}: run `dedup migrate` with the new table")]
    Prefixes {
        /// What it owns.
        found: Vec<String>,
        /// What the configuration says.
        expected: Vec<String>,
    },
    /// Another deployment's secret.
    #[error("the database was made with another secret")]
    OtherSecret,
    /// Newer than this program.
    #[error("the database needs a program of client version {needed} or newer; this is {CLIENT_VERSION}")]
    ProgramTooOld {
        /// `min_client`.
        needed: i32,
    },
    /// Older than this program can use.
    #[error("the database offers schema {found}, this program needs {needed}: run `dedup migrate`")]
    SchemaTooOld {
        /// Offered.
        found: i32,
        /// Needed.
        needed: i32,
    },
    /// A standby.
    #[error("the database is a standby; only a primary answers")]
    Standby,
    /// It may forget what it acknowledged.
    #[error("the database is not durable: {0} (allow_weak_durability = true starts all the same)")]
    WeakDurability(String),
    /// Keys could be garbled.
    #[error("the database's encoding is {0}, not UTF8")]
    Encoding(String),
}

/// Reads [`Hello`]. `Ok(None)`: there is no dedup schema that this role may use.
pub(crate) async fn call_hello(client: &impl GenericClient) -> Result<Option<Hello>, tokio_postgres::Error> {
    use tokio_postgres::error::SqlState;
    let row = match client.query_one("SELECT * FROM dedup.hello_v1() /* dedup: hello */", &[]).await {
        Ok(row) => row,
        Err(e)
            if e.code().is_some_and(|c| {
                [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION, SqlState::INSUFFICIENT_PRIVILEGE].contains(c)
            }) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    Ok(Some(Hello {
        home_id: row.try_get("home_id")?,
        name: row.try_get("name")?,
        region: row.try_get("region")?,
        prefixes: row.try_get("prefixes")?,
        secret_id: row.try_get("secret_id")?,
        secret: row.try_get("secret")?,
        epoch: row.try_get("epoch")?,
        schema: row.try_get("schema")?,
        min_client: row.try_get("min_client")?,
        home_ms: row.try_get("home_ms")?,
        incarnation: row.try_get("incarnation")?,
        in_recovery: row.try_get("in_recovery")?,
        fsync: row.try_get("fsync")?,
        full_page_writes: row.try_get("full_page_writes")?,
        synchronous_commit: row.try_get("synchronous_commit")?,
        encoding: row.try_get("encoding")?,
    }))
}

/// Asks a home who it is; `None`: it has no dedup schema that this role may use.
pub async fn ask_home(target: &PgTarget) -> Result<Option<Hello>, ConnectError> {
    let client = connect_once(target).await?;
    call_hello(&client).await.map_err(ConnectError::Connect)
}

/// Everything that is wrong with a home, against what the table of homes says. `secret_id`: ours, if known.
pub fn check_home(
    hello: &Hello,
    name: &str,
    region: &str,
    prefixes: &[String],
    secret_id: Option<[u8; 8]>,
    allow_weak: bool,
) -> Vec<HomeProblem> {
    let mut problems = Vec::new();
    if hello.name != name || hello.region != region {
        problems.push(HomeProblem::WrongHome { found: hello.name.clone(), region: hello.region.clone(), expected: name.to_owned() });
    }
    let sorted = |p: &[String]| {
        let mut p = p.to_vec();
        p.sort();
        p
    };
    if sorted(&hello.prefixes) != sorted(prefixes) {
        problems.push(HomeProblem::Prefixes { found: hello.prefixes.clone(), expected: prefixes.to_vec() });
    }
    if secret_id.is_some_and(|ours| ours[..] != hello.secret_id[..]) {
        problems.push(HomeProblem::OtherSecret);
    }
    if hello.min_client > CLIENT_VERSION {
        problems.push(HomeProblem::ProgramTooOld { needed: hello.min_client });
    }
    if hello.schema < SCHEMA_VERSION {
        problems.push(HomeProblem::SchemaTooOld { found: hello.schema, needed: SCHEMA_VERSION });
    }
    if hello.in_recovery {
        problems.push(HomeProblem::Standby);
    }
    if !allow_weak {
        for (on, name) in [(hello.fsync, "fsync is off"), (hello.full_page_writes, "full_page_writes is off")] {
            if !on {
                problems.push(HomeProblem::WeakDurability(name.to_owned()));
            }
        }
        if matches!(hello.synchronous_commit.as_str(), "off" | "local" | "remote_write") {
            problems.push(HomeProblem::WeakDurability(format!("synchronous_commit is {}", hello.synchronous_commit)));
        }
    }
    if hello.encoding != "UTF8" {
        problems.push(HomeProblem::Encoding(hello.encoding.clone()));
    }
    problems
}
