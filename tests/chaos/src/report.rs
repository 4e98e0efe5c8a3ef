//! What a run came to, and whether enough happened for it to mean something.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use dedup_checker::Outcome;

use crate::faults::Fault;

/// What must have happened; a run without it proves nothing.
#[derive(Debug, Clone, Copy)]
pub struct Gates {
    /// Calls a second before the first strike.
    pub rate: f64,
    /// Keys that several requests asked for.
    pub contested_keys: usize,
    /// Changes of owner.
    pub takeovers: usize,
    /// Unknown outcomes, where the fault makes them.
    pub unknowns: usize,
    /// Share of calls that must succeed once all is healed.
    pub recovered: f64,
}

impl Gates {
    /// For runs of a few seconds, on a machine that may be busy with other things.
    #[must_use]
    pub fn smoke() -> Self {
        Self { rate: 50.0, contested_keys: 50, takeovers: 5, unknowns: 1, recovered: 0.9 }
    }

    /// For runs of a minute.
    #[must_use]
    pub fn long() -> Self {
        Self { rate: 100.0, contested_keys: 1000, takeovers: 50, unknowns: 20, recovered: 0.999 }
    }

    pub(crate) fn missing(&self, report: &Report) -> Vec<String> {
        let mut missing = Vec::new();
        let mut need = |ok: bool, what: String| {
            if !ok {
                missing.push(what);
            }
        };
        let outcome = &report.outcome;
        need(report.rate >= self.rate && report.healthy, format!("{:.0} calls a second before the first strike", report.rate));
        need(outcome.contested_keys >= self.contested_keys, format!("{} contested keys", outcome.contested_keys));
        need(outcome.takeovers >= self.takeovers, format!("{} take-overs", outcome.takeovers));
        need(!report.fault.unknowns || outcome.unknowns >= self.unknowns, format!("{} unknown outcomes", outcome.unknowns));
        // (A cut that cost nothing is none.)
        let quiet = report.evidence.values().all(|n| *n == 0) || report.evidence.get("frames lost") == Some(&0);
        need(report.fault.archived_after_ms.is_none() || outcome.cold > 0, "no answer from an archive".into());
        need(!quiet, "no sign that the fault happened".into());
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        let share = report.recovered.0 as f64 / report.recovered.1.max(1) as f64;
        // A system that is kept overloaded goes on refusing: that is right.
        need(share >= self.recovered || report.fault.goes_on, format!("{:.2} % of calls succeeded after healing", share * 100.0));
        need(report.unsettled == 0, format!("{} unknown outcomes that their own request id did not settle", report.unsettled));
        need(report.idle_in_transaction == 0, format!("{} sessions left inside a transaction", report.idle_in_transaction));
        need(report.odd.is_empty(), format!("answers that nothing explains: {}", report.odd.first().map_or("", String::as_str)));
        need(report.read_error.is_none(), format!("final reading: {}", report.read_error.as_deref().unwrap_or_default()));
        missing
    }
}

/// One run.
#[derive(Debug)]
pub struct Report {
    /// What struck.
    pub fault: Fault,
    /// From which seed.
    pub seed: u64,
    /// How long it took, all in all.
    pub seconds: f64,
    /// How often it struck.
    pub strikes: usize,
    /// Calls a second before the first strike.
    pub rate: f64,
    /// Calls were decided before it.
    pub healthy: bool,
    /// Decided calls, and all, from five seconds after the last strike on.
    pub recovered: (usize, usize),
    /// Unknown outcomes that stayed unknown.
    pub unsettled: usize,
    /// Calls that stayed undecided after one repetition.
    pub stubborn: usize,
    /// Sessions of the service inside a transaction at the end.
    pub idle_in_transaction: i64,
    /// What the fault did.
    pub evidence: BTreeMap<&'static str, u64>,
    /// Answers that nothing explains.
    pub odd: Vec<String>,
    /// Why not every key could be read.
    pub read_error: Option<String>,
    /// The checker's word.
    pub outcome: Outcome,
    /// What should have happened and did not.
    pub missing: Vec<String>,
    /// Where the history is.
    pub history: Option<PathBuf>,
}

impl Report {
    /// Promises were kept (or, where they cannot be, were seen to be broken), and enough happened.
    #[must_use]
    pub fn passes(&self) -> bool {
        let kept = if self.fault.loses { self.outcome.bad_keys > 0 } else { self.outcome.passes() };
        kept && self.missing.is_empty()
    }

    /// What is wrong, with the smallest failing key.
    #[must_use]
    pub fn complaint(&self) -> String {
        let mut text = format!("{} with seed {}: ", self.fault.name, self.seed);
        let _ =
            writeln!(text, "{} keys broken {:?}, {} undecided", self.outcome.bad_keys, self.outcome.by_invariant, self.outcome.undecided);
        for missing in &self.missing {
            let _ = writeln!(text, "  not enough: {missing}");
        }
        if let Some(path) = &self.history {
            let _ = writeln!(text, "  history: {}", path.display());
        }
        if let Some(shown) = &self.outcome.shown {
            text += shown;
        }
        text
    }
}

/// A table of runs, one line each; at its end the faults that this machine cannot make, with the reason.
#[must_use]
pub fn table(reports: &[Report], not_here: &[(Fault, String)]) -> String {
    let mut text = String::from(
        "| fault | row | seed | strikes | calls | claims | contested keys | take-overs | unknown (settled) | after healing | violations | seen |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for r in reports {
        let o = &r.outcome;
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        let share = r.recovered.0 as f64 * 100.0 / r.recovered.1.max(1) as f64;
        let found = [("groups forgotten", o.groups_forgotten), ("answers from archives", o.cold)];
        let found = found.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}"));
        let seen: Vec<String> = r.evidence.iter().map(|(what, n)| format!("{n} {what}")).chain(found).collect();
        let verdict = match (r.passes(), o.bad_keys) {
            (true, n) if r.fault.loses => format!("{n} (as expected)"),
            (true, n) => n.to_string(),
            (false, 0) => format!("0, but {}", r.missing.first().cloned().unwrap_or_else(|| format!("{} keys undecided", o.undecided))),
            (false, n) => format!("**{n}**"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} ({}) | {share:.1} % | {verdict} | {} |",
            r.fault.name,
            r.fault.row,
            r.seed,
            r.strikes,
            o.calls,
            o.claims,
            o.contested_keys,
            o.takeovers,
            o.unknowns,
            o.settled,
            seen.join(", "),
        );
    }
    for (fault, why) in not_here {
        let _ = writeln!(text, "| {} | {} | | | | | | | | | not possible here: {why} | |", fault.name, fault.row);
    }
    text
}
