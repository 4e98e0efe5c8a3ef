//! The two kinds of questions that share a batcher's rules: decisions, and ends of claims.

use std::sync::Arc;

use dedup_core::{Digest, Judgement, Tier, Verdict, judge};

use super::filters::FilterSet;
use crate::cached::answer_of;
use crate::postgres::{CallError, Called, Decided, Identity, call_decide, call_finish, prepare_decide, prepare_finish};
use crate::{Answer, Ask, Basis, Finish, FinishAnswer, FinishOp, RefusalKind, StoreMetrics, sabotage};

/// What became of one question of a call.
pub enum Reply<A> {
    /// Answered.
    Answer(A),
    /// Held by somebody's open transaction: certainly nothing was changed.
    Busy,
    /// No verdict, and nothing was changed.
    Refused(RefusalKind),
}

/// A kind of question.
pub trait Work: Send + Sync + 'static {
    type Ask: Send + Sync + 'static;
    type Answer: Send + 'static;

    /// What a trace calls it.
    const NAME: &'static str;

    fn digest(ask: &Self::Ask) -> Digest;
    /// Only questions of one kind share a call.
    fn kind(ask: &Self::Ask) -> u8;
    /// Makes the connection know the statement; the first time only this is a round trip.
    fn prepare(client: &deadpool_postgres::Client) -> impl Future<Output = Result<(), CallError>> + Send;
    /// One round trip for different digests, sorted by digest.
    fn call(
        client: &deadpool_postgres::Client,
        who: &Identity,
        not_after_ms: i64,
        asks: &[&Self::Ask],
        filters: &FilterSet,
    ) -> impl Future<Output = Result<Called<Vec<Reply<Self::Answer>>>, CallError>> + Send;
    /// The answer to a question that waited behind an equal one: its own, from the facts, or `None` if it must ask itself.
    fn follow(leader: &Self::Answer, ask: &Self::Ask) -> Option<Self::Answer>;
    /// Whether it says that the call changed nothing.
    fn is_void(answer: &Self::Answer) -> bool;
    /// Whether the next look may well find the same: somebody is at work on the key.
    fn is_open(answer: &Self::Answer) -> bool;
    fn count(answer: &Self::Answer, metrics: &StoreMetrics);
}

/// Checks and claims.
pub struct Decide;

impl Work for Decide {
    type Ask = Ask;
    type Answer = Answer;

    const NAME: &'static str = "decide";

    fn digest(ask: &Ask) -> Digest {
        ask.digest
    }

    fn kind(_: &Ask) -> u8 {
        0
    }

    async fn prepare(client: &deadpool_postgres::Client) -> Result<(), CallError> {
        prepare_decide(client).await
    }

    async fn call(
        client: &deadpool_postgres::Client,
        who: &Identity,
        not_after_ms: i64,
        asks: &[&Ask],
        filters: &FilterSet,
    ) -> Result<Called<Vec<Reply<Answer>>>, CallError> {
        let called = call_decide(client, who, not_after_ms, asks, filters).await?;
        let basis = Basis { as_of: called.as_of, incarnation: called.incarnation };
        let answers = called.answers.map(|mut facts| {
            let answer = |ask: &&Ask| match facts.remove(&ask.digest) {
                Some(Decided::Unreadable) => Reply::Refused(RefusalKind::StoreUnavailable),
                found => found.and_then(|d| answer(d, ask, basis)).map_or(Reply::Busy, Reply::Answer),
            };
            asks.iter().map(answer).collect()
        });
        Ok(Called { answers, status: called.status, as_of: called.as_of, incarnation: called.incarnation, home_ms: called.home_ms })
    }

    fn follow(leader: &Answer, ask: &Ask) -> Option<Answer> {
        if sabotage::is("followers-inherit") && leader.verdict == Verdict::First {
            return Some(leader.clone());
        }
        let question = ask.question();
        let mut answer = answer_of(
            judge(&leader.record, &question, leader.at_ms),
            &leader.record,
            &question,
            leader.at_ms,
            if leader.tier == Tier::Cold { Tier::Cold } else { Tier::Warm },
            leader.basis,
            leader.digest,
        )?;
        answer.owner.clone_from(&leader.owner);
        Some(answer)
    }

    fn is_void(_: &Answer) -> bool {
        false
    }

    fn is_open(answer: &Answer) -> bool {
        answer.verdict == Verdict::InProgress
    }

    fn count(answer: &Answer, metrics: &StoreMetrics) {
        if answer.previous.as_ref().is_some_and(|p| p.ended == "lapsed") {
            metrics.takeover();
        }
    }
}

fn answer(decided: Decided, ask: &Ask, basis: Basis) -> Option<Answer> {
    let first = |record: Arc<_>, replayed, previous, at_ms| Answer {
        verdict: Verdict::First,
        replayed,
        tier: Tier::Warm,
        record,
        fingerprint_checked: false,
        previous,
        owner: None,
        at_ms,
        basis,
        digest: ask.digest,
    };
    match decided {
        Decided::Granted { record, previous, at_ms } => Some(first(record, false, previous, at_ms)),
        Decided::Renewed { record, at_ms } => Some(first(record, true, None, at_ms)),
        Decided::Found { record, owner, at_ms } => {
            let question = ask.question();
            // The home judged by the same rule and found nothing to write; if the two ever disagreed, asking again is the safe reading.
            let judgement = judge(&record, &question, at_ms);
            let mut answer = answer_of(judgement, &record, &question, at_ms, Tier::Warm, basis, ask.digest)?;
            answer.owner = if judgement == Judgement::InProgress { owner } else { None };
            Some(answer)
        }
        // Neither request nor fingerprint is kept there: whoever asks, it is done.
        Decided::Archived { record, at_ms } => {
            Some(Answer { verdict: Verdict::Duplicate, replayed: false, tier: Tier::Cold, ..first(record, false, None, at_ms) })
        }
        Decided::Busy | Decided::Unreadable => None,
    }
}

/// Completions, releases and extensions.
pub struct End;

impl Work for End {
    type Ask = Finish;
    type Answer = FinishAnswer;

    const NAME: &'static str = "finish";

    fn digest(ask: &Finish) -> Digest {
        ask.token.digest
    }

    fn kind(ask: &Finish) -> u8 {
        match ask.op {
            FinishOp::Complete { .. } => 0,
            FinishOp::Release { .. } => 1,
            FinishOp::Extend { .. } => 2,
        }
    }

    async fn prepare(client: &deadpool_postgres::Client) -> Result<(), CallError> {
        prepare_finish(client).await
    }

    async fn call(
        client: &deadpool_postgres::Client,
        who: &Identity,
        not_after_ms: i64,
        asks: &[&Finish],
        _: &FilterSet,
    ) -> Result<Called<Vec<Reply<FinishAnswer>>>, CallError> {
        let called = call_finish(client, who, not_after_ms, asks).await?;
        let answers = called.answers.map(|answers| answers.into_iter().map(|a| a.map_or(Reply::Busy, Reply::Answer)).collect());
        Ok(Called { answers, status: called.status, as_of: called.as_of, incarnation: called.incarnation, home_ms: called.home_ms })
    }

    fn follow(_: &FinishAnswer, _: &Finish) -> Option<FinishAnswer> {
        None
    }

    fn is_void(answer: &FinishAnswer) -> bool {
        matches!(answer, FinishAnswer::LeaseLost { .. })
    }

    fn is_open(_: &FinishAnswer) -> bool {
        false
    }

    fn count(answer: &FinishAnswer, metrics: &StoreMetrics) {
        if matches!(answer, FinishAnswer::LeaseLost { .. }) {
            metrics.lease_lost();
        }
    }
}
