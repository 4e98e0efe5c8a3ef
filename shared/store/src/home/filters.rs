//! Filters of a home's sealed segments and archives, loaded in the background, and what they tell of a key.
//!
//! An instance never says where to look; it says which filters it used, and where each key may be all the same. Whatever is missing here,
//! stale, damaged or of another home is therefore looked into by the home: slower, never wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dedup_core::{Digest, Filter, FilterHead, FilterLoad, filter_fpr};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Home;
use crate::postgres::{FilterRow, call_filter_chunk, call_filters, connect_once};

/// A filter that could not be loaded is tried again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// One call for the list or a chunk.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Filters to be used together for a whole call.
#[derive(Debug, Default)]
pub struct FilterSet {
    filters: Vec<Arc<Filter>>,
    ids: Vec<Uuid>,
    /// Filters asked about keys that turned out to be new, and how often one did not exclude such a key, since [`FilterSet::drain`].
    tests: AtomicU64,
    wrong: AtomicU64,
}

/// How the filters of a home are.
#[derive(Debug, Clone, Copy, Default)]
pub struct FilterHealth {
    /// How many are loaded.
    pub filters: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The highest share of false positives that any of them is computed to have.
    pub fpr: f64,
}

/// What a set of filters says of the keys of one call.
#[derive(Debug, Default)]
pub struct Told<'a> {
    /// Filters that were used for every key.
    pub used: &'a [Uuid],
    /// Index of a key, from 1, and a place where it may be.
    pub maybe_item: Vec<i32>,
    pub maybe_place: Vec<i32>,
}

impl FilterSet {
    /// A set of these.
    pub fn new(filters: Vec<Arc<Filter>>) -> Self {
        let ids = filters.iter().map(|f| f.head().filter_id).collect();
        Self { filters, ids, ..Self::default() }
    }

    /// Asks every filter for every digest.
    pub fn tell<'d>(&self, digests: impl Iterator<Item = &'d Digest>) -> Told<'_> {
        let mut told = Told { used: &self.ids, ..Told::default() };
        if self.filters.is_empty() {
            return told;
        }
        for (item, digest) in (1..).zip(digests) {
            for filter in &self.filters {
                if filter.may_hold(digest) {
                    told.maybe_item.push(item);
                    told.maybe_place.push(filter.head().place);
                }
            }
        }
        told
    }

    /// How many, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.filters.len(), self.filters.iter().map(|f| f.weight()).sum())
    }

    /// How they are.
    pub fn health(&self) -> FilterHealth {
        let (filters, bytes) = self.size();
        let fpr = self.filters.iter().map(|f| filter_fpr(f.head().keys, f.head().blocks)).fold(0.0, f64::max);
        FilterHealth { filters, bytes, fpr }
    }

    /// Notes what became of a call: keys that were new, and how many "maybe" they had got.
    pub fn judged(&self, new: usize, maybes: usize) {
        self.tests.fetch_add((new * self.filters.len()) as u64, Ordering::Relaxed);
        self.wrong.fetch_add(maybes as u64, Ordering::Relaxed);
    }

    /// Tests of keys that were new, and those that failed to exclude one, since the last time.
    pub fn drain(&self) -> (u64, u64) {
        (self.tests.swap(0, Ordering::Relaxed), self.wrong.swap(0, Ordering::Relaxed))
    }

    /// Whether it is one of them.
    pub fn has(&self, id: Uuid) -> bool {
        self.ids.contains(&id)
    }

    fn get(&self, id: Uuid) -> Option<&Arc<Filter>> {
        self.filters.iter().find(|f| f.head().filter_id == id)
    }
}

/// A home's list of filters, as of a state of its segments.
struct Listed {
    change: i64,
    rows: Vec<FilterRow>,
    /// All that should be here is here.
    complete: bool,
}

/// Keeps the filters of all homes, within `budget` bytes. Of what does not fit, the filters of other regions' homes stay away first, then
/// the own ones; the largest first in both.
pub async fn run(homes: Vec<Arc<Home>>, region: String, budget: u64, changed: Arc<Notify>, stop: CancellationToken) {
    if budget == 0 {
        return;
    }
    let mut listed: Vec<Option<Listed>> = homes.iter().map(|_| None).collect();
    loop {
        for (home, listed) in homes.iter().zip(&mut listed) {
            let change = home.segments_change.load(Ordering::Acquire);
            // What could not be loaded may have been mended since: the list is read anew for each try.
            if change >= 0 && listed.as_ref().is_none_or(|l| l.change != change || !l.complete) {
                match within(list(home)).await {
                    Ok(rows) => *listed = Some(Listed { change, rows, complete: false }),
                    Err(why) => tracing::debug!(home = %home.spec.name, why, "the list of filters cannot be read"),
                }
            }
        }
        let chosen = choose(&homes, &listed, &region, budget);
        for ((home, listed), chosen) in homes.iter().zip(&mut listed).zip(chosen) {
            if let Some(listed) = listed
                && !listed.complete
            {
                listed.complete = load(home, &chosen).await;
            }
        }
        let behind = homes
            .iter()
            .zip(&listed)
            .any(|(home, l)| l.as_ref().is_none_or(|l| !l.complete || l.change != home.segments_change.load(Ordering::Acquire)));
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(AGAIN), if behind => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Which filters of each home are to be here.
fn choose(homes: &[Arc<Home>], listed: &[Option<Listed>], region: &str, budget: u64) -> Vec<Vec<FilterRow>> {
    let all = listed.iter().enumerate().flat_map(|(h, l)| l.iter().flat_map(move |l| l.rows.iter().map(move |row| (h, row))));
    let mut all: Vec<(usize, &FilterRow)> = all.collect();
    all.sort_by_key(|(h, row)| (homes[*h].spec.region != region, row.bytes));
    let mut chosen = vec![Vec::new(); homes.len()];
    let mut left = budget;
    for (h, row) in all {
        if let Some(rest) = left.checked_sub(row.bytes) {
            left = rest;
            chosen[h].push(row.clone());
        }
    }
    chosen
}

async fn within<T>(call: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| Err("no reply in time".into()))
}

async fn list(home: &Home) -> Result<Vec<FilterRow>, String> {
    let client = connect_once(&home.settings.target).await.map_err(|e| e.to_string())?;
    call_filters(&client).await.map_err(|e| e.to_string())
}

/// Brings a home's set in line; `true`: all of it is there.
async fn load(home: &Home, chosen: &[FilterRow]) -> bool {
    let old = home.filters.load_full();
    let mut kept: Vec<Arc<Filter>> = chosen.iter().filter_map(|row| old.get(row.filter_id).cloned()).collect();
    let missing: Vec<&FilterRow> = chosen.iter().filter(|row| old.get(row.filter_id).is_none()).collect();
    // Those that are gone leave at once: their memory is needed for the new ones.
    home.filters.store(Arc::new(FilterSet::new(kept.clone())));
    let mut complete = true;
    for row in missing {
        match load_one(home, row).await {
            Ok(filter) => {
                tracing::debug!(home = %home.spec.name, place = row.place, bytes = row.bytes, "a filter is loaded");
                kept.push(Arc::new(filter));
                home.filters.store(Arc::new(FilterSet::new(kept.clone())));
            }
            Err(why) => {
                complete = false;
                home.metrics.filter_refused();
                tracing::warn!(home = %home.spec.name, place = row.place, why, "a filter cannot be used; its keys are looked up in the home");
            }
        }
    }
    complete
}

async fn load_one(home: &Home, row: &FilterRow) -> Result<Filter, String> {
    let known = home.identity().ok_or("the home is not known yet")?;
    let mut load = FilterLoad::begin(&row.head).map_err(|e| e.to_string())?;
    let FilterHead { filter_id, home_id, secret_id, place, .. } = *load.head();
    if (filter_id, place, load.head().body_bytes()) != (row.filter_id, row.place, row.bytes) {
        return Err("it is the filter of another place".into());
    }
    if home_id != known.identity.home_id || secret_id != known.identity.secret_id {
        return Err("it is the filter of another home".into());
    }
    let client = connect_once(&home.settings.target).await.map_err(|e| e.to_string())?;
    for n in 0..row.chunks {
        let chunk = within(async { call_filter_chunk(&client, row.filter_id, n).await.map_err(|e| e.to_string()) }).await?;
        let chunk = chunk.ok_or("a part of it is missing")?;
        // Sums over megabytes are work: not all on the thread that answers.
        let pushed = tokio::task::spawn_blocking(move || load.push(&chunk).map(|()| load));
        load = pushed.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    }
    load.finish().map_err(|e| e.to_string())
}
