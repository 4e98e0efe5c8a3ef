//! The smallest failing key, as somebody would want to read it.

use std::fmt::Write;

use crate::check::no_order;
use crate::history::{Kind, Out, Verdict};
use crate::keyed::{Histories, Op};
use crate::linear::{Violation, key_violations};
use crate::search::{Found, key_order};

/// Picks the failing key with the fewest calls, leaves out what the failure does not need, and shows it.
pub(crate) fn smallest(all: &Histories, bad: Vec<(&str, &[Op], Vec<Violation>)>) -> Option<String> {
    let (key, ops, violations) = bad.into_iter().min_by_key(|(_, ops, _)| ops.len())?;
    let kept = shrink(ops, violations.first()?.invariant);
    let violations = if kept.len() < ops.len() { judge(&kept) } else { violations };
    Some(timeline(all, key, &kept, &violations))
}

/// Both layers, without a limit that a small key could meet.
fn judge(ops: &[Op]) -> Vec<Violation> {
    let found = key_violations(ops);
    if found.is_empty() && key_order(ops, std::time::Duration::from_millis(500)) == Found::None {
        return vec![no_order(ops)];
    }
    found
}

/// Drops observations one by one while the same invariant stays broken. Only what changes nothing is dropped: without a grant or an end the
/// rest would be wrong for another reason.
fn shrink(ops: &[Op], invariant: &str) -> Vec<Op> {
    let mut kept = ops.to_vec();
    let mut i = 0;
    while i < kept.len() && kept.len() < 400 {
        let observes = match &kept[i].out {
            Out::No(_) => true,
            Out::Unknown(_) => false,
            Out::Ok(a) => {
                matches!(
                    a.verdict,
                    Verdict::InProgress | Verdict::Duplicate | Verdict::Mismatch | Verdict::LeaseLost | Verdict::AlreadyCompleted
                ) || kept[i].call.kind == Kind::Read
            }
        };
        let mut without = kept.clone();
        without.remove(i);
        if observes && judge(&without).iter().any(|v| v.invariant == invariant) {
            kept = without;
        } else {
            i += 1;
        }
    }
    kept
}

/// A text with one line per event of a key, in time, faults between them; calls that show a violation are marked.
#[must_use]
pub fn timeline(all: &Histories, key: &str, ops: &[Op], violations: &[Violation]) -> String {
    let mut text = format!("key {key} of run {:?}, seed {}\n", all.name, all.seed);
    for violation in violations {
        let _ = writeln!(text, "  broken: {} {}", violation.invariant, violation.what);
    }
    let mut events: Vec<(u64, String)> = Vec::new();
    for op in ops {
        let shown = if violations.iter().any(|v| v.ops.contains(&op.call.op)) { '*' } else { ' ' };
        let call = &op.call;
        let mut asked = format!("{shown} {:>6} w{:<3} {:<6} {:?}", call.op, call.who, call.node, call.kind);
        for (name, value) in [("request", &call.request), ("token", &call.token), ("fp", &call.fp), ("result", &call.result)] {
            if !value.is_empty() {
                let _ = write!(asked, " {name}={value}");
            }
        }
        if let Some((batch, index)) = call.batch {
            let _ = write!(asked, " batch {batch}[{index}]");
        }
        events.push((op.inv(), asked));
        if op.back != u64::MAX {
            events.push((op.back, format!("{shown} {:>6} w{:<3}   → {}", call.op, call.who, said(op))));
        }
    }
    let (from, to) = (events.iter().map(|e| e.0).min().unwrap_or(0), events.iter().map(|e| e.0).max().unwrap_or(0));
    let marks = all.marks.iter().filter(|(at, _)| (from.saturating_sub(2_000_000_000)..=to).contains(at));
    events.extend(marks.map(|(at, what)| (*at, format!("  ---- {what}"))));
    events.sort();
    for (at, event) in events {
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let ms = at as f64 / 1e6;
        let _ = writeln!(text, "  {ms:>12.3} ms {event}");
    }
    text
}

fn said(op: &Op) -> String {
    match &op.out {
        Out::No(why) => format!("no ({why})"),
        Out::Unknown(why) => format!("unknown ({why})"),
        Out::Ok(a) => {
            let mut text = format!("{:?}", a.verdict);
            if a.replayed {
                text += " again";
            }
            for (name, value) in [("fence", &a.fence), ("result", &a.result)] {
                if !value.is_empty() {
                    let _ = write!(text, " {name}={value}");
                }
            }
            for (name, value) in [("seen", a.seen), ("lease_end", a.lease_end), ("expires", a.expires)] {
                if let Some(value) = value {
                    let _ = write!(text, " {name}={value}");
                }
            }
            text
        }
    }
}
