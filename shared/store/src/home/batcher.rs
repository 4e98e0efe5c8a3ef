//! Group commit without a timer.
//!
//! Whoever waits while earlier calls are in flight goes into the next one: idle, a single claim leaves at once; busy, hundreds of keys
//! share one commit. In one call, and among the calls in flight, there is at most one question per digest; an equal one that waited gets
//! its own verdict from the facts, or goes into a later call. A question that arrives when its digest is in flight waits for that call to
//! end and then asks anew: an answer read before it was asked could be out of date. If that answer was "in progress",
//! the digest rests a moment first, so that a crowd around one open claim costs the home a bounded number of looks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dedup_core::Digest;
use tokio::sync::mpsc;
use tracing::Instrument;

use super::job::Job;
use super::work::{Reply, Work};
use super::{Home, Learnt};
use crate::local::DigestBuild;
use crate::postgres::{CallError, Called, Line};
use crate::trace::Traced;
use crate::{Applied, Refusal, RefusalKind, sabotage};

/// Keys of one call, so of one transaction.
pub const KEYS_A_CALL: usize = 512;
/// Keys that are worth a call of their own beside one in flight to a local home: the one computes while the other waits for the disk.
const PARALLEL_FROM: usize = 64;
/// A local call that takes longer, and twice as long as calls do of late, is waiting for something (a held key, the disk), and others should
/// not wait with it.
const PATIENCE: Duration = Duration::from_millis(20);
const PATIENCE_MAX: Duration = Duration::from_millis(200);
/// Between two looks at a key that is in progress: at most 50 a second, however many ask.
const REST: Duration = Duration::from_millis(20);
/// Held keys asked for in one call while some still are: each may cost the home a few milliseconds of waiting.
const HELD_A_CALL: usize = 64;
const HELD_PAUSE: Duration = Duration::from_millis(25);
/// A held key is not asked for again this close to its caller's deadline, so that "busy" stays the answer rather than "unknown".
const HELD_MARGIN: Duration = Duration::from_millis(100);
/// Beyond the caller's deadline: long enough for a late reply to be told from a lost one, short enough to free the line.
const CALL_GRACE: Duration = Duration::from_millis(500);
/// Conflicts that a repetition settles (40001, 40P01) are repeated this often.
const AGAIN_MAX: u8 = 3;

/// One question on its way.
pub struct Item<W: Work> {
    pub ask: W::Ask,
    pub job: Arc<Job<W::Answer>>,
    pub index: usize,
    /// An earlier attempt may have reached the home.
    maybe: bool,
    again: u8,
}

impl<W: Work> Item<W> {
    pub fn new(ask: W::Ask, job: Arc<Job<W::Answer>>, index: usize) -> Self {
        Self { ask, job, index, maybe: false, again: 0 }
    }

    fn answer(self, home: &Home, answer: Result<W::Answer, Refusal>) {
        // "Nothing was changed" cannot be said where an earlier attempt may have been what changed it: a release, and the key claimed since.
        let answer = answer.and_then(|answer| if self.maybe && W::is_void(&answer) { Err(Refusal::unknown()) } else { Ok(answer) });
        let answer = answer.map_err(|refusal| if self.maybe { Refusal::unknown() } else { refusal });
        if let Ok(answer) = &answer {
            W::count(answer, &home.metrics);
        }
        self.job.answer(self.index, answer);
        home.queued.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A leader with the equal questions that waited behind it.
struct Entry<W: Work> {
    leader: Item<W>,
    followers: Vec<Item<W>>,
}

/// What a call left to do.
struct Left<W: Work> {
    /// To be asked again, before all others.
    again: Vec<Item<W>>,
    /// Found held.
    held: Vec<Item<W>>,
    /// Found in progress.
    open: Vec<Digest>,
}

struct CallEnd<W: Work> {
    digests: Vec<Digest>,
    left: Left<W>,
    was_held_lane: bool,
    took: Duration,
}

pub struct Batcher<W: Work> {
    home: Arc<Home>,
    queue: VecDeque<Item<W>>,
    parked: HashMap<Digest, Vec<Item<W>>, DigestBuild>,
    in_flight: HashSet<Digest, DigestBuild>,
    held: VecDeque<Item<W>>,
    held_digests: HashMap<Digest, usize, DigestBuild>,
    /// In progress a moment ago, with those who wait for the next look.
    resting: HashMap<Digest, Vec<Item<W>>, DigestBuild>,
    /// When each may be looked at again, earliest first.
    wakes: VecDeque<(Instant, Digest)>,
    calls: usize,
    last_start: Instant,
    /// How long calls take of late.
    typical: Duration,
    held_call: bool,
    /// The last call for held keys found none held any more.
    held_clear: bool,
    ended: mpsc::UnboundedSender<CallEnd<W>>,
}

impl<W: Work> Batcher<W> {
    /// Runs until every sender of `asked` is gone and nothing is left.
    pub async fn run(home: Arc<Home>, mut asked: mpsc::UnboundedReceiver<Vec<Item<W>>>) {
        let (ended, mut ends) = mpsc::unbounded_channel();
        let mut this = Self {
            home,
            queue: VecDeque::new(),
            parked: HashMap::default(),
            in_flight: HashSet::default(),
            held: VecDeque::new(),
            held_digests: HashMap::default(),
            resting: HashMap::default(),
            wakes: VecDeque::new(),
            calls: 0,
            last_start: Instant::now(),
            typical: Duration::ZERO,
            held_call: false,
            held_clear: false,
            ended,
        };
        let mut open = true;
        loop {
            let held_waits = !this.held.is_empty() && !this.held_call;
            let held_pause = if this.held_clear { Duration::ZERO } else { HELD_PAUSE };
            let wake = this.next_wake();
            tokio::select! {
                items = asked.recv(), if open => match items {
                    Some(items) => this.enqueue(items),
                    None => open = false,
                },
                Some(end) = ends.recv() => this.settle(end),
                () = tokio::time::sleep(held_pause), if held_waits => this.send_held(),
                () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now).into()), if wake.is_some() => this.wake(),
            }
            while let Ok(items) = asked.try_recv() {
                this.enqueue(items);
            }
            while let Ok(end) = ends.try_recv() {
                this.settle(end);
            }
            this.send();
            if !open && this.calls == 0 && !this.held_call && this.queue.is_empty() && this.held.is_empty() && this.resting.is_empty() {
                return;
            }
        }
    }

    fn enqueue(&mut self, items: Vec<Item<W>>) {
        if let Some(refusal) = self.home.refusal() {
            items.into_iter().for_each(|item| item.answer(&self.home, Err(refusal)));
        } else {
            self.queue.extend(items);
        }
    }

    /// Sends calls while the home may have more of them in flight.
    fn send(&mut self) {
        while self.calls < self.home.calls_max() && !self.queue.is_empty() && self.worth_another() {
            let entries = self.next_entries();
            if entries.is_empty() {
                return;
            }
            self.calls += 1;
            self.last_start = Instant::now();
            self.start(entries, false);
        }
    }

    /// Whether what waits should go out beside calls in flight, rather than share the next call. A call has a fixed price (some hundred
    /// microseconds of the home's time, a commit), so beside another one only a large part is worth it; or anything, if that one is slow.
    fn worth_another(&self) -> bool {
        self.calls == 0 || self.home.is_remote() || self.queue.len() >= PARALLEL_FROM || self.last_start.elapsed() > self.patience()
    }

    fn patience(&self) -> Duration {
        (self.typical * 2).clamp(PATIENCE, PATIENCE_MAX)
    }

    /// When something is to be done even if nothing happens before.
    fn next_wake(&self) -> Option<Instant> {
        let rested = self.wakes.front().map(|(at, _)| *at);
        let impatient = (!self.queue.is_empty() && (1..self.home.calls_max()).contains(&self.calls))
            .then(|| self.last_start + self.patience() + Duration::from_millis(1));
        rested.into_iter().chain(impatient).min()
    }

    /// Those who waited out a rest go first: they have waited longest.
    fn wake(&mut self) {
        let now = Instant::now();
        while let Some((_, digest)) = self.wakes.front().copied().filter(|(at, _)| *at <= now) {
            self.wakes.pop_front();
            for item in self.resting.remove(&digest).into_iter().flatten().rev() {
                self.queue.push_front(item);
            }
        }
    }

    /// Takes from the queue what can go into one call.
    fn next_entries(&mut self) -> Vec<Entry<W>> {
        let mut entries: Vec<Entry<W>> = Vec::with_capacity(self.queue.len().min(KEYS_A_CALL));
        let mut at: HashMap<Digest, usize, DigestBuild> = HashMap::with_capacity_and_hasher(entries.capacity(), DigestBuild::default());
        let mut kind = None;
        let mut later = VecDeque::new();
        while entries.len() < KEYS_A_CALL {
            let Some(item) = self.queue.pop_front() else { break };
            let digest = W::digest(&item.ask);
            if let Some(i) = at.get(&digest) {
                entries[*i].followers.push(item);
            } else if self.in_flight.contains(&digest) {
                self.parked.entry(digest).or_default().push(item);
            } else if let Some(waiting) = self.resting.get_mut(&digest) {
                waiting.push(item);
            } else if self.held_digests.contains_key(&digest) {
                self.hold(item);
            } else if *kind.get_or_insert(W::kind(&item.ask)) != W::kind(&item.ask) {
                later.push_back(item);
            } else if item.job.is_abandoned() {
                // Its caller has its answer by deadline; nothing may be sent any more.
                self.home.queued.fetch_sub(1, Ordering::Relaxed);
            } else {
                at.insert(digest, entries.len());
                entries.push(Entry { leader: item, followers: Vec::new() });
            }
        }
        later.append(&mut self.queue);
        self.queue = later;
        entries
    }

    fn hold(&mut self, item: Item<W>) {
        self.home.metrics.held(&self.home.spec.name);
        item.job.not_applied(item.index, item.maybe, true);
        *self.held_digests.entry(W::digest(&item.ask)).or_default() += 1;
        self.held.push_back(item);
    }

    fn unhold(&mut self, digest: &Digest) {
        if let Some(count) = self.held_digests.get_mut(digest) {
            *count -= 1;
            if *count == 0 {
                self.held_digests.remove(digest);
            }
        }
    }

    /// Held keys have a lane and a line of their own, so that only they wait.
    fn send_held(&mut self) {
        if let Some(refusal) = self.home.refusal() {
            self.held_digests.clear();
            std::mem::take(&mut self.held).into_iter().for_each(|item| item.answer(&self.home, Err(refusal)));
            return;
        }
        let room = if self.held_clear { KEYS_A_CALL } else { HELD_A_CALL };
        let mut entries: Vec<Entry<W>> = Vec::new();
        let mut at: HashMap<Digest, usize, DigestBuild> = HashMap::default();
        let mut back = VecDeque::new();
        while let Some(item) = self.held.pop_front() {
            let digest = W::digest(&item.ask);
            if item.job.is_abandoned() {
                self.unhold(&digest);
                self.home.queued.fetch_sub(1, Ordering::Relaxed);
            } else if let Some(entry) = at.get(&digest).and_then(|i| entries.get_mut(*i)) {
                self.unhold(&digest);
                entry.followers.push(item);
            } else if entries.len() < room
                && item.job.deadline > Instant::now() + HELD_MARGIN
                && !self.in_flight.contains(&digest)
                && entries.first().is_none_or(|e| W::kind(&e.leader.ask) == W::kind(&item.ask))
            {
                self.unhold(&digest);
                at.insert(digest, entries.len());
                entries.push(Entry { leader: item, followers: Vec::new() });
            } else {
                back.push_back(item);
            }
        }
        self.held = back;
        self.held_clear = false;
        if !entries.is_empty() {
            self.held_call = true;
            self.start(entries, true);
        }
    }

    fn start(&mut self, mut entries: Vec<Entry<W>>, held_lane: bool) {
        entries.sort_unstable_by_key(|e| W::digest(&e.leader.ask));
        let digests: Vec<Digest> = entries.iter().map(|e| W::digest(&e.leader.ask)).collect();
        self.in_flight.extend(digests.iter().copied());
        let home = Arc::clone(&self.home);
        let ended = self.ended.clone();
        // The task owns the database work: no caller can cancel a commit by hanging up.
        tokio::spawn(async move {
            let began = Instant::now();
            let mut left = Left { again: Vec::new(), held: Vec::new(), open: Vec::new() };
            // Where no request is traced, no span exists.
            let followers = |e: &Entry<W>| e.followers.iter().filter_map(|f| f.job.trace.clone()).collect::<Vec<_>>();
            let traced = entries.iter().flat_map(|e| e.leader.job.trace.clone().into_iter().chain(followers(e)));
            let mut span = Traced::call(&home.spec.name, W::NAME, entries.len(), traced);
            let log = span.log_span();
            call(&home, entries, held_lane, &mut left, &mut span).instrument(log).await;
            let _ = ended.send(CallEnd { digests, left, was_held_lane: held_lane, took: began.elapsed() });
        });
    }

    fn settle(&mut self, end: CallEnd<W>) {
        let Left { again, held, open } = end.left;
        if end.was_held_lane {
            self.held_call = false;
            self.held_clear = held.is_empty();
        } else {
            self.calls -= 1;
            self.typical = (self.typical * 7 + end.took) / 8;
        }
        held.into_iter().for_each(|item| self.hold(item));
        for item in again.into_iter().rev() {
            self.queue.push_front(item);
        }
        for digest in &end.digests {
            self.in_flight.remove(digest);
        }
        for digest in open {
            let waiting = self.parked.remove(&digest).unwrap_or_default();
            self.resting.entry(digest).or_default().extend(waiting);
            self.wakes.push_back((Instant::now() + REST, digest));
        }
        for digest in &end.digests {
            for item in self.parked.remove(digest).into_iter().flatten().rev() {
                self.queue.push_front(item);
            }
        }
    }
}

/// One call with its consequences.
async fn call<W: Work>(home: &Arc<Home>, entries: Vec<Entry<W>>, held_lane: bool, left: &mut Left<W>, span: &mut Traced) {
    let line = match home.line(held_lane).await {
        Ok(line) => line,
        Err(why) => {
            home.cannot_connect(&why);
            span.failed("no connection");
            for item in items(entries) {
                item.answer(home, Err(Refusal::not_applied(RefusalKind::HomeUnavailable)));
            }
            return;
        }
    };
    // Preparing changes nothing: only what comes after it may leave the outcome unknown.
    if let Err(error) = W::prepare(line.client()).await {
        home.lines.done(&line, false);
        failed(home, entries, &error, left);
        return;
    }
    let (entries, gone): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| e.leader.job.sending(e.leader.index));
    for entry in gone {
        home.queued.fetch_sub(1, Ordering::Relaxed);
        left.again.extend(entry.followers);
    }
    if entries.is_empty() {
        home.lines.done(&line, true);
        return;
    }
    let deadline = entries.iter().map(|e| e.leader.job.deadline).max().unwrap_or_else(Instant::now);
    let time = deadline.saturating_duration_since(Instant::now());
    let asks: Vec<&W::Ask> = entries.iter().map(|e| &e.leader.ask).collect();
    let sent = Instant::now();
    if let Some(oldest) = entries.iter().map(|e| e.leader.job.asked).min() {
        home.metrics.waited(&home.spec.name, sent.saturating_duration_since(oldest));
    }
    let warnings = home.lines.warnings();
    let filters = home.filters.load_full();
    let who = home.identity();
    let called = match &who {
        Some(who) => {
            let call = W::call(line.client(), &who.identity, home.clock.not_after_ms(time), &asks, &filters);
            tokio::time::timeout(time + CALL_GRACE, sabotaged(&line, call))
                .await
                .unwrap_or_else(|_| Err(CallError::Unknown("no reply in time".into())))
        }
        None => Err(CallError::NotSent("the home is not known yet".into())),
    };
    let called = match called {
        Ok(_) if home.lines.warnings() != warnings && !sabotage::is("warnings-ignored") && !sabotage::is("cancel-on-timeout") => {
            Err(CallError::Unknown("the server warned during the commit".into()))
        }
        other => other,
    };
    if home.lines.warnings() != warnings && called.is_err() {
        home.doubt(line.client()).await;
    }
    home.lines.done(&line, called.is_ok());
    drop(line);
    match called {
        Ok(called) => {
            home.metrics.roundtrip(&home.spec.name, sent.elapsed(), asks.len());
            home.metrics.filters(&home.spec.name, filters.drain());
            span.answered(asks.len());
            if home.learn(&Learnt { home_ms: called.home_ms, incarnation: called.incarnation, sent }) {
                took(home, entries, called, left).await;
            } else {
                failed(home, entries, &CallError::Unknown("an older primary answered".into()), left);
            }
        }
        Err(error) => {
            span.failed(error.word());
            failed(home, entries, &error, left);
        }
    }
}

/// The call itself; a build that is broken on purpose cancels it when it takes long.
async fn sabotaged<T>(line: &Line, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    if sabotage::is("cancel-on-timeout") {
        if let Ok(done) = tokio::time::timeout(Duration::from_millis(300), &mut call).await {
            return done;
        }
        let _ = line.client().cancel_token().cancel_query(tokio_postgres::NoTls).await;
    }
    call.await
}

fn items<W: Work>(entries: Vec<Entry<W>>) -> impl Iterator<Item = Item<W>> {
    entries.into_iter().flat_map(|e| std::iter::once(e.leader).chain(e.followers))
}

/// Hands out the answers of a call that worked.
async fn took<W: Work>(home: &Arc<Home>, entries: Vec<Entry<W>>, called: Called<Vec<Reply<W::Answer>>>, left: &mut Left<W>) {
    let Some(replies) = called.answers else {
        // The home did nothing, and says why.
        let refusal = match called.status.as_str() {
            "stale-topics" => {
                home.topics_as_of(Instant::now()).await;
                Refusal::not_applied(RefusalKind::TopicUnknown)
            }
            // Really too late, or the home's clock stepped forward; this very reply has told the new time.
            "too-late" => {
                for mut item in items(entries) {
                    if item.again < AGAIN_MAX && item.job.deadline > Instant::now() {
                        item.again += 1;
                        item.job.not_applied(item.index, item.maybe, false);
                        left.again.push(item);
                    } else {
                        item.answer(home, Err(Refusal::not_applied(RefusalKind::Overloaded)));
                    }
                }
                return;
            }
            _ => {
                home.not_this_home(&called.status);
                Refusal::not_applied(RefusalKind::HomeUnavailable)
            }
        };
        items(entries).for_each(|item| item.answer(home, Err(refusal)));
        return;
    };
    for (entry, reply) in entries.into_iter().zip(replies) {
        match reply {
            Reply::Answer(answer) => {
                if W::is_open(&answer) {
                    left.open.push(W::digest(&entry.leader.ask));
                }
                for follower in entry.followers {
                    match W::follow(&answer, &follower.ask) {
                        Some(own) => follower.answer(home, Ok(own)),
                        None => left.again.push(follower),
                    }
                }
                entry.leader.answer(home, Ok(answer));
            }
            Reply::Refused(kind) => {
                let refusal = Refusal::not_applied(kind);
                std::iter::once(entry.leader).chain(entry.followers).for_each(|item| item.answer(home, Err(refusal)));
            }
            Reply::Busy => {
                left.held.push(entry.leader);
                left.held.extend(entry.followers);
            }
        }
    }
}

/// What an error means for each question of the call.
fn failed<W: Work>(home: &Arc<Home>, entries: Vec<Entry<W>>, error: &CallError, left: &mut Left<W>) {
    tracing::warn!(home = %home.spec.name, keys = entries.len(), error = %error, "a call to the home failed");
    home.metrics.home_error(&home.spec.name);
    let now = Instant::now();
    for entry in entries {
        let mut leader = entry.leader;
        match error {
            CallError::Unknown(_) if sabotage::is("unknown-is-no") => {
                leader.answer(home, Err(Refusal::not_applied(RefusalKind::HomeUnavailable)));
            }
            CallError::Unknown(_) => {
                home.metrics.unknown(&home.spec.name);
                // Ask once more with the same request id, first in line; only a verdict may end it now.
                if !leader.maybe && leader.job.deadline > now {
                    leader.maybe = true;
                    left.again.push(leader);
                } else {
                    leader.maybe = true;
                    leader.answer(home, Err(Refusal::unknown()));
                }
            }
            CallError::NotApplied { again: true, .. } if leader.again < AGAIN_MAX => {
                leader.again += 1;
                leader.job.not_applied(leader.index, leader.maybe, false);
                left.again.push(leader);
            }
            CallError::NotApplied { .. } => leader.answer(home, Err(Refusal { kind: RefusalKind::StoreUnavailable, applied: Applied::No })),
            CallError::NotSent(_) | CallError::WrongNode => {
                home.cannot_connect(&error.to_string());
                leader.answer(home, Err(Refusal::not_applied(RefusalKind::HomeUnavailable)));
            }
        }
        // Followers sent nothing: they go on as if they had just arrived.
        left.again.extend(entry.followers);
    }
}
