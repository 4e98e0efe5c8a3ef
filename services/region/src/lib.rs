//! dedup-region
