//! The role `region`: the REST service of one region.
//!
//! Architecture invariant: HTTP statuses and the shape of JSON live here and nowhere else; no SQL, no Redis, no verdict is decided here.

mod api;
mod auth;
mod body;
mod fold;
mod metrics;
mod openapi;
mod paging;
mod parse;
mod problem;
mod problem_pages;
mod query;
mod server;
mod service;
mod traces;
mod waiting;
mod wire;

pub use openapi::openapi_json;
pub use server::{ServeError, serve};
