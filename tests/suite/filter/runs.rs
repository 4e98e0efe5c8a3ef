//! Runs of `dedup filter`, and what they should print.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use dedup_testbed::{Testbed, wait_until};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::harness::dedup_bin;

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// `dedup filter` on a topic of its own making.
pub fn command(url: &str, topic: &str, args: &[&str]) -> Command {
    let mut command = Command::new(dedup_bin());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DEDUP_")) {
        command.env_remove(name);
    }
    command.args(["filter", "--url", url, "--topic", topic, "--window", "1d"]).args(args).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub async fn filter(url: &str, topic: &str, args: &[&str], input: impl AsRef<[u8]>) -> Ended {
    let mut child = command(url, topic, args).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.as_ref().to_vec();
    // One that stops early does not read all.
    let feed = tokio::spawn(async move { stdin.write_all(&input).await.ok() });
    let output = child.wait_with_output().await.unwrap();
    feed.await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

pub fn topic(name: &str) -> String {
    format!("{name}-{:08x}", rand::random::<u32>())
}

/// What a filter with an endless memory prints: the first line of each key.
pub fn first_occurrences<'a>(lines: impl IntoIterator<Item = &'a str>, key: impl Fn(&'a str) -> &'a str) -> String {
    let mut seen = HashSet::new();
    lines.into_iter().filter(|line| seen.insert(key(line))).flat_map(|line| [line, "\n"]).collect()
}

/// `count` events over a third as many ids, repeats near and far; no two lines are equal, so that it shows which line of a key was printed.
pub fn events(count: usize) -> String {
    let id = |n: usize| match n % 3 {
        0 => n,
        1 => n - 1,
        _ => rand::random_range(0..n) / 3 * 3,
    };
    (0..count).map(|n| format!("{{\"n\":{n},\"id\":\"{}\"}}\n", id(n))).collect()
}

pub fn id(event: &str) -> &str {
    event.split("\"id\":").nth(1).unwrap()
}

pub fn file(testbed: &Testbed, name: &str, text: &str) -> PathBuf {
    let path = testbed.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A run over a file whose output can be watched while it runs.
pub struct Watched {
    pub child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Watched {
    pub fn start(testbed: &Testbed, topic: &str, input: &Path, args: &[&str]) -> Self {
        let name = format!("run-{:08x}", rand::random::<u32>());
        let (out, err) = (testbed.dir().join(format!("{name}.out")), testbed.dir().join(format!("{name}.err")));
        let mut command = command(&testbed.region("eu").instances[0].url(), topic, args);
        command.arg(input).stdin(Stdio::null());
        command.stdout(std::fs::File::create(&out).unwrap()).stderr(std::fs::File::create(&err).unwrap());
        Self { child: command.spawn().unwrap(), out, err }
    }

    pub fn out(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap()
    }

    pub async fn printed(&self, bytes: usize) {
        wait_until("it prints", Duration::from_secs(30), || async {
            let out = self.out().len();
            if out >= bytes { Ok(()) } else { Err(format!("{out} bytes; {}", std::fs::read_to_string(&self.err).unwrap())) }
        })
        .await;
    }

    pub async fn end(mut self) -> Ended {
        let status = tokio::time::timeout(Duration::from_secs(90), self.child.wait()).await.unwrap().unwrap();
        Ended { code: status.code(), out: self.out(), err: std::fs::read_to_string(&self.err).unwrap() }
    }
}

/// The id a run said it has.
pub fn run_id(err: &str) -> String {
    err.split("run id: ").nth(1).and_then(|rest| rest.split(';').next()).unwrap_or_else(|| panic!("no run id: {err}")).to_owned()
}
