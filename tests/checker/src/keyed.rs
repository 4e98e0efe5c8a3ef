//! The history taken apart by key: promises are per key, so each key can be judged alone.

use std::collections::HashMap;

use crate::history::{Answer, Call, Kind, Line, Out, Verdict};

/// A call with its end. One without an end is unknown: the recorder may have been cut off.
#[derive(Debug, Clone)]
pub struct Op {
    /// What was asked.
    pub call: Call,
    /// When the answer came; `u64::MAX` where the outcome is not known, since it may still happen.
    pub ret: u64,
    /// When the caller stopped waiting.
    pub back: u64,
    /// How it ended.
    pub out: Out,
    /// A record of its key may have been archived by the time it was answered.
    pub archivable: bool,
}

impl Op {
    /// When it was sent.
    #[must_use]
    pub fn inv(&self) -> u64 {
        self.call.at
    }

    /// What it was told, if it was decided.
    #[must_use]
    pub fn answer(&self) -> Option<&Answer> {
        if let Out::Ok(answer) = &self.out { Some(answer) } else { None }
    }

    /// Whether it may have happened without anybody knowing.
    #[must_use]
    pub fn unknown(&self) -> bool {
        matches!(self.out, Out::Unknown(_))
    }

    /// Whether it may have been told from a cache what the home has forgotten by now: the home forgets at one moment, the caches follow one
    /// by one until the forget is answered.
    #[must_use]
    pub fn may_be_cached(&self, calls: &[Self]) -> bool {
        let forgotten = |f: &Self| f.call.kind.forgets() && f.maybe() && f.inv() < self.ret && self.inv() < f.ret;
        self.answer().is_some_and(|a| a.verdict == Verdict::Duplicate) && calls.iter().any(forgotten)
    }

    /// Whether it repeats a completion that may have been made before the whole group was forgotten: that leaves done records where nobody
    /// looks for the key any more, so the repetition is still known as one.
    #[must_use]
    pub fn may_repeat_before_forget_all(&self, calls: &[Self]) -> bool {
        let done = |c: &&Self| c.call.kind == Kind::Complete && c.call.token == self.call.token && c.call.op != self.call.op && c.maybe();
        let forgotten_after = |c: &Self, f: &Self| f.call.kind == Kind::ForgetAll && f.maybe() && c.inv() < f.ret && f.inv() < self.ret;
        self.call.kind == Kind::Complete && calls.iter().filter(done).any(|c| calls.iter().any(|f| forgotten_after(c, f)))
    }

    /// Whether it took so long that its first attempt may have been granted, without a reply, and have lapsed before the service's own
    /// repetition was answered.
    #[must_use]
    pub fn may_have_outlived_a_grant(&self) -> bool {
        let lease_ns = u64::try_from(self.call.lease_ms).unwrap_or(0) * 1_000_000;
        self.call.kind == Kind::Claim && self.answer().is_some() && lease_ns > 0 && self.back.saturating_sub(self.inv()) > lease_ns
    }

    /// Whether it may have had its effect.
    #[must_use]
    pub fn maybe(&self) -> bool {
        !matches!(self.out, Out::No(_))
    }
}

/// All of it.
#[derive(Debug, Default)]
pub struct Histories {
    /// Seed of the run.
    pub seed: u64,
    /// Name of the run.
    pub name: String,
    /// Nobody moves the homes' clocks.
    pub steady: bool,
    /// Calls by key, in the order they were sent.
    pub keys: HashMap<String, Vec<Op>, foldhash::fast::RandomState>,
    /// What was broken and mended, in order.
    pub marks: Vec<(u64, String)>,
    /// Every key was read at the end.
    pub complete: bool,
    /// Groups that were forgotten, or may have been.
    pub groups_forgotten: usize,
}

impl Histories {
    /// Puts calls and returns together.
    ///
    /// # Errors
    /// If the history contradicts itself: an answer without a question, two answers to one, an answer before its question.
    pub fn new(lines: Vec<Line>) -> Result<Self, String> {
        let mut all = Self::default();
        let mut open: HashMap<u64, Call, foldhash::fast::RandomState> = HashMap::default();
        let mut archived_after = None;
        for line in lines {
            match line {
                Line::Run { seed, name, steady, archived_after_ms } => {
                    (all.seed, all.name, all.steady) = (seed, name, steady);
                    archived_after = archived_after_ms.map(|ms| ms * 1_000_000);
                }
                Line::Mark { at, what } => all.marks.push((at, what)),
                Line::End { .. } => all.complete = true,
                Line::Call(call) => {
                    let op = call.op;
                    if open.insert(op, call).is_some() {
                        return Err(format!("two calls have the number {op}"));
                    }
                }
                Line::Return(back) => {
                    let call = open.remove(&back.op).ok_or_else(|| format!("an answer to {}, which was not asked", back.op))?;
                    if back.at < call.at {
                        return Err(format!("{} was answered before it was asked", back.op));
                    }
                    let ret = if matches!(back.out, Out::Unknown(_)) { u64::MAX } else { back.at };
                    all.push(Op { call, ret, back: back.at, out: back.out, archivable: false });
                }
            }
        }
        for call in open.into_values() {
            all.push(Op { call, ret: u64::MAX, back: u64::MAX, out: Out::Unknown("never answered".into()), archivable: false });
        }
        all.spread_forgets();
        if let Some(after) = archived_after {
            for ops in all.keys.values_mut() {
                let first = ops.iter().map(Op::inv).min().unwrap_or(u64::MAX);
                ops.iter_mut().for_each(|op| op.archivable = op.back >= first.saturating_add(after));
            }
        }
        all.keys.values_mut().for_each(|ops| ops.sort_by_key(|op| (op.inv(), op.call.op)));
        all.marks.sort();
        Ok(all)
    }

    /// What forgot a group is put among the calls of each of its keys that somebody had asked for by then.
    fn spread_forgets(&mut self) {
        let groups: Vec<String> =
            self.keys.iter().filter(|(_, ops)| ops[0].call.kind == Kind::ForgetAll).map(|(key, _)| key.clone()).collect();
        for group in groups {
            let forgets: Vec<Op> = self.keys.remove(&group).unwrap_or_default().into_iter().filter(Op::maybe).collect();
            self.groups_forgotten += forgets.len();
            for (_, ops) in self.keys.iter_mut().filter(|(key, _)| key.starts_with(&group)) {
                let first = ops.iter().map(Op::inv).min().unwrap_or(u64::MAX);
                ops.extend(forgets.iter().filter(|f| f.ret >= first).cloned());
            }
        }
    }

    fn push(&mut self, op: Op) {
        match self.keys.get_mut(&op.call.key) {
            Some(ops) => ops.push(op),
            None => {
                self.keys.insert(op.call.key.clone(), vec![op]);
            }
        }
    }
}
