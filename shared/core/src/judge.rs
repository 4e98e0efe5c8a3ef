//! The order of judgement: what a record means for a question.

use crate::{Fingerprint, Record, RequestHash, State};

/// What a question brings besides its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// A claim (first phase of three) rather than a one-shot check.
    pub claim: bool,
    /// Its request id; an absent one equals nothing.
    pub request: Option<RequestHash>,
    /// Its payload.
    pub fingerprint: Option<Fingerprint>,
}

/// What it comes to. Only the home may act on the four that write ([`Judgement::writes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The window has ended: first, attempt 1.
    FirstAfterWindow,
    /// It was released: first, next attempt.
    FirstAfterRelease,
    /// Its lease lapsed: first, next attempt.
    TakeOver,
    /// Another payload under the same key.
    Mismatch,
    /// The same request again: the same grant.
    Again,
    /// The same request after a lapse nobody used: the same grant, its lease renewed.
    Renew,
    /// Done before.
    Duplicate,
    /// Somebody is at it.
    InProgress,
}

impl Judgement {
    /// Whether acting on it changes the record, so that only the home can.
    pub fn writes(self) -> bool {
        matches!(self, Self::FirstAfterWindow | Self::FirstAfterRelease | Self::TakeOver | Self::Renew)
    }

    /// The number `dedup.judge_v1` gives it.
    pub fn code(self) -> i32 {
        match self {
            Self::FirstAfterWindow => 1,
            Self::FirstAfterRelease => 2,
            Self::TakeOver => 3,
            Self::Mismatch => 4,
            Self::Again => 5,
            Self::Renew => 6,
            Self::Duplicate => 7,
            Self::InProgress => 8,
        }
    }
}

/// Judges a committed record at a home time (ms). The same table decides in SQL (`dedup.judge_v1`); a test holds both to it.
pub fn judge(record: &Record, question: &Question, now_ms: i64) -> Judgement {
    if now_ms >= record.present_until_ms() {
        return Judgement::FirstAfterWindow;
    }
    if record.state == State::Released {
        return Judgement::FirstAfterRelease;
    }
    if let (Some(kept), Some(given)) = (record.fingerprint, question.fingerprint)
        && kept != given
    {
        return Judgement::Mismatch;
    }
    let same = question.request.is_some() && question.request == record.request;
    let lease_alive = now_ms < record.ends_ms;
    match record.state {
        // A check's grant stays repeatable; a claim's ended with its completion.
        State::Done if same && record.one_shot && !question.claim => Judgement::Again,
        State::Done => Judgement::Duplicate,
        _ if same && question.claim && lease_alive => Judgement::Again,
        _ if same && question.claim => Judgement::Renew,
        _ if lease_alive => Judgement::InProgress,
        _ => Judgement::TakeOver,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fence, Outcome};

    fn record(state: State, one_shot: bool) -> Record {
        Record {
            fence: Fence(1),
            request: RequestHash::from_stored(7),
            fingerprint: Fingerprint::from_stored(3),
            state,
            outcome: Outcome::Succeeded,
            one_shot,
            attempt: 1,
            first_seen_ms: 0,
            expires_ms: 100,
            ends_ms: 50,
            result: None,
        }
    }

    fn ask(claim: bool, request: i64, fingerprint: i32) -> Question {
        Question { claim, request: RequestHash::from_stored(request), fingerprint: Fingerprint::from_stored(fingerprint) }
    }

    #[test]
    fn the_table() {
        use Judgement as J;
        let open = record(State::InProgress, false);
        let done = record(State::Done, false);
        let checked = record(State::Done, true);
        let released = record(State::Released, false);
        for (record, question, now, want) in [
            (&open, ask(true, 8, 3), 10, J::InProgress),
            (&open, ask(true, 8, 0), 10, J::InProgress),
            (&open, ask(true, 0, 0), 10, J::InProgress),
            (&open, ask(true, 7, 3), 10, J::Again),
            (&open, ask(false, 7, 3), 10, J::InProgress),
            (&open, ask(true, 7, 4), 10, J::Mismatch),
            (&open, ask(true, 7, 3), 50, J::Renew),
            (&open, ask(true, 8, 3), 50, J::TakeOver),
            (&open, ask(true, 8, 4), 50, J::Mismatch),
            (&open, ask(true, 8, 3), 100, J::FirstAfterWindow),
            (&done, ask(true, 7, 3), 10, J::Duplicate),
            (&done, ask(true, 8, 4), 99, J::Mismatch),
            (&done, ask(true, 8, 4), 100, J::FirstAfterWindow),
            (&checked, ask(false, 7, 3), 99, J::Again),
            (&checked, ask(false, 8, 3), 99, J::Duplicate),
            (&checked, ask(true, 7, 3), 99, J::Duplicate),
            (&released, ask(true, 7, 4), 10, J::FirstAfterRelease),
            (&released, ask(true, 7, 4), 100, J::FirstAfterWindow),
        ] {
            assert_eq!(judge(record, &question, now), want, "{record:?} {question:?} at {now}");
        }
        // An extended lease keeps an open claim present beyond its window.
        assert_eq!(judge(&Record { ends_ms: 150, ..open.clone() }, &ask(true, 8, 3), 120), J::InProgress);
    }
}
