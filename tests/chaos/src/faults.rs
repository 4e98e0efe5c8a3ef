//! The faults, one row each: what it needs, what callers do meanwhile, and one strike of it. A strike begins and ends; after it all is whole
//! again. Whoever adds one adds a row here, and its strike to the module of its family. A sleep in a strike is how long the fault lasts.

mod callers;
mod clocks;
mod failovers;
mod layout;
mod network;
mod processes;
mod stores;

use std::path::Path;

use dedup_testbed::Options;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rand::rngs::StdRng;

use crate::rig::Rig;
use crate::work::{Mix, World};

/// Once, and heals. The number is that of the strike.
type Strike = for<'a> fn(&'a Rig, &'a mut StdRng, usize) -> BoxFuture<'a, anyhow::Result<()>>;
/// One round of callers beside the workers, where they are the fault. The number is that of the round.
type Beside = for<'a> fn(&'a World, &'a mut StdRng, usize) -> BoxFuture<'a, ()>;

/// Proxies beside those of the testbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fronts {
    None,
    /// Between callers and each instance.
    Instances,
    /// Between the second instance and the home's first node.
    SecondInstance,
}

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
    /// Nobody moves the homes' clocks.
    pub(crate) steady: bool,
    /// It is kept up by callers until the end, so that not every call need succeed after it.
    pub(crate) goes_on: bool,
    /// The home is well all the time: no call may be told that it is not.
    pub(crate) home_is_well: bool,
    /// A janitor archives what was granted so long ago.
    pub(crate) archived_after_ms: Option<u64>,
    pub(crate) fronts: Fronts,
    pub(crate) prepare: fn(&mut Options, &Path) -> anyhow::Result<()>,
    pub(crate) mix: fn(&mut Mix),
    pub(crate) beside: Option<Beside>,
    pub(crate) strike: Strike,
    not_here: fn() -> Option<String>,
}

const fn row(name: &'static str, row: &'static str, what: &'static str, strike: Strike) -> Fault {
    Fault {
        name,
        row,
        what,
        unknowns: false,
        loses: false,
        steady: true,
        goes_on: false,
        home_is_well: false,
        archived_after_ms: None,
        fronts: Fronts::None,
        prepare: |_, _| Ok(()),
        mix: |_| {},
        beside: None,
        strike,
        not_here: || None,
    }
}

impl Fault {
    /// With unknown outcomes.
    const fn unknown(self) -> Self {
        Self { unknowns: true, ..self }
    }

    /// With these servers.
    const fn on(self, prepare: fn(&mut Options, &Path) -> anyhow::Result<()>) -> Self {
        Self { prepare, ..self }
    }

    /// With callers who do this.
    const fn mixed(self, mix: fn(&mut Mix)) -> Self {
        Self { mix, ..self }
    }

    /// With these callers beside the workers.
    const fn beside(self, beside: Beside) -> Self {
        Self { beside: Some(beside), ..self }
    }

    /// Why this machine cannot do it; `None`: it can.
    #[must_use]
    pub fn not_here(&self) -> Option<String> {
        (self.not_here)()
    }
}

/// All of them.
pub const FAULTS: &[Fault] = &[
    row("none", "–", "nothing is broken", |rig, _, _| callers::round(rig).boxed()),
    row("service-kill", "F1", "instances are killed (-9) and started again", |rig, rng, _| processes::service_kill(rig, rng).boxed())
        .unknown(),
    row("rolling-restart", "F2", "instances are asked to end, one after the other, and started again", |rig, _, n| {
        processes::rolling_restart(rig, n).boxed()
    }),
    row("hang-up", "F3", "callers hang up at any moment", |rig, _, _| callers::round(rig).boxed())
        .unknown()
        .beside(|world, rng, _| callers::hang_up(world, rng).boxed()),
    row("pg-kill", "F4", "Postgres is killed (-9) and started again", |rig, _, _| processes::pg_kill(rig).boxed()).unknown(),
    row("pg-restart", "F5", "Postgres is restarted in good order", |rig, _, _| processes::pg_restart(rig).boxed()).unknown(),
    row("pg-stall", "F6", "Postgres is frozen for a while", |rig, rng, _| processes::pg_stall(rig, rng).boxed()).unknown(),
    row(
        "failover",
        "F7",
        "the primary dies, the more advanced synchronous standby is promoted, the old primary comes back as a standby",
        |rig, rng, _| failovers::failover(rig, rng).boxed(),
    )
    .unknown()
    .on(failovers::two_synchronous),
    Fault {
        loses: true,
        ..row("failover-async", "F8", "the same with one asynchronous standby that lags", |rig, _, _| failovers::lossy(rig).boxed())
            .unknown()
            .on(failovers::one_asynchronous)
    },
    // What an SQL caller is told in the middle of a failover is for its own driver to doubt: see the guide.
    Fault {
        fronts: Fronts::SecondInstance,
        ..row(
            "old-primary",
            "F9",
            "a standby is promoted while the old primary lives on, cut off, with instances still connected to it",
            |rig, _, _| failovers::old_primary(rig).boxed(),
        )
        .unknown()
        .on(failovers::two_synchronous_by_proxy)
        .mixed(|mix| mix.sql = 0)
    },
    row("standby-down", "F10", "all synchronous standbys are down for a while", |rig, rng, _| failovers::standby_down(rig, rng).boxed())
        .unknown()
        .on(failovers::two_synchronous),
    row("cancel-sync", "F11", "waits for the standbys are cancelled, then the primary dies and a standby is promoted", |rig, _, _| {
        failovers::cancel_sync(rig).boxed()
    })
    .unknown()
    .on(failovers::two_synchronous)
    .mixed(|mix| mix.sql = 0),
    row("disk-full", "F12", "the file system of Postgres runs full", |rig, rng, _| stores::disk_full(rig, rng).boxed())
        .on(stores::small_disk),
    row("no-connections", "F13", "somebody else holds all connections of Postgres", |rig, _, _| stores::no_connections(rig).boxed())
        .on(stores::few_connections),
    Fault {
        home_is_well: true,
        ..row("lock-wait", "F14", "open transactions hold contested keys", |rig, _, _| callers::lock_wait(rig).boxed())
            .mixed(callers::in_transactions)
    },
    row("cut", "F15", "the line to the home is cut in both directions", |rig, rng, _| network::cut_both(rig, rng).boxed()).unknown(),
    row("cut-requests", "F16", "what is sent to the home is lost", |rig, rng, _| network::cut_requests(rig, rng).boxed()).unknown(),
    row("cut-replies", "F17", "what the home answers is lost", |rig, rng, _| network::cut_replies(rig, rng).boxed()).unknown(),
    Fault {
        not_here: dedup_testbed::no_lines_here,
        ..row(
            "ns-cut",
            "F15–17",
            "the same three by the kernel: Postgres in a network namespace of its own, frames to or from it lost",
            |rig, rng, _| network::namespace_cut(rig, rng).boxed(),
        )
        .unknown()
        .on(network::in_namespaces)
    },
    row("slow-line", "F18", "the line to the home takes 150 ms each way, with jitter and stalls", |rig, rng, _| {
        network::slow_line(rig, rng).boxed()
    })
    .unknown(),
    row("redis-down", "F19", "Redis is killed and started again", |rig, rng, _| stores::redis_down(rig, rng).boxed()),
    row("redis-stall", "F20", "Redis is frozen for a while", |rig, rng, _| stores::redis_stall(rig, rng).boxed()),
    row("redis-garbage", "F21", "values in Redis are damaged, swapped, and of wrong types", |rig, rng, _| {
        stores::redis_garbage(rig, rng).boxed()
    }),
    row("redis-flush", "F22", "Redis is emptied", |rig, _, _| stores::redis_flush(rig).boxed()),
    row("redis-eater", "F19", "replies of Redis are lost or late, and connections to it reset", |rig, rng, _| {
        network::redis_eater(rig, rng).boxed()
    })
    .on(network::redis_by_proxy),
    row("app-clock", "F24", "the clocks of the instances jump by two hours", |rig, _, n| clocks::app_clock(rig, n).boxed())
        .on(clocks::fake_clock),
    Fault {
        steady: false,
        ..row("region-clocks", "F25", "the clocks of the homes differ, by up to 30 s", |rig, rng, _| {
            clocks::region_clocks(rig, rng).boxed()
        })
    },
    Fault {
        steady: false,
        ..row("clock-forward", "F26", "the home's clock steps forward by an hour", |rig, _, _| clocks::step(rig, 3_600_000).boxed())
    },
    Fault {
        steady: false,
        ..row("clock-back", "F27", "the home's clock steps back by an hour", |rig, _, _| clocks::step(rig, -3_600_000).boxed())
    },
    row("rotation", "F28", "segments rotate every 100 ms", |rig, rng, _| layout::rotate(rig, rng).boxed()),
    row("rotation-long", "F29", "segments rotate while callers keep transactions open for long", |rig, rng, _| {
        layout::rotate(rig, rng).boxed()
    })
    .mixed(|mix| (mix.sql, mix.lingering) = (30, 3)),
    Fault {
        archived_after_ms: Some(layout::WARM_MS),
        ..row(
            "cold",
            "F28–30",
            "a janitor seals, archives and merges within seconds, dies anywhere and is started again",
            |rig, rng, _| layout::cold(rig, rng).boxed(),
        )
        .on(layout::hasty_janitor)
        .mixed(|mix| mix.late = 25)
    },
    Fault {
        home_is_well: true,
        ..row("caller-tx", "F31", "callers hold, commit and roll back transactions, and their sessions are killed", |rig, _, _| {
            callers::kill_sessions(rig).boxed()
        })
        .mixed(callers::in_transactions)
    },
    row("service-stall", "F32", "instances are frozen for two leases, owners with them", |rig, rng, _| {
        processes::service_stall(rig, rng).boxed()
    })
    .unknown()
    .mixed(|mix| mix.abandoned = 40),
    row("repeats", "F33", "every call is made again, up to three times", |rig, _, _| callers::round(rig).boxed())
        .mixed(|mix| mix.repeats = 75),
    row("ack-eater", "F34", "replies to commits are lost, commits are dropped, replies come late", |rig, rng, _| {
        network::ack_eater(rig, rng).boxed()
    })
    .unknown(),
    Fault {
        fronts: Fronts::Instances,
        ..row("http-eater", "F34", "the same between callers and instances", |rig, rng, _| network::http_eater(rig, rng).boxed()).unknown()
    },
    row("reset", "F34", "connections to the home are reset", |rig, rng, _| network::reset(rig, rng).boxed()).unknown(),
    row("batches", "F35", "batches with repeated keys meet each other", |rig, _, _| callers::round(rig).boxed())
        .mixed(|mix| (mix.batches, mix.claims, mix.checks, mix.share) = (90, 10, 10, 3)),
    row("hot-key", "F36", "hundreds ask for one key at once", |rig, _, _| callers::round(rig).boxed())
        .mixed(|mix| mix.share = 12)
        .beside(|world, _, round| callers::hot_key(world, round).boxed()),
    row("migrate", "F41", "homes are migrated several times at once, some of it killed", |rig, rng, _| layout::migrate(rig, rng).boxed()),
    Fault {
        goes_on: true,
        ..row("overload", "F44", "several times as many callers as can be served", |rig, _, _| callers::round(rig).boxed())
            .beside(|world, _, round| callers::overload(world, round).boxed())
    },
];

/// A fault by its name.
#[must_use]
pub fn fault(name: &str) -> Option<Fault> {
    FAULTS.iter().copied().find(|f| f.name == name)
}
