//! What must hold whatever the order of overlapping calls: one pass over the calls of a key, invariants I1 to I9.
//!
//! Each rule is a necessary condition. Where a call's outcome is not known, it is given the benefit of having happened at the best moment.

mod timed;

use std::collections::{BTreeMap, HashMap};

use crate::history::{Answer, Kind, Verdict};
use crate::keyed::Op;

pub use timed::{cut_short, results_kept};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant, `I1` to `I9`.
    pub invariant: &'static str,
    /// What is wrong, in words.
    pub what: String,
    /// Numbers of the calls that show it.
    pub ops: Vec<u64>,
}

/// One ownership of the key, known by its fence.
struct Grant<'a> {
    fence: &'a str,
    /// Requests that were told `first` with it.
    firsts: Vec<&'a Op>,
    /// Earliest moment it can have been made.
    inv: u64,
    /// Earliest moment somebody knew of it.
    ret: u64,
    check: bool,
    /// Home time of its acceptance, and the end of its window.
    seen: Option<i64>,
    expires: Option<i64>,
    /// (sent, known at, end of lease) of everything that set or told its lease.
    leases: Vec<(u64, u64, i64)>,
    /// Completions, releases, extensions with its token.
    ends: Vec<&'a Op>,
}

impl Grant<'_> {
    fn ends_of(&self, kind: Kind) -> impl Iterator<Item = &Op> {
        self.ends.iter().copied().filter(move |op| op.call.kind == kind)
    }

    /// Earliest return of an end that certainly happened.
    fn ended(&self, kind: Kind) -> Option<&Op> {
        self.ends_of(kind).filter(|op| op.answer().is_some_and(|a| is_done(kind, a))).min_by_key(|op| op.ret)
    }

    /// Whether an end may have happened before `by`.
    fn may_have_ended(&self, kind: Kind, by: u64) -> bool {
        self.ends_of(kind).any(|op| op.inv() < by && (op.unknown() || op.answer().is_some_and(|a| is_done(kind, a))))
    }

    fn is_done_by(&self, by: u64) -> bool {
        self.check || self.ended(Kind::Complete).is_some_and(|op| op.ret < by)
    }

    /// The earliest end its lease can have had as of `by`: each lease that something later has not certainly replaced counts.
    fn lease_end(&self, by: u64) -> Option<i64> {
        let known = self.leases.iter().filter(|(inv, ..)| *inv < by);
        let replaced = |ret: u64| self.leases.iter().any(|(inv, known, _)| ret < *inv && *known < by);
        known.filter(|(_, ret, _)| !replaced(*ret)).map(|(_, _, end)| *end).min()
    }
}

fn broken(invariant: &'static str, what: impl Into<String>, ops: &[&Op]) -> Violation {
    Violation { invariant, what: what.into(), ops: ops.iter().map(|op| op.call.op).collect() }
}

fn is_done(kind: Kind, answer: &Answer) -> bool {
    matches!(
        (kind, answer.verdict),
        (Kind::Complete, Verdict::Completed)
            | (Kind::Release, Verdict::Released)
            | (Kind::Extend, Verdict::Extended)
            | (Kind::Forget | Kind::ForgetAll, Verdict::Forgotten)
    )
}

fn is_question(op: &Op) -> bool {
    matches!(op.call.kind, Kind::Check | Kind::Claim)
}

struct Key<'a> {
    ops: &'a [Op],
    grants: BTreeMap<&'a str, Grant<'a>>,
    forgets: Vec<&'a Op>,
    /// Questions whose outcome is not known: each may own a fence that nobody was told as `first`.
    unknowns: Vec<&'a Op>,
    found: Vec<Violation>,
}

/// Judges the calls of one key, given in the order they were sent.
#[must_use]
pub fn key_violations(ops: &[Op]) -> Vec<Violation> {
    let mut key = Key {
        ops,
        grants: BTreeMap::new(),
        forgets: ops.iter().filter(|op| op.call.kind.forgets() && op.maybe()).collect(),
        unknowns: ops.iter().filter(|op| is_question(op) && op.unknown()).collect(),
        found: Vec::new(),
    };
    key.gather();
    key.owners();
    key.order();
    key.retries();
    key.refusals();
    key.finishes();
    key.batches();
    key.reads();
    key.found
}

impl<'a> Key<'a> {
    fn fail(&mut self, invariant: &'static str, what: impl Into<String>, ops: &[&Op]) {
        self.found.push(broken(invariant, what, ops));
    }

    fn gather(&mut self) {
        let mut told: HashMap<&str, Vec<&Op>> = HashMap::new();
        for op in self.ops {
            let Some(answer) = op.answer().filter(|a| !a.fence.is_empty()) else { continue };
            if is_question(op) && answer.verdict == Verdict::First {
                let grant = self.grants.entry(&answer.fence).or_insert_with(|| Grant {
                    fence: &answer.fence,
                    firsts: Vec::new(),
                    inv: u64::MAX,
                    ret: u64::MAX,
                    check: op.call.kind == Kind::Check,
                    seen: answer.seen,
                    expires: answer.expires,
                    leases: Vec::new(),
                    ends: Vec::new(),
                });
                grant.firsts.push(op);
                grant.inv = grant.inv.min(op.inv());
                grant.ret = grant.ret.min(op.ret);
                grant.leases.extend(answer.lease_end.map(|end| (op.inv(), op.ret, end)));
            } else {
                told.entry(&answer.fence).or_default().push(op);
            }
        }
        // An unknown attempt of the same request may have been the one that was granted.
        for grant in self.grants.values_mut() {
            let same = |op: &&&Op| !op.call.request.is_empty() && grant.firsts.iter().any(|f| f.call.request == op.call.request);
            grant.inv = self.unknowns.iter().filter(same).map(|op| op.inv()).min().unwrap_or(u64::MAX).min(grant.inv);
        }
        for op in self.ops {
            let Some(grant) = self.grants.get_mut(op.call.token.as_str()) else { continue };
            if let (Kind::Extend, Some(end)) = (op.call.kind, op.answer().and_then(|a| a.lease_end)) {
                grant.leases.push((op.inv(), op.ret, end));
            } else if let (Kind::Extend, true, Some(seen)) = (op.call.kind, op.unknown(), grant.seen) {
                // It may have set a lease from some moment after the grant on.
                grant.leases.push((op.inv(), op.ret, seen + op.call.lease_ms));
            }
            grant.ends.push(op);
        }
        self.claimed_by_nobody(told);
    }

    /// Fences that answers name and nobody was granted: an unknown question must own each.
    fn claimed_by_nobody(&mut self, told: HashMap<&'a str, Vec<&'a Op>>) {
        let mut nameless: Vec<(&str, Vec<&Op>)> = told.into_iter().filter(|(fence, _)| !self.grants.contains_key(fence)).collect();
        nameless.sort_by_key(|(fence, _)| *fence);
        let mut owners = 0;
        for (fence, tellers) in nameless {
            let Some(first) = tellers.iter().copied().min_by_key(|op| op.ret) else { continue };
            // The final reading tells of claims whose caller never learnt, too.
            let outlived = self.ops.iter().filter(|op| op.may_have_outlived_a_grant() && op.inv() < first.ret);
            let may_own = self.unknowns.iter().filter(|op| op.inv() < first.ret).count() + outlived.count();
            owners += 1;
            if may_own < owners {
                self.fail(
                    "I2",
                    format!("an answer names the fence {fence}, which nobody was granted and no unknown call can own"),
                    &[first],
                );
                continue;
            }
            let seen = tellers.iter().filter(|op| is_question(op)).find_map(|op| op.answer().and_then(|a| a.seen));
            let expires = tellers.iter().find_map(|op| op.answer().and_then(|a| a.expires));
            let leases = tellers.iter().filter_map(|op| op.answer().and_then(|a| a.lease_end).map(|end| (op.inv(), op.ret, end))).collect();
            let check = tellers.iter().any(|op| op.answer().is_some_and(|a| a.verdict == Verdict::Duplicate));
            self.grants
                .insert(fence, Grant { fence, firsts: Vec::new(), inv: 0, ret: first.ret, check, seen, expires, leases, ends: Vec::new() });
        }
    }

    /// Whether the record of `grant` was forgotten between its making and `by`, perhaps.
    fn may_be_forgotten(&self, grant: &Grant<'_>, by: u64) -> bool {
        self.forgets.iter().any(|f| f.inv() < by && f.ret > grant.inv)
    }

    /// A forget that began after the grant was known and was over before `by`.
    fn was_forgotten(&self, grant: &Grant<'_>, by: u64) -> Option<&'a Op> {
        self.forgets.iter().copied().find(|f| f.answer().is_some() && f.inv() > grant.ret && f.ret < by)
    }

    /// I1 and I9: of two owners, the earlier one's ownership must have ended.
    fn owners(&mut self) {
        let mut wrong = Vec::new();
        for (old, new) in self.grants.values().zip(self.grants.values().skip(1)) {
            let moment = new.ret;
            let asked = new.firsts.iter().map(|op| op.inv()).min().unwrap_or(new.ret);
            if self.may_be_forgotten(old, moment) {
                continue;
            }
            let past = |end: Option<i64>| matches!((new.seen, end), (Some(now), Some(end)) if now >= end);
            let done = old.is_done_by(asked);
            let lease_over = past(old.lease_end(moment));
            if past(old.expires) && (done || old.firsts.is_empty() || lease_over || old.may_have_ended(Kind::Complete, moment)) {
                continue;
            }
            if !done && (old.may_have_ended(Kind::Release, moment) || lease_over) {
                continue;
            }
            // Known only from what others were told: its lease may be any that an unknown caller asked for.
            if old.firsts.is_empty() && old.lease_end(moment).is_none() && !old.check {
                continue;
            }
            let tellers: Vec<u64> = old.firsts.iter().chain(&new.firsts).map(|op| op.call.op).collect();
            let invariant = if done { "I9" } else { "I1" };
            let why = if done { "is remembered for longer" } else { "was neither released nor lapsed" };
            wrong.push(Violation { invariant, what: format!("{} was granted although {} {why}", new.fence, old.fence), ops: tellers });
        }
        for grant in self.grants.values() {
            let mut requests: Vec<&str> = grant.firsts.iter().map(|op| op.call.request.as_str()).collect();
            requests.sort_unstable();
            requests.dedup();
            if requests.len() > 1 {
                let ops = grant.firsts.iter().map(|op| op.call.op).collect();
                wrong.push(Violation { invariant: "I1", what: format!("{} was granted to {} requests", grant.fence, requests.len()), ops });
            }
            let fresh: Vec<u64> = grant.firsts.iter().filter(|op| op.answer().is_some_and(|a| !a.replayed)).map(|op| op.call.op).collect();
            if fresh.len() > 1 {
                wrong.push(Violation {
                    invariant: "I7",
                    what: format!("{} was granted as new {} times", grant.fence, fresh.len()),
                    ops: fresh,
                });
            }
            if grant.firsts.iter().any(|op| op.answer().is_some_and(|a| a.seen != grant.seen)) {
                let ops = grant.firsts.iter().map(|op| op.call.op).collect();
                wrong.push(Violation { invariant: "I7", what: format!("{} changed when it was first seen", grant.fence), ops });
            }
        }
        self.found.append(&mut wrong);
    }

    /// I4: fences rise in real time.
    fn order(&mut self) {
        let mut wrong = Vec::new();
        let mut earliest: Option<&Grant<'_>> = None;
        for grant in self.grants.values().rev() {
            if let Some(higher) = earliest
                && higher.ret < grant.inv
            {
                let ops = higher.firsts.iter().chain(&grant.firsts).map(|op| op.call.op).collect();
                wrong.push(Violation {
                    invariant: "I4",
                    what: format!("{} was granted after the higher {}", grant.fence, higher.fence),
                    ops,
                });
            }
            if earliest.is_none_or(|e| grant.ret < e.ret) {
                earliest = Some(grant);
            }
        }
        self.found.append(&mut wrong);
    }

    /// I7: a request that was granted gets its grant again until that ends.
    fn retries(&mut self) {
        let mut wrong = Vec::new();
        for op in self.ops.iter().filter(|op| is_question(op) && !op.call.request.is_empty()) {
            // The archive does not know whose request a record was.
            let Some(answer) = op.answer().filter(|a| !a.cold) else { continue };
            for grant in self.grants.values() {
                let Some(own) = grant.firsts.iter().copied().find(|f| f.call.request == op.call.request && f.ret < op.inv()) else {
                    continue;
                };
                let over = self.may_be_forgotten(grant, op.ret)
                    || [Kind::Release, Kind::Complete].iter().any(|kind| !grant.check && grant.may_have_ended(*kind, op.ret))
                    || self.grants.values().any(|g| g.fence > grant.fence && g.inv < op.ret)
                    || self.unknowns.iter().any(|u| u.inv() < op.ret && u.call.request != op.call.request)
                    || grant.expires.is_some_and(|end| answer.seen.is_some_and(|now| now >= end));
                let same_payload = own.call.fp.is_empty() || op.call.fp.is_empty() || own.call.fp == op.call.fp;
                let stays = answer.verdict == Verdict::First && answer.fence == grant.fence;
                if !over && same_payload && !stays && own.call.kind == op.call.kind {
                    wrong.push(Violation {
                        invariant: "I7",
                        what: format!("the request {} was granted {} and then told {:?}", op.call.request, grant.fence, answer.verdict),
                        ops: vec![own.call.op, op.call.op],
                    });
                }
                if answer.fence == grant.fence && answer.verdict == Verdict::InProgress {
                    wrong.push(Violation {
                        invariant: "I7",
                        what: "the service took the owner for somebody else".into(),
                        ops: vec![op.call.op],
                    });
                }
            }
        }
        self.found.append(&mut wrong);
    }

    /// I2 and I6: a refusal names an owner that is really there, and still there.
    fn refusals(&mut self) {
        let mut wrong: Vec<Violation> = Vec::new();
        for op in self.ops.iter().filter(|op| is_question(op)) {
            let Some(answer) = op.answer() else { continue };
            if answer.cold && (answer.verdict != Verdict::Duplicate || !answer.fence.is_empty()) {
                wrong.push(broken("I2", format!("{:?} from the archive, which knows what is done and no fence", answer.verdict), &[op]));
            }
            let refused = matches!(answer.verdict, Verdict::Duplicate | Verdict::InProgress | Verdict::Mismatch);
            if !refused || answer.of_index.is_some() {
                continue;
            }
            if answer.fence.is_empty() {
                let somebody = |g: &Grant<'_>| g.inv < op.ret;
                let anybody = self.unknowns.iter().any(|u| u.inv() < op.ret);
                if !self.grants.values().any(somebody) && !anybody {
                    wrong.push(broken("I2", format!("{:?} although nobody had claimed the key", answer.verdict), &[op]));
                } else if answer.verdict == Verdict::Duplicate && !anybody {
                    wrong.extend(self.nameless(op));
                } else if answer.verdict == Verdict::Mismatch {
                    let other =
                        |o: &&Op| is_question(o) && o.maybe() && o.inv() < op.ret && !o.call.fp.is_empty() && o.call.fp != op.call.fp;
                    if op.call.fp.is_empty() || !self.ops.iter().any(|o| other(&o)) {
                        wrong.push(broken("I7", "a mismatch although nobody gave another fingerprint", &[op]));
                    }
                }
                continue;
            }
            let Some(grant) = self.grants.get(answer.fence.as_str()) else { continue };
            let stale = |why: &str| format!("{:?} names {}, which {why} before this was asked", answer.verdict, grant.fence);
            if grant.inv > op.ret {
                wrong.push(broken("I2", format!("{:?} names {} before anybody asked for it", answer.verdict, grant.fence), &[op]));
            }
            if let Some(end) = grant.ended(Kind::Release).filter(|end| end.ret < op.inv()) {
                wrong.push(broken("I6", stale("had been released"), &[end, op]));
            }
            if let Some(end) = self.was_forgotten(grant, op.inv()) {
                wrong.push(broken("I6", stale("had been forgotten"), &[end, op]));
            }
            let newer = self.grants.values().find(|g| g.fence > grant.fence && g.ret < op.inv());
            if let Some(newer) = newer.filter(|_| !op.may_be_cached(self.ops)) {
                let shown: Vec<&Op> = newer.firsts.iter().copied().chain([op]).collect();
                wrong.push(broken("I6", stale("had another owner after it"), &shown));
            }
            let complete = grant.ended(Kind::Complete).filter(|end| end.ret < op.inv());
            if let (Verdict::InProgress, Some(end)) = (answer.verdict, complete) {
                wrong.push(broken("I6", stale("had been completed"), &[end, op]));
            }
            if answer.verdict == Verdict::Duplicate && !grant.check && !grant.may_have_ended(Kind::Complete, op.ret) {
                wrong.push(broken("I2", format!("a duplicate of {}, which nobody completed", grant.fence), &[op]));
            }
            if answer.verdict == Verdict::Duplicate && !answer.result.is_empty() {
                let given = |c: &Op| c.inv() < op.ret && c.maybe() && c.call.result == answer.result;
                if !grant.firsts.is_empty() && !grant.ends_of(Kind::Complete).any(given) {
                    wrong.push(broken("I5", format!("a result of {} that nobody gave", grant.fence), &[op]));
                }
            }
            let owner = grant.firsts.iter().find(|f| !f.call.fp.is_empty() && f.answer().is_some_and(|a| !a.replayed));
            if let Some(owner) = owner.filter(|o| !op.call.fp.is_empty() && o.call.fp != op.call.fp) {
                wrong.push(broken("I7", format!("{:?} although the payload is another", answer.verdict), &[owner, op]));
            }
        }
        self.found.append(&mut wrong);
    }

    /// A duplicate that names no owner: some record must be done, and still be the key's.
    fn nameless(&self, op: &Op) -> Option<Violation> {
        let done = |g: &&Grant<'_>| g.inv < op.ret && (g.check || g.may_have_ended(Kind::Complete, op.ret));
        let superseded = |g: &Grant<'_>| self.grants.values().any(|newer| newer.fence > g.fence && newer.ret < op.inv());
        let stays = |g: &Grant<'_>| self.was_forgotten(g, op.inv()).is_none() && !superseded(g);
        if !self.grants.values().any(|g| done(&g)) {
            return Some(broken("I2", "a duplicate, and nothing of the key was done", &[op]));
        }
        let stale = !self.grants.values().filter(done).any(stays) && !op.may_be_cached(self.ops);
        stale.then(|| {
            let known: Vec<&Op> = self.grants.values().filter(done).flat_map(|g| g.firsts.iter().copied()).chain([op]).collect();
            broken("I6", "a duplicate of what had been forgotten or had another owner after it", &known)
        })
    }

    /// I5: only the owner ends a claim, once.
    fn finishes(&mut self) {
        let mut wrong: Vec<Violation> = Vec::new();
        for grant in self.grants.values() {
            let newer = |by: u64| self.grants.values().find(|g| g.fence > grant.fence && g.ret < by);
            let completed: Vec<&Op> =
                grant.ends_of(Kind::Complete).filter(|op| op.answer().is_some_and(|a| is_done(Kind::Complete, a))).collect();
            let fresh: Vec<&Op> = completed.iter().copied().filter(|op| op.answer().is_some_and(|a| !a.replayed)).collect();
            if fresh.len() > 1 {
                wrong.push(broken("I5", format!("{} was completed {} times", grant.fence, fresh.len()), &fresh));
            }
            if completed.iter().any(|op| op.call.result != completed[0].call.result) {
                wrong.push(broken("I5", format!("{} was completed with two results", grant.fence), &completed));
            }
            for op in &grant.ends {
                let Some(answer) = op.answer() else { continue };
                let done = is_done(op.call.kind, answer);
                let left = answer.replayed && op.may_repeat_before_forget_all(self.ops);
                if let Some(newer) = newer(op.inv()).filter(|_| done && !left) {
                    let shown: Vec<&Op> = newer.firsts.iter().copied().chain([*op]).collect();
                    wrong.push(broken(
                        "I5",
                        format!("{:?} of {} although {} owned the key", answer.verdict, grant.fence, newer.fence),
                        &shown,
                    ));
                }
                let before = |kind| grant.ended(kind).filter(|end| end.ret < op.inv());
                if let Some(end) = before(Kind::Complete).filter(|_| done && op.call.kind != Kind::Complete) {
                    wrong.push(broken("I5", format!("{:?} of {}, which was completed", answer.verdict, grant.fence), &[end, op]));
                }
                if let Some(end) = before(Kind::Release).filter(|_| done && op.call.kind != Kind::Release) {
                    wrong.push(broken("I5", format!("{:?} of {}, which was released", answer.verdict, grant.fence), &[end, op]));
                }
                if let Some(end) = self.was_forgotten(grant, op.inv()).filter(|_| done && !left) {
                    wrong.push(broken("I5", format!("{:?} of {}, which was forgotten", answer.verdict, grant.fence), &[end, op]));
                }
                if answer.verdict == Verdict::LeaseLost {
                    let other = if op.call.kind == Kind::Complete { Kind::Release } else { Kind::Complete };
                    let lost = grant.may_have_ended(other, op.ret)
                        || (op.call.kind == Kind::Extend && grant.may_have_ended(Kind::Release, op.ret))
                        || self.may_be_forgotten(grant, op.ret)
                        || self.grants.values().any(|g| g.fence > grant.fence && g.inv < op.ret)
                        || self.unknowns.iter().any(|u| u.inv() < op.ret)
                        // The archive does not know whose completion a record is.
                        || (op.archivable && grant.may_have_ended(Kind::Complete, op.ret))
                        || grant.check;
                    if !lost {
                        wrong.push(broken("I5", format!("{} lost its lease although nobody took over", grant.fence), &[op]));
                    }
                }
                if answer.verdict == Verdict::AlreadyCompleted {
                    let other = |c: &Op| c.inv() < op.ret && c.maybe() && c.call.op != op.call.op && c.call.result != op.call.result;
                    if !grant.ends_of(Kind::Complete).any(other) {
                        wrong.push(broken("I5", format!("{} had been completed by nobody", grant.fence), &[op]));
                    }
                }
            }
        }
        self.found.append(&mut wrong);
    }

    /// I8: of equal keys in one batch the lowest asks, the others are its duplicates.
    fn batches(&mut self) {
        let mut batches: HashMap<u64, Vec<(u32, &Op)>> = HashMap::new();
        for op in self.ops.iter().filter(|op| is_question(op)) {
            if let Some((batch, index)) = op.call.batch {
                batches.entry(batch).or_default().push((index, op));
            }
        }
        for mut items in batches.into_values().filter(|items| items.len() > 1) {
            items.sort_by_key(|(index, _)| *index);
            let first = |op: &Op| op.answer().is_some_and(|a| a.verdict == Verdict::First);
            if let Some((_, op)) = items.iter().skip(1).find(|(_, op)| first(op)) {
                self.fail("I8", "a later item of a batch was first, not the lowest", &[items[0].1, op]);
            }
            for (_, op) in items.iter().skip(1) {
                let wrong = op.answer().and_then(|a| a.of_index).is_some_and(|of| of != items[0].0);
                if wrong {
                    self.fail("I8", "an item is said to be the duplicate of another than the lowest", &[items[0].1, op]);
                }
            }
        }
    }

    /// I3: what was acknowledged is there at the end.
    fn reads(&mut self) {
        let mut wrong: Vec<Violation> = Vec::new();
        for op in self.ops.iter().filter(|op| op.call.kind == Kind::Read) {
            let Some(answer) = op.answer() else { continue };
            let mut acknowledged = self.grants.values().filter(|g| g.ret < op.inv() && !g.firsts.is_empty());
            let Some(last) = acknowledged.next_back() else { continue };
            if answer.cold {
                let done = last.check || last.may_have_ended(Kind::Complete, op.ret);
                if !done && self.unknowns.is_empty() && !self.may_be_forgotten(last, op.ret) {
                    let shown: Vec<&Op> = last.firsts.iter().copied().chain([op]).collect();
                    wrong.push(broken("I3", format!("{} is in the archive, and nobody had completed it", last.fence), &shown));
                }
                continue;
            }
            let gone = self.may_be_forgotten(last, op.ret) || matches!((answer.seen, last.expires), (Some(now), Some(end)) if now >= end);
            if !gone && (answer.verdict == Verdict::Absent || answer.fence.as_str() < last.fence) {
                let shown: Vec<&Op> = last.firsts.iter().copied().chain([op]).collect();
                wrong.push(broken("I3", format!("{} was acknowledged and is not there", last.fence), &shown));
                continue;
            }
            if answer.fence != last.fence || gone {
                continue;
            }
            let completed = last.ended(Kind::Complete).filter(|end| end.ret < op.inv() && answer.verdict != Verdict::Duplicate);
            let released = last.ended(Kind::Release).filter(|end| end.ret < op.inv() && answer.verdict != Verdict::Released);
            for end in completed.into_iter().chain(released) {
                wrong.push(broken("I3", format!("{} is {:?}, though its end was acknowledged", last.fence, answer.verdict), &[end, op]));
            }
        }
        self.found.append(&mut wrong);
    }
}
