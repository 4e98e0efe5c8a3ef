//! Request ids: names of one attempt of one worker, so that the very same call can be repeated after a lost reply.

use hmac::Mac;
use std::num::NonZeroI64;

use crate::{Secret, TextError, check_text};

/// 1–128 bytes without control characters. Random, made by the caller (or by the service where it is missing); never derived from the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Box<str>);

impl RequestId {
    /// Parses a caller's id.
    pub fn parse(text: &str, max_bytes: usize) -> Result<Self, TextError> {
        check_text(text, max_bytes, "without control characters", |c| !c.is_control())?;
        Ok(Self(text.into()))
    }

    /// The id that the service makes of a random number where the caller gave none: 32 hexadecimal digits.
    pub fn made(number: u128) -> Self {
        Self(format!("{number:032x}").into_boxed_str())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, handed over.
    pub fn into_string(self) -> String {
        self.0.into_string()
    }

    /// What a record stores of it.
    pub fn hash(&self, secret: &Secret) -> RequestHash {
        let mut mac = secret.request_mac();
        mac.update(self.0.as_bytes());
        let out = mac.finalize().into_bytes();
        let hash = i64::from_be_bytes(out[..8].try_into().expect("8 of 32 bytes"));
        RequestHash(NonZeroI64::new(hash).unwrap_or(NonZeroI64::MIN))
    }
}

/// Keyed 64-bit hash of a request id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestHash(NonZeroI64);

impl RequestHash {
    /// As stored.
    pub fn get(self) -> i64 {
        self.0.get()
    }

    /// From a record; `None` for the 0 that no request has.
    pub fn from_stored(stored: i64) -> Option<Self> {
        NonZeroI64::new(stored).map(Self)
    }
}
