//! Callers who are the fault themselves, by what they do or how many they are.

use std::time::{Duration, Instant};

use dedup_checker::Out;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::caller::Question;
use crate::rig::Rig;
use crate::topics::{LONG, Place};
use crate::work::{Mix, World};

/// What callers do is the fault: see the mix, and the callers beside the workers.
pub async fn round(rig: &Rig) -> anyhow::Result<()> {
    sleep(Duration::from_millis(500)).await;
    rig.saw("rounds", 1);
    Ok(())
}

/// Many callers in SQL who keep their transactions open.
pub fn in_transactions(mix: &mut Mix) {
    (mix.sql, mix.lingering) = (60, 30);
}

/// The callers' own transactions do it; here they are only waited for.
pub async fn lock_wait(rig: &Rig) -> anyhow::Result<()> {
    let root = rig.primary().connect("postgres").await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'dedup_caller' AND state = 'idle in transaction'";
    let until = Instant::now() + Duration::from_secs(5);
    let mut open = 0;
    while open == 0 && Instant::now() < until {
        sleep(Duration::from_millis(20)).await;
        open = root.query_one(sql, &[]).await?.get::<_, i64>(0);
    }
    rig.saw("open transactions seen", u64::try_from(open).unwrap_or(0));
    Ok(())
}

pub async fn kill_sessions(rig: &Rig) -> anyhow::Result<()> {
    let root = rig.primary().connect("postgres").await;
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE usename = 'dedup_caller' ORDER BY random() LIMIT 2) x";
    rig.saw("sessions killed", u64::try_from(root.query_one(sql, &[]).await?.get::<_, i64>(0)).unwrap_or(0));
    sleep(Duration::from_millis(200)).await;
    Ok(())
}

/// Callers who hang up within milliseconds.
pub async fn hang_up(world: &World, rng: &mut StdRng) {
    let questions: Vec<(Question, Duration, usize)> = (0..40)
        .map(|_| (world.question(rng, true, "h"), Duration::from_micros(rng.random_range(0..6000)), rng.random_range(0..8)))
        .collect();
    let asked = questions.iter().map(|(q, after, node)| world.net.ask_and_hang_up(1000, *node, q, *after));
    futures_util::future::join_all(asked).await;
    world.open.lock().expect("no panic while held").extend(questions.into_iter().map(|(q, ..)| q));
    sleep(Duration::from_millis(20)).await;
}

/// Checks of one key by the hundred, claims so many that an order of them can still be searched for.
pub async fn hot_key(world: &World, round: usize) {
    let (n, claim) = if round.is_multiple_of(3) { (100, true) } else { (500, false) };
    all_at_once(world, n, claim, |_| format!("{}:hot-{round}", world.homes[0])).await;
    sleep(Duration::from_millis(150)).await;
}

/// Hundreds of checks at once, again and again.
pub async fn overload(world: &World, round: usize) {
    all_at_once(world, 400, false, |i| format!("{}:hot-{round}-{}", world.homes[0], i / 4)).await;
    sleep(Duration::from_millis(20)).await;
}

async fn all_at_once(world: &World, n: usize, claim: bool, key: impl Fn(usize) -> String) {
    let question = |i| Question { claim, place: Place::of(LONG, key(i)), request: world.request(), fp: String::new(), lease_ms: 1000 };
    let questions: Vec<Question> = (0..n).map(question).collect();
    questions.iter().for_each(|q| world.note(&q.place));
    let asked = questions.iter().enumerate().map(|(i, q)| world.net.ask(1000, i, q));
    let told = futures_util::future::join_all(asked).await;
    let open = questions.iter().zip(told).filter(|(_, t)| matches!(t.out, Out::Unknown(_)));
    world.open.lock().expect("no panic while held").extend(open.map(|(q, _)| q.clone()));
}
