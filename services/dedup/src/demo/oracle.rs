//! The consumers' own books: what each key was told, kept apart from the service and compared with its promises.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::ask::{Grant, Verdict};

/// What one key was told.
#[derive(Debug, Default)]
struct Record {
    /// The grant of each attempt.
    grants: BTreeMap<u32, Granted>,
    /// Somebody was told that somebody else is, or was, first.
    refused: bool,
    /// A question was given up without an answer: its grant, if any, is known to nobody.
    unknown: bool,
    /// The attempt that was completed.
    completed: Option<u32>,
}

#[derive(Debug)]
struct Granted {
    request_id: String,
    fence: Option<String>,
}

/// Sums over all judged keys.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) keys: u64,
    /// Attempts granted; each to one request id.
    pub(super) firsts: u64,
    /// Attempts granted after an owner had crashed or given up.
    pub(super) takeovers: u64,
    pub(super) completed: u64,
    /// Keys with a question that was never answered; nothing is claimed of them.
    pub(super) unknown: u64,
    /// An attempt granted to two request ids, or with two fences (promises P1 and P4).
    pub(super) double_firsts: u64,
    /// A later attempt with a fence that does not rise (P1).
    pub(super) unordered_fences: u64,
    /// Refused, although nobody was ever first (P2).
    pub(super) phantoms: u64,
    /// Two attempts of one key completed (P5).
    pub(super) double_completions: u64,
}

impl Findings {
    /// Broken promises.
    pub(super) fn violations(&self) -> u64 {
        self.double_firsts + self.unordered_fences + self.phantoms + self.double_completions
    }
}

/// The books.
#[derive(Debug)]
pub(super) struct Oracle {
    /// Keys remembered; older ones are judged and let go, so that a demo may run for days.
    keys_max: usize,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    records: HashMap<String, Record>,
    order: VecDeque<String>,
    findings: Findings,
}

impl Oracle {
    /// Books of so many keys at a time: more than come while any one key may still come again.
    pub(super) fn new(keys_max: usize) -> Self {
        Self { keys_max, books: Mutex::default() }
    }

    /// An answer about a key.
    pub(super) fn told(&self, key: &str, request_id: &str, verdict: &Verdict) {
        self.with(key, |record, findings| match verdict {
            Verdict::First { grant, .. } => record.granted(request_id, grant, findings),
            Verdict::Duplicate | Verdict::InProgress { .. } => record.refused = true,
        });
    }

    /// A question about a key was given up.
    pub(super) fn never_told(&self, key: &str) {
        self.with(key, |record, _| record.unknown = true);
    }

    /// The service accepted a completion.
    pub(super) fn completed(&self, key: &str, attempt: u32) {
        self.with(key, |record, findings| match record.completed.replace(attempt) {
            Some(before) if before != attempt => findings.double_completions += 1,
            _ => {}
        });
    }

    /// Judges all keys. Call it when no question is open any more.
    pub(super) fn close(&self) -> Findings {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        while books.let_go_of_oldest() {}
        books.findings.clone()
    }

    fn with(&self, key: &str, change: impl FnOnce(&mut Record, &mut Findings)) {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let Books { records, order, findings } = &mut *books;
        if !records.contains_key(key) {
            order.push_back(key.to_owned());
        }
        change(records.entry(key.to_owned()).or_default(), findings);
        if order.len() > self.keys_max {
            books.let_go_of_oldest();
        }
    }
}

impl Books {
    fn let_go_of_oldest(&mut self) -> bool {
        let Some(record) = self.order.pop_front().and_then(|key| self.records.remove(&key)) else {
            return false;
        };
        let findings = &mut self.findings;
        findings.keys += 1;
        findings.firsts += record.grants.len() as u64;
        findings.takeovers += record.grants.len().saturating_sub(1) as u64;
        findings.completed += u64::from(record.completed.is_some());
        findings.unknown += u64::from(record.unknown);
        findings.phantoms += u64::from(record.refused && record.grants.is_empty() && !record.unknown);
        true
    }
}

impl Record {
    fn granted(&mut self, request_id: &str, grant: &Grant, findings: &mut Findings) {
        if let Some(known) = self.grants.get(&grant.attempt) {
            findings.double_firsts += u64::from(known.request_id != request_id || known.fence != grant.fence);
            return;
        }
        // Fences are text that sorts. Answers may reach us out of order, so both neighbours are compared.
        let before = self.grants.range(..grant.attempt).next_back();
        let after = self.grants.range(grant.attempt..).next();
        let rises = before.is_none_or(|(_, b)| b.fence < grant.fence) && after.is_none_or(|(_, a)| grant.fence < a.fence);
        findings.unordered_fences += u64::from(!rises);
        let granted = Granted { request_id: request_id.to_owned(), fence: grant.fence.clone() };
        self.grants.insert(grant.attempt, granted);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn first(attempt: u32, fence: &str) -> Verdict {
        let grant = Grant { attempt, fence: Some(fence.into()), claim_token: None };
        Verdict::First { replayed: false, grant }
    }

    fn judged(tell: impl FnOnce(&Oracle)) -> Findings {
        let oracle = Oracle::new(1_000);
        tell(&oracle);
        oracle.close()
    }

    #[test]
    fn a_grant_repeated_for_its_request_and_a_take_over_are_in_order() {
        let findings = judged(|oracle| {
            oracle.told("k", "a", &first(1, "01"));
            oracle.told("k", "a", &first(1, "01"));
            oracle.told("k", "b", &Verdict::InProgress { retry_after: Duration::ZERO });
            oracle.told("k", "b", &first(2, "02"));
            oracle.completed("k", 2);
            oracle.completed("k", 2);
            oracle.told("k", "c", &Verdict::Duplicate);
        });
        let wanted = Findings { keys: 1, firsts: 2, takeovers: 1, completed: 1, ..Findings::default() };
        assert_eq!(findings, wanted);
        assert_eq!(findings.violations(), 0);
    }

    #[test]
    fn each_broken_promise_is_found() {
        let double = judged(|oracle| ["a", "b"].iter().for_each(|id| oracle.told("k", id, &first(1, "01"))));
        assert_eq!(double.double_firsts, 1);
        let unordered = judged(|oracle| [(1, "02"), (2, "01")].iter().for_each(|(n, f)| oracle.told("k", "a", &first(*n, f))));
        assert_eq!(unordered.unordered_fences, 1);
        let phantom = judged(|oracle| oracle.told("k", "a", &Verdict::Duplicate));
        assert_eq!(phantom.phantoms, 1);
        let twice = judged(|oracle| [1, 2].iter().for_each(|n| oracle.completed("k", *n)));
        assert_eq!(twice.double_completions, 1);
    }

    #[test]
    fn a_lost_grant_explains_a_refusal() {
        let findings = judged(|oracle| {
            oracle.never_told("k");
            oracle.told("k", "b", &Verdict::Duplicate);
        });
        assert_eq!((findings.phantoms, findings.unknown), (0, 1));
    }
}
