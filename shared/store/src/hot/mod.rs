//! The hot tier: done records in the region's Redis.
//!
//! Redis is never believed further than its values authenticate themselves, and never waited for longer than its small budget.

mod breaker;
mod keys;
mod tier;
mod value;
mod worth;

pub use tier::{HotFigures, HotHealth, HotSettings, HotTier};
