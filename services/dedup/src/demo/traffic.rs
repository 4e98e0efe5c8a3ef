//! Sends messages at a steady rate, shows each second, and closes the books at the end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use dedup_testbed::Testbed;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::consumers;
use super::incident;
use super::oracle::{Findings, Oracle};
use super::screen::{Screen, say};
use super::stop::Stop;
use super::world::World;

const TICK: Duration = Duration::from_millis(20);
/// Clicks in a batch.
const BATCH: u32 = 50;
/// Messages under way; if the regions are slower than the rate, the rate gives way.
const UNDER_WAY_MAX: usize = 5_000;
/// Out of a hundred deliveries, so many are payments, and so many emails; the rest are clicks.
const PAYMENTS_PERCENT: u32 = 10;
const EMAILS_PERCENT: u32 = 20;

/// Runs consumers for `length`, or until the wish to end.
///
/// # Errors
/// If the consumers' books show a broken promise.
pub(super) async fn run(testbed: &Testbed, rate: u32, length: Option<Duration>, incident: bool, stop: &Stop) -> anyhow::Result<()> {
    let world = Arc::new(World::new(testbed, Oracle::new(keys_remembered(rate)))?);
    let mut screen = Screen::new(testbed.regions().iter().map(|region| region.name.clone()).collect());
    let begun = Instant::now();
    let mut messages = JoinSet::new();
    tokio::select! {
        () = stop.asked() => {}
        () = until(begun, length) => {}
        () = send(&world, rate, &mut messages) => {}
        () = show(&world, &mut screen) => {}
        () = incident::happen(&world, &testbed.regions()[0].name), if incident => {}
    }
    let seconds = begun.elapsed().as_secs_f64();
    // What is under way is answered and booked; nothing is delivered again.
    world.end();
    while messages.join_next().await.is_some() {}
    world.stats.turn();
    let totals = world.stats.totals();
    screen.summary(seconds, &totals);
    let replays: u64 = totals.iter().map(|counts| counts.replays).sum();
    say(&format!("{replays} grants whose reply was lost came back when asked for again with the same request id"));
    if let Some(why) = world.last_trouble() {
        say(&format!("last undecided: {why}"));
    }
    judge(&world.oracle.close())
}

/// Half a minute of new keys, and far more than the clicks that may come again.
fn keys_remembered(rate: u32) -> usize {
    300_000.max(rate as usize * 30)
}

async fn until(begun: Instant, length: Option<Duration>) {
    match length {
        Some(length) => tokio::time::sleep_until(begun + length).await,
        None => std::future::pending().await,
    }
}

/// Starts messages; each kind has a purse that fills with time and pays for a message or a batch.
async fn send(world: &Arc<World>, rate: u32, messages: &mut JoinSet<()>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let per_tick = f64::from(rate) * TICK.as_secs_f64() / 100.0;
    let (mut payments, mut emails, mut clicks) = (0.0, 0.0, 0.0);
    loop {
        ticks.tick().await;
        while messages.try_join_next().is_some() {}
        if messages.len() >= UNDER_WAY_MAX {
            continue;
        }
        payments += per_tick * f64::from(PAYMENTS_PERCENT);
        emails += per_tick * f64::from(EMAILS_PERCENT);
        clicks += per_tick * f64::from(100 - PAYMENTS_PERCENT - EMAILS_PERCENT);
        while payments >= 1.0 {
            payments -= 1.0;
            let world = Arc::clone(world);
            messages.spawn(async move { consumers::payment(&world).await });
        }
        while emails >= 1.0 {
            emails -= 1.0;
            let world = Arc::clone(world);
            messages.spawn(async move { consumers::email(&world).await });
        }
        while clicks >= f64::from(BATCH) {
            clicks -= f64::from(BATCH);
            let world = Arc::clone(world);
            messages.spawn(async move { consumers::clicks(&world, BATCH as usize).await });
        }
    }
}

async fn show(world: &World, screen: &mut Screen) {
    let mut last = Instant::now();
    let mut seconds = tokio::time::interval_at(last + Duration::from_secs(1), Duration::from_secs(1));
    for second in 1.. {
        let now = seconds.tick().await;
        screen.second(second, (now - last).as_secs_f64(), &world.stats.turn());
        last = now;
    }
}

fn judge(found: &Findings) -> anyhow::Result<()> {
    let Findings { keys, firsts, takeovers, completed, unknown, .. } = found;
    say(&format!(
        "\nThe consumers' own books: {keys} keys, {firsts} firsts ({takeovers} of them take-overs after a crash), {completed} payments completed"
    ));
    say(&format!("  granted twice for one attempt      {:>6}", found.double_firsts));
    say(&format!("  later attempt, fence not higher    {:>6}", found.unordered_fences));
    say(&format!("  refused although nobody was first  {:>6}", found.phantoms));
    say(&format!("  completed by two attempts          {:>6}", found.double_completions));
    say(&format!("  keys with an unanswered question   {unknown:>6}  (nothing is claimed of these)"));
    ensure!(found.violations() == 0, "{} promises were broken", found.violations());
    say(if *unknown == 0 { "Each key had exactly one first per attempt.\n" } else { "No key had more than one first per attempt.\n" });
    Ok(())
}
