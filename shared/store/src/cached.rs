//! What the tiers above the home may hold: committed facts that can no longer change.

use std::sync::Arc;

use dedup_core::{Digest, Judgement, Question, Record, State, Tier, Verdict, judge};
use uuid::Uuid;

use crate::{Answer, Basis, sabotage};

/// A done record with what decides whether it may still be believed.
#[derive(Debug, Clone)]
pub struct Cached {
    /// The facts. Always `State::Done`: an open claim changes hands without any cache hearing of it.
    pub record: Arc<Record>,
    /// The home's forget position when the record was read: a later forget of this key makes this a miss.
    pub as_of: i64,
    /// Identity of the home that said so.
    pub home_id: Uuid,
    /// Its incarnation (epoch × 2,048 + Postgres timeline): after a promotion or a raised epoch nothing from before counts.
    pub incarnation: i32,
}

impl Cached {
    /// Takes a record if it is a fact for good.
    pub fn of(record: &Arc<Record>, basis: Basis, home_id: Uuid) -> Option<Self> {
        let cacheable = record.state == State::Done || (sabotage::is("caches-in-progress") && record.state == State::InProgress);
        cacheable.then(|| Self { record: Arc::clone(record), as_of: basis.as_of, home_id, incarnation: basis.incarnation })
    }

    /// Bytes it takes in process, roughly: the entry, the record, the cache's own bookkeeping (measured), and the result.
    pub fn weight(&self) -> u32 {
        const ENTRY: usize = 400;
        let result = self.record.result.as_ref().map_or(0, |r| r.weight());
        u32::try_from(ENTRY + result).unwrap_or(u32::MAX)
    }

    /// The answer to a question, if these facts decide it. `now_ms` bounds home time from above, so a record near its end is a miss.
    pub fn answer(&self, digest: Digest, question: &Question, now_ms: i64, tier: Tier) -> Option<Answer> {
        let judgement = judge(&self.record, question, now_ms);
        let basis = Basis { as_of: self.as_of, incarnation: self.incarnation };
        answer_of(judgement, &self.record, question, now_ms, tier, basis, digest)
    }
}

/// The answer a judgement amounts to, if it is one that changes nothing.
pub fn answer_of(
    judgement: Judgement,
    record: &Arc<Record>,
    question: &Question,
    at_ms: i64,
    tier: Tier,
    basis: Basis,
    digest: Digest,
) -> Option<Answer> {
    let (verdict, replayed) = match judgement {
        Judgement::Mismatch => (Verdict::Mismatch, false),
        Judgement::Again => (Verdict::First, true),
        Judgement::Duplicate => (Verdict::Duplicate, false),
        Judgement::InProgress => (Verdict::InProgress, false),
        Judgement::FirstAfterWindow | Judgement::FirstAfterRelease | Judgement::TakeOver | Judgement::Renew => return None,
    };
    Some(Answer {
        verdict,
        replayed,
        tier,
        record: Arc::clone(record),
        fingerprint_checked: record.fingerprint.is_some() && question.fingerprint.is_some(),
        previous: None,
        owner: None,
        at_ms,
        basis,
        digest,
    })
}
