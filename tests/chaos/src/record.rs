//! The recorder: every call and every fault, on one monotonic clock.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dedup_checker::{Call, Line, Out, Return};

/// Collects lines; shared by all workers.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    next: AtomicU64,
    lines: Mutex<Vec<Line>>,
    /// Answers that no promise allows, whatever the history.
    odd: Mutex<Vec<String>>,
}

impl Recorder {
    pub fn new(seed: u64, name: &str, steady: bool, archived_after_ms: Option<u64>) -> Self {
        Self {
            began: Instant::now(),
            next: AtomicU64::new(1),
            lines: Mutex::new(vec![Line::Run { seed, name: name.into(), steady, archived_after_ms }]),
            odd: Mutex::default(),
        }
    }

    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn push(&self, line: Line) {
        self.lines.lock().expect("no panic while held").push(line);
    }

    /// Records that `call` is sent now; its number and moment are put in.
    pub fn call(&self, mut call: Call) -> u64 {
        call.op = self.next.fetch_add(1, Ordering::Relaxed);
        call.at = self.now();
        let op = call.op;
        self.push(Line::Call(call));
        op
    }

    /// Records how it ended.
    pub fn back(&self, op: u64, out: Out) {
        self.push(Line::Return(Return { op, at: self.now(), out }));
    }

    pub fn mark(&self, what: impl Into<String>) {
        self.push(Line::Mark { at: self.now(), what: what.into() });
    }

    pub fn end(&self) {
        self.push(Line::End { at: self.now() });
    }

    /// An answer that should not have been given at all.
    pub fn odd(&self, what: String) {
        let mut odd = self.odd.lock().expect("no panic while held");
        if odd.len() < 100 {
            odd.push(what);
        }
    }

    pub fn odds(&self) -> Vec<String> {
        self.odd.lock().expect("no panic while held").clone()
    }

    /// Share of decided calls among those that were sent in a span of time.
    pub fn success(&self, from: u64, to: u64) -> (usize, usize) {
        let lines = self.lines.lock().expect("no panic while held");
        let mut open = std::collections::HashSet::new();
        let (mut all, mut good) = (0, 0);
        for line in lines.iter() {
            match line {
                // (An SQL caller's own roll-back is no failure of the service.)
                Line::Call(call) if (from..to).contains(&call.at) && call.node != "sql" => {
                    open.insert(call.op);
                }
                Line::Return(back) if open.remove(&back.op) => {
                    all += 1;
                    // A forget that a killed process, not yet given up, has not heard of is done for everybody who lives.
                    good += usize::from(matches!(&back.out, Out::Ok(_)) || matches!(&back.out, Out::Unknown(why) if why == "pending"));
                }
                _ => {}
            }
        }
        (good, all)
    }

    pub fn take(&self) -> Vec<Line> {
        std::mem::take(&mut self.lines.lock().expect("no panic while held"))
    }
}

/// Writes a history as JSON lines.
pub fn write(path: &Path, lines: &[Line]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for line in lines {
        serde_json::to_writer(&mut file, line)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}
