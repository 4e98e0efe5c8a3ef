//! The faults: what each needs, and one strike of it. A strike begins and ends; after it all is whole again.

use std::time::{Duration, Instant};

use dedup_testbed::{Lost, Mode, Odds, Options};
use futures_util::future::join_all;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::rig::Rig;
use crate::work::Mix;

/// One row of the fault table.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Its name on the command line.
    pub name: &'static str,
    /// Row of the fault table it stands for.
    pub row: &'static str,
    /// What happens.
    pub what: &'static str,
    /// Its strikes leave callers without an answer, so a run without unknown outcomes shows nothing.
    pub unknowns: bool,
    /// It is expected to lose acknowledged claims: the checker must say so.
    pub loses: bool,
}

const fn row(name: &'static str, row: &'static str, unknowns: bool, what: &'static str) -> Fault {
    Fault { name, row, what, unknowns, loses: false }
}

/// All of them.
pub const FAULTS: &[Fault] = &[
    row("none", "–", false, "nothing is broken"),
    row("service-kill", "F1", true, "instances are killed (-9) and started again"),
    row("rolling-restart", "F2", false, "instances are asked to end, one after the other, and started again"),
    row("hang-up", "F3", true, "callers hang up at any moment"),
    row("pg-kill", "F4", true, "Postgres is killed (-9) and started again"),
    row("pg-restart", "F5", true, "Postgres is restarted in good order"),
    row("pg-stall", "F6", true, "Postgres is frozen for a while"),
    row(
        "failover",
        "F7",
        true,
        "the primary dies, the more advanced synchronous standby is promoted, the old primary comes back as a standby",
    ),
    Fault { loses: true, ..row("failover-async", "F8", true, "the same with one asynchronous standby that lags") },
    row("old-primary", "F9", true, "a standby is promoted while the old primary lives on, cut off, with instances still connected to it"),
    row("standby-down", "F10", true, "all synchronous standbys are down for a while"),
    row("cancel-sync", "F11", true, "waits for the standbys are cancelled, then the primary dies and a standby is promoted"),
    row("disk-full", "F12", false, "the file system of Postgres runs full"),
    row("no-connections", "F13", false, "somebody else holds all connections of Postgres"),
    row("lock-wait", "F14", false, "open transactions hold contested keys"),
    row("cut", "F15", true, "the line to the home is cut in both directions"),
    row("cut-requests", "F16", true, "what is sent to the home is lost"),
    row("cut-replies", "F17", true, "what the home answers is lost"),
    row("ns-cut", "F15–17", true, "the same three by the kernel: Postgres in a network namespace of its own, frames to or from it lost"),
    row("slow-line", "F18", true, "the line to the home takes 150 ms each way, with jitter and stalls"),
    row("redis-down", "F19", false, "Redis is killed and started again"),
    row("redis-stall", "F20", false, "Redis is frozen for a while"),
    row("redis-garbage", "F21", false, "values in Redis are damaged, swapped, and of wrong types"),
    row("redis-flush", "F22", false, "Redis is emptied"),
    row("redis-eater", "F19", false, "replies of Redis are lost or late, and connections to it reset"),
    row("app-clock", "F24", false, "the clocks of the instances jump by two hours"),
    row("region-clocks", "F25", false, "the clocks of the homes differ, by up to 30 s"),
    row("clock-forward", "F26", false, "the home's clock steps forward by an hour"),
    row("clock-back", "F27", false, "the home's clock steps back by an hour"),
    row("rotation", "F28", false, "segments rotate every 100 ms"),
    row("rotation-long", "F29", false, "segments rotate while callers keep transactions open for long"),
    row("caller-tx", "F31", false, "callers hold, commit and roll back transactions, and their sessions are killed"),
    row("service-stall", "F32", true, "instances are frozen for two leases, owners with them"),
    row("repeats", "F33", false, "every call is made again, up to three times"),
    row("ack-eater", "F34", true, "replies to commits are lost, commits are dropped, replies come late"),
    row("http-eater", "F34", true, "the same between callers and instances"),
    row("reset", "F34", true, "connections to the home are reset"),
    row("batches", "F35", false, "batches with repeated keys meet each other"),
    row("hot-key", "F36", false, "hundreds ask for one key at once"),
    row("migrate", "F41", false, "homes are migrated several times at once, some of it killed"),
    row("overload", "F44", false, "several times as many callers as can be served"),
];

/// A fault by its name.
#[must_use]
pub fn fault(name: &str) -> Option<Fault> {
    FAULTS.iter().copied().find(|f| f.name == name)
}

const SYNCHRONOUS: (&str, &str) = ("synchronous_standby_names", "'ANY 1 (*)'");

impl Fault {
    /// What servers it needs.
    pub(crate) fn prepare(&self, options: &mut Options) {
        options.proxies = true;
        match self.name {
            "failover" | "old-primary" | "standby-down" | "cancel-sync" => {
                options.standbys = 2;
                options.proxies = self.name == "old-primary";
                options.postgres_settings.push((SYNCHRONOUS.0.into(), SYNCHRONOUS.1.into()));
                options.regions.truncate(1);
                options.instances = 2;
            }
            "failover-async" => {
                options.standbys = 1;
                options.proxies = false;
                options.regions.truncate(1);
                options.instances = 2;
            }
            "disk-full" => {
                options.postgres_disk_mb = Some(220);
                options.postgres_settings.push(("max_wal_size".into(), "64MB".into()));
            }
            "ns-cut" => {
                options.proxies = false;
                options.postgres_lines = true;
            }
            "redis-eater" => options.redis_proxies = true,
            "no-connections" => options.postgres_settings.push(("max_connections".into(), "60".into())),
            _ => {}
        }
    }

    /// Why this machine cannot do it; `None`: it can.
    #[must_use]
    pub fn not_here(&self) -> Option<String> {
        if self.name == "ns-cut" { dedup_testbed::no_lines_here() } else { None }
    }

    /// Whether callers reach the instances through proxies.
    pub(crate) fn has_fronts(&self) -> bool {
        self.name == "http-eater"
    }

    /// What callers do meanwhile.
    pub(crate) fn mix(&self) -> Mix {
        let mix = Mix::default();
        match self.name {
            "caller-tx" | "lock-wait" => Mix { sql: 60, lingering: 30, ..mix },
            "rotation-long" => Mix { sql: 30, lingering: 3, ..mix },
            "repeats" => Mix { repeats: 75, ..mix },
            "batches" => Mix { batches: 90, claims: 10, checks: 10, share: 3, ..mix },
            "hot-key" => Mix { share: 12, ..mix },
            "service-stall" => Mix { abandoned: 40, ..mix },
            // What an SQL caller is told in the middle of a failover is for its own driver to doubt: see the guide.
            "cancel-sync" | "old-primary" => Mix { sql: 0, ..mix },
            _ => mix,
        }
    }

    /// Once, and heals.
    pub(crate) async fn strike(&self, rig: &Rig, rng: &mut StdRng, n: usize) -> anyhow::Result<()> {
        rig.recorder.mark(format!("{}: strike {n}", self.name));
        match self.name {
            "service-kill" => {
                let instance = rig.any_instance(rng);
                instance.kill9().await;
                sleep(Duration::from_millis(rng.random_range(0..150))).await;
                instance.start().await?;
                rig.saw("instances killed", 1);
            }
            "rolling-restart" => {
                let all = rig.instances();
                let instance = all[n % all.len()];
                let ended = instance.sigterm_and_wait(Duration::from_secs(20)).await;
                instance.start().await?;
                rig.saw("restarts", u64::from(ended.success()));
            }
            "pg-kill" => {
                rig.primary().kill9().await;
                rig.primary().start().await?;
                rig.saw("Postgres killed", 1);
            }
            "pg-restart" => {
                rig.primary().stop_fast().await;
                rig.primary().start().await?;
                rig.saw("Postgres restarted", 1);
            }
            "pg-stall" => {
                rig.primary().sigstop().await;
                sleep(Duration::from_millis(rng.random_range(100..2500))).await;
                rig.primary().sigcont().await;
                rig.saw("Postgres frozen", 1);
            }
            "service-stall" => {
                let instance = rig.any_instance(rng);
                instance.sigstop().await;
                sleep(Duration::from_millis(2200)).await;
                instance.sigcont().await;
                rig.saw("instances frozen", 1);
            }
            "failover" => failover(rig, rng).await?,
            "failover-async" => lossy_failover(rig).await?,
            "old-primary" => old_primary(rig).await?,
            "standby-down" => {
                for standby in standbys(rig) {
                    rig.nodes()[standby].kill9().await;
                }
                sleep(Duration::from_millis(rng.random_range(1500..3500))).await;
                for standby in standbys(rig) {
                    rig.nodes()[standby].start().await?;
                }
                rig.saw("times without a standby", 1);
            }
            "cancel-sync" => cancel_sync(rig).await?,
            "disk-full" => {
                rig.primary().fill_disk().await;
                sleep(Duration::from_millis(rng.random_range(1500..3000))).await;
                rig.primary().empty_disk().await;
                while !rig.primary().is_gone().await && !writes(rig).await {
                    sleep(Duration::from_millis(50)).await;
                }
                if rig.primary().is_gone().await {
                    rig.saw("Postgres gave up", 1);
                }
                rig.primary().start().await?;
                let log = std::fs::read_to_string(rig.primary().log_path())?;
                rig.saw("complaints of no space", log.matches("No space left on device").count() as u64);
            }
            "no-connections" => no_connections(rig).await?,
            "lock-wait" => {
                // The callers' own transactions do it: see the mix.
                let root = rig.primary().connect("postgres").await;
                let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'dedup_caller' AND state = 'idle in transaction'";
                let until = Instant::now() + Duration::from_secs(5);
                let mut open = 0;
                while open == 0 && Instant::now() < until {
                    sleep(Duration::from_millis(20)).await;
                    open = root.query_one(sql, &[]).await?.get::<_, i64>(0);
                }
                rig.saw("open transactions seen", u64::try_from(open).unwrap_or(0));
            }
            "cut" => cut(rig, rng, Mode::LoseBoth).await,
            "cut-requests" => cut(rig, rng, Mode::LoseRequests).await,
            "cut-replies" => cut(rig, rng, Mode::LoseReplies).await,
            "ns-cut" => namespace_cut(rig, rng).await,
            "reset" => {
                for _ in 0..10 {
                    rig.proxy().reset();
                    sleep(Duration::from_millis(rng.random_range(5..80))).await;
                }
                rig.saw("resets", 10);
            }
            "slow-line" => {
                let ms = Duration::from_millis;
                rig.proxy().set_delays(ms(150), ms(150), ms(50));
                sleep(ms(rng.random_range(1500..2500))).await;
                rig.proxy().set_mode(Mode::Stall);
                sleep(ms(rng.random_range(500..2000))).await;
                rig.proxy().set_mode(Mode::Pass);
                sleep(ms(300)).await;
                rig.proxy().set_delay(Duration::ZERO);
                rig.saw("slow spells", 1);
            }
            "ack-eater" => eat(rig, &[rig.proxy()], rng).await,
            "http-eater" => eat(rig, &rig.fronts.iter().collect::<Vec<_>>(), rng).await,
            "redis-eater" => {
                let proxies: Vec<_> = rig.testbed.regions().iter().filter_map(|r| r.redis_proxy.as_ref()).collect();
                eat(rig, &proxies, rng).await;
                proxies.iter().for_each(|p| p.reset());
            }
            "redis-down" => {
                for region in rig.testbed.regions() {
                    let Some(redis) = &region.redis else { continue };
                    redis.kill9().await;
                    sleep(Duration::from_millis(rng.random_range(300..1200))).await;
                    redis.start().await?;
                    rig.saw("Redis killed", 1);
                }
            }
            "redis-stall" => {
                for region in rig.testbed.regions() {
                    let Some(redis) = &region.redis else { continue };
                    redis.sigstop().await;
                    sleep(Duration::from_millis(rng.random_range(300..1200))).await;
                    redis.sigcont().await;
                    rig.saw("Redis frozen", 1);
                }
            }
            "redis-garbage" => spoil(rig, rng).await?,
            "redis-flush" => {
                for region in rig.testbed.regions() {
                    let Some(redis) = &region.redis else { continue };
                    let mut direct = redis::Client::open(redis.url())?.get_multiplexed_async_connection().await?;
                    let keys: u64 = redis::cmd("DBSIZE").query_async(&mut direct).await?;
                    let () = redis::cmd("FLUSHALL").query_async(&mut direct).await?;
                    rig.saw("values flushed", keys);
                }
                sleep(Duration::from_millis(200)).await;
            }
            "app-clock" => {
                let hours = [2, -2, 0][n % 3];
                std::fs::write(rig.scratch.join("clock"), format!("{:+}s", hours * 3600))?;
                sleep(Duration::from_millis(700)).await;
                rig.saw("jumps", 1);
            }
            "region-clocks" => {
                for region in rig.testbed.regions() {
                    rig.shift_clock(region, rng.random_range(-30_000..30_000)).await?;
                }
                sleep(Duration::from_millis(1500)).await;
                rig.saw("shifts", 1);
            }
            "clock-forward" | "clock-back" => {
                let sign = if self.name == "clock-forward" { 1 } else { -1 };
                rig.shift_clock(rig.home(), sign * 3_600_000).await?;
                sleep(Duration::from_millis(1500)).await;
                rig.saw("steps", 1);
            }
            "rotation" | "rotation-long" => rotate(rig, rng).await?,
            "caller-tx" => {
                let root = rig.primary().connect("postgres").await;
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE usename = 'dedup_caller' ORDER BY random() LIMIT 2) x";
                rig.saw("sessions killed", u64::try_from(root.query_one(sql, &[]).await?.get::<_, i64>(0)).unwrap_or(0));
                sleep(Duration::from_millis(200)).await;
            }
            "migrate" => migrate(rig, rng).await?,
            // What callers do is the fault: see the run's extra callers and the mix.
            _ => {
                sleep(Duration::from_millis(500)).await;
                rig.saw("rounds", 1);
            }
        }
        Ok(())
    }
}

fn standbys(rig: &Rig) -> Vec<usize> {
    (0..rig.nodes().len()).filter(|n| *n != rig.primary_index()).collect()
}

/// Whether the primary takes writes.
async fn writes(rig: &Rig) -> bool {
    let Ok((client, connection)) = tokio_postgres::connect(&rig.primary().dsn("postgres"), tokio_postgres::NoTls).await else {
        return false;
    };
    tokio::spawn(connection);
    client.batch_execute("SELECT pg_logical_emit_message(true, 'chaos', 'is there room')").await.is_ok()
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
async fn namespace_cut(rig: &Rig, rng: &mut StdRng) {
    let (lost, what) =
        [(Lost::Requests, "cuts of requests"), (Lost::Replies, "cuts of replies"), (Lost::Both, "cuts of both")][rng.random_range(0..3)];
    let before = rig.primary().lost_frames();
    rig.primary().cut_line(lost).await;
    sleep(Duration::from_millis(rng.random_range(300..2500))).await;
    rig.primary().heal_line().await;
    rig.saw(what, 1);
    rig.saw("frames lost", rig.primary().lost_frames() - before);
}

async fn eat(rig: &Rig, proxies: &[&dedup_testbed::Proxy], rng: &mut StdRng) {
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

/// The primary dies; of the standbys the one that has more is promoted and the others follow it; the old primary returns as a standby.
async fn failover(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let (nodes, old) = (rig.nodes(), rig.primary_index());
    let behind = standbys(rig);
    // One of them lags: the other's word alone is what the primary's answers rest on.
    let lagging = nodes[behind[rng.random_range(0..behind.len())]];
    lagging.sigstop().await;
    sleep(Duration::from_millis(rng.random_range(100..500))).await;
    nodes[old].kill9().await;
    lagging.sigcont().await;
    promote_best(rig, old).await?;
    nodes[old].become_standby_of(rig.primary()).await?;
    rig.saw("failovers", 1);
    Ok(())
}

/// Promotes the standby that received most; the others follow it.
async fn promote_best(rig: &Rig, old: usize) -> anyhow::Result<()> {
    let nodes = rig.nodes();
    let mut best = (0, 0);
    for n in standbys(rig) {
        let received = nodes[n].received().await;
        if received >= best.0 {
            best = (received, n);
        }
    }
    nodes[best.1].promote().await?;
    for n in (0..nodes.len()).filter(|n| *n != old && *n != best.1) {
        nodes[n].follow(nodes[best.1]).await?;
    }
    rig.set_primary(best.1);
    rig.recorder.mark(format!("node {} is promoted", best.1));
    Ok(())
}

/// No standby follows the primary any more.
async fn detach(rig: &Rig) -> anyhow::Result<()> {
    let nodes = rig.nodes();
    for n in standbys(rig) {
        let client = nodes[n].connect("postgres").await;
        for sql in ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"] {
            client.batch_execute(sql).await?;
        }
        while client.query_one("SELECT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)", &[]).await?.get::<_, bool>(0) {
            sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

/// The standby has lost touch, the primary goes on acknowledging, dies, and the standby is promoted: what was acknowledged meanwhile is lost.
async fn lossy_failover(rig: &Rig) -> anyhow::Result<()> {
    let (nodes, old) = (rig.nodes(), rig.primary_index());
    let standby = nodes[standbys(rig)[0]];
    let client = standby.connect("postgres").await;
    for sql in ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"] {
        client.batch_execute(sql).await?;
    }
    sleep(Duration::from_millis(600)).await;
    nodes[old].kill9().await;
    promote_best(rig, old).await?;
    nodes[old].become_standby_of(rig.primary()).await?;
    rig.saw("failovers", 1);
    Ok(())
}

/// A standby is promoted while the old primary lives. One instance stays connected to the old one, the other loses its line to it and goes
/// over to the new one. At last the old primary becomes a standby.
async fn old_primary(rig: &Rig) -> anyhow::Result<()> {
    let nodes = rig.nodes();
    if rig.primary_index() != 0 {
        back_to_first(rig).await?;
    }
    let line = &rig.fronts[0];
    // First no standby confirms for it any more: of two, the other could otherwise still do so after one was chosen.
    detach(rig).await?;
    promote_best(rig, 0).await?;
    line.set_mode(Mode::Refuse);
    line.cut();
    sleep(Duration::from_millis(4500)).await;
    nodes[0].become_standby_of(rig.primary()).await?;
    line.set_mode(Mode::Pass);
    rig.saw("times with two primaries", 1);
    sleep(Duration::from_millis(2500)).await;
    Ok(())
}

/// Makes the first node the primary again, without loss: only its word counts before the present one dies.
async fn back_to_first(rig: &Rig) -> anyhow::Result<()> {
    let (nodes, old) = (rig.nodes(), rig.primary_index());
    let others: Vec<usize> = standbys(rig).into_iter().filter(|n| *n != 0).collect();
    for n in &others {
        nodes[*n].sigstop().await;
    }
    sleep(Duration::from_millis(200)).await;
    nodes[old].kill9().await;
    nodes[0].promote().await?;
    for n in others {
        nodes[n].sigcont().await;
        nodes[n].follow(nodes[0]).await?;
    }
    rig.set_primary(0);
    nodes[old].become_standby_of(nodes[0]).await?;
    rig.saw("failovers", 1);
    sleep(Duration::from_millis(1500)).await;
    Ok(())
}

/// No standby listens, waits are cancelled (each client then sees a success with a warning), and the primary dies.
async fn cancel_sync(rig: &Rig) -> anyhow::Result<()> {
    let (nodes, old) = (rig.nodes(), rig.primary_index());
    detach(rig).await?;
    let root = nodes[old].connect("postgres").await;
    let until = Instant::now() + Duration::from_millis(1200);
    while Instant::now() < until {
        let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        rig.saw("waits cancelled", u64::try_from(root.query_one(sql, &[]).await?.get::<_, i64>(0)).unwrap_or(0));
        sleep(Duration::from_millis(30)).await;
    }
    nodes[old].kill9().await;
    promote_best(rig, old).await?;
    nodes[old].become_standby_of(rig.primary()).await?;
    rig.saw("failovers", 1);
    Ok(())
}

async fn no_connections(rig: &Rig) -> anyhow::Result<()> {
    let postgres = rig.primary();
    let root = postgres.connect("postgres").await;
    let dsn = postgres.dsn("dedup_owner");
    root.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'dedup_svc'").await?;
    let mut held = Vec::new();
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        match tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                held.push(client);
            }
            Err(_) => {
                rig.saw("connections refused", 1);
                root.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'dedup_svc'").await?;
                sleep(Duration::from_millis(30)).await;
            }
        }
    }
    rig.saw("connections held", held.len() as u64);
    Ok(())
}

/// Overwrites what instances keep in Redis.
async fn spoil(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    for region in rig.testbed.regions() {
        let Some(redis) = &region.redis else { continue };
        let mut direct = redis::Client::open(redis.url())?.get_multiplexed_async_connection().await?;
        for _ in 0..60 {
            let key: Option<Vec<u8>> = redis::cmd("RANDOMKEY").query_async(&mut direct).await?;
            let other: Option<Vec<u8>> = redis::cmd("RANDOMKEY").query_async(&mut direct).await?;
            let (Some(key), Some(other)) = (key, other) else { break };
            let value: redis::RedisResult<Vec<u8>> = redis::cmd("GET").arg(&key).query_async(&mut direct).await;
            let theirs: redis::RedisResult<Vec<u8>> = redis::cmd("GET").arg(&other).query_async(&mut direct).await;
            let (Ok(mut value), Ok(theirs)) = (value, theirs) else { continue };
            match rng.random_range(0..4) {
                0 if !value.is_empty() => {
                    let at = rng.random_range(0..value.len());
                    value[at] ^= 1 << rng.random_range(0..8);
                    let () = redis::cmd("SET").arg(&key).arg(value).query_async(&mut direct).await?;
                }
                1 => {
                    let () = redis::cmd("SET").arg(&key).arg(theirs).query_async(&mut direct).await?;
                }
                2 => {
                    let () = redis::cmd("DEL").arg(&key).query_async(&mut direct).await?;
                    let () = redis::cmd("LPUSH").arg(&key).arg("x").query_async(&mut direct).await?;
                }
                _ => {
                    let cut = value.len() / 2;
                    let () = redis::cmd("SET").arg(&key).arg(&value[..cut]).query_async(&mut direct).await?;
                }
            }
            rig.saw("values spoilt", 1);
        }
    }
    sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// Rotates as often as it may for a second.
async fn rotate(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let janitor = rig.primary().connect("dedup_jan").await;
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        janitor.execute("SELECT dedup.prepare_segment_v1()", &[]).await?;
        let done: String = janitor.query_one("SELECT dedup.rotate_v1()", &[]).await?.get(0);
        match done.as_str() {
            "rotated" => rig.saw("rotations", 1),
            _ => rig.saw("rotations put off", 1),
        }
        sleep(Duration::from_millis(rng.random_range(50..100))).await;
    }
    Ok(())
}

/// Four at once, one of them killed.
async fn migrate(rig: &Rig, rng: &mut StdRng) -> anyhow::Result<()> {
    let home = rig.home();
    let config = rig.testbed.dir().join(&home.name).join("migrate.toml");
    let start = || {
        tokio::process::Command::new(&rig.dedup)
            .args(["migrate", "--owner", "dedup_owner", "--config"])
            .arg(&config)
            .env("DEDUP_OWNER_PASSWORD", home.postgres.password())
            .env("DEDUP_SECRET", rig.testbed.secret_hex())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
    };
    let mut all = (0..4).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
    let mut victim = all.pop().expect("four were started");
    sleep(Duration::from_millis(rng.random_range(0..60))).await;
    victim.start_kill().ok();
    victim.wait().await?;
    for done in join_all(all.iter_mut().map(|c| c.wait())).await {
        anyhow::ensure!(done?.success(), "a migration failed beside others");
        rig.saw("migrations", 1);
    }
    Ok(())
}
