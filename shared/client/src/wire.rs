//! The JSON of the REST interface. Requests are written exactly; answers are read tolerantly (unknown members are ignored).

pub mod admin;
pub mod answer;
pub mod batch;
pub mod bulk;
pub mod operators;
pub mod problem;
pub mod record;
pub mod request;
pub mod result;
pub mod settle;

#[cfg(test)]
mod tests;
