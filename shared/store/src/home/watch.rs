//! What gauges show of the stores themselves: read every some seconds in the background, so that a scrape waits for nobody.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Home, Homes};
use crate::hot::{HotFigures, HotTier};
use crate::postgres::call_gauges;

/// Between two readings.
const EVERY: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(2);
/// Claim texts looked at in one reading; where there are more, open claims are counted too low.
const SCAN: i32 = 5_000;

/// What a home says of itself.
#[derive(Debug, Clone, Default)]
pub struct HomeFigures {
    /// Bytes of the home's database.
    pub database_bytes: i64,
    /// Segments by state.
    pub segments: Vec<SegmentFigures>,
    /// How long the open segment has been open, ms.
    pub open_segment_ms: i64,
    /// Claims in progress whose lease is alive.
    pub in_progress: i64,
    /// Claims in progress whose lease has lapsed and which nobody has taken over.
    pub lapsed: i64,
    /// Age of the oldest of both since its grant, ms; 0 if there is none.
    pub oldest_claim_ms: i64,
}

/// The segments of one state.
#[derive(Debug, Clone)]
pub struct SegmentFigures {
    /// `prepared`, `open`, `sealed`, `frozen` or `cold`.
    pub state: String,
    /// How many.
    pub segments: i64,
    /// Rows, as Postgres estimates.
    pub rows: i64,
    /// Bytes of records, results and their indexes.
    pub bytes: i64,
}

/// The latest readings.
#[derive(Clone, Default)]
pub struct Figures {
    inner: Arc<Mutex<Read>>,
}

#[derive(Default)]
struct Read {
    homes: Vec<(String, HomeFigures)>,
    hot: Option<HotFigures>,
}

impl Figures {
    /// Begins to read: the homes of `region`, and its Redis. A store that does not answer has no figures until it does again.
    pub fn start(homes: &Homes, hot: Option<HotTier>, region: &str, stop: &CancellationToken) -> Self {
        let this = Self::default();
        let own: Vec<Arc<Home>> = homes.iter().filter(|home| home.spec.region == region).cloned().collect();
        let (read, stop) = (this.clone(), stop.clone());
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = stop.cancelled() => return,
                }
                let mut found = Vec::with_capacity(own.len());
                for home in &own {
                    if let Some(figures) = read_home(home).await {
                        found.push((home.spec.name.clone(), figures));
                    }
                }
                let hot = match &hot {
                    Some(hot) => hot.figures(PATIENCE).await,
                    None => None,
                };
                // The first look may come before the homes are known: it is repeated soon.
                if found.len() < own.len() {
                    ticks.reset_after(EVERY / 5);
                }
                *read.inner.lock().unwrap_or_else(PoisonError::into_inner) = Read { homes: found, hot };
            }
        });
        this
    }

    /// Of each home of the region that answered.
    pub fn homes(&self) -> Vec<(String, HomeFigures)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).homes.clone()
    }

    /// Of the region's Redis, if it answered.
    pub fn hot(&self) -> Option<HotFigures> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).hot
    }
}

async fn read_home(home: &Home) -> Option<HomeFigures> {
    let known = home.identity().filter(|_| home.refusal().is_none())?;
    // The held keys' line, so that no question waits behind this.
    let line = home.line(true).await.ok()?;
    let read = tokio::time::timeout(PATIENCE, call_gauges(line.client(), &known.identity, SCAN)).await;
    home.lines.done(&line, matches!(read, Ok(Ok(_))));
    read.ok()?.ok()?
}
