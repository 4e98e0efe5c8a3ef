//! Load on the service: some connections, each asking as soon as it was answered.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use hdrhistogram::Histogram;

use super::cpu;
use super::http::{Connection, count};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Keys never asked before: every answer must be `first`.
    New,
    /// One of a known set of done keys: every answer must be `duplicate`.
    Known,
}

/// How the load looks.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// What is asked.
    pub keys: Keys,
    /// Keys of one request; 1: the single call.
    pub batch: usize,
    /// Connections.
    pub connections: usize,
}

/// Keys there are for [`Keys::Known`].
pub const KNOWN: u64 = 10_000;

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Keys decided per second.
    pub keys_per_s: f64,
    /// Latency of a request, microseconds.
    pub latency_us: Histogram<u64>,
    /// Processor time of this program per key, microseconds: the generator's own cost.
    pub generator_us_per_key: f64,
}

/// Runs a load on keys of `home` for `seconds`; `salt` makes its new keys new.
pub async fn run(port: u16, topic: &str, home: &'static str, load: Load, seconds: u64, salt: u64) -> anyhow::Result<Outcome> {
    let before = cpu::of_process(std::process::id());
    let began = Instant::now();
    let until = began + Duration::from_secs(seconds);
    let connections = (0..load.connections).map(|c| tokio::spawn(connection(port, topic.to_owned(), home, load, until, salt, c as u64)));
    let mut latency = Histogram::new(3)?;
    let mut keys = 0;
    for done in futures_util::future::join_all(connections).await {
        let (n, histogram) = done??;
        keys += n;
        latency.add(histogram)?;
    }
    let took = began.elapsed().as_secs_f64();
    ensure!(keys > 0, "no request was answered");
    let own = cpu::of_process(std::process::id()) - before;
    Ok(Outcome { keys_per_s: keys as f64 / took, latency_us: latency, generator_us_per_key: own * 1e6 / keys as f64 })
}

async fn connection(
    port: u16,
    topic: String,
    home: &'static str,
    load: Load,
    until: Instant,
    salt: u64,
    c: u64,
) -> anyhow::Result<(u64, Histogram<u64>)> {
    let mut connection = Connection::open(port).await?;
    let mut latency = Histogram::new(3)?;
    let path = if load.batch == 1 { format!("/v1/topics/{topic}/checks") } else { format!("/v1/topics/{topic}/checks/batch") };
    let mut body = Vec::new();
    let (mut asked, mut state) = (0_u64, salt ^ c.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    while Instant::now() < until {
        body.clear();
        if load.batch > 1 {
            body.extend_from_slice(b"{\"detail\":\"verdict\",\"items\":[");
        }
        for i in 0..load.batch {
            if i > 0 {
                body.push(b',');
            }
            // xorshift: any spread will do, and it costs nothing beside the request.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let n = if load.keys == Keys::Known { state % KNOWN } else { asked + i as u64 };
            match load.keys {
                Keys::Known => key(&mut body, home, 0, 0, n),
                Keys::New => key(&mut body, home, salt, c + 1, n),
            }
        }
        if load.batch > 1 {
            body.extend_from_slice(b"]}");
        }
        let sent = Instant::now();
        let answer = connection.post(&path, &body).await?;
        latency.record(u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX).max(1))?;
        check(answer, load)?;
        asked += load.batch as u64;
    }
    Ok((asked, latency))
}

fn key(body: &mut Vec<u8>, home: &str, salt: u64, c: u64, n: u64) {
    use std::io::Write;
    write!(body, "{{\"key\":\"{home}:order-{salt:x}-{c}-{n}\"}}").expect("a vector takes all that is written");
}

/// A benchmark that does not look at the answers measures nothing.
fn check(answer: &[u8], load: Load) -> anyhow::Result<()> {
    let word: &[u8] = if load.keys == Keys::New { b"\"first\"" } else { b"\"duplicate\"" };
    let expected = match (load.batch, load.keys) {
        // A batch may name a known key twice; its counts repeat the word as a member.
        (1, _) => return if count(answer, word) == 1 { Ok(()) } else { bail!("unexpected: {}", String::from_utf8_lossy(answer)) },
        (n, _) => n + 1,
    };
    ensure!(count(answer, word) == expected, "unexpected: {}", String::from_utf8_lossy(&answer[answer.len().saturating_sub(200)..]));
    Ok(())
}

/// Makes the known keys known.
pub async fn prepare_known(port: u16, topic: &str) -> anyhow::Result<()> {
    let mut connection = Connection::open(port).await?;
    for chunk in 0..KNOWN.div_ceil(500) {
        let mut body = b"{\"detail\":\"verdict\",\"items\":[".to_vec();
        for n in chunk * 500..((chunk + 1) * 500).min(KNOWN) {
            if n > chunk * 500 {
                body.push(b',');
            }
            key(&mut body, "eu", 0, 0, n);
        }
        body.extend_from_slice(b"]}");
        connection.post(&format!("/v1/topics/{topic}/checks/batch"), &body).await?;
    }
    Ok(())
}
