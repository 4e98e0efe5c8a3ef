//! Judges a recorded history: what callers asked and were told, while things broke.
//!
//! Two layers. [`linear`] looks at each key once and checks what must hold whatever the order of what overlapped (invariants I1 to I9).
//! [`search`] then looks for an order of the overlapping calls under which a plain record, written down as a sequential machine, would have
//! given these very answers; it finds what the first layer's necessary conditions let through.
//!
//! A call whose outcome is not known may have happened at any time after it was sent, or never. A search that runs out of time is no pass.

mod check;
mod history;
mod keyed;
mod linear;
mod report;
mod search;

pub use check::{Limits, Outcome, check};
pub use history::{Answer, Call, Kind, Line, Out, Return, Verdict, read_history};
pub use keyed::{Histories, Op};
pub use linear::{Violation, cut_short, key_violations, results_kept};
pub use report::timeline;
pub use search::{Found, key_order};
