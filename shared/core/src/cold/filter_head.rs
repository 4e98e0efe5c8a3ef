//! The head of a filter: whose it is, how large, and the sums that tell damage.
//!
//! 128 bytes, numbers little-endian:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | `DEDUPSBF` |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | length of this head, 128 |
//! | 12 | 4 | number of 32-byte blocks in the body, at least 1 |
//! | 16 | 16 | filter id, random, never used again |
//! | 32 | 16 | home id |
//! | 48 | 8 | secret id: digests made with another secret mean nothing here |
//! | 56 | 4 | place, signed: a segment, or minus an archive |
//! | 60 | 4 | hash, 1: the digest's first 8 bytes, big-endian |
//! | 64 | 8 | keys that were inserted |
//! | 72 | 4 | false positives aimed at, in parts of 10⁹ |
//! | 76 | 4 | zero |
//! | 80 | 32 | SHA-256 of the body |
//! | 112 | 8 | zero |
//! | 120 | 8 | first 8 bytes of the SHA-256 of bytes 0 to 119 |
//!
//! The body is the bitset of a split-block bloom filter as the Apache Parquet format describes it.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Length of a head.
pub const FILTER_HEAD_BYTES: usize = 128;
/// Length of one block: 256 bits, half a cache line.
pub const FILTER_BLOCK_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"DEDUPSBF";
const VERSION: u16 = 1;
const HASH: u32 = 1;
/// 4 GiB of body: some three thousand million keys at 1 %.
const BLOCKS_MAX: u32 = 1 << 27;

/// Why bytes are not a filter that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Too short or too long.
    #[error("the filter has {found} bytes where {expected} are needed")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// Not a filter at all.
    #[error("these bytes are not a filter")]
    Magic,
    /// Of a later program.
    #[error("the filter has version {0}, which this program does not know")]
    Version(u16),
    /// The head was damaged.
    #[error("the filter's head is damaged")]
    Head,
    /// A field has a value that it cannot have.
    #[error("the filter's head says {0}, which cannot be")]
    Field(&'static str),
    /// The body was damaged.
    #[error("the filter's body is damaged")]
    Body,
}

/// The head, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterHead {
    /// Names this filter and its content.
    pub filter_id: Uuid,
    /// Home whose keys it holds.
    pub home_id: Uuid,
    /// Names the secret the digests were made with.
    pub secret_id: [u8; 8],
    /// Segment (positive) or archive (negative).
    pub place: i32,
    /// Blocks of the body.
    pub blocks: u32,
    /// Keys inserted.
    pub keys: u64,
    /// False positives aimed at, in parts of 10⁹.
    pub fpr_ppb: u32,
    /// SHA-256 of the body.
    pub body_sum: [u8; 32],
}

impl FilterHead {
    /// Bytes of the body.
    pub fn body_bytes(&self) -> u64 {
        u64::from(self.blocks) * FILTER_BLOCK_BYTES as u64
    }

    /// As bytes.
    pub fn to_bytes(&self) -> [u8; FILTER_HEAD_BYTES] {
        let mut out = [0; FILTER_HEAD_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(MAGIC);
        put(&VERSION.to_le_bytes());
        put(&u16::try_from(FILTER_HEAD_BYTES).expect("128 fits").to_le_bytes());
        put(&self.blocks.to_le_bytes());
        put(self.filter_id.as_bytes());
        put(self.home_id.as_bytes());
        put(&self.secret_id);
        put(&self.place.to_le_bytes());
        put(&HASH.to_le_bytes());
        put(&self.keys.to_le_bytes());
        put(&self.fpr_ppb.to_le_bytes());
        put(&[0; 4]);
        put(&self.body_sum);
        let sum = Sha256::digest(&out[..120]);
        out[120..].copy_from_slice(&sum[..8]);
        out
    }

    /// Parses a head; every byte of it is checked.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, FilterError> {
        let Ok(bytes) = <&[u8; FILTER_HEAD_BYTES]>::try_from(bytes) else {
            return Err(FilterError::Length { found: bytes.len() as u64, expected: FILTER_HEAD_BYTES as u64 });
        };
        if &bytes[..8] != MAGIC {
            return Err(FilterError::Magic);
        }
        let version = u16::from_le_bytes(field(bytes, 8));
        if version != VERSION {
            return Err(FilterError::Version(version));
        }
        if Sha256::digest(&bytes[..120])[..8] != bytes[120..] {
            return Err(FilterError::Head);
        }
        if u16::from_le_bytes(field(bytes, 10)) as usize != FILTER_HEAD_BYTES {
            return Err(FilterError::Field("another length"));
        }
        if u32::from_le_bytes(field(bytes, 60)) != HASH {
            return Err(FilterError::Field("another hash"));
        }
        if bytes[76..80] != [0; 4] || bytes[112..120] != [0; 8] {
            return Err(FilterError::Field("something where nothing is"));
        }
        let head = Self {
            blocks: u32::from_le_bytes(field(bytes, 12)),
            filter_id: Uuid::from_bytes(field(bytes, 16)),
            home_id: Uuid::from_bytes(field(bytes, 32)),
            secret_id: field(bytes, 48),
            place: i32::from_le_bytes(field(bytes, 56)),
            keys: u64::from_le_bytes(field(bytes, 64)),
            fpr_ppb: u32::from_le_bytes(field(bytes, 72)),
            body_sum: field(bytes, 80),
        };
        if head.blocks == 0 || head.blocks > BLOCKS_MAX {
            return Err(FilterError::Field("an impossible number of blocks"));
        }
        if head.place == 0 {
            return Err(FilterError::Field("no place"));
        }
        Ok(head)
    }
}

fn field<const N: usize>(bytes: &[u8; FILTER_HEAD_BYTES], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("within the head")
}
