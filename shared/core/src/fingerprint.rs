//! Fingerprints: the caller's digest of a payload, compared so that a reused key with another payload is noticed.

use hmac::Mac;

use crate::{Secret, TextError, check_text};

/// Keyed 32-bit hash of a caller's fingerprint. Compared only where both sides gave one; two different ones agree by chance once in 4·10⁹.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(i32);

impl Fingerprint {
    /// Longest text in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Parses 1–128 printable ASCII characters. The text is opaque: whoever changes the rule that makes it changes its prefix.
    pub fn parse(text: &str, secret: &Secret) -> Result<Self, TextError> {
        check_text(text, Self::MAX_BYTES, "printable ASCII", |c| c.is_ascii_graphic() || c == ' ')?;
        let mut mac = secret.fingerprint_mac();
        mac.update(text.as_bytes());
        let out = mac.finalize().into_bytes();
        let hash = i32::from_be_bytes([out[0], out[1], out[2], out[3]]);
        Ok(Self(if hash == 0 { 1 } else { hash }))
    }

    /// As a record stores it; 0 stands for "none".
    pub fn to_stored(this: Option<Self>) -> i32 {
        this.map_or(0, |f| f.0)
    }

    /// From a record.
    pub fn from_stored(stored: i32) -> Option<Self> {
        (stored != 0).then_some(Self(stored))
    }
}
