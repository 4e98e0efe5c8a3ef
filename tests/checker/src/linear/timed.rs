//! Rules about durations by the recorder's clock, for histories in which nobody moved a home's.

use std::collections::BTreeMap;

use super::{Key, Violation, broken, is_question};
use crate::history::{Kind, Verdict};
use crate::keyed::Op;

/// What a clock may be slewed by within a lease, or the time for which a result is kept.
const TOLERANCE_NS: u64 = 50_000_000;

/// A lease that was over early by the recorder's clock: what home times cannot show, if whoever tells them has a wrong clock. For histories
/// in which nobody moved a home's clock.
#[must_use]
pub fn cut_short(ops: &[Op]) -> Vec<Violation> {
    let unknowns = ops.iter().filter(|op| is_question(op) && op.unknown()).collect();
    let mut key = Key { ops, grants: BTreeMap::new(), forgets: Vec::new(), unknowns, found: Vec::new() };
    key.gather();
    let mut wrong = Vec::new();
    let forgotten = ops.iter().any(|op| op.call.kind.forgets() && op.maybe());
    for (old, new) in key.grants.values().zip(key.grants.values().skip(1)) {
        let ended =
            [Kind::Release, Kind::Complete, Kind::Extend].iter().any(|kind| old.ends_of(*kind).any(|op| op.inv() < new.ret && op.maybe()));
        let Some(first) = old.firsts.iter().min_by_key(|op| op.ret).filter(|_| !ended && !forgotten && !old.check) else { continue };
        let lease = u64::try_from(first.call.lease_ms).unwrap_or(0) * 1_000_000;
        if !new.firsts.is_empty() && new.ret + TOLERANCE_NS < old.inv + lease {
            let shown: Vec<&Op> = old.firsts.iter().chain(&new.firsts).copied().collect();
            wrong.push(broken("I1", format!("{} was granted before the lease of {} can have ended", new.fence, old.fence), &shown));
        }
    }
    wrong
}

/// Stored results whose topic says how long they are kept: told for that long, whatever tier the record is in by then, and no longer. For
/// histories in which nobody moved a home's clock.
#[must_use]
pub fn results_kept(ops: &[Op]) -> Vec<Violation> {
    let mut key = Key { ops, grants: BTreeMap::new(), forgets: Vec::new(), unknowns: Vec::new(), found: Vec::new() };
    key.gather();
    let mut wrong = Vec::new();
    for grant in key.grants.values() {
        let Some(done) = grant.ended(Kind::Complete) else { continue };
        let Some(keep) = done.call.keep_ms.map(|ms| ms * 1_000_000) else { continue };
        let began = grant.ends_of(Kind::Complete).filter(|op| op.maybe()).map(Op::inv).min().unwrap_or(done.inv());
        for op in ops.iter().filter(|op| is_question(op) && op.call.batch.is_none() && op.inv() > done.ret) {
            let Some(answer) = op.answer().filter(|a| a.verdict == Verdict::Duplicate && a.fence == grant.fence) else { continue };
            if answer.result.is_empty() && op.ret + TOLERANCE_NS < began + keep {
                wrong.push(broken("I9", format!("the result of {} is kept for longer and was not told", grant.fence), &[done, op]));
            }
            if !answer.result.is_empty() && op.inv() > done.ret + keep + TOLERANCE_NS {
                wrong.push(broken("I9", format!("the result of {} was told for longer than it is kept", grant.fence), &[done, op]));
            }
        }
    }
    wrong
}
