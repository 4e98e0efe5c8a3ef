//! Probes for people: is a home, or the region's Redis, fit for the service, and if not, how is it mended?
//!
//! Nothing is changed by a probe. The command that prints the findings knows no SQL.

use std::time::{Duration, Instant, SystemTime};

use dedup_core::{HomeSpec, Secret};
use secrecy::ExposeSecret;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::chain::chain;
use crate::postgres::{HomeProblem, MigrateError, PgTarget, call_hello, check_home, connect_once, open_feed};
use crate::{CLIENT_VERSION, HotSettings, SCHEMA_VERSION};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Ok,
    /// The service works, but less well or less safely than it could.
    Warn,
    /// The service does not work like this.
    Fail,
}

/// One line of the checklist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How it ended.
    pub grade: Grade,
    /// What was seen.
    pub what: String,
    /// What to do about it.
    pub mend: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(what: impl Into<String>) -> Self {
        Self { grade: Grade::Ok, what: what.into(), mend: None }
    }

    /// Something to improve.
    pub fn warn(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { grade: Grade::Warn, what: what.into(), mend: Some(mend.into()) }
    }

    /// Something to mend first.
    pub fn fail(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { grade: Grade::Fail, what: what.into(), mend: Some(mend.into()) }
    }
}

/// What to look at in a home.
pub struct HomeProbe<'a> {
    /// Where it is and who logs in.
    pub target: &'a PgTarget,
    /// What the table of homes says of it.
    pub spec: &'a HomeSpec,
    /// The environment variable that holds its password, for advice.
    pub password_env: &'a str,
    /// Id of the deployment's secret, if known.
    pub secret_id: Option<[u8; 8]>,
    /// Connections one instance keeps to it for calls (one more is its feed).
    pub connections: usize,
    /// Weak durability is wanted: it is then no failure.
    pub allow_weak_durability: bool,
}

/// What was seen of a home.
pub struct HomeReport {
    /// The checklist.
    pub findings: Vec<Finding>,
    /// Id of the secret it was made with, if it told.
    pub secret_id: Option<[u8; 8]>,
}

/// The Postgres release line the tests run on.
const TESTED_MAJOR: i32 = 15;
const CLOCK_APART_MS_MAX: i64 = 5_000;
const PATIENCE: Duration = Duration::from_secs(3);

/// The secret a home was made with; `None` if it was never migrated.
///
/// # Errors
/// No connection, or a home that does not tell.
pub async fn home_secret(target: &PgTarget) -> Result<Option<Secret>, MigrateError> {
    let client = connect_once(target).await?;
    let hello = call_hello(&client).await?;
    Ok(hello.and_then(|h| <[u8; 32]>::try_from(h.secret).ok()).map(Secret::new))
}

/// Looks at one home.
pub async fn probe_home(probe: &HomeProbe<'_>) -> HomeReport {
    let mut report = HomeReport { findings: Vec::new(), secret_id: None };
    let client = match connect_once(probe.target).await {
        Ok(client) => client,
        Err(error) => {
            let mend = format!(
                "check host, port, user, dbname and the network; the password is taken from {}; beyond loopback the server needs TLS with a certificate this machine trusts",
                probe.password_env
            );
            report.findings.push(Finding::fail(format!("connection: {}", chain(&error)), mend));
            return report;
        }
    };
    match within(facts(&client)).await {
        Ok(facts) => report.findings.extend(facts.judge(probe)),
        Err(why) => report.findings.push(Finding::fail(format!("connection: {why}"), "see the server's log")),
    }
    report.findings.push(direct(probe.target).await);
    let asked = Instant::now();
    let hello = match within(call_hello(&client)).await {
        Ok(Some(hello)) => hello,
        Ok(None) => {
            report.findings.push(Finding::fail(
                "schema: the database has no dedup schema that this user may use",
                "run `dedup migrate`, and as the owner GRANT dedup_service to the user of this home",
            ));
            return report;
        }
        Err(why) => {
            report.findings.push(Finding::fail(
                format!("schema: the home does not tell who it is: {why}"),
                "run `dedup migrate` again; see the server's log",
            ));
            return report;
        }
    };
    report.secret_id = hello.secret_id.as_slice().try_into().ok();
    let spec = probe.spec;
    let problems = check_home(&hello, &spec.name, &spec.region, &spec.prefixes, probe.secret_id, false);
    let id = hello.secret_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let compared = if probe.secret_id.is_some() { "the deployment's" } else { "nothing to compare it with" };
    let fine = [
        ("identity", format!("home {} of region {}, {}", hello.name, hello.region, hello.home_id)),
        ("prefixes", hello.prefixes.join(", ")),
        ("secret", format!("id {id}, {compared}")),
        (
            "schema",
            format!(
                "version {} (this program needs {SCHEMA_VERSION}), for programs from {} (this is {CLIENT_VERSION})",
                hello.schema, hello.min_client
            ),
        ),
        ("primary", format!("takes writes, timeline {}, epoch {}", hello.incarnation % 2048, hello.epoch)),
        ("durability", format!("fsync on, full_page_writes on, synchronous_commit {}", hello.synchronous_commit)),
        ("encoding", hello.encoding.clone()),
    ];
    for (aspect, fine) in fine {
        let wrong: Vec<&HomeProblem> = problems.iter().filter(|problem| aspect_and_mend(problem).0 == aspect).collect();
        if wrong.is_empty() {
            report.findings.push(Finding::ok(format!("{aspect}: {fine}")));
        }
        for problem in wrong {
            let (what, mend) = (format!("{aspect}: {problem}"), aspect_and_mend(problem).1);
            let allowed = aspect == "durability" && probe.allow_weak_durability;
            report.findings.push(if allowed { Finding::warn(what, mend) } else { Finding::fail(what, mend) });
        }
    }
    report.findings.push(clock(hello.home_ms, asked));
    report
}

fn aspect_and_mend(problem: &HomeProblem) -> (&'static str, &'static str) {
    match problem {
        HomeProblem::WrongHome { .. } => {
            ("identity", "correct host, port and dbname of this home in the configuration, or its name and region")
        }
        HomeProblem::Prefixes { .. } => {
            ("prefixes", "make the table of homes the same everywhere; new prefixes reach the home by `dedup migrate`")
        }
        HomeProblem::OtherSecret => {
            ("secret", "set DEDUP_SECRET to the deployment's one secret; a new, empty home can be dropped and migrated again with it")
        }
        HomeProblem::NotMigrated | HomeProblem::SchemaTooOld { .. } => ("schema", "run `dedup migrate` of this program"),
        HomeProblem::ProgramTooOld { .. } => ("schema", "upgrade this program"),
        HomeProblem::Standby => ("primary", "point the home at its primary, or name all hosts: host=a,b port=5432,5432"),
        HomeProblem::WeakDurability(_) => {
            ("durability", "turn it on in postgresql.conf (or drop the ALTER ROLE/DATABASE setting) and reload")
        }
        HomeProblem::Encoding(_) => ("encoding", "make the database anew with ENCODING 'UTF8'"),
    }
}

/// What the server says of itself and of our login.
struct Facts {
    user: String,
    superuser: bool,
    owner: bool,
    member: bool,
    version: i32,
    connections_max: i32,
    connections_reserved: i32,
    connections_used: i32,
    standbys: String,
}

async fn facts(client: &Client) -> Result<Facts, tokio_postgres::Error> {
    let sql = "SELECT current_user::text AS me, r.rolsuper,
         coalesce((SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'dedup'), false) AS owner,
         coalesce((SELECT pg_has_role(oid, 'USAGE') FROM pg_roles WHERE rolname = 'dedup_service'), false) AS member,
         current_setting('server_version_num')::int AS version,
         current_setting('max_connections')::int AS most,
         current_setting('superuser_reserved_connections')::int AS reserved,
         (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int AS used,
         current_setting('synchronous_standby_names') AS standbys
       FROM pg_roles r WHERE r.rolname = current_user /* dedup: doctor */";
    let row = client.query_one(sql, &[]).await?;
    Ok(Facts {
        user: row.try_get("me")?,
        superuser: row.try_get("rolsuper")?,
        owner: row.try_get("owner")?,
        member: row.try_get("member")?,
        version: row.try_get("version")?,
        connections_max: row.try_get("most")?,
        connections_reserved: row.try_get("reserved")?,
        connections_used: row.try_get("used")?,
        standbys: row.try_get("standbys")?,
    })
}

impl Facts {
    fn judge(&self, probe: &HomeProbe<'_>) -> Vec<Finding> {
        let user = &self.user;
        let login = "let the service log in as a role of its own: CREATE ROLE … LOGIN IN ROLE dedup_service";
        let who = if self.superuser {
            Finding::warn(format!("connection: as {user}, a superuser"), login)
        } else if self.owner {
            Finding::warn(format!("connection: as {user}, who owns the schema and could change it"), login)
        } else {
            Finding::ok(format!("connection: as {user}, neither superuser nor owner"))
        };
        let member = if self.member {
            Finding::ok("role: may use what dedup_service may")
        } else {
            Finding::fail(
                format!("role: {user} is not in dedup_service"),
                format!("after `dedup migrate`, as the owner: GRANT dedup_service TO {user}"),
            )
        };
        let (major, minor) = (self.version / 10_000, self.version % 10_000);
        let version = if major == TESTED_MAJOR {
            Finding::ok(format!("server: Postgres {major}.{minor}"))
        } else {
            Finding::warn(
                format!("server: Postgres {major}.{minor}"),
                format!("the tests run on Postgres {TESTED_MAJOR}; try your own load first"),
            )
        };
        let free = self.connections_max - self.connections_reserved - self.connections_used;
        let needed = probe.connections + 1;
        let room = format!("connections: {free} of max_connections {} free, one instance takes {needed}", self.connections_max);
        let room = if usize::try_from(free).is_ok_and(|free| free >= needed) {
            Finding::ok(room)
        } else {
            Finding::warn(room, "raise max_connections, or lower `connections` of this home")
        };
        let standbys = if self.standbys.is_empty() {
            Finding::warn(
                "standbys: synchronous_standby_names is empty: a failover may lose acknowledged claims",
                "loss-free failover needs two standbys and synchronous_standby_names = 'ANY 1 (a, b)'",
            )
        } else {
            Finding::ok(format!("standbys: synchronous_standby_names is {}", self.standbys))
        };
        vec![who, member, version, room, standbys]
    }
}

/// The feed and the locks of a migration belong to a session; a pooler that shares sessions would lose them.
async fn direct(target: &PgTarget) -> Finding {
    let mend = "connect straight to Postgres: no transaction pooler between this program and the home";
    match timeout(2 * PATIENCE, hears(target)).await {
        Ok(Ok(())) => Finding::ok("direct: the session is kept and LISTEN works"),
        Ok(Err(why)) => Finding::fail(format!("direct: {why}"), mend),
        Err(_) => Finding::fail("direct: a session's next statement waits for another session's transaction", mend),
    }
}

async fn hears(target: &PgTarget) -> Result<(), String> {
    let mut feed = open_feed(target).await.map_err(|e| chain(&e))?;
    let other = connect_once(target).await.map_err(|e| chain(&e))?;
    let before = backend(&feed.client).await?;
    within(feed.client.batch_execute("LISTEN dedup_doctor /* dedup: doctor */")).await?;
    // A pooler would lend this transaction the server connection that has just become idle, and the session above another one.
    within(other.batch_execute("BEGIN; SELECT 1 /* dedup: doctor */")).await?;
    let after = backend(&feed.client).await?;
    within(other.batch_execute("COMMIT; NOTIFY dedup_doctor /* dedup: doctor */")).await?;
    if before != after {
        return Err(format!("one session was served by two server processes ({before}, {after})"));
    }
    match timeout(PATIENCE, feed.notifications.recv()).await {
        Ok(Some(())) => Ok(()),
        Ok(None) | Err(_) => Err("a notification did not arrive".to_owned()),
    }
}

async fn backend(client: &Client) -> Result<i32, String> {
    within(async { client.query_one("SELECT pg_backend_pid() /* dedup: doctor */", &[]).await?.try_get(0) }).await
}

/// Information only: no verdict depends on this machine's clock.
fn clock(home_ms: i64, asked: Instant) -> Finding {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_sub(asked.elapsed() / 2);
    let apart_ms = home_ms - i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    let what = format!("clock: the home is {} ms {} this machine", apart_ms.abs(), if apart_ms < 0 { "behind" } else { "ahead of" });
    if apart_ms.abs() <= CLOCK_APART_MS_MAX {
        return Finding::ok(what);
    }
    Finding::warn(what, "run NTP on both; only the home's clock decides, so this confuses people and nothing else")
}

/// Looks at the region's Redis.
pub async fn probe_redis(settings: &HotSettings) -> Vec<Finding> {
    match timeout(2 * PATIENCE, look_at_redis(settings)).await {
        Ok(Ok(findings)) => findings,
        Ok(Err(error)) => {
            let text = chain(&error);
            let auth = ["NOAUTH", "WRONGPASS", "NOPERM", "AUTH"].iter().any(|word| text.to_uppercase().contains(word));
            let mend = if auth {
                "set DEDUP_REDIS_PASSWORD to what Redis expects"
            } else {
                "check redis.url and the network; the service runs without Redis, only slower"
            };
            vec![Finding::fail(format!("connection: {text}"), mend)]
        }
        Err(_) => vec![Finding::fail(
            "connection: Redis accepts connections and does not answer",
            "see the log of Redis; the service runs without it, only slower",
        )],
    }
}

async fn look_at_redis(settings: &HotSettings) -> redis::RedisResult<Vec<Finding>> {
    let mut info: redis::ConnectionInfo = redis::IntoConnectionInfo::into_connection_info(settings.url.as_str())?;
    if let Some(password) = &settings.password {
        let with_password = info.redis_settings().clone().set_password(password.expose_secret());
        info = info.set_redis_settings(with_password);
    }
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
    let mut connection = redis::Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?;
    let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
    let fact = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("", str::trim);
    let auth = if settings.password.is_some() { "the password is accepted" } else { "no password is asked for" };
    let mut findings = vec![Finding::ok(format!("connection: Redis {}, {auth}", fact("redis_version")))];
    if fact("role") == "slave" {
        findings.push(Finding::fail("primary: this Redis is a replica and takes no writes", "point redis.url at its primary"));
    }
    let (policy, limited) = (fact("maxmemory_policy"), !matches!(fact("maxmemory"), "" | "0"));
    findings.push(if policy == "noeviction" && limited {
        Finding::warn(
            "memory: maxmemory is set with noeviction: once full, nothing new is cached",
            "set maxmemory-policy to allkeys-lru; any record may be evicted",
        )
    } else {
        Finding::ok(format!("memory: {}, {policy}", if limited { fact("maxmemory_human") } else { "no limit" }))
    });
    findings.push(latency(&mut connection, settings.timeout).await?);
    Ok(findings)
}

async fn latency(connection: &mut redis::aio::MultiplexedConnection, budget: Duration) -> redis::RedisResult<Finding> {
    let mut took = Vec::new();
    for _ in 0..9 {
        let asked = Instant::now();
        redis::cmd("PING").query_async::<()>(connection).await?;
        took.push(asked.elapsed());
    }
    took.sort_unstable();
    let median = took[took.len() / 2];
    let what = format!("latency: a PING takes {:.1} ms, timeout_ms is {}", median.as_secs_f64() * 1e3, budget.as_millis());
    let mend = "raise redis.timeout_ms, or bring Redis nearer: an answer that comes too late counts as none";
    Ok(if median * 2 > budget { Finding::warn(what, mend) } else { Finding::ok(what) })
}

async fn within<T>(asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, String> {
    match timeout(PATIENCE, asked).await {
        Ok(done) => done.map_err(|e| chain(&e)),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}
