//! Black-box tests over HTTP and SQL on real servers: several regions, real Postgres and Redis, real processes, real faults.
//!
//! Each test says which promise of the design (P1–P11) or which reported case it attacks, and on which deliberately broken build it was
//! once seen to fail. Run them with `make test`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

mod api;
mod bad_input;
mod callers;
mod claims;
mod cold;
mod crowds;
mod filter;
mod fitness;
mod forget;
mod forget_all;
mod forget_regions;
mod fuzz;
mod harness;
mod homes;
mod identity;
mod kills;
mod operations;
mod operators;
mod races;
mod results;
mod rotation;
mod rows;
mod sql_callers;
mod telemetry;
mod tiers;
mod topics;
mod unknown;
mod windows;
