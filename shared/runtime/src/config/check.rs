//! The list of mistakes under construction, and the few judgements many settings share.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::errors::{ConfigError, ConfigErrors};

/// Collects mistakes. A judgement that fails notes it and returns a stand-in, which never leaves: [`Checker::finish`] then fails.
#[derive(Default)]
pub(super) struct Checker {
    errors: Vec<ConfigError>,
}

impl Checker {
    pub fn note(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.errors.push(ConfigError { field: field.into(), message: message.into() });
    }

    /// A whole number within `allowed`, or `default` where absent.
    pub fn number<T>(&mut self, field: &str, value: Option<i64>, default: T, allowed: RangeInclusive<T>) -> T
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        let Some(value) = value else { return default };
        match T::try_from(value) {
            Ok(number) if allowed.contains(&number) => number,
            _ => {
                self.note(field, format!("{value} is out of range; allowed is {}..={}", allowed.start(), allowed.end()));
                default
            }
        }
    }

    /// A name of 1 to `max` bytes, all of which `allowed` accepts; `alphabet` names them in the message.
    pub fn name(&mut self, field: &str, value: &str, max: usize, (alphabet, allowed): Alphabet) {
        if value.is_empty() {
            self.note(field, format!("is required: 1 to {max} characters of {alphabet}"));
        } else if value.len() > max || !value.bytes().all(allowed) {
            self.note(field, format!("{value:?} is not allowed; it takes 1 to {max} characters of {alphabet}"));
        }
    }

    pub fn finish<T>(self, value: T) -> Result<T, ConfigErrors> {
        if self.errors.is_empty() { Ok(value) } else { Err(ConfigErrors(self.errors)) }
    }
}

/// How an alphabet is written in a message, and its test of one byte.
pub(super) type Alphabet = (&'static str, fn(u8) -> bool);

/// Names of regions and homes: also part of environment variables, so no dots.
pub(super) const REGION: Alphabet = ("a-z 0-9 -", |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');

/// Names in labels, prefixes of keys, topics.
pub(super) const LABEL: Alphabet = ("A-Z a-z 0-9 . _ -", |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));

/// 64 hexadecimal digits as 32 bytes.
pub(super) fn hex_32(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(bytes)
}
