//! One home as an instance sees it: its lines, its clock, its topics, its forget log, and whether it answers.

mod batcher;
mod clock;
mod feed;
mod filters;
mod forgets;
mod job;
mod operate;
mod watch;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use dedup_core::{Digest, HomeId, HomeSpec, HomeTable, Secret, Topic, TopicPolicy};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use batcher::{Batcher, Item};
use clock::HomeClock;
use forgets::Forgets;
use job::Job;
pub use watch::{Figures, HomeFigures, SegmentFigures};
use work::{Decide, End, Work};

pub use filters::FilterHealth;
pub(crate) use filters::{FilterSet, Told};

use crate::hot::HotTier;
use crate::local::LocalTier;
use crate::postgres::{CallError, Identity, Line, Lines, PgTarget, TopicRow, call_doubt, call_lookup, call_segments, call_topics};
use crate::{Answer, Ask, Finish, FinishAnswer, Looked, Refusal, RefusalKind, SegmentInfo, StoreMetrics};

/// How to reach one home and how much to ask of it.
#[derive(Clone)]
pub struct HomeSettings {
    /// Where it is.
    pub target: PgTarget,
    /// Connections for calls, at most.
    pub connections: usize,
    /// Questions that may wait, at most; more are refused.
    pub queue_items: usize,
    /// Start even if the home may forget what it acknowledged.
    pub allow_weak_durability: bool,
}

/// Whether a home answers, for people.
#[derive(Debug, Clone)]
pub struct HomeHealth {
    /// Name of the home.
    pub name: String,
    /// It answers.
    pub up: bool,
    /// Why not.
    pub why: Option<String>,
    /// Since when it is as it is.
    pub since: Instant,
    /// Questions waiting or in flight.
    pub queued: usize,
    /// Shortest round trip of the feed's connection, if any was made.
    pub round_trip: Option<Duration>,
    /// Filters loaded, and their bytes.
    pub filters: (usize, u64),
}

/// A topic as one home has it.
#[derive(Debug, Clone)]
pub struct TopicCopy {
    pub(crate) row: Arc<TopicRow>,
    /// Its policy, shared with every question.
    pub policy: Arc<TopicPolicy>,
}

/// Who the home turned out to be.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub identity: Identity,
    pub epoch: i32,
}

/// What a reply tells of the home besides its answers.
pub(crate) struct Learnt {
    pub home_ms: i64,
    pub incarnation: i32,
    pub sent: Instant,
}

#[derive(Debug, Clone)]
struct Status {
    up: bool,
    why: Option<String>,
    since: Instant,
}

pub(crate) struct Home {
    pub spec: HomeSpec,
    settings: HomeSettings,
    /// Ours, where the configuration gives it or the own home told it.
    secret_id: Arc<ArcSwapOption<[u8; 8]>>,
    lines: Lines,
    pub clock: HomeClock,
    pub forgets: Forgets,
    known: ArcSwapOption<Known>,
    incarnation: AtomicI32,
    status: ArcSwap<Status>,
    /// It was up before it was down: when it is up, it is so again, rather than for the first time.
    came_back: AtomicBool,
    topics: ArcSwap<HashMap<Topic, TopicCopy>>,
    topics_loaded: AtomicBool,
    /// Of its sealed segments and archives.
    pub filters: ArcSwap<FilterSet>,
    /// The home's counter of changes of segments; -1: not heard of yet.
    segments_change: AtomicI64,
    segments_changed: Arc<Notify>,
    /// When the latest reading of topics began, and whether it worked. They are read one after another, so that what an older reading saw never
    /// takes the place of what a newer one saw.
    topics_gate: tokio::sync::Mutex<Option<(Instant, bool)>>,
    /// Questions that wait or are in flight.
    queued: AtomicUsize,
    round_trip_us: AtomicI64,
    /// Wakes the feed before its time.
    look_now: Notify,
    metrics: StoreMetrics,
    asks: mpsc::UnboundedSender<Vec<Item<Decide>>>,
    ends: mpsc::UnboundedSender<Vec<Item<End>>>,
}

/// More than this is a remote home: calls are then kept in flight over several connections, since each waits mostly for the network.
const LOCAL_ROUND_TRIP: Duration = Duration::from_millis(2);
/// More calls at once than lines would only split what could share a commit.
const LOCAL_LINES: usize = 2;
const REMOTE_CALLS_MAX: usize = 64;

/// Within this a home that came back gets all its room again.
const OPENING: Duration = Duration::from_secs(1);
/// What it gets at once: some calls' worth.
const OPENING_ROOM_MIN: usize = 1024;

impl Home {
    fn round_trip(&self) -> Option<Duration> {
        u64::try_from(self.round_trip_us.load(Ordering::Relaxed)).ok().filter(|us| *us > 0).map(Duration::from_micros)
    }

    pub fn is_remote(&self) -> bool {
        self.round_trip().is_some_and(|rtt| rtt > LOCAL_ROUND_TRIP)
    }

    fn call_lines(&self) -> usize {
        // The last line is the held keys'.
        let lines = self.settings.connections.saturating_sub(1).max(1);
        if self.is_remote() { lines } else { lines.min(LOCAL_LINES) }
    }

    /// Calls that may be in flight at once.
    fn calls_max(&self) -> usize {
        if self.is_remote() { (self.call_lines() * 16).min(REMOTE_CALLS_MAX) } else { self.call_lines() }
    }

    async fn line(&self, held_lane: bool) -> Result<Arc<Line>, String> {
        let last = self.settings.connections.saturating_sub(1);
        if held_lane { self.lines.line(last, last + 1).await } else { self.lines.line(0, self.call_lines()).await }
    }

    fn identity(&self) -> Option<Arc<Known>> {
        self.known.load_full()
    }

    /// Why nothing is to be asked right now.
    pub fn refusal(&self) -> Option<Refusal> {
        (!self.status.load().up).then(|| Refusal::not_applied(RefusalKind::HomeUnavailable))
    }

    fn set_up(&self) {
        if !self.status.load().up {
            tracing::info!(home = %self.spec.name, "home is up");
            self.status.store(Arc::new(Status { up: true, why: None, since: Instant::now() }));
        }
    }

    /// Questions that may wait. A home that has just come back is not met by all who waited for it at once: the room opens within a second.
    fn room(&self) -> usize {
        let all = self.settings.queue_items;
        let opened = self.status.load().since.elapsed();
        if opened >= OPENING || !self.came_back.load(Ordering::Relaxed) {
            return all;
        }
        let share = usize::try_from(opened.as_millis() * all as u128 / OPENING.as_millis()).unwrap_or(all);
        share.max(OPENING_ROOM_MIN).min(all)
    }

    fn set_down(&self, why: &str) {
        let old = self.status.load();
        if old.up || old.why.as_deref() != Some(why) {
            tracing::warn!(home = %self.spec.name, why, "home is down");
            if old.up {
                self.came_back.store(true, Ordering::Relaxed);
            }
            let since = if old.up { Instant::now() } else { old.since };
            self.status.store(Arc::new(Status { up: false, why: Some(why.to_owned()), since }));
        }
    }

    /// A line could not be opened: the feed looks at once, and it alone says whether the home is down.
    fn cannot_connect(&self, why: &str) {
        tracing::debug!(home = %self.spec.name, why, "no connection to the home");
        self.look_now.notify_one();
    }

    fn not_this_home(&self, status: &str) {
        self.lines.drop_all();
        self.set_down(&format!("another home answered ({status})"));
        self.look_now.notify_one();
    }

    /// Takes what a reply tells of the home. `false`: a lower incarnation than one seen before, so an old primary that was not told of its
    /// end; nothing it says counts.
    #[must_use]
    fn learn(&self, learnt: &Learnt) -> bool {
        let old = self.incarnation.fetch_max(learnt.incarnation, Ordering::AcqRel);
        if learnt.incarnation < old {
            self.not_this_home("an older primary answered");
            return false;
        }
        self.clock.learn(learnt.home_ms, learnt.sent);
        if old != 0 && old != learnt.incarnation {
            let new = learnt.incarnation;
            tracing::warn!(home = %self.spec.name, old, new, "the home was promoted or its epoch raised: what is cached of it counts no more");
        }
        true
    }

    /// Identity and incarnation that a cached value must carry to be believed.
    pub fn cache_identity(&self) -> Option<(Uuid, i32)> {
        let incarnation = self.incarnation.load(Ordering::Acquire);
        self.known.load().as_ref().filter(|_| incarnation > 0).map(|k| (k.identity.home_id, incarnation))
    }

    pub fn topic(&self, topic: &Topic) -> Option<TopicCopy> {
        self.topics.load().get(topic).cloned()
    }

    pub fn topics(&self) -> Arc<HashMap<Topic, TopicCopy>> {
        self.topics.load_full()
    }

    pub fn health(&self) -> HomeHealth {
        let status = self.status.load();
        HomeHealth {
            name: self.spec.name.clone(),
            up: status.up,
            why: status.why.clone(),
            since: status.since,
            queued: self.queued.load(Ordering::Relaxed),
            round_trip: self.round_trip(),
            filters: self.filters.load().size(),
        }
    }

    fn set_topics(&self, rows: Vec<TopicRow>) {
        let copies = rows
            .into_iter()
            .map(|row| (row.policy.topic.clone(), TopicCopy { policy: Arc::new(row.policy.clone()), row: Arc::new(row) }))
            .collect();
        self.topics.store(Arc::new(copies));
        self.topics_loaded.store(true, Ordering::Release);
    }

    /// Whether the topics known here were read at `asked` or later; reads them if not. Many may ask at once: one reads for all, and reads are
    /// spaced, so that asking for unknown names does not become load.
    pub async fn topics_as_of(&self, asked: Instant) -> bool {
        const SPACING: Duration = Duration::from_millis(20);
        let mut latest = self.topics_gate.lock().await;
        if let Some((begun, worked)) = *latest {
            if begun >= asked {
                return worked;
            }
            tokio::time::sleep_until((begun + SPACING).into()).await;
        }
        let begun = Instant::now();
        let worked = self.reload_topics().await;
        *latest = Some((begun, worked));
        worked
    }

    async fn reload_topics(&self) -> bool {
        let Ok(line) = self.line(false).await else { return false };
        let rows = tokio::time::timeout(Duration::from_secs(2), call_topics(&***line.client())).await;
        let rows = rows.ok().and_then(Result::ok);
        self.lines.done(&line, rows.is_some());
        rows.map(|rows| self.set_topics(rows)).is_some()
    }

    /// Reads the topics over the feed's own connection.
    async fn follow_topics(&self, client: &tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
        let mut latest = self.topics_gate.lock().await;
        let begun = Instant::now();
        self.set_topics(call_topics(client).await?);
        *latest = Some((begun, true));
        Ok(())
    }

    /// Whether the topics were ever read.
    pub fn topics_loaded(&self) -> bool {
        self.topics_loaded.load(Ordering::Acquire)
    }

    /// A commit came back with a warning: a wait for standbys was cancelled, so what all can see now may be on no standby. Until one has it,
    /// nothing the home says counts, to whomever it says it.
    async fn doubt(&self, client: &deadpool_postgres::Client) {
        let told = tokio::time::timeout(Duration::from_secs(1), call_doubt(client)).await;
        if !matches!(told, Ok(Ok(()))) {
            tracing::warn!(home = %self.spec.name, "a wait for standbys was cancelled, and the home could not be told to doubt itself");
        }
        self.set_down("a wait for its standbys was cancelled; its answers count again once a standby has caught up");
        self.look_now.notify_one();
    }

    /// One call outside the batcher, with its own deadline.
    pub async fn direct<T, F>(&self, deadline: Instant, call: F) -> Result<T, Refusal>
    where
        F: AsyncFnOnce(&deadpool_postgres::Client, &Identity) -> Result<T, CallError>,
    {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let (Some(known), Ok(line)) = (self.identity(), self.line(false).await) else {
            return Err(Refusal::not_applied(RefusalKind::HomeUnavailable));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let warnings = self.lines.warnings();
        let done = tokio::time::timeout(left, call(line.client(), &known.identity))
            .await
            .unwrap_or_else(|_| Err(CallError::Unknown("no reply in time".into())));
        let done = match done {
            Ok(_) if self.lines.warnings() != warnings => {
                self.doubt(line.client()).await;
                Err(CallError::Unknown("the server warned during the commit".into()))
            }
            other => other,
        };
        self.lines.done(&line, done.is_ok());
        done.map_err(|error| {
            tracing::warn!(home = %self.spec.name, error = %error, "a call to the home failed");
            match error {
                CallError::Unknown(_) => Refusal::unknown(),
                CallError::NotApplied { again: true, .. } => Refusal::not_applied(RefusalKind::KeyBusy),
                CallError::NotApplied { .. } => Refusal::not_applied(RefusalKind::StoreUnavailable),
                CallError::NotSent(_) | CallError::WrongNode => Refusal::not_applied(RefusalKind::HomeUnavailable),
            }
        })
    }

    /// Segments and archives, for people.
    pub async fn segments(&self, deadline: Instant) -> Result<Vec<SegmentInfo>, Refusal> {
        self.direct(deadline, async |client, _| call_segments(client).await).await
    }

    /// Reads one record.
    pub async fn lookup(&self, digest: Digest, deadline: Instant) -> Result<Looked, Refusal> {
        let sent = Instant::now();
        let called = self.direct(deadline, async |client, who| call_lookup(client, who, digest).await).await?;
        if !self.learn(&Learnt { home_ms: called.home_ms, incarnation: called.incarnation, sent }) {
            return Err(Refusal::not_applied(RefusalKind::HomeUnavailable));
        }
        called.answers.ok_or_else(|| {
            self.not_this_home(&called.status);
            Refusal::not_applied(RefusalKind::HomeUnavailable)
        })
    }

    async fn ask<W: Work>(
        &self,
        asks: Vec<W::Ask>,
        deadline: Instant,
        to: impl Fn(Vec<Item<W>>) -> bool,
    ) -> Vec<Result<W::Answer, Refusal>> {
        let n = asks.len();
        let refuse = |refusal: Refusal| (0..n).map(|_| Err(refusal)).collect();
        if let Some(refusal) = self.refusal() {
            return refuse(refusal);
        }
        if self.queued.fetch_add(n, Ordering::Relaxed) + n > self.room() {
            self.queued.fetch_sub(n, Ordering::Relaxed);
            return refuse(Refusal::not_applied(RefusalKind::Overloaded));
        }
        let (job, all) = Job::new(n, deadline);
        let items = asks.into_iter().enumerate().map(|(i, ask)| Item::new(ask, Arc::clone(&job), i)).collect();
        if !to(items) {
            self.queued.fetch_sub(n, Ordering::Relaxed);
            return refuse(Refusal::not_applied(RefusalKind::HomeUnavailable));
        }
        let _ = tokio::time::timeout_at(deadline.into(), all).await;
        job.take(if self.refusal().is_some() { RefusalKind::HomeUnavailable } else { RefusalKind::Overloaded })
    }

    /// Checks and claims; answers in the order asked.
    pub async fn decide(&self, asks: Vec<Ask>, deadline: Instant) -> Vec<Result<Answer, Refusal>> {
        self.ask::<Decide>(asks, deadline, |items| self.asks.send(items).is_ok()).await
    }

    /// Completions, releases, extensions; answers in the order asked.
    pub async fn finish(&self, asks: Vec<Finish>, deadline: Instant) -> Vec<Result<FinishAnswer, Refusal>> {
        self.ask::<End>(asks, deadline, |items| self.ends.send(items).is_ok()).await
    }
}

/// What the homes work with besides themselves.
pub struct Around {
    /// Region this process serves: homes are told who reads their forget logs.
    pub region: String,
    /// Name of this process.
    pub instance: String,
    /// Told of forgotten keys.
    pub local: LocalTier,
    /// Told of forgotten keys.
    pub hot: Option<HotTier>,
    /// How long a forget is remembered: at least as long as any cached value lives.
    pub keep_forgets: Duration,
    /// Memory for filters of all homes, bytes; 0: none are loaded.
    pub filter_bytes: u64,
    /// Counts.
    pub metrics: StoreMetrics,
    /// Ends everything.
    pub stop: CancellationToken,
}

/// All homes, started.
#[derive(Clone)]
pub struct Homes {
    homes: Arc<[Arc<Home>]>,
    table: Arc<HomeTable>,
    feeds: TaskTracker,
}

impl Homes {
    /// Starts a feed and two batchers for each home, on the current tokio runtime. `settings` in the order of the table.
    pub fn start(table: Arc<HomeTable>, settings: Vec<HomeSettings>, secret: &Secret, around: &Around) -> Self {
        let Around { region, instance, local, hot, keep_forgets, filter_bytes, metrics, stop } = around;
        let feeds = TaskTracker::new();
        let reader = Arc::new(feed::Reader { process: Uuid::new_v4(), instance: instance.clone(), region: region.clone() });
        let secret_id: Arc<ArcSwapOption<[u8; 8]>> = Arc::new(ArcSwapOption::from_pointee(secret.id()));
        let segments_changed = Arc::new(Notify::new());
        let start = |((_, spec), settings): ((HomeId, &HomeSpec), HomeSettings)| {
            let (asks, asked) = mpsc::unbounded_channel();
            let (ends, ended) = mpsc::unbounded_channel();
            let home = Arc::new(Home {
                spec: spec.clone(),
                secret_id: Arc::clone(&secret_id),
                lines: Lines::new(&settings.target, settings.connections),
                settings,
                clock: HomeClock::new(),
                forgets: Forgets::new(),
                known: ArcSwapOption::empty(),
                incarnation: AtomicI32::new(0),
                status: ArcSwap::from_pointee(Status { up: false, why: Some("not connected yet".into()), since: Instant::now() }),
                came_back: AtomicBool::new(false),
                topics: ArcSwap::default(),
                topics_loaded: AtomicBool::new(false),
                filters: ArcSwap::default(),
                segments_change: AtomicI64::new(-1),
                segments_changed: Arc::clone(&segments_changed),
                topics_gate: tokio::sync::Mutex::new(None),
                queued: AtomicUsize::new(0),
                round_trip_us: AtomicI64::new(0),
                look_now: Notify::new(),
                metrics: metrics.clone(),
                asks,
                ends,
            });
            tokio::spawn(Batcher::<Decide>::run(Arc::clone(&home), asked));
            tokio::spawn(Batcher::<End>::run(Arc::clone(&home), ended));
            let caches = feed::Caches { local: local.clone(), hot: hot.clone(), keep_forgets: *keep_forgets };
            feeds.spawn(feed::run(Arc::clone(&home), caches, Arc::clone(&reader), stop.clone()));
            home
        };
        let homes: Arc<[Arc<Home>]> = table.iter().zip(settings).map(start).collect();
        tokio::spawn(filters::run(homes.to_vec(), region.clone(), *filter_bytes, segments_changed, stop.clone()));
        feeds.close();
        Self { homes, table, feeds }
    }

    pub(crate) fn get(&self, id: HomeId) -> &Arc<Home> {
        &self.homes[usize::from(id.0)]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Home>> {
        self.homes.iter()
    }

    /// After the stop: waits until the homes were told that this process and its caches end, at most `within`.
    pub async fn signed_off(&self, within: Duration) {
        let _ = tokio::time::timeout(within, self.feeds.wait()).await;
    }

    /// The table they were started from.
    pub fn table(&self) -> &Arc<HomeTable> {
        &self.table
    }

    /// Segments and archives of each, with whether the filter is loaded here.
    pub async fn segments(&self, deadline: Instant) -> Vec<(String, Result<Vec<(SegmentInfo, bool)>, Refusal>)> {
        let asked = self.homes.iter().map(|home| async move {
            let found = home.segments(deadline).await;
            let loaded = home.filters.load();
            let told = |found: Vec<SegmentInfo>| {
                found.into_iter().map(|s| (s.filter_id.is_some_and(|id| loaded.has(id)), s)).map(|(has, s)| (s, has)).collect()
            };
            (home.spec.name.clone(), found.map(told))
        });
        futures_util::future::join_all(asked).await
    }

    /// The loaded filters of each home, by its name.
    pub fn filters(&self) -> Vec<(String, FilterHealth)> {
        self.homes.iter().map(|h| (h.spec.name.clone(), h.filters.load().health())).collect()
    }

    /// Health of each, in the order of the table.
    pub fn health(&self) -> Vec<HomeHealth> {
        self.homes.iter().map(|h| h.health()).collect()
    }
}
