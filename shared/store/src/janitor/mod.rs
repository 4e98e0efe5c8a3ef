//! The life of a home's segments: made ahead, rotated, filtered, frozen, archived, merged, dropped.
//!
//! Architecture invariant: all statements of a janitor run on the one connection that holds the leader lock, so a janitor that lost the
//! lead can change nothing. Each step is one transaction, or is repeated until it is done; a kill at any point leaves either the old state
//! or the new one. Nothing here decides a verdict: the state of a segment or archive alone says where the home looks.

mod archive;
mod export;
mod filter;
mod freeze;
mod import;
mod jobs;
mod merge;
mod pace;
mod source;
mod sweep;

use std::time::{Duration, Instant};

pub use export::{ExportScope, Exported, ExportedId, ExportedRecord, KeptKey};
pub use import::{HomeTopic, Import, ImportRow, Loaded};

use dedup_core::{BlockError, FilterError};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::postgres::{ConnectError, PgTarget, SCHEMA_VERSION, connect_once};

/// What a janitor is told.
#[derive(Debug, Clone)]
pub struct JanitorSettings {
    /// Age at which a segment is rotated, ms; windows' ends in the archive are rounded up to it.
    pub segment_ms: i64,
    /// Rows at which it is rotated before that (estimated from its size).
    pub segment_rows: i64,
    /// Segments made ahead.
    pub ahead: i64,
    /// How long after it was sealed a segment stays warm, ms.
    pub warm_ms: i64,
    /// False positives of filters.
    pub filter_fpr: f64,
    /// Memory for a filter under construction, bytes; a larger one is built in several passes.
    pub filter_build_bytes: u64,
    /// How long after its last window's end an archive is kept, ms.
    pub drop_margin_ms: i64,
    /// Between two attempts to change the layout.
    pub layout_pause: Duration,
    /// How long nothing is archived, merged or dropped after the home's clock was seen to step.
    pub clock_hold: Duration,
}

/// Why a janitor could not go on. What was begun is rolled back; the next round starts over.
#[derive(Debug, thiserror::Error)]
pub enum JanitorError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A statement failed.
    #[error("a statement failed")]
    Postgres(#[from] tokio_postgres::Error),
    /// Not the home that the configuration names.
    #[error("{0}")]
    NotThisHome(String),
    /// A block that was read is not what was written.
    #[error("archive {archive}: a block cannot be read")]
    Block {
        /// Of which archive.
        archive: i32,
        /// Why.
        #[source]
        source: BlockError,
    },
    /// A filter that was read back is not what was written.
    #[error("a filter that was just written cannot be read")]
    Filter(#[from] FilterError),
    /// What was built does not hold what it was built of.
    #[error("verification failed: {0}")]
    Verification(String),
    /// Whoever takes what is exported does not want more.
    #[error("what is exported cannot be written")]
    Taker(#[source] std::io::Error),
}

/// What a round did, for people.
#[derive(Debug, Default)]
pub struct Round {
    /// One line each.
    pub deeds: Vec<String>,
    /// A change of layout had to wait for somebody's open transaction.
    pub postponed: bool,
}

/// The janitor of one home, connected.
pub struct Janitor {
    client: Client,
    settings: JanitorSettings,
    home_id: Uuid,
    secret_id: [u8; 8],
    last_attempt: Option<Instant>,
    /// Home time of the round before, and when that was by our own clock.
    clock: Option<(i64, Instant)>,
    held_until: Option<Instant>,
    reached: fn(&'static str),
}

impl Janitor {
    /// Connects and checks that this is the home `name` of `region`. `reached` is told of each named point on the way; tests kill there.
    ///
    /// # Errors
    /// No connection, or another home.
    pub async fn connect(
        target: &PgTarget,
        name: &str,
        region: &str,
        settings: JanitorSettings,
        reached: fn(&'static str),
    ) -> Result<Self, JanitorError> {
        let client = connect_once(target).await?;
        let row = client
            .query_one("SELECT home_id, name, region, secret_id, schema, in_recovery FROM dedup.home_v1() /* dedup: janitor */", &[])
            .await?;
        let (found, found_region): (String, String) = (row.try_get("name")?, row.try_get("region")?);
        if found != name || found_region != region {
            return Err(JanitorError::NotThisHome(format!("the database is the home {found:?} of region {found_region:?}, not {name:?}")));
        }
        let schema: i32 = row.try_get("schema")?;
        if schema < SCHEMA_VERSION {
            return Err(JanitorError::NotThisHome(format!(
                "the database offers schema {schema}, this program needs {SCHEMA_VERSION}: run `dedup migrate`"
            )));
        }
        if row.try_get("in_recovery")? {
            return Err(JanitorError::NotThisHome("the database is a standby".into()));
        }
        // What it asks goes over whole segments; one process of the home at a time is enough for that.
        client.batch_execute("SET max_parallel_workers_per_gather = 0 /* dedup: janitor */").await?;
        let secret_id: Vec<u8> = row.try_get("secret_id")?;
        let secret_id = secret_id.try_into().map_err(|_| JanitorError::NotThisHome("the home's secret id is not 8 bytes".into()))?;
        Ok(Self {
            client,
            settings,
            home_id: row.try_get("home_id")?,
            secret_id,
            last_attempt: None,
            clock: None,
            held_until: None,
            reached,
        })
    }

    /// Whether this janitor leads, or does now. Several may run; the others wait.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn lead(&self) -> Result<bool, JanitorError> {
        Ok(self.client.query_one("SELECT pg_try_advisory_lock(1684366453, 4) /* dedup: janitor's lead */", &[]).await?.get(0))
    }

    /// Names the secret that the home's digests are made with.
    pub fn secret_id(&self) -> [u8; 8] {
        self.secret_id
    }

    /// Gives the lead up and waits until that is so.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn resign(&self) -> Result<(), JanitorError> {
        self.client.execute("SELECT pg_advisory_unlock(1684366453, 4) /* dedup: janitor's lead */", &[]).await?;
        Ok(())
    }

    /// Does all that is due.
    ///
    /// # Errors
    /// The first failure; what was done before stays done.
    pub async fn round(&mut self) -> Result<Round, JanitorError> {
        let mut round = Round::default();
        if self.clock_is_doubted(&mut round).await? {
            self.prepare(&mut round).await?;
            return Ok(round);
        }
        self.detach_pending(&mut round).await?;
        self.prepare(&mut round).await?;
        self.rotate(&mut round).await?;
        self.build_filters(&mut round).await?;
        self.freeze(&mut round).await?;
        self.archive_frozen(&mut round).await?;
        self.merge(&mut round).await?;
        self.expire(&mut round).await?;
        self.jobs(&mut round).await?;
        self.sweep(&mut round).await?;
        Ok(round)
    }

    /// What a round would do now, without doing any of it.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn plan(&self) -> Result<Vec<String>, JanitorError> {
        let mut plan = Vec::new();
        let missing = self.missing_ahead().await?;
        if missing > 0 {
            plan.push(format!("make {missing} segments ahead"));
        }
        if let Some((segment, why)) = self.rotation_due().await? {
            plan.push(format!("rotate segment {segment}: {why}"));
        }
        plan.extend(self.unfiltered().await?.into_iter().map(|s| format!("build the filter of segment {s}")));
        if let Some(segment) = self.freeze_due().await? {
            plan.push(format!("carry what is open out of segment {segment}, freeze it, archive the rest"));
        }
        plan.extend(self.frozen().await?.map(|s| format!("archive segment {s}")));
        if let Some(inputs) = self.merge_due().await? {
            plan.push(format!("merge the archives {inputs:?}"));
        }
        plan.extend(self.past_archives().await?.into_iter().map(|a| format!("drop archive {a}, whose last window has ended")));
        plan.extend(self.leftover_partitions().await?.into_iter().map(|s| format!("detach and drop the tables of segment {s}")));
        let unfinished =
            "SELECT archive_id, state FROM dedup.archives WHERE state IN ('built', 'dead') ORDER BY 1 /* dedup: unfinished archives */";
        for row in &self.client.query(unfinished, &[]).await? {
            let (archive, state): (i32, String) = (row.get(0), row.get(1));
            plan.push(format!("{} archive {archive}", if state == "built" { "publish" } else { "remove what is left of" }));
        }
        Ok(plan)
    }

    async fn now_ms(&self) -> Result<i64, JanitorError> {
        Ok(self.client.query_one("SELECT dedup.now_ms() /* dedup: janitor */", &[]).await?.get(0))
    }

    /// Whether the home's clock stepped of late. What a clock that runs ahead takes for past is gone for good, so people get the time to see it.
    async fn clock_is_doubted(&mut self, round: &mut Round) -> Result<bool, JanitorError> {
        const STEP_MS: i64 = 5_000;
        let (home_ms, now) = (self.now_ms().await?, Instant::now());
        if let Some((before_ms, then)) = self.clock.replace((home_ms, now)) {
            let step = home_ms - before_ms - i64::try_from((now - then).as_millis()).unwrap_or(i64::MAX);
            if step.abs() > STEP_MS && !self.settings.clock_hold.is_zero() {
                self.held_until = Some(now + self.settings.clock_hold);
                round.deeds.push(format!("the home's clock stepped by {step} ms: nothing is changed for {:?}", self.settings.clock_hold));
            }
        }
        Ok(self.held_until.is_some_and(|until| now < until))
    }

    /// Attempts to change the layout are spaced, so that claims, which may have to wait for each, wait seldom.
    async fn space_attempts(&mut self) {
        if let Some(last) = self.last_attempt {
            tokio::time::sleep_until((last + self.settings.layout_pause).into()).await;
        }
    }

    /// One attempt to change the layout; its word for how it went.
    async fn change_layout(
        &mut self,
        sql: &str,
        params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
        round: &mut Round,
    ) -> Result<String, JanitorError> {
        self.space_attempts().await;
        let done: String = self.client.query_one(sql, params).await?.get(0);
        self.last_attempt = Some(Instant::now());
        if matches!(done.as_str(), "held" | "busy") {
            round.postponed = true;
        }
        Ok(done)
    }

    async fn missing_ahead(&self) -> Result<i64, JanitorError> {
        let ready: i64 = self
            .client
            .query_one("SELECT count(*) FROM dedup.segments WHERE state = 'prepared' /* dedup: segments ahead */", &[])
            .await?
            .get(0);
        Ok(self.settings.ahead - ready)
    }

    async fn prepare(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        for _ in 0..self.missing_ahead().await? {
            let id: i32 = self.client.query_one("SELECT dedup.prepare_segment_v1() /* dedup: prepare */", &[]).await?.get(0);
            (self.reached)("prepare.done");
            round.deeds.push(format!("made segment {id} ahead"));
        }
        Ok(())
    }

    /// The open segment, if it is old or large enough, and why. An empty one is left open while times in it are exact.
    async fn rotation_due(&self) -> Result<Option<(i32, &'static str)>, JanitorError> {
        const EMPTY_MS: i64 = 10 * 86_400_000;
        let row = self
            .client
            .query_one(
                "SELECT s.segment_id, dedup.now_ms() - s.opened_at_ms, pg_relation_size(to_regclass('dedup.claims_s' || s.segment_id)) \
                 FROM dedup.layout l JOIN dedup.segments s ON s.segment_id = l.current_segment /* dedup: rotation due */",
                &[],
            )
            .await?;
        let (segment, age_ms, bytes): (i32, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let rows = bytes / 8192 * 97;
        Ok(if rows >= self.settings.segment_rows {
            Some((segment, "large enough"))
        } else if age_ms >= self.settings.segment_ms && (bytes > 0 || age_ms >= EMPTY_MS) {
            Some((segment, "old enough"))
        } else {
            None
        })
    }

    async fn rotate(&mut self, round: &mut Round) -> Result<(), JanitorError> {
        let Some((segment, why)) = self.rotation_due().await? else { return Ok(()) };
        let done = self.change_layout("SELECT dedup.rotate_v1() /* dedup: rotate */", &[], round).await?;
        (self.reached)("rotate.done");
        round.deeds.push(format!("rotation of segment {segment} ({why}): {done}"));
        Ok(())
    }
}
