//! Digest blocks: sorted digests of an archive, exact to 72 bits, a page at a time. `dedup.look_cold` in SQL reads the same bytes.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | `skip`: leading bytes that all digests of the block share, 0 to 8 |
//! | 2 | 1 | `width` of a class number, 1 or 2 |
//! | 3 | 1 | zero |
//! | 4 | skip | those shared bytes |
//! | … | n × (9 − skip) | the digests without them, rising, none twice |
//! | … | n × width | their classes, big-endian |
//!
//! A block stands for the digests from its `first` up to the next one's (`until`), so that one that is missing is noticed: the first
//! block's `first` is zero, the last one has no `until`. Its sum covers all that, and the archive's number.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::Digest;

/// Most bytes of a block: with its row's head it fits a page.
pub const BLOCK_BYTES_MAX: usize = 7_900;

const VERSION: u8 = 1;
const HEAD: usize = 4;

/// The first 72 bits of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key72(pub [u8; 9]);

impl Key72 {
    /// Of a digest.
    pub fn of(digest: &Digest) -> Self {
        Self(digest.as_bytes()[..9].try_into().expect("9 of 16 bytes"))
    }

    /// As the lowest digest that begins so.
    pub fn lowest(self) -> Digest {
        let mut bytes = [0; 16];
        bytes[..9].copy_from_slice(&self.0);
        Digest(Uuid::from_bytes(bytes))
    }
}

/// Why bytes are not a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Its sum does not fit.
    #[error("the block's sum does not fit its bytes")]
    Sum,
    /// It says something that cannot be.
    #[error("the block is not well-formed")]
    Shape,
    /// The digests do not rise, or leave the block's range.
    #[error("the block's digests are not in order")]
    Order,
}

/// A finished block, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRow {
    /// Lowest digest it stands for.
    pub first: Uuid,
    /// Where the next one begins; `None`: it is the last.
    pub until: Option<Uuid>,
    /// The bytes.
    pub data: Vec<u8>,
}

/// What tells damage, and blocks that were swapped: first 8 bytes of a SHA-256.
pub fn block_sum(archive: i32, first: &Uuid, until: Option<&Uuid>, data: &[u8]) -> [u8; 8] {
    let mut sum = Sha256::new().chain_update(archive.to_be_bytes()).chain_update(first.as_bytes());
    if let Some(until) = until {
        sum.update(until.as_bytes());
    }
    sum.chain_update(data).finalize()[..8].try_into().expect("8 of 32 bytes")
}

/// Packs rising digests into blocks.
#[derive(Debug)]
pub struct BlockBuilder {
    width: usize,
    first: Uuid,
    entries: Vec<(Key72, u16)>,
    shared: usize,
}

impl BlockBuilder {
    /// `classes`: how many there are.
    pub fn new(classes: usize) -> Self {
        Self { width: if classes <= 256 { 1 } else { 2 }, first: Uuid::nil(), entries: Vec::new(), shared: 9 }
    }

    fn size(&self, n: usize, shared: usize) -> usize {
        let skip = shared.min(8);
        HEAD + skip + n * (9 - skip + self.width)
    }

    /// Takes the next digest; answers a block when one is full. The same digest again is not taken (`Err`).
    ///
    /// # Errors
    /// The digest does not rise.
    pub fn push(&mut self, key: Key72, class: u16) -> Result<Option<BlockRow>, BlockError> {
        if self.entries.last().is_some_and(|(last, _)| *last >= key) {
            return Err(BlockError::Order);
        }
        let begins = self.entries.first().map_or(key, |(first, _)| *first);
        let shared = begins.0.iter().zip(key.0).take_while(|(a, b)| **a == *b).count().min(self.shared);
        if self.size(self.entries.len() + 1, shared) <= BLOCK_BYTES_MAX {
            self.shared = shared;
            self.entries.push((key, class));
            return Ok(None);
        }
        let row = self.take(Some(key.lowest().0));
        self.entries.push((key, class));
        Ok(Some(row))
    }

    fn take(&mut self, until: Option<Uuid>) -> BlockRow {
        let skip = self.shared.min(8);
        let skip = if self.entries.is_empty() { 0 } else { skip };
        let mut data = Vec::with_capacity(self.size(self.entries.len(), skip));
        data.extend([VERSION, u8::try_from(skip).expect("at most 8"), u8::try_from(self.width).expect("1 or 2"), 0]);
        if let Some((begins, _)) = self.entries.first() {
            data.extend_from_slice(&begins.0[..skip]);
        }
        for (key, _) in &self.entries {
            data.extend_from_slice(&key.0[skip..]);
        }
        for (_, class) in &self.entries {
            data.extend_from_slice(&class.to_be_bytes()[2 - self.width..]);
        }
        self.entries.clear();
        self.shared = 9;
        let row = BlockRow { first: self.first, until, data };
        self.first = until.unwrap_or_default();
        row
    }

    /// The last block; there is always one.
    pub fn finish(mut self) -> BlockRow {
        self.take(None)
    }
}

/// Everything a block holds, if it is whole.
///
/// # Errors
/// What is wrong with it.
pub fn read_block(archive: i32, row: &BlockRow, sum: &[u8]) -> Result<Vec<(Key72, u16)>, BlockError> {
    let BlockRow { first, until, data } = row;
    if sum != block_sum(archive, first, until.as_ref(), data) {
        return Err(BlockError::Sum);
    }
    let [VERSION, skip, width @ (1 | 2), 0, rest @ ..] = data.as_slice() else { return Err(BlockError::Shape) };
    let (skip, width) = (usize::from(*skip), usize::from(*width));
    let entry = 9_usize.checked_sub(skip).filter(|e| *e > 0).ok_or(BlockError::Shape)? + width;
    let shared = rest.get(..skip).ok_or(BlockError::Shape)?;
    let body = &rest[skip..];
    if !body.len().is_multiple_of(entry) {
        return Err(BlockError::Shape);
    }
    let n = body.len() / entry;
    let (digests, classes) = body.split_at(n * (9 - skip));
    let mut entries: Vec<(Key72, u16)> = Vec::with_capacity(n);
    for (tail, class) in digests.chunks_exact(9 - skip).zip(classes.chunks_exact(width)) {
        let mut key = [0; 9];
        key[..skip].copy_from_slice(shared);
        key[skip..].copy_from_slice(tail);
        let class = class.iter().fold(0_u16, |number, byte| number << 8 | u16::from(*byte));
        entries.push((Key72(key), class));
    }
    let in_range = |key: &Key72| key.lowest().0 >= *first && until.is_none_or(|until| key.lowest().0 < until);
    if !entries.is_sorted_by(|a, b| a.0 < b.0) || !entries.iter().all(|(key, _)| in_range(key)) {
        return Err(BlockError::Order);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pack(entries: &[(Key72, u16)], classes: usize) -> Vec<BlockRow> {
        let mut builder = BlockBuilder::new(classes);
        let mut rows: Vec<BlockRow> = entries.iter().filter_map(|(key, class)| builder.push(*key, *class).expect("rising")).collect();
        rows.push(builder.finish());
        rows
    }

    fn unpack(rows: &[BlockRow]) -> Vec<(Key72, u16)> {
        rows.iter().flat_map(|row| read_block(7, row, &block_sum(7, &row.first, row.until.as_ref(), &row.data)).expect("whole")).collect()
    }

    proptest! {
        /// Whatever goes in comes out, in blocks that fit a page and leave no gap.
        #[test]
        fn what_is_packed_comes_out(mut keys in prop::collection::vec((any::<[u8; 9]>(), 0_u16..700), 0..6_000), near: bool, wide: bool) {
            if near {
                // Neighbours, so that blocks share many leading bytes.
                keys.iter_mut().for_each(|(key, _)| key[..6].fill(0x41));
            }
            let classes = if wide { 700 } else { 256 };
            let mut entries: Vec<(Key72, u16)> = keys.into_iter().map(|(k, c)| (Key72(k), if wide { c } else { c % 256 })).collect();
            entries.sort();
            entries.dedup_by_key(|(key, _)| *key);
            let rows = pack(&entries, classes);
            prop_assert_eq!(unpack(&rows), entries);
            prop_assert_eq!(rows[0].first, Uuid::nil());
            prop_assert!(rows.last().is_some_and(|r| r.until.is_none()));
            prop_assert!(rows.windows(2).all(|w| w[0].until == Some(w[1].first)));
            prop_assert!(rows.iter().all(|r| r.data.len() <= BLOCK_BYTES_MAX));
        }
    }

    #[test]
    fn every_damaged_byte_and_every_swap_is_noticed() {
        let entries: Vec<(Key72, u16)> = (0..3_000_u32)
            .map(|n| (Key72([0, 0, 0, 0, 9].iter().copied().chain(n.to_be_bytes()).collect::<Vec<u8>>().try_into().expect("9")), 1))
            .collect();
        let rows = pack(&entries, 2);
        assert!(rows.len() > 1);
        let sum = block_sum(7, &rows[0].first, rows[0].until.as_ref(), &rows[0].data);
        assert!(read_block(7, &rows[0], &sum).is_ok());
        assert_eq!(read_block(8, &rows[0], &sum), Err(BlockError::Sum), "of another archive");
        assert_eq!(read_block(7, &rows[1], &sum), Err(BlockError::Sum), "another block");
        for at in 0..rows[0].data.len() {
            let mut bad = rows[0].clone();
            bad.data[at] ^= 1;
            assert_eq!(read_block(7, &bad, &sum), Err(BlockError::Sum), "byte {at}");
            bad.data.truncate(at);
            assert!(read_block(7, &bad, &sum).is_err(), "{at} bytes");
        }
        let mut builder = BlockBuilder::new(1);
        assert_eq!(builder.push(entries[1].0, 0), Ok(None));
        assert_eq!(builder.push(entries[1].0, 0), Err(BlockError::Order));
        assert_eq!(builder.push(entries[0].0, 0), Err(BlockError::Order));
    }
}
