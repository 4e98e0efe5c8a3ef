//! The testbed's own tests: real stores, no service.

mod cleanup;
mod common;
mod stores;
