//! Folding: equal (group, key) in one request. The lowest index asks, the others are its duplicates, whatever their request ids.

use std::collections::HashMap;

use dedup_core::{Judgement, Question, Verdict, judge};
use dedup_store::{Answer, Query};
use foldhash::fast::RandomState;

/// For each question the lower one with the same (group, key), if any.
pub fn leaders(queries: &[&Query<'_>]) -> Vec<Option<usize>> {
    let mut first: HashMap<(&str, &str), usize, RandomState> = HashMap::with_capacity_and_hasher(queries.len(), RandomState::default());
    queries
        .iter()
        .enumerate()
        .map(|(i, q)| {
            let leader = *first.entry((q.group.as_str(), q.key.as_str())).or_insert(i);
            (leader != i).then_some(leader)
        })
        .collect()
}

/// The answer of a question that was folded into `leader`'s.
pub fn follow(leader: &Answer, query: &Query<'_>) -> Answer {
    // As somebody else's question over the record that the leader left.
    let question = Question { claim: query.claim, request: None, fingerprint: query.fingerprint };
    let verdict = match judge(&leader.record, &question, leader.at_ms) {
        Judgement::Mismatch => Verdict::Mismatch,
        Judgement::Duplicate => Verdict::Duplicate,
        Judgement::InProgress => Verdict::InProgress,
        // The record's time ran out in this very moment; in this request it is the leader's all the same.
        _ if query.claim => Verdict::InProgress,
        _ => Verdict::Duplicate,
    };
    Answer {
        verdict,
        replayed: false,
        previous: None,
        fingerprint_checked: leader.record.fingerprint.is_some() && query.fingerprint.is_some(),
        ..leader.clone()
    }
}
