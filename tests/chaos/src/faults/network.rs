//! Lines that are cut, slow, or lose single calls.

use std::path::Path;
use std::time::Duration;

use dedup_testbed::{Lost, Mode, Odds, Options, Proxy};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::rig::Rig;

/// Redis behind proxies, too.
pub fn redis_by_proxy(options: &mut Options, _: &Path) -> anyhow::Result<()> {
    options.redis_proxies = true;
    Ok(())
}

/// No proxies: each Postgres in a network namespace of its own.
pub fn in_namespaces(options: &mut Options, _: &Path) -> anyhow::Result<()> {
    options.proxies = false;
    options.postgres_lines = true;
    Ok(())
}

pub async fn cut_both(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    cut(rig, rng, Mode::LoseBoth).await;
    Ok(())
}

pub async fn cut_requests(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    cut(rig, rng, Mode::LoseRequests).await;
    Ok(())
}

pub async fn cut_replies(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    cut(rig, rng, Mode::LoseReplies).await;
    Ok(())
}

async fn cut(rig: &Rig, rng: &mut StdRng, mode: Mode) {
    let before = rig.proxy().lost_bytes();
    rig.proxy().set_mode(mode);
    sleep(Duration::from_millis(rng.random_range(300..2500))).await;
    rig.proxy().set_mode(Mode::Pass);
    // Half the time the connections are found dead, half the time they go on where they were.
    if rng.random_bool(0.5) {
        rig.proxy().cut();
    }
    rig.saw("bytes lost", rig.proxy().lost_bytes() - before);
}

/// The cut is silent: both ends go on resending, and find out by their own time limits or when it is over.
pub async fn namespace_cut(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let (lost, what) =
        [(Lost::Requests, "cuts of requests"), (Lost::Replies, "cuts of replies"), (Lost::Both, "cuts of both")][rng.random_range(0..3)];
    let before = rig.primary().lost_frames();
    rig.primary().cut_line(lost).await;
    sleep(Duration::from_millis(rng.random_range(300..2500))).await;
    rig.primary().heal_line().await;
    rig.saw(what, 1);
    rig.saw("frames lost", rig.primary().lost_frames() - before);
    Ok(())
}

pub async fn slow_line(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let ms = Duration::from_millis;
    rig.proxy().set_delays(ms(150), ms(150), ms(50));
    sleep(ms(rng.random_range(1500..2500))).await;
    rig.proxy().set_mode(Mode::Stall);
    sleep(ms(rng.random_range(500..2000))).await;
    rig.proxy().set_mode(Mode::Pass);
    sleep(ms(300)).await;
    rig.proxy().set_delay(Duration::ZERO);
    rig.saw("slow spells", 1);
    Ok(())
}

pub async fn reset(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    for _ in 0..10 {
        rig.proxy().reset();
        sleep(Duration::from_millis(rng.random_range(5..80))).await;
    }
    rig.saw("resets", 10);
    Ok(())
}

pub async fn ack_eater(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    eat(rig, &[rig.proxy()], rng).await;
    Ok(())
}

pub async fn http_eater(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    eat(rig, &rig.fronts.iter().collect::<Vec<_>>(), rng).await;
    Ok(())
}

pub async fn redis_eater(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let proxies: Vec<_> = rig.testbed.regions().iter().filter_map(|r| r.redis_proxy.as_ref()).collect();
    eat(rig, &proxies, rng).await;
    proxies.iter().for_each(|p| p.reset());
    Ok(())
}

async fn eat(rig: &Rig, proxies: &[&Proxy], rng: &mut StdRng) {
    let hits = || proxies.iter().map(|p| p.hits()).fold([0; 3], |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2]]);
    let before = hits();
    let late = Duration::from_millis(rng.random_range(100..1800));
    proxies.iter().for_each(|p| p.set_odds(Odds { eat_reply: 100_000, drop_call: 50_000, delay_reply: 40_000, late }));
    sleep(Duration::from_millis(700)).await;
    proxies.iter().for_each(|p| p.set_odds(Odds::default()));
    let after = hits();
    rig.saw("replies eaten", after[0] - before[0]);
    rig.saw("calls dropped", after[1] - before[1]);
    rig.saw("replies late", after[2] - before[2]);
}
