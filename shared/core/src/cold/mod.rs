//! What the cold tier is made of, as bytes: bloom filters that tell where a key is not, and digest blocks that tell where it is.
//!
//! Both use the first 72 bits of the digest and no more, fixed for ever: filters hash the first 64 of them, blocks hold all 72.

mod block;
mod filter;
mod filter_head;

pub use block::{BLOCK_BYTES_MAX, BlockBuilder, BlockError, BlockRow, Key72, block_sum, read_block};
pub use filter::{Filter, FilterLoad, FilterPart, filter_blocks, filter_fpr};
pub use filter_head::{FILTER_BLOCK_BYTES, FILTER_HEAD_BYTES, FilterError, FilterHead};
