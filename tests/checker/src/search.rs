//! Looks for an order of one key's calls under which a sequential record would have given the same answers (after Wing and Gong, with
//! Lowe's memory of what was tried). It decides what the linear layer cannot: leases, take-overs and ends that overlap.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::history::{Answer, Kind, Out, Verdict};
use crate::keyed::Op;

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// There is such an order.
    Order,
    /// There is none.
    None,
    /// Not decided: too many calls, or out of time.
    Undecided,
}

/// Calls of one key that a search takes on.
const CALLS_MAX: usize = 128;

/// The record as a sequential machine. `fence` indexes the key's fences in their order; `None`: a grant whose owner was never told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Absent,
    Held { fence: Option<u16>, request: u16, lease_end: Option<i64>, expires: Option<i64> },
    Done { fence: Option<u16>, request: u16, result: u16, check: bool, expires: Option<i64> },
    Released { fence: Option<u16> },
}

/// A call with its texts as numbers.
struct Step<'a> {
    op: &'a Op,
    answer: Option<&'a Answer>,
    request: u16,
    fence: Option<u16>,
    token: Option<u16>,
    result: u16,
    /// A duplicate told while a forget was under way.
    cached: bool,
    /// A repeated completion of what was forgotten with its group.
    left: bool,
}

/// Searches within `budget`.
#[must_use]
pub fn key_order(ops: &[Op], budget: Duration) -> Found {
    let mut fences: Vec<&str> =
        ops.iter().flat_map(|op| [op.answer().map_or("", |a| &a.fence), &op.call.token]).filter(|f| !f.is_empty()).collect();
    fences.sort_unstable();
    fences.dedup();
    let fence = |text: &str| fences.binary_search(&text).ok().and_then(|i| u16::try_from(i).ok());
    let number = |text: &str, known: &mut Vec<String>| {
        let at = known.iter().position(|t| t == text).unwrap_or_else(|| {
            known.push(text.to_owned());
            known.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    };
    let (mut requests, mut results) = (vec![String::new()], vec![String::new()]);
    let first_attempt = |op: &Op| Op { ret: u64::MAX, out: Out::Unknown("a first attempt".into()), ..op.clone() };
    let lapsed: Vec<Op> = ops.iter().filter(|op| op.may_have_outlived_a_grant()).map(first_attempt).collect();
    let mut steps = Vec::new();
    for op in ops.iter().filter(|op| op.maybe() && tells(op)).chain(&lapsed) {
        let request = if op.call.request.is_empty() { 0 } else { number(&op.call.request, &mut requests) };
        let answer = op.answer();
        let said = if op.call.kind == Kind::Complete { op.call.result.as_str() } else { answer.map_or("", |a| &a.result) };
        let result = number(said, &mut results);
        let (cached, left) = (op.may_be_cached(ops), op.may_repeat_before_forget_all(ops));
        let token = fence(&op.call.token);
        steps.push(Step { op, answer, request, fence: answer.and_then(|a| fence(&a.fence)), token, result, cached, left });
    }
    if steps.len() > CALLS_MAX {
        return Found::Undecided;
    }
    let needed: u128 = steps.iter().enumerate().filter(|(_, s)| s.answer.is_some()).fold(0, |bits, (i, _)| bits | 1 << i);
    let mut search = Search { steps: &steps, needed, tried: HashSet::default(), until: Instant::now() + budget, looks: 0 };
    search.from(0, State::Absent)
}

/// Whether the sequential record has something to say about the answer.
fn tells(op: &Op) -> bool {
    // The followers of a batch were answered beside their leader, from what it left.
    op.answer().is_none_or(|a| a.of_index.is_none())
}

struct Search<'a> {
    steps: &'a [Step<'a>],
    needed: u128,
    tried: HashSet<(u128, State), foldhash::fast::RandomState>,
    until: Instant,
    looks: u32,
}

impl Search<'_> {
    fn from(&mut self, done: u128, state: State) -> Found {
        if done & self.needed == self.needed {
            return Found::Order;
        }
        if !self.tried.insert((done, state)) {
            return Found::None;
        }
        self.looks += 1;
        if self.looks.is_multiple_of(256) && Instant::now() > self.until {
            return Found::Undecided;
        }
        // Only what was sent before every undone call's end may come next.
        let open = |i: usize| done & (1 << i) == 0;
        let horizon = (0..self.steps.len()).filter(|i| open(*i)).map(|i| self.steps[i].op.ret).min().unwrap_or(u64::MAX);
        let may_come = |i: &usize| open(*i) && self.steps[*i].op.inv() <= horizon;
        // A refusal changes nothing wherever it stands: one that fits here need not be tried later.
        if let Some(i) =
            (0..self.steps.len()).filter(may_come).find(|i| refuses(&self.steps[*i]) && after(&self.steps[*i], state) == [state])
        {
            return self.from(done | 1 << i, state);
        }
        for i in (0..self.steps.len()).filter(may_come) {
            for next in after(&self.steps[i], state) {
                match self.from(done | 1 << i, next) {
                    Found::None => {}
                    other => return other,
                }
            }
        }
        Found::None
    }
}

/// Whether an answer tells that the record was left as it is.
fn refuses(step: &Step<'_>) -> bool {
    step.answer.is_some_and(|a| {
        step.op.call.kind == Kind::Read
            || matches!(
                a.verdict,
                Verdict::Duplicate | Verdict::InProgress | Verdict::Mismatch | Verdict::LeaseLost | Verdict::AlreadyCompleted
            )
    })
}

fn same(a: Option<u16>, b: Option<u16>) -> bool {
    a == b || a.is_none() || b.is_none()
}

/// Whether the record of `state` may be gone or taken at home time `now`.
fn is_over(state: State, now: Option<i64>) -> bool {
    let past = |end: Option<i64>| matches!((now, end), (Some(now), Some(end)) if now >= end);
    match state {
        State::Absent | State::Released { .. } => true,
        // Home time of a call that nobody heard of is not known; neither is the lease of a grant nobody heard of.
        State::Held { lease_end, .. } => now.is_none() || lease_end.is_none() || past(lease_end),
        State::Done { expires, fence, .. } => now.is_none() && expires.is_some() || past(expires) || (expires.is_none() && fence.is_none()),
    }
}

/// The states in which the record may be after the call, if it could give that answer in `state`.
fn after(step: &Step<'_>, state: State) -> Vec<State> {
    match (step.op.call.kind, step.answer) {
        (Kind::Check | Kind::Claim, Some(answer)) => told(step, answer, state),
        (Kind::Check | Kind::Claim, None) => {
            let mut next = Vec::new();
            if is_over(state, None) {
                next.push(granted(step, None));
            }
            if let State::Held { fence, request, expires, .. } = state
                && request == step.request
                && request != 0
            {
                // Its lease may have been renewed, until nobody knows when.
                next.push(State::Held { fence, request, lease_end: None, expires });
            }
            next
        }
        (Kind::Complete, answer) => match (answer.map(|a| a.verdict), state) {
            (None | Some(Verdict::Completed), State::Held { fence, request, expires, .. }) if same(fence, step.token) => {
                // (Said to be a repetition where the service itself had to ask twice.)
                vec![State::Done { fence: step.token, request, result: step.result, check: false, expires }]
            }
            (Some(Verdict::Completed), State::Done { fence, result, check: false, .. })
                if same(fence, step.token) && result == step.result && answer.is_some_and(|a| a.replayed) =>
            {
                vec![state]
            }
            (Some(Verdict::AlreadyCompleted), State::Done { fence, check: false, .. }) if same(fence, step.token) => vec![state],
            (Some(Verdict::LeaseLost), _) if !owns(state, step.token, true) => vec![state],
            // The archive does not know whose completion a record is.
            (Some(Verdict::LeaseLost), State::Done { .. }) if step.op.archivable => vec![state],
            (Some(Verdict::Completed), _) if step.left && answer.is_some_and(|a| a.replayed) => vec![state],
            (Some(Verdict::AlreadyCompleted), _) if step.left => vec![state],
            _ => Vec::new(),
        },
        (Kind::Release, answer) => match (answer.map(|a| a.verdict), state) {
            (None | Some(Verdict::Released), State::Held { fence, .. }) if same(fence, step.token) => {
                vec![State::Released { fence: step.token }]
            }
            (Some(Verdict::Released), State::Released { fence }) if same(fence, step.token) && answer.is_some_and(|a| a.replayed) => {
                vec![state]
            }
            (Some(Verdict::LeaseLost), _) if !owns(state, step.token, false) => vec![state],
            _ => Vec::new(),
        },
        (Kind::Extend, answer) => match (answer.map(|a| a.verdict), state) {
            (None | Some(Verdict::Extended), State::Held { fence, request, expires, .. }) if same(fence, step.token) => {
                vec![State::Held { fence: step.token, request, lease_end: answer.and_then(|a| a.lease_end), expires }]
            }
            (Some(Verdict::LeaseLost), _) if !owns(state, step.token, false) => vec![state],
            _ => Vec::new(),
        },
        (Kind::Forget | Kind::ForgetAll, _) => vec![State::Absent],
        (Kind::Read, Some(answer)) => read(step, answer, state),
        (Kind::Read, None) => Vec::new(),
    }
}

/// Whether the fence is certainly the owner's of an open claim (or, if asked, of a done one).
fn owns(state: State, token: Option<u16>, done_too: bool) -> bool {
    match state {
        State::Held { fence, .. } => fence.is_some() && fence == token,
        State::Done { fence, check: false, .. } => done_too && fence.is_some() && fence == token,
        _ => false,
    }
}

fn granted(step: &Step<'_>, answer: Option<&Answer>) -> State {
    let expires = answer.and_then(|a| a.expires);
    match step.op.call.kind {
        Kind::Check => State::Done { fence: step.fence, request: step.request, result: 0, check: true, expires },
        _ => State::Held { fence: step.fence, request: step.request, lease_end: answer.and_then(|a| a.lease_end), expires },
    }
}

/// A decided question.
fn told(step: &Step<'_>, answer: &Answer, state: State) -> Vec<State> {
    let named = |fence| step.fence.is_none() || same(fence, step.fence);
    match answer.verdict {
        Verdict::First if answer.replayed => match state {
            State::Held { fence, request, expires, .. }
                if same(fence, step.fence) && request == step.request && step.op.call.kind == Kind::Claim =>
            {
                vec![State::Held { fence: step.fence, request, lease_end: answer.lease_end, expires: answer.expires.or(expires) }]
            }
            State::Done { fence, request, check: true, expires, result } if same(fence, step.fence) && request == step.request => {
                vec![State::Done { fence: step.fence, request, check: true, expires: answer.expires.or(expires), result }]
            }
            // The service itself asked again after a first attempt that got no reply: granted and repeated in one call.
            _ if is_over(state, answer.seen) && rises(state, step.fence) => vec![granted(step, Some(answer))],
            _ => Vec::new(),
        },
        Verdict::First if is_over(state, answer.seen) && rises(state, step.fence) => vec![granted(step, Some(answer))],
        Verdict::Duplicate => match state {
            State::Done { fence, request, result, check, expires }
                if named(fence)
                    && (check || answer.result.is_empty() || result == step.result)
                    && (answer.cold || !(check && request == step.request && request != 0 && step.op.call.kind == Kind::Check)) =>
            {
                vec![State::Done { fence: fence.or(step.fence), request, result, check, expires: expires.or(answer.expires) }]
            }
            _ if step.cached && (state == State::Absent || !rises(state, step.fence)) => vec![state],
            _ => Vec::new(),
        },
        Verdict::InProgress => match state {
            State::Held { fence, request, lease_end, expires }
                if named(fence) && !(request == step.request && request != 0 && step.op.call.kind == Kind::Claim) =>
            {
                vec![State::Held { fence: fence.or(step.fence), request, lease_end: lease_end.or(answer.lease_end), expires }]
            }
            _ => Vec::new(),
        },
        Verdict::Mismatch => match state {
            State::Held { .. } | State::Done { .. } => vec![state],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// A new fence is above the one before.
fn rises(state: State, new: Option<u16>) -> bool {
    let old = match state {
        State::Absent => None,
        State::Held { fence, .. } | State::Done { fence, .. } | State::Released { fence } => fence,
    };
    old.is_none() || new.is_none() || old < new
}

fn read(step: &Step<'_>, answer: &Answer, state: State) -> Vec<State> {
    let fits = match (answer.verdict, state) {
        (Verdict::Absent, _) => {
            match state {
                State::Absent => true,
                // What was open is removed once its lease and its window are over.
                State::Held { expires, .. } => is_over(state, answer.seen) && expires.zip(answer.seen).is_none_or(|(end, now)| now >= end),
                State::Done { .. } | State::Released { .. } => is_over(state, answer.seen),
            }
        }
        (Verdict::InProgress, State::Held { fence, .. })
        | (Verdict::Duplicate, State::Done { fence, .. })
        | (Verdict::Released, State::Released { fence }) => same(fence, step.fence),
        _ => false,
    };
    if fits { vec![state] } else { Vec::new() }
}
