//! What all consumers share, and the mishaps that befall them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dedup_testbed::Testbed;

use super::ask::{Answer, Asker, Undecided};
use super::oracle::Oracle;
use super::stats::Stats;
use super::topics::Topic;

/// Keys of clicks that may come again.
const RECENT_KEYS: usize = 20_000;
/// Part of the keys homed in another region than the one that serves them.
const FOREIGN: f64 = 0.2;
/// Part of the calls whose reply gets lost on the way.
const LOST_REPLIES: f64 = 0.03;
/// How long a question is repeated before it is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// A region as its consumers see it.
#[derive(Debug)]
struct Place {
    name: String,
    instances: Vec<Asker>,
}

/// Regions, books, and the wish to end.
#[derive(Debug)]
pub(super) struct World {
    places: Vec<Place>,
    pub(super) stats: Stats,
    pub(super) oracle: Oracle,
    recent_clicks: Mutex<VecDeque<String>>,
    /// Why the last question was not answered, for people.
    last_trouble: Mutex<Option<String>>,
    ending: tokio::sync::watch::Sender<bool>,
    /// The region whose clients retry heavily; `NO_STORM`: none.
    storm: AtomicUsize,
}

const NO_STORM: usize = usize::MAX;

impl World {
    pub(super) fn new(testbed: &Testbed, oracle: Oracle) -> anyhow::Result<Self> {
        let places: anyhow::Result<Vec<Place>> = testbed
            .regions()
            .iter()
            .map(|region| {
                let instances = region.instances.iter().map(|i| Asker::new(&i.url())).collect::<anyhow::Result<_>>()?;
                Ok(Place { name: region.name.clone(), instances })
            })
            .collect();
        let places = places?;
        Ok(Self {
            stats: Stats::new(places.len()),
            places,
            oracle,
            recent_clicks: Mutex::default(),
            last_trouble: Mutex::default(),
            ending: tokio::sync::watch::Sender::new(false),
            storm: AtomicUsize::new(NO_STORM),
        })
    }

    /// Any region.
    pub(super) fn any_region(&self) -> usize {
        rand::random_range(0..self.places.len())
    }

    /// Where a message is delivered again: mostly where it was before.
    pub(super) fn region_of_redelivery(&self, before: usize) -> usize {
        if rand::random_bool(FOREIGN) { self.any_region() } else { before }
    }

    /// Any instance of a region, as a load balancer would choose.
    pub(super) fn instance(&self, region: usize) -> &Asker {
        let instances = &self.places[region].instances;
        &instances[rand::random_range(0..instances.len())]
    }

    /// A key nobody has used, for a message that arrives in `region`.
    pub(super) fn new_key(&self, region: usize, kind: &str) -> String {
        let others = self.places.len() - 1;
        let home = match others > 0 && rand::random_bool(FOREIGN) {
            true => (region + rand::random_range(1..=others)) % self.places.len(),
            false => region,
        };
        format!("{}:{kind}-{}", self.places[home].name, uuid::Uuid::new_v4().simple())
    }

    /// From now on the clients of this region retry heavily, or nobody's do.
    pub(super) fn storm(&self, region: Option<usize>) {
        self.storm.store(region.unwrap_or(NO_STORM), Ordering::Relaxed);
    }

    /// Whether the clients of this region retry heavily.
    pub(super) fn storms(&self, region: usize) -> bool {
        self.storm.load(Ordering::Relaxed) == region
    }

    /// A click to be seen again; `None` while there are none.
    pub(super) fn recent_click(&self) -> Option<String> {
        let recent = self.recent_clicks.lock().unwrap_or_else(PoisonError::into_inner);
        (!recent.is_empty()).then(|| recent[rand::random_range(0..recent.len())].clone())
    }

    /// From now on this click may come again.
    pub(super) fn remember_click(&self, key: String) {
        let mut recent = self.recent_clicks.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back(key);
        if recent.len() > RECENT_KEYS {
            recent.pop_front();
        }
    }

    /// Now and then sends the question and hangs up before the reply is there. The caller then asks again with the
    /// same request id, and must get the same grant if this one was granted.
    pub(super) async fn maybe_lose_reply<T>(&self, question: impl Future<Output = T>) {
        if rand::random_bool(LOST_REPLIES) {
            let patience = Duration::from_micros(rand::random_range(200..4_000));
            tokio::time::timeout(patience, question).await.ok();
        }
    }

    /// Asks, with the same request id, until there is an answer; counts and judges it. `None`: given up.
    pub(super) async fn ask<Fut>(&self, at: (usize, Topic), (key, request_id): (&str, &str), question: impl Fn() -> Fut) -> Option<Answer>
    where
        Fut: Future<Output = Result<Answer, Undecided>>,
    {
        let (answer, took) = self.persist(at, question).await.unzip();
        match (&answer, took) {
            (Some(answer), Some(took)) => {
                self.stats.answered(at.0, at.1, took, [(&answer.verdict, answer.tier)]);
                self.oracle.told(key, request_id, &answer.verdict);
            }
            _ => self.oracle.never_told(key),
        }
        answer
    }

    /// Repeats a call until it succeeds, or cannot, or patience ends; tells how long the last one took.
    pub(super) async fn persist<T, Fut>(&self, at: (usize, Topic), call: impl Fn() -> Fut) -> Option<(T, Duration)>
    where
        Fut: Future<Output = Result<T, Undecided>>,
    {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let begun = Instant::now();
            let undecided = match call().await {
                Ok(answer) => return Some((answer, begun.elapsed())),
                Err(undecided) => undecided,
            };
            self.trouble(at, undecided.why);
            let pause = undecided.again_after.filter(|pause| Instant::now() + *pause < deadline)?;
            tokio::time::sleep(pause).await;
        }
    }

    /// Counts a question without an answer.
    pub(super) fn trouble(&self, (region, topic): (usize, Topic), why: String) {
        self.stats.undecided(region, topic);
        *self.last_trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// Why the last question was not answered.
    pub(super) fn last_trouble(&self) -> Option<String> {
        self.last_trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// No new deliveries from now on.
    pub(super) fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Waits; `false` if the end came first.
    pub(super) async fn pause(&self, length: Duration) -> bool {
        let mut ending = self.ending.subscribe();
        tokio::select! {
            () = tokio::time::sleep(length) => true,
            _ = ending.wait_for(|ending| *ending) => false,
        }
    }
}
