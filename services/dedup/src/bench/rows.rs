//! The rows that have a peer.

use super::cpu;
use super::load::{self, Keys, Load, Outcome};
use super::peers;
use super::report::{Row, median};
use super::world::World;

/// A peer.
#[derive(Debug, Clone, Copy)]
enum Peer {
    /// `redis-benchmark` SET NX EX with this pipeline.
    Redis(usize),
    /// `pgbench` INSERT … ON CONFLICT DO NOTHING.
    Postgres,
}

/// A row of the table.
#[derive(Debug)]
pub struct Spec {
    /// Name, in the JSON too.
    pub name: &'static str,
    load: Load,
    peer: Peer,
    peer_is: &'static str,
    /// Ratio that is the least aim.
    pub at_least: f64,
    /// Ratio that is the far aim.
    pub stretch: f64,
}

const fn load(keys: Keys, batch: usize, connections: usize) -> Load {
    Load { keys, batch, connections }
}

/// All rows.
pub const ROWS: [Spec; 4] = [
    Spec {
        name: "duplicates_single",
        load: load(Keys::Known, 1, 64),
        peer: Peer::Redis(1),
        peer_is: "redis-benchmark SET NX EX, 64 connections, no pipelining",
        at_least: 0.8,
        stretch: 1.0,
    },
    Spec {
        name: "duplicates_batch",
        load: load(Keys::Known, 256, 8),
        peer: Peer::Redis(64),
        peer_is: "redis-benchmark -P 64 SET NX EX, 64 connections",
        at_least: 2.0,
        stretch: 5.0,
    },
    Spec {
        name: "first_single",
        load: load(Keys::New, 1, 64),
        peer: Peer::Postgres,
        peer_is: "pgbench INSERT … ON CONFLICT DO NOTHING, 64 clients, fsync on",
        at_least: 1.5,
        stretch: 3.0,
    },
    Spec {
        name: "first_batch",
        load: load(Keys::New, 256, 16),
        peer: Peer::Postgres,
        peer_is: "pgbench INSERT … ON CONFLICT DO NOTHING, 64 clients, fsync on",
        at_least: 4.0,
        stretch: 7.0,
    },
];

/// Measures a row: ours and the peer's in turn, `rounds` times.
pub async fn measure(spec: &Spec, world: &World, seconds: u64, rounds: u64) -> anyhow::Result<Row> {
    load::prepare_known(world.port(), world.topic).await?;
    // What is not warm yet (connections, plans, caches) is nobody's figure.
    load::run(world.port(), world.topic, "eu", spec.load, 1, salt()).await?;
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    let mut last: Option<Outcome> = None;
    let (service, postgres) = (world.region().instances[0].pid(), world.region().postgres.pid());
    let (mut service_us, mut postgres_us) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = (cpu::of_process(service), cpu::of_family(postgres));
        let outcome = load::run(world.port(), world.topic, "eu", spec.load, seconds, salt()).await?;
        let keys = outcome.keys_per_s * seconds as f64;
        service_us.push((cpu::of_process(service) - before.0) * 1e6 / keys);
        postgres_us.push((cpu::of_family(postgres) - before.1) * 1e6 / keys);
        ours.push(outcome.keys_per_s);
        last = Some(outcome);
        peers.push(match spec.peer {
            Peer::Redis(pipeline) => peers::set_nx(world, pipeline, seconds).await?,
            Peer::Postgres => peers::insert(world, seconds).await?,
        });
    }
    let last = last.expect("there is at least one round");
    let row = Row {
        name: spec.name,
        peer_is: spec.peer_is,
        ours: median(&mut ours),
        peer: median(&mut peers),
        at_least: spec.at_least,
        stretch: spec.stretch,
        batch: spec.load.batch,
        connections: spec.load.connections,
        p50_ms: last.latency_us.value_at_quantile(0.5) as f64 / 1000.0,
        p99_ms: last.latency_us.value_at_quantile(0.99) as f64 / 1000.0,
        service_us_per_key: median(&mut service_us),
        postgres_us_per_key: median(&mut postgres_us),
        generator_us_per_key: last.generator_us_per_key,
    };
    row.print();
    Ok(row)
}

fn salt() -> u64 {
    rand::random()
}
