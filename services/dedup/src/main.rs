//! dedup
fn main() {}
