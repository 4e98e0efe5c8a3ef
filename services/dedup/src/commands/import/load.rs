//! Rows on their way into the home.

use std::time::{Duration, Instant};

use anyhow::bail;
use dedup_store::{Import, ImportRow, Janitor};
use tokio::sync::mpsc::Receiver;

use super::lines::Chunk;
use crate::output::{Progress, say};

/// Staged keys between two lines that tell so.
const TOLD: u64 = 1_000_000;
/// Keys in one transaction among rows: so many at first, and at most. Changes of layout wait for it, so it should be short.
const ROWS: usize = 500;
const ROWS_MAX: usize = 2_000;
const ROWS_MIN: usize = 50;
const CALL: Duration = Duration::from_millis(40);
/// Keys that somebody holds and that are asked for again beside the others; with more of them they are waited for.
const HELD_MAX: usize = 500;
const HELD_PAUSE: Duration = Duration::from_millis(500);
const HELD_PATIENCE: Duration = Duration::from_secs(60);

/// How many of which.
#[derive(Debug, Default)]
pub struct Counts {
    /// Read and not left out.
    pub taken: u64,
    /// Different ones in the archive; or those that are new among the rows.
    pub kept: u64,
    pub foreign: u64,
    pub past: u64,
}

/// All into one archive; nothing counts before all of it does.
pub async fn cold(
    janitor: &mut Janitor,
    import: Import,
    mut chunks: Receiver<anyhow::Result<Chunk>>,
    seen_ms: Option<i64>,
) -> anyhow::Result<Counts> {
    let (began, mut counts, mut progress) = (Instant::now(), Counts::default(), Progress::new("keys staged"));
    while let Some(chunk) = chunks.recv().await {
        let chunk = chunk?;
        counts.foreign += chunk.foreign;
        counts.past += chunk.past;
        if chunk.rows.is_empty() {
            continue;
        }
        janitor.import_some(import, &chunk.rows, i64::try_from(chunk.at)?).await?;
        let before = counts.taken;
        counts.taken += chunk.rows.len() as u64;
        progress.add(chunk.rows.len() as u64);
        if before / TOLD < counts.taken / TOLD {
            say(format!("{} keys staged, {:.0} a second", counts.taken, counts.taken as f64 / began.elapsed().as_secs_f64()));
        }
    }
    progress.end();
    counts.kept = janitor.import_end(import, seen_ms).await?.unwrap_or(0);
    Ok(counts)
}

/// Rows of the open segment, some at a time. A key that somebody's open transaction holds is asked for again later; the file counts as done
/// only up to the first such key.
pub async fn warm(janitor: &Janitor, import: Import, mut chunks: Receiver<anyhow::Result<Chunk>>) -> anyhow::Result<Counts> {
    let mut warm = Warm { janitor, import, size: ROWS, held: Vec::new(), asked: Instant::now(), done: None, kept: 0 };
    let (mut counts, mut progress) = (Counts::default(), Progress::new("keys loaded"));
    while let Some(chunk) = chunks.recv().await {
        let mut chunk = chunk?;
        counts.foreign += chunk.foreign;
        counts.past += chunk.past;
        counts.taken += chunk.rows.len() as u64;
        let n = chunk.rows.len() as u64;
        warm.load(&mut chunk.rows).await?;
        warm.done = if warm.held.is_empty() { Some(i64::try_from(chunk.at)?) } else { None };
        if warm.held.len() > HELD_MAX {
            warm.wait().await?;
        } else if warm.asked.elapsed() >= HELD_PAUSE {
            warm.again().await?;
        }
        progress.add(n);
    }
    warm.wait().await?;
    progress.end();
    janitor.import_over(import).await?;
    counts.kept = warm.kept;
    Ok(counts)
}

struct Warm<'j> {
    janitor: &'j Janitor,
    import: Import,
    size: usize,
    held: Vec<ImportRow>,
    asked: Instant,
    /// Bytes of the file of which nothing is held.
    done: Option<i64>,
    kept: u64,
}

impl Warm<'_> {
    async fn load(&mut self, rows: &mut Vec<ImportRow>) -> anyhow::Result<()> {
        // In the order in which everybody takes keys; of the same one the longest memory.
        rows.sort_unstable_by_key(|row| (row.digest, std::cmp::Reverse(row.expires_ms)));
        rows.dedup_by_key(|row| row.digest);
        let mut rest = rows.as_slice();
        while !rest.is_empty() {
            let (some, others) = rest.split_at(self.size.min(rest.len()));
            let began = Instant::now();
            let loaded = self.janitor.import_warm(self.import, some, self.done).await?;
            self.kept += loaded.loaded;
            self.held.extend(loaded.held.iter().filter_map(|n| some.get(*n)));
            if loaded.held.is_empty() && some.len() == self.size {
                let next = if began.elapsed() > CALL { self.size / 2 } else { self.size + self.size / 4 };
                self.size = next.clamp(ROWS_MIN, ROWS_MAX);
            }
            rest = others;
        }
        Ok(())
    }

    /// Asks once more for what was held.
    async fn again(&mut self) -> anyhow::Result<()> {
        let mut rows = std::mem::take(&mut self.held);
        self.load(&mut rows).await?;
        self.asked = Instant::now();
        Ok(())
    }

    /// Until nothing is held, for a while.
    async fn wait(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.held.is_empty() {
            if began.elapsed() > HELD_PATIENCE {
                bail!(
                    "{} keys are held by somebody's open transaction in the home (pg_stat_activity shows it); the same command goes on when it has ended",
                    self.held.len()
                );
            }
            tokio::time::sleep(HELD_PAUSE).await;
            self.again().await?;
        }
        Ok(())
    }
}
