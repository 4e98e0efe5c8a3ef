//! Breaks things while callers ask, records what they were told, and has the record judged.
//!
//! A run is one fault, one seed and some seconds: real Postgres, Redis and instances are started, workers ask, the fault strikes again and
//! again, all is mended, what is still unknown is settled by the same request ids, every key is read from its home, and
//! [`dedup_checker`] looks for a broken promise. A run in which too little happened is no pass either: see [`Gates`].

mod caller;
mod clock;
mod faults;
mod record;
mod report;
mod rig;
mod run;
mod sabotage;
mod sql;
mod topics;
mod work;

pub use faults::{FAULTS, Fault, fault};
pub use report::{Gates, Report, table};
pub use run::{Plan, run};
pub use sabotage::{SABOTAGES, Sabotage};
