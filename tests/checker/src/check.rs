//! Both layers over a whole history, and whether it holds enough to prove anything.

use std::time::{Duration, Instant};

use crate::history::{Kind, Out, Verdict};
use crate::keyed::{Histories, Op};
use crate::linear::{Violation, cut_short, key_violations, results_kept};
use crate::report::smallest;
use crate::search::{Found, key_order};

/// How long the search may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For one key.
    pub key: Duration,
    /// For all keys together.
    pub all: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { key: Duration::from_secs(5), all: Duration::from_secs(60) }
    }
}

/// What a history amounts to, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Keys.
    pub keys: usize,
    /// Calls, the final readings left out.
    pub calls: usize,
    /// Checks and claims.
    pub claims: usize,
    /// Checks and claims of keys that more than one request asked for.
    pub contested: usize,
    /// Keys that more than one request asked for.
    pub contested_keys: usize,
    /// Calls whose outcome was not known to the caller.
    pub unknowns: usize,
    /// Unknown questions that the same request id settled later.
    pub settled: usize,
    /// Grants after a lapsed or released one.
    pub takeovers: usize,
    /// Calls that forgot a group, or may have.
    pub groups_forgotten: usize,
    /// Questions that the archive answered.
    pub cold: usize,
    /// Keys for which an order was found.
    pub searched: usize,
    /// Keys whose search was not decided.
    pub undecided: usize,
    /// Keys with a broken promise.
    pub bad_keys: usize,
    /// Broken promises by invariant.
    pub by_invariant: std::collections::BTreeMap<&'static str, usize>,
    /// The smallest failing key as a timeline.
    pub shown: Option<String>,
    /// Every key was read at the end.
    pub complete: bool,
}

impl Outcome {
    /// Nothing is wrong and nothing was left open.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.bad_keys == 0 && self.undecided == 0 && self.complete
    }
}

/// Judges a history.
#[must_use]
pub fn check(all: &Histories, limits: Limits) -> Outcome {
    let mut outcome = Outcome {
        keys: all.keys.len(),
        calls: all.groups_forgotten,
        groups_forgotten: all.groups_forgotten,
        complete: all.complete,
        ..Outcome::default()
    };
    let until = Instant::now() + limits.all;
    let mut bad: Vec<(&str, &[Op], Vec<Violation>)> = Vec::new();
    for (key, ops) in &all.keys {
        count(ops, &mut outcome);
        let mut violations = key_violations(ops);
        if all.steady {
            violations.append(&mut cut_short(ops));
            violations.append(&mut results_kept(ops));
        }
        if violations.is_empty() && is_intricate(ops) {
            match key_order(ops, limits.key.min(until.saturating_duration_since(Instant::now()))) {
                Found::Order => outcome.searched += 1,
                Found::Undecided => outcome.undecided += 1,
                Found::None => violations.push(no_order(ops)),
            }
        }
        if !violations.is_empty() {
            bad.push((key, ops, violations));
        }
    }
    outcome.bad_keys = bad.len();
    for violation in bad.iter().flat_map(|(.., v)| v) {
        *outcome.by_invariant.entry(violation.invariant).or_default() += 1;
    }
    outcome.shown = smallest(all, bad);
    outcome
}

pub(crate) fn no_order(ops: &[Op]) -> Violation {
    Violation {
        invariant: "order",
        what: "no order of these calls gives these answers".into(),
        ops: ops.iter().filter(|op| op.answer().is_some()).map(|op| op.call.op).collect(),
    }
}

/// Whether the linear layer alone does not settle it: claims have leases and ends.
fn is_intricate(ops: &[Op]) -> bool {
    ops.iter().any(|op| op.call.kind == Kind::Claim) && ops.iter().filter(|op| op.call.kind != Kind::Read).count() > 1
}

fn count(ops: &[Op], outcome: &mut Outcome) {
    let mut requests: Vec<&str> = Vec::new();
    let (mut claims, mut anonymous) = (0, 0);
    let mut fences: Vec<&str> = Vec::new();
    for op in ops.iter().filter(|op| !matches!(op.call.kind, Kind::Read | Kind::ForgetAll)) {
        outcome.calls += 1;
        outcome.cold += usize::from(op.answer().is_some_and(|a| a.cold));
        if matches!(op.out, Out::Unknown(_)) {
            outcome.unknowns += 1;
            let same = |o: &&Op| o.call.request == op.call.request && o.inv() > op.inv() && o.answer().is_some();
            outcome.settled += usize::from(!op.call.request.is_empty() && ops.iter().any(|o| same(&o)));
        }
        if matches!(op.call.kind, Kind::Check | Kind::Claim) {
            claims += 1;
            if op.call.request.is_empty() {
                anonymous += 1;
            } else if !requests.contains(&op.call.request.as_str()) {
                requests.push(&op.call.request);
            }
            if let Some(answer) = op.answer().filter(|a| a.verdict == Verdict::First)
                && !fences.contains(&answer.fence.as_str())
            {
                fences.push(&answer.fence);
            }
        }
    }
    outcome.claims += claims;
    if requests.len() + anonymous > 1 {
        outcome.contested += claims;
        outcome.contested_keys += 1;
    }
    outcome.takeovers += fences.len().saturating_sub(1);
}
