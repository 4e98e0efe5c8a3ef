//! The same counters, added up for people: checks and claims per topic and home.

use dedup_core::{HomeId, Op, Tier, Topic, Verdict};

use super::{Cells, Count, Counted, Decisions};

/// Checks and claims of one topic and home since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    pub topic: Topic,
    pub home: HomeId,
    pub first: u64,
    pub duplicate: u64,
    pub in_progress: u64,
    pub mismatch: u64,
    pub replayed: u64,
    pub undecided: u64,
}

const OPS: [Op; 2] = [Op::Check, Op::Claim];

impl Decisions {
    /// Tallies by topic and home, of those that were asked anything.
    pub fn tallies(&self) -> Vec<Tally> {
        let mut tallies: Vec<Tally> = Vec::new();
        for (topic, cells) in self.cells.read().expect("no panic while held").iter() {
            for ((home, _), cell) in self.homes.iter().zip(&cells.homes) {
                let count = |counted| cell.sum(counted);
                tallies.push(Tally {
                    topic: topic.clone(),
                    home,
                    first: count(Counted::Verdict(Verdict::First)),
                    duplicate: count(Counted::Verdict(Verdict::Duplicate)),
                    in_progress: count(Counted::Verdict(Verdict::InProgress)),
                    mismatch: count(Counted::Verdict(Verdict::Mismatch)),
                    replayed: count(Counted::Replayed),
                    undecided: cell.sum_undecided(),
                });
            }
        }
        tallies.retain(|t| t.first + t.duplicate + t.in_progress + t.mismatch + t.replayed + t.undecided > 0);
        tallies.sort_by(|a, b| (&a.topic, a.home).cmp(&(&b.topic, b.home)));
        tallies
    }
}

impl Cells {
    fn sum(&self, counted: Counted) -> u64 {
        let of = |op: Op, tier: Tier| self.ops[op as usize].decided[counted.index()][tier as usize].total();
        OPS.iter().flat_map(|op| Tier::ALL.iter().map(move |tier| of(*op, *tier))).sum()
    }

    fn sum_undecided(&self) -> u64 {
        OPS.iter().flat_map(|op| &self.ops[*op as usize].undecided).map(Count::total).sum()
    }
}

impl Tally {
    /// duplicate / (first + duplicate); `None` while there is neither.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn duplicate_rate(&self) -> Option<f64> {
        let all = self.first + self.duplicate;
        (all > 0).then(|| self.duplicate as f64 / all as f64)
    }
}
