//! What callers do: contested claims with leases, ends of all kinds, repetitions, checks, batches, forgets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dedup_checker::{Kind, Out, Verdict};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::caller::{Held, Net, Question, Told};
use crate::sql;
use crate::topics::{GROUPED, LONG, Place, SHORT};

/// How much of what the workers do, in shares.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub claims: u32,
    pub checks: u32,
    pub batches: u32,
    pub sql: u32,
    pub forgets: u32,
    /// Of whole groups; not more often than [`GROUP_PAUSE`] allows.
    pub groups: u32,
    /// Requests that ask for the same key, on average.
    pub share: usize,
    /// Of a hundred calls, how many are simply made again.
    pub repeats: u32,
    /// Of a hundred grants, how many are left to lapse.
    pub abandoned: u32,
    /// Of a hundred SQL callers, how many keep their transaction open for long.
    pub lingering: u32,
    /// Of a hundred done keys, how many are asked for again after seconds.
    pub late: u32,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            claims: 55,
            checks: 20,
            batches: 10,
            sql: 10,
            forgets: 5,
            groups: 2,
            share: 5,
            repeats: 15,
            abandoned: 12,
            lingering: 10,
            late: 3,
        }
    }
}

/// What workers share.
#[derive(Debug)]
pub struct World {
    pub net: Net,
    pub mix: Mix,
    pub homes: Vec<String>,
    pub stop: AtomicBool,
    /// The last strike is over, and with it whatever callers did to be one.
    pub healed: AtomicBool,
    pub seed: u64,
    next: AtomicUsize,
    /// The same for keys in groups.
    next_grouped: AtomicUsize,
    group_forgotten: Mutex<Instant>,
    requests: AtomicU64,
    /// Keys whose claim was left to lapse, and when somebody should look.
    due: Mutex<BinaryHeap<Reverse<(Instant, Place)>>>,
    /// Done keys, now and then forgotten.
    done: Mutex<VecDeque<Place>>,
    /// Requests whose outcome is still not known.
    pub open: Mutex<Vec<Question>>,
    pub open_ends: Mutex<Vec<(Kind, Held, String)>>,
    /// Calls that stayed undecided after one repetition elsewhere.
    pub stubborn: AtomicUsize,
    /// Every key that was asked for.
    pub keys: Mutex<std::collections::HashSet<Place>>,
    pub sql: sql::Callers,
}

const LEASE_SHORT_MS: i64 = 1000;
const LEASE_LONG_MS: i64 = 30_000;
/// Keys of one group.
const GROUP_KEYS: usize = 12;
/// Between two groups that are forgotten: a topic has at most a thousand that were.
const GROUP_PAUSE: Duration = Duration::from_millis(250);

impl World {
    pub fn new(net: Net, mix: Mix, homes: Vec<String>, seed: u64, sql: sql::Callers) -> Self {
        Self {
            net,
            mix,
            homes,
            stop: AtomicBool::new(false),
            healed: AtomicBool::new(false),
            seed,
            next: AtomicUsize::new(0),
            next_grouped: AtomicUsize::new(0),
            group_forgotten: Mutex::new(Instant::now()),
            requests: AtomicU64::new(0),
            due: Mutex::default(),
            done: Mutex::default(),
            open: Mutex::default(),
            open_ends: Mutex::default(),
            stubborn: AtomicUsize::new(0),
            keys: Mutex::default(),
            sql,
        }
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A request id that no other call has: never derived from the key.
    pub fn request(&self) -> String {
        format!("{:x}-{}", self.seed, self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// A key that others are asking for right now.
    pub fn key(&self, kind: &str) -> String {
        self.numbered(kind, self.next.fetch_add(1, Ordering::Relaxed) / self.mix.share)
    }

    fn numbered(&self, kind: &str, n: usize) -> String {
        // Most keys are the first home's: it is the one that is broken.
        let home = if n % 4 == 3 { self.homes.last() } else { self.homes.first() };
        format!("{}:{kind}-{n}", home.map_or("eu", String::as_str))
    }

    fn grouped(&self, n: usize) -> Place {
        Place { topic: GROUPED, group: Some(format!("g{}", n / GROUP_KEYS)), key: self.numbered("g", n) }
    }

    /// A group that is being asked for, or was a moment ago, with its keys; none while the last one was forgotten just now.
    fn group_to_forget(&self, rng: &mut StdRng) -> Option<(String, Vec<Place>)> {
        let mut last = self.group_forgotten.lock().expect("no panic while held");
        if last.elapsed() < GROUP_PAUSE {
            return None;
        }
        *last = Instant::now();
        drop(last);
        let n = self.next_grouped.load(Ordering::Relaxed) / self.mix.share;
        let group = (n / GROUP_KEYS).saturating_sub(rng.random_range(0..2));
        let keys: Vec<Place> = (group * GROUP_KEYS..=n.min(group * GROUP_KEYS + GROUP_KEYS - 1)).map(|n| self.grouped(n)).collect();
        Some((format!("g{group}"), keys))
    }

    pub fn note(&self, place: &Place) {
        self.keys.lock().expect("no panic while held").insert(place.clone());
    }

    /// A question about a key that is contested.
    pub fn question(&self, rng: &mut StdRng, claim: bool, kind: &str) -> Question {
        let drawn = rng.random_range(0..100);
        let short = drawn < 10;
        let place = match drawn {
            0..10 => Place::of(SHORT, self.key("short")),
            10..20 => self.grouped(self.next_grouped.fetch_add(1, Ordering::Relaxed) / self.mix.share),
            _ => Place::of(LONG, self.key(kind)),
        };
        self.note(&place);
        let lease_ms = if rng.random_bool(0.4) { LEASE_SHORT_MS } else { LEASE_LONG_MS };
        let lease_ms = if short { lease_ms.min(3000) } else { lease_ms };
        let fp = if kind == "fp" { ["a", "b"][usize::from(rng.random_bool(0.2))].to_owned() } else { String::new() };
        Question { claim, place, request: self.request(), fp, lease_ms }
    }

    pub fn look_again(&self, place: &Place, after: Duration) {
        let mut due = self.due.lock().expect("no panic while held");
        if due.len() < 4000 {
            due.push(Reverse((Instant::now() + after, place.clone())));
        }
    }

    fn due_key(&self) -> Option<Place> {
        let mut due = self.due.lock().expect("no panic while held");
        let is_due = due.peek().is_some_and(|Reverse((at, _))| *at <= Instant::now());
        if is_due { due.pop().map(|Reverse((_, place))| place) } else { None }
    }

    fn finished(&self, rng: &mut StdRng, place: &Place) {
        let mut done = self.done.lock().expect("no panic while held");
        if done.len() >= 500 {
            done.pop_front();
        }
        done.push_back(place.clone());
        let n = done.len();
        drop(done);
        // Redelivered later, some of them when a short window is over.
        match n % 10 {
            0 => self.look_again(place, Duration::from_millis(800)),
            1 if place.topic == SHORT => self.look_again(place, Duration::from_millis(3050)),
            _ => {}
        }
        if rng.random_range(0..100) < self.mix.late {
            self.look_again(place, Duration::from_millis(rng.random_range(2500..9000)));
        }
        // Shortly before and after the end of the time for which its result is kept.
        if let Some(keep) = place.keep_ms().filter(|_| rng.random_bool(0.3)) {
            self.look_again(place, Duration::from_millis(keep - 500));
            self.look_again(place, Duration::from_millis(keep + 300));
        }
    }
}

/// One worker's life. In the end only what it certainly knows is left behind.
pub async fn worker(world: Arc<World>, me: u32) {
    let mut rng = StdRng::seed_from_u64(world.seed ^ (u64::from(me) << 32));
    let mix = world.mix;
    let all = mix.claims + mix.checks + mix.batches + mix.sql + mix.forgets + mix.groups;
    while !world.stopped() {
        if let Some(place) = world.due_key() {
            let question = Question { claim: true, place, request: world.request(), fp: String::new(), lease_ms: LEASE_SHORT_MS };
            claim(&world, &mut rng, me, question).await;
            continue;
        }
        let drawn = rng.random_range(0..all);
        if drawn < mix.claims {
            let question = world.question(&mut rng, true, "c");
            claim(&world, &mut rng, me, question).await;
        } else if drawn < mix.claims + mix.checks {
            let kind = ["k", "fp"][usize::from(rng.random_bool(0.3))];
            let question = world.question(&mut rng, false, kind);
            let told = insist(&world, &mut rng, me, &question).await;
            if told.verdict() == Some(Verdict::First) {
                world.finished(&mut rng, &question.place);
            }
        } else if drawn < mix.claims + mix.checks + mix.batches {
            batch(&world, &mut rng, me).await;
        } else if drawn < mix.claims + mix.checks + mix.batches + mix.sql {
            sql::call(&world, &mut rng, me).await;
        } else if drawn < all - mix.forgets {
            let Some((group, keys)) = world.group_to_forget(&mut rng) else { continue };
            world.net.forget_all(me, rng.random_range(0..8), GROUPED, &group).await;
            for place in keys.iter().filter(|_| rng.random_bool(0.5)) {
                world.look_again(place, Duration::ZERO);
            }
        } else {
            let done = world.done.lock().expect("no panic while held").pop_front();
            if let Some(place) = done {
                let node = rng.random_range(0..8);
                world.net.forget(me, node, &place).await;
                world.look_again(&place, Duration::ZERO);
            }
        }
    }
}

/// Makes the call until it is decided, on another instance each time, or gives up; now and then once more after that, as callers do whose
/// answer was lost. Also tells whether an attempt's outcome was left unknown.
async fn repeat<F>(world: &World, rng: &mut StdRng, gives_up: bool, call: impl Fn(usize) -> F) -> (Told, bool)
where
    F: Future<Output = Told>,
{
    let mut node = rng.random_range(0..8);
    let mut unknown = false;
    let mut tries = 0;
    loop {
        let told = call(node).await;
        match told.out {
            Out::Ok(_) => {
                if rng.random_range(0..100) < world.mix.repeats {
                    call(node + 1).await;
                }
                return (told, false);
            }
            Out::Unknown(_) => unknown = true,
            Out::No(_) => {}
        }
        tries += 1;
        if tries == 2 {
            world.stubborn.fetch_add(1, Ordering::Relaxed);
        }
        if world.stopped() || gives_up || tries > 40 {
            return (told, unknown);
        }
        node += 1;
        pause(rng, tries).await;
    }
}

/// Before the repetition of a call: none the first time, then a little.
async fn pause(rng: &mut StdRng, tries: usize) {
    tokio::time::sleep(Duration::from_millis(if tries == 1 { 0 } else { rng.random_range(10..60) })).await;
}

async fn insist(world: &World, rng: &mut StdRng, me: u32, question: &Question) -> Told {
    let gives_up = rng.random_range(0..100) < 3;
    let (told, unknown) = repeat(world, rng, gives_up, |node| world.net.ask(me, node, question)).await;
    if unknown {
        world.open.lock().expect("no panic while held").push(question.clone());
    }
    told
}

async fn claim(world: &World, rng: &mut StdRng, me: u32, question: Question) {
    let told = insist(world, rng, me, &question).await;
    if told.verdict() != Some(Verdict::First) {
        return;
    }
    let Some(token) = told.token.clone() else { return };
    let held = Held { place: question.place.clone(), fence: told.fence().to_owned(), token };
    own(world, rng, me, &question, held).await;
}

/// What an owner does with its claim.
pub async fn own(world: &World, rng: &mut StdRng, me: u32, question: &Question, held: Held) {
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..25))).await;
    let result = format!("r-{}", question.request);
    let drawn = rng.random_range(0..100);
    let abandoned = world.mix.abandoned;
    if drawn < abandoned {
        // It dies; two others come once the lease is over.
        let after = Duration::from_millis(u64::try_from(question.lease_ms).unwrap_or(0) + 60);
        if question.lease_ms == LEASE_SHORT_MS {
            world.look_again(&held.place, after.saturating_sub(Duration::from_millis(250)));
            world.look_again(&held.place, after);
            world.look_again(&held.place, after);
        }
        if question.lease_ms == LEASE_SHORT_MS && rng.random_bool(0.3) {
            // Or it only slept, and goes on as if it still owned the key.
            tokio::time::sleep(after + Duration::from_millis(rng.random_range(0..200))).await;
            let kind = [Kind::Complete, Kind::Release, Kind::Extend][rng.random_range(0..3)];
            finish(world, rng, me, kind, &held, &result).await;
        }
    } else if drawn < abandoned + 15 {
        finish(world, rng, me, Kind::Release, &held, "").await;
        world.look_again(&held.place, Duration::ZERO);
        world.look_again(&held.place, Duration::ZERO);
    } else {
        if drawn < abandoned + 28 {
            finish(world, rng, me, Kind::Extend, &held, "").await;
        }
        let told = finish(world, rng, me, Kind::Complete, &held, &result).await;
        if told.verdict() == Some(Verdict::Completed) {
            world.finished(rng, &held.place);
        }
        if rng.random_range(0..100) < 4 {
            let kind = [Kind::Release, Kind::Extend, Kind::Complete][rng.random_range(0..3)];
            finish(world, rng, me, kind, &held, "another").await;
        }
        if world.mix.late > 0 && rng.random_range(0..100) < 1 {
            // Very late: the record may have changed its tier.
            tokio::time::sleep(Duration::from_millis(3500)).await;
            finish(world, rng, me, Kind::Complete, &held, &result).await;
        }
    }
}

async fn finish(world: &World, rng: &mut StdRng, me: u32, kind: Kind, held: &Held, result: &str) -> Told {
    let (told, unknown) = repeat(world, rng, false, |node| world.net.finish(me, node, kind, held, result, LEASE_SHORT_MS)).await;
    if unknown {
        world.open_ends.lock().expect("no panic while held").push((kind, held.clone(), result.into()));
    }
    told
}

/// Many keys in one request, some of them twice.
async fn batch(world: &World, rng: &mut StdRng, me: u32) {
    let claims = rng.random_bool(0.4);
    let n = rng.random_range(2..40);
    let mut questions: Vec<Question> = Vec::with_capacity(n);
    for _ in 0..n {
        let key = match questions.last() {
            Some(_) if rng.random_bool(0.25) => questions[rng.random_range(0..questions.len())].place.key.clone(),
            _ => world.key("b"),
        };
        let place = Place::of(LONG, key);
        world.note(&place);
        questions.push(Question { claim: claims, place, request: world.request(), fp: String::new(), lease_ms: LEASE_LONG_MS });
    }
    let mut node = rng.random_range(0..8);
    let mut told = world.net.ask_many(me, node, &questions).await;
    let mut tries = 0;
    while told.iter().any(|t| !matches!(t.out, Out::Ok(_))) && !world.stopped() && tries < 20 {
        tries += 1;
        if tries == 2 {
            world.stubborn.fetch_add(1, Ordering::Relaxed);
        }
        node += 1;
        pause(rng, tries).await;
        told = world.net.ask_many(me, node, &questions).await;
    }
    for (question, told) in questions.iter().zip(told) {
        if matches!(told.out, Out::Unknown(_)) {
            world.open.lock().expect("no panic while held").push(question.clone());
        }
        let (Some(Verdict::First), Some(token)) = (told.verdict(), told.token.clone()) else { continue };
        if claims && rng.random_bool(0.6) {
            let held = Held { place: question.place.clone(), fence: told.fence().to_owned(), token };
            finish(world, rng, me, Kind::Complete, &held, &format!("r-{}", question.request)).await;
        }
    }
}

/// Repeats what is still unknown, with the same request ids, until it is known. Answers what is left.
pub async fn settle(world: &World, within: Duration) -> usize {
    let until = Instant::now() + within;
    let mut open: Vec<Question> = std::mem::take(&mut world.open.lock().expect("no panic while held"));
    let mut ends = std::mem::take(&mut *world.open_ends.lock().expect("no panic while held"));
    let mut node = 0;
    while !(open.is_empty() && ends.is_empty()) && Instant::now() < until {
        node += 1;
        let mut left = Vec::new();
        for chunk in open.chunks(64) {
            let asked = chunk.iter().map(|q| world.net.ask(9999, node, q));
            let told = futures_util::future::join_all(asked).await;
            left.extend(chunk.iter().zip(told).filter(|(_, t)| t.verdict().is_none()).map(|(q, _)| q.clone()));
        }
        open = left;
        let mut left = Vec::new();
        for (kind, held, result) in ends {
            if world.net.finish(9999, node, kind, &held, &result, LEASE_SHORT_MS).await.verdict().is_none() {
                left.push((kind, held, result));
            }
        }
        ends = left;
    }
    open.len() + ends.len()
}
