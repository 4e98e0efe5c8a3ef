//! Split-block bloom filters: one look touches one block of 32 bytes, so one cache line.

use sha2::{Digest as _, Sha256};

use super::filter_head::{FILTER_BLOCK_BYTES, FilterError, FilterHead};
use crate::Digest;

/// The eight odd numbers of the Parquet format: each picks one bit of one word.
const SALT: [u32; 8] = [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

/// 256 bits.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
struct Block([u32; 8]);

impl Block {
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut block = Self::default();
        for (word, four) in block.0.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes(four.try_into().expect("4 bytes"));
        }
        block
    }

    fn mask(hash: u64) -> [u32; 8] {
        let low = u32::try_from(hash & 0xffff_ffff).expect("32 bits");
        SALT.map(|salt| 1 << (low.wrapping_mul(salt) >> 27))
    }

    fn insert(&mut self, hash: u64) {
        for (word, bit) in self.0.iter_mut().zip(Self::mask(hash)) {
            *word |= bit;
        }
    }

    fn holds(&self, hash: u64) -> bool {
        // Without a branch for each word, so that the eight are compared at once.
        self.0.iter().zip(Self::mask(hash)).fold(0, |missing, (word, bit)| missing | (bit & !word)) == 0
    }
}

/// Block of a hash: rises with the digest, so a sorted stream fills a filter from its beginning to its end.
fn block_of(hash: u64, blocks: u32) -> u32 {
    u32::try_from(((hash >> 32) * u64::from(blocks)) >> 32).expect("less than the number of blocks")
}

fn hash_of(digest: &Digest) -> u64 {
    u64::from_be_bytes(digest.as_bytes()[..8].try_into().expect("8 of 16 bytes"))
}

/// Share of false positives of a filter with so many keys: the mean over blocks, which hold a Poisson number of keys each.
pub fn filter_fpr(keys: u64, blocks: u32) -> f64 {
    let mean = keys as f64 / f64::from(blocks);
    // Far beyond any use every bit is set.
    if mean > 500.0 {
        return 1.0;
    }
    let most = (mean + 12.0 * mean.sqrt() + 20.0).ceil() as u32;
    let mut chance = (-mean).exp();
    let mut sum = 0.0;
    for held in 0..=most {
        sum += chance * (1.0 - (31.0_f64 / 32.0).powi(i32::try_from(held).unwrap_or(i32::MAX))).powi(8);
        chance *= mean / f64::from(held + 1);
    }
    sum
}

/// Blocks that so many keys need for a share of false positives of at most `fpr`.
pub fn filter_blocks(keys: u64, fpr: f64) -> u32 {
    let (mut low, mut high) = (1_u32, 1_u32 << 27);
    while low < high {
        let middle = low + (high - low) / 2;
        if filter_fpr(keys, middle) <= fpr { high = middle } else { low = middle + 1 }
    }
    low
}

/// A stretch of the blocks of a filter under construction. A filter that is larger than the memory for it is built stretch by stretch.
#[derive(Debug)]
pub struct FilterPart {
    total: u32,
    first: u32,
    blocks: Vec<Block>,
}

impl FilterPart {
    /// Blocks `first .. first + len` of `total`.
    pub fn new(total: u32, first: u32, len: u32) -> Self {
        let len = len.min(total - first);
        Self { total, first, blocks: vec![Block::default(); len as usize] }
    }

    /// A stretch that was stored, read back. What is not a whole block at the end is left out.
    pub fn from_bytes(total: u32, first: u32, bytes: &[u8]) -> Self {
        Self { total, first, blocks: bytes.chunks_exact(FILTER_BLOCK_BYTES).map(Block::from_bytes).collect() }
    }

    /// Whether the digest, whose block is in this stretch, may be there; `false` is certain. Of another stretch: `false`.
    pub fn may_hold(&self, digest: &Digest) -> bool {
        let hash = hash_of(digest);
        let at = block_of(hash, self.total).checked_sub(self.first);
        at.and_then(|at| self.blocks.get(at as usize)).is_some_and(|block| block.holds(hash))
    }

    /// Where it ends.
    pub fn end(&self) -> u32 {
        self.first + u32::try_from(self.blocks.len()).expect("at most the total")
    }

    /// Block of a digest, of the whole filter.
    pub fn block_of(&self, digest: &Digest) -> u32 {
        block_of(hash_of(digest), self.total)
    }

    /// Takes a digest, if its block is in this stretch.
    pub fn insert(&mut self, digest: &Digest) {
        let hash = hash_of(digest);
        if let Some(at) = block_of(hash, self.total).checked_sub(self.first)
            && let Some(block) = self.blocks.get_mut(at as usize)
        {
            block.insert(hash);
        }
    }

    /// This stretch of the body.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.blocks.iter().flat_map(|block| block.0).flat_map(u32::to_le_bytes).collect()
    }
}

/// A filter that answers. It may be believed: it was checked as a whole when it was read.
#[derive(Debug)]
pub struct Filter {
    head: FilterHead,
    blocks: Box<[Block]>,
}

impl Filter {
    /// Reads head and body.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(head: &[u8], body: &[u8]) -> Result<Self, FilterError> {
        let mut load = FilterLoad::begin(head)?;
        load.push(body)?;
        load.finish()
    }

    /// What it says of itself.
    pub fn head(&self) -> &FilterHead {
        &self.head
    }

    /// Whether the digest may be there; `false` is certain.
    pub fn may_hold(&self, digest: &Digest) -> bool {
        let hash = hash_of(digest);
        self.blocks[block_of(hash, self.head.blocks) as usize].holds(hash)
    }

    /// Bytes it takes in memory.
    pub fn weight(&self) -> u64 {
        self.head.body_bytes()
    }

    /// Share of bits that are set.
    pub fn fill(&self) -> f64 {
        let set: u64 = self.blocks.iter().flat_map(|b| b.0).map(|word| u64::from(word.count_ones())).sum();
        set as f64 / (self.head.body_bytes() as f64 * 8.0)
    }
}

/// A filter that arrives in pieces.
pub struct FilterLoad {
    head: FilterHead,
    blocks: Vec<Block>,
    /// Bytes of a block that is not complete yet.
    rest: Vec<u8>,
    sum: Sha256,
}

impl FilterLoad {
    /// Begins with the head.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn begin(head: &[u8]) -> Result<Self, FilterError> {
        let head = FilterHead::parse(head)?;
        Ok(Self { head, blocks: Vec::with_capacity(head.blocks as usize), rest: Vec::new(), sum: Sha256::new() })
    }

    /// The head.
    pub fn head(&self) -> &FilterHead {
        &self.head
    }

    /// Takes the next piece of the body.
    ///
    /// # Errors
    /// There is more than the head announced.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), FilterError> {
        self.sum.update(piece);
        self.rest.extend_from_slice(piece);
        let expected = self.head.body_bytes();
        let found = (self.blocks.len() * FILTER_BLOCK_BYTES + self.rest.len()) as u64;
        if found > expected {
            return Err(FilterError::Length { found, expected });
        }
        let whole = self.rest.len() / FILTER_BLOCK_BYTES * FILTER_BLOCK_BYTES;
        self.blocks.extend(self.rest[..whole].chunks_exact(FILTER_BLOCK_BYTES).map(Block::from_bytes));
        self.rest.drain(..whole);
        Ok(())
    }

    /// Checks the whole.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn finish(self) -> Result<Filter, FilterError> {
        let (found, expected) = ((self.blocks.len() * FILTER_BLOCK_BYTES + self.rest.len()) as u64, self.head.body_bytes());
        if found != expected {
            return Err(FilterError::Length { found, expected });
        }
        if self.sum.finalize()[..] != self.head.body_sum[..] {
            return Err(FilterError::Body);
        }
        Ok(Filter { head: self.head, blocks: self.blocks.into_boxed_slice() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::cold::FILTER_HEAD_BYTES;

    /// Stands for HMAC output: uniform and different for each number.
    fn digest(n: u64) -> Digest {
        let sum = Sha256::digest(n.to_le_bytes());
        Digest(Uuid::from_slice(&sum[..16]).expect("16 bytes"))
    }

    fn build(keys: impl Iterator<Item = Digest> + Clone, fpr: f64, stretch: u32) -> (Vec<u8>, Vec<u8>) {
        let n = keys.clone().count() as u64;
        let blocks = filter_blocks(n, fpr);
        let mut body = Vec::new();
        let mut first = 0;
        while first < blocks {
            let mut part = FilterPart::new(blocks, first, stretch);
            keys.clone().for_each(|d| part.insert(&d));
            body.extend(part.to_bytes());
            first = part.end();
        }
        let head = FilterHead {
            filter_id: Uuid::from_u128(1),
            home_id: Uuid::from_u128(2),
            secret_id: [3; 8],
            place: -4,
            blocks,
            keys: n,
            fpr_ppb: (fpr * 1e9) as u32,
            body_sum: Sha256::digest(&body).into(),
        };
        (head.to_bytes().to_vec(), body)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// P7: what was inserted is never denied, however large the filter and the stretches it was built in.
        #[test]
        fn no_false_negatives(seed: u64, n in 0_u64..3_000, stretch in 1_u32..200, fpr in 0.0001..0.5_f64) {
            let keys = (0..n).map(|i| digest(seed.wrapping_add(i)));
            let (head, body) = build(keys.clone(), fpr, stretch);
            let filter = Filter::parse(&head, &body).expect("a filter");
            for key in keys {
                prop_assert!(filter.may_hold(&key));
            }
        }

        #[test]
        fn pieces_of_any_size_make_the_same_filter(piece in 1_usize..5_000) {
            let (head, body) = build((0..2_000).map(digest), 0.01, 50);
            let mut load = FilterLoad::begin(&head).expect("a head");
            for piece in body.chunks(piece) {
                load.push(piece).expect("not too much");
            }
            let filter = load.finish().expect("a filter");
            prop_assert!((0..2_000).all(|n| filter.may_hold(&digest(n))));
        }
    }

    /// The share of false positives stays within 1.2 of the target, and a key takes at most 1.35 bytes at 1 %.
    #[test]
    fn false_positives_and_size_are_as_promised() {
        for (fpr, n, unseen) in [(0.01, 200_000_u64, 1_000_000_u64), (0.001, 100_000, 1_000_000), (0.1, 100_000, 100_000)] {
            let (head, body) = build((0..n).map(digest), fpr, u32::MAX);
            let filter = Filter::parse(&head, &body).expect("a filter");
            let hits = (n..n + unseen).filter(|i| filter.may_hold(&digest(*i))).count();
            let measured = hits as f64 / unseen as f64;
            assert!(measured <= 1.2 * fpr, "{measured} of {fpr}");
            assert!(measured >= 0.8 * fpr, "larger than needed: {measured} of {fpr}");
            if fpr == 0.01 {
                assert!(body.len() as f64 / n as f64 <= 1.35, "{} bytes for {n} keys", body.len());
            }
        }
    }

    /// The bitset is that of the Parquet format: vectors computed from its definition by hand for one key.
    #[test]
    fn the_bits_are_those_of_the_parquet_format() {
        let d = Digest(Uuid::from_bytes([0x80, 0, 0, 0, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9]));
        let mut part = FilterPart::new(4, 0, 4);
        part.insert(&d);
        let bytes = part.to_bytes();
        // Upper half of the hash 0x80000000 of 4 blocks: block 2. Lower half 1: bit salt >> 27 of each word.
        let set: Vec<(usize, u32)> = bytes
            .chunks_exact(4)
            .enumerate()
            .map(|(i, w)| (i, u32::from_le_bytes(w.try_into().expect("4"))))
            .filter(|(_, w)| *w != 0)
            .collect();
        let want: Vec<(usize, u32)> = [8, 8, 17, 20, 14, 5, 19, 11].iter().enumerate().map(|(i, bit)| (16 + i, 1 << bit)).collect();
        assert_eq!(set, want);
    }

    #[test]
    fn every_damaged_byte_and_every_truncation_is_refused() {
        let (head, body) = build((0..500).map(digest), 0.01, 7);
        assert!(Filter::parse(&head, &body).is_ok());
        for at in 0..FILTER_HEAD_BYTES {
            for flip in [1, 0x80, 0xff] {
                let mut bad = head.clone();
                bad[at] ^= flip;
                assert!(Filter::parse(&bad, &body).is_err(), "head byte {at}");
            }
            assert!(Filter::parse(&head[..at], &body).is_err(), "head of {at} bytes");
        }
        for at in 0..body.len() {
            let mut bad = body.clone();
            bad[at] ^= 4;
            assert_eq!(Filter::parse(&head, &bad).err(), Some(FilterError::Body), "body byte {at}");
            assert!(Filter::parse(&head, &body[..at]).is_err(), "body of {at} bytes");
        }
        let mut long = body.clone();
        long.push(0);
        assert!(Filter::parse(&head, &long).is_err());
        // A head made well, over values that cannot be.
        let good = FilterHead::parse(&head).expect("a head");
        for bad in [FilterHead { blocks: 0, ..good }, FilterHead { blocks: u32::MAX, ..good }, FilterHead { place: 0, ..good }] {
            assert!(matches!(FilterHead::parse(&bad.to_bytes()), Err(FilterError::Field(_))), "{bad:?}");
        }
    }
}
