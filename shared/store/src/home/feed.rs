//! The feed of one home: says whether the home answers, keeps its clock, follows its topics and its forget log.
//!
//! It is also the breaker's one prober: while the home is down nobody else tries, and the tries are spaced by a jittered pause.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Home, Known, LOCAL_ROUND_TRIP, Learnt};
use crate::chain::chain;
use crate::hot::HotTier;
use crate::local::LocalTier;
use crate::postgres::{
    Feed, Identity, Pulse, call_feed_gone, call_feed_seen, call_forgets, call_heartbeat, call_hello, call_pulse, check_home, open_feed,
};
use crate::sabotage;

const PULSE: Duration = Duration::from_secs(1);
const PULSE_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How often a home hears from this process even if nothing was forgotten: well within the 10 s after which it counts as unheard.
const SEEN_AGAIN: Duration = Duration::from_secs(3);
/// Longest the goodbye may keep a stopping process.
const GOODBYE: Duration = Duration::from_millis(500);

/// How long a primary may take to be confirmed: longer than a promoted standby holds back.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
const CONFIRM_PAUSE: Duration = Duration::from_millis(100);
/// Looks at a home's distance, at most, and a round trip after which no other is needed.
const PINGS: usize = 5;
const SURELY_FAR: Duration = Duration::from_millis(20);
const UNCONFIRMED: &str = "no synchronous standby has confirmed this primary of late, so its answers do not count";

/// Who reads the forget logs: this process.
pub struct Reader {
    /// Made anew at each start.
    pub process: Uuid,
    pub instance: String,
    pub region: String,
}

/// What hears of forgets.
pub struct Caches {
    pub local: LocalTier,
    pub hot: Option<HotTier>,
    pub keep_forgets: Duration,
}

pub async fn run(home: Arc<Home>, caches: Caches, reader: Arc<Reader>, stop: CancellationToken) {
    let mut pause = PAUSE_MIN;
    let mut life = Life { feed: None, seen: None, up: false };
    loop {
        let ended = tokio::select! {
            ended = follow(&home, &caches, &reader, &mut life) => ended,
            () = stop.cancelled() => return sign_off(&life, &reader).await,
        };
        // The first break of a feed that worked is looked into at once: one lost connection is no outage.
        if !life.up {
            home.set_down(&ended);
            let jittered = pause.mul_f64(rand::random_range(0.75..1.25));
            tokio::select! {
                () = tokio::time::sleep(jittered) => {}
                () = stop.cancelled() => return,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        } else {
            tracing::info!(home = %home.spec.name, why = %ended, "the feed ended; connecting anew");
            pause = PAUSE_MIN;
        }
        life = Life { feed: None, seen: None, up: false };
    }
}

/// One connection's life.
struct Life {
    feed: Option<Feed>,
    /// What the home was last told of this process's reading, and when.
    seen: Option<((i32, i64), Instant)>,
    /// It worked once.
    up: bool,
}

/// The process ends in good order, and its caches with it: the home need not wait for it any more.
async fn sign_off(life: &Life, reader: &Reader) {
    if let (Some(feed), Some(_)) = (&life.feed, life.seen) {
        let _ = tokio::time::timeout(GOODBYE, call_feed_gone(&feed.client, reader.process)).await;
    }
}

/// Follows over one connection; answers why it ended.
async fn follow(home: &Home, caches: &Caches, reader: &Reader, life: &mut Life) -> String {
    match try_follow(home, caches, reader, life).await {
        Ok(never) => match never {},
        Err(why) => why,
    }
}

async fn try_follow(home: &Home, caches: &Caches, reader: &Reader, life: &mut Life) -> Result<std::convert::Infallible, String> {
    let feed = life.feed.insert(open_feed(&home.settings.target).await.map_err(|e| chain(&e))?);
    let hello = within(call_hello(&feed.client)).await?.ok_or("the database has no dedup schema, or the role may not use it")?;
    let ours = home.secret_id.load_full().map(|id| *id);
    let problems = check_home(&hello, &home.spec.name, &home.spec.region, &home.spec.prefixes, ours, home.settings.allow_weak_durability);
    if !problems.is_empty() {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(texts.join("; "));
    }
    let secret_id = hello.secret_id.as_slice().try_into().map_err(|_| "the home's secret id is not 8 bytes")?;
    let identity = Identity { home_id: hello.home_id, secret_id };
    if home.known.load().as_ref().is_some_and(|k| k.identity != identity || k.epoch != hello.epoch) {
        tracing::warn!(home = %home.spec.name, "the home is not the one it was: what is cached of it counts no more");
        home.lines.drop_all();
        home.forgets.reset();
    }
    within(feed.client.batch_execute("LISTEN dedup_forget /* dedup: feed */")).await?;
    home.known.store(Some(Arc::new(Known { identity, epoch: hello.epoch })));
    until_confirmed(home, feed).await?;
    measure(home, feed).await?;
    let mut topics_seen = pulse(home, feed, caches, None).await?;
    home.set_up();
    life.up = true;
    let mut beat = Instant::now();
    loop {
        tell_seen(home, feed, reader, &mut life.seen).await;
        tokio::select! {
            () = tokio::time::sleep(PULSE) => {}
            heard = feed.notifications.recv() => heard.ok_or("the connection was closed")?,
            () = home.look_now.notified() => {}
        }
        // What it tells is heard first: a forget should not wait for a standby.
        topics_seen = pulse(home, feed, caches, Some(topics_seen)).await?;
        if beat.elapsed() >= PULSE {
            beat = Instant::now();
            if !within(call_heartbeat(&feed.client, || feed.warnings())).await? {
                return Err(UNCONFIRMED.into());
            }
        }
        home.set_up();
    }
}

/// How far the home is: the shortest round trip of this connection. Looked at before there is load on it: were a busy home next door taken for a
/// distant one, calls would no longer be shared, which keeps it busy.
async fn measure(home: &Home, feed: &Feed) -> Result<(), String> {
    let mut shortest = Duration::MAX;
    for _ in 0..PINGS {
        let sent = Instant::now();
        within(feed.client.batch_execute("/* dedup: feed */")).await?;
        shortest = shortest.min(sent.elapsed());
        if shortest <= LOCAL_ROUND_TRIP || shortest > SURELY_FAR {
            break;
        }
    }
    home.round_trip_us.store(micros(shortest), Ordering::Relaxed);
    Ok(())
}

fn micros(took: Duration) -> i64 {
    i64::try_from(took.as_micros()).unwrap_or(i64::MAX).max(1)
}

/// Waits until the primary's standbys stand by it: at once where none are required, some seconds after a promotion.
async fn until_confirmed(home: &Home, feed: &Feed) -> Result<(), String> {
    let began = Instant::now();
    while !within(call_heartbeat(&feed.client, || feed.warnings())).await? {
        // Its answers do not count meanwhile, so callers should hear that at once.
        home.set_down(UNCONFIRMED);
        if began.elapsed() > CONFIRM_TIMEOUT {
            return Err(UNCONFIRMED.into());
        }
        tokio::time::sleep(CONFIRM_PAUSE).await;
    }
    Ok(())
}

/// Tells the home how far its forget log is read here, when that changed and now and then. A failure is no reason to call the home down:
/// at worst it answers a forget with `pending`.
async fn tell_seen(home: &Home, feed: &Feed, reader: &Reader, seen: &mut Option<((i32, i64), Instant)>) {
    let read = home.forgets.read();
    if seen.is_some_and(|(told, at)| told == read && at.elapsed() < SEEN_AGAIN) {
        return;
    }
    match within(call_feed_seen(&feed.client, reader.process, &reader.instance, &reader.region, read)).await {
        Ok(()) => *seen = Some((read, Instant::now())),
        Err(why) => tracing::debug!(home = %home.spec.name, why, "the home was not told how far its forget log is read"),
    }
}

/// Asks how far the home is and catches up. Answers the topics' change counter.
async fn pulse(home: &Home, feed: &Feed, caches: &Caches, topics_seen: Option<i64>) -> Result<i64, String> {
    let sent = Instant::now();
    let Pulse { home_ms, forget_pos, topics_change, segments_change, incarnation, durable } = within(call_pulse(&feed.client)).await?;
    if !durable && !home.settings.allow_weak_durability {
        return Err("the database is no longer durable (fsync, full_page_writes or synchronous_commit was weakened)".into());
    }
    if incarnation == 0 {
        return Err("the database became a standby".into());
    }
    home.round_trip_us.fetch_min(micros(sent.elapsed()), Ordering::Relaxed);
    if !home.learn(&Learnt { home_ms, incarnation, sent }) {
        return Err("an older primary answered".into());
    }
    if topics_seen != Some(topics_change) {
        within(home.follow_topics(&feed.client)).await?;
    }
    if home.segments_change.swap(segments_change, Ordering::AcqRel) != segments_change {
        home.segments_changed.notify_one();
    }
    home.forgets.follow(incarnation);
    let known = home.forgets.position();
    let keep = i64::try_from(caches.keep_forgets.as_millis()).unwrap_or(i64::MAX / 4);
    if forget_pos > known || !home.forgets.is_loaded() {
        let entries = within(call_forgets(&feed.client, known, home_ms - keep)).await?;
        home.forgets.extend(&entries, forget_pos.max(entries.last().map_or(0, |e| e.0)), home_ms, keep);
        if sabotage::is("back-fill-after-forget") {
            return Ok(topics_change);
        }
        for (_, digest) in &entries {
            caches.local.forget(digest);
        }
        if let (Some(hot), false) = (&caches.hot, entries.is_empty()) {
            hot.forget(entries.iter().map(|(_, digest)| *digest).collect()).await;
        }
    }
    Ok(topics_change)
}

async fn within<T, E: std::error::Error>(call: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(PULSE_TIMEOUT, call).await {
        Ok(done) => done.map_err(|e| chain(&e)),
        Err(_) => Err("no reply in time".into()),
    }
}
