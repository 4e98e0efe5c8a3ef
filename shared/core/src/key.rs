//! Keys: the caller's own id of a message, with its home region in front.

use std::borrow::Cow;

use crate::routing::{HomeId, HomeTable, RouteError};

/// A full key `<prefix>:<rest>`, compared byte for byte; nothing is trimmed, folded or normalised.
/// Borrows the text it was parsed from where it can.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    text: Cow<'a, str>,
    home: HomeId,
}

/// Why a key is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No key, or nothing but blanks.
    #[error("must not be empty or blank")]
    Blank,
    /// Longer than allowed.
    #[error("must be at most {max} bytes, has {len}")]
    TooLong {
        /// Most bytes allowed.
        max: usize,
        /// Bytes given (of the full key, its prefix included).
        len: usize,
    },
    /// C0, DEL or C1.
    #[error("must not contain control characters; there is one at byte {at}")]
    Control {
        /// Byte position of the first.
        at: usize,
    },
    /// There is no `<prefix>:`.
    #[error("must be <region>:<rest>; the topic has no default region")]
    NoPrefix,
    /// Nothing behind the prefix.
    #[error("must have something behind the region prefix")]
    EmptyRest,
    /// No home owns the prefix.
    #[error(transparent)]
    UnknownPrefix(#[from] RouteError),
}

impl<'a> Key<'a> {
    /// Parses a caller's key. With a `default_prefix`, a key without a known prefix is taken as `<default_prefix>:<key>`.
    pub fn parse(text: &'a str, max_bytes: usize, default_prefix: Option<&str>, homes: &HomeTable) -> Result<Self, KeyError> {
        if text.trim().is_empty() {
            return Err(KeyError::Blank);
        }
        // ASCII without control characters is the common case and needs no decoding.
        if !text.bytes().all(|b| (0x20..0x7f).contains(&b))
            && let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control())
        {
            return Err(KeyError::Control { at });
        }
        let split = text.split_once(':');
        let home = split.map(|(prefix, _)| homes.home_of(prefix));
        let (text, home) = match (home, default_prefix) {
            (Some(Ok(home)), _) => {
                if split.is_some_and(|(_, rest)| rest.trim().is_empty()) {
                    return Err(KeyError::EmptyRest);
                }
                (Cow::Borrowed(text), home)
            }
            (_, Some(prefix)) => (Cow::Owned(format!("{prefix}:{text}")), homes.home_of(prefix)?),
            (None, None) => return Err(KeyError::NoPrefix),
            (Some(Err(_)), None) if split.is_some_and(|(prefix, _)| prefix.is_empty()) => return Err(KeyError::NoPrefix),
            (Some(Err(unknown)), None) => {
                if split.is_some_and(|(_, rest)| rest.trim().is_empty()) {
                    return Err(KeyError::EmptyRest);
                }
                return Err(unknown.into());
            }
        };
        if text.len() > max_bytes {
            return Err(KeyError::TooLong { max: max_bytes, len: text.len() });
        }
        Ok(Self { text, home })
    }

    /// The same, owning its text.
    pub fn into_owned(self) -> Key<'static> {
        Key { text: Cow::Owned(self.text.into_owned()), home: self.home }
    }

    /// The full key, prefix included.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The home its prefix names.
    pub fn home(&self) -> HomeId {
        self.home
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HomeSpec;

    fn homes() -> HomeTable {
        HomeTable::new(vec![
            HomeSpec { name: "eu".into(), region: "eu".into(), prefixes: vec!["eu".into()] },
            HomeSpec { name: "us".into(), region: "us".into(), prefixes: vec!["us".into(), "ca".into()] },
        ])
        .expect("distinct prefixes")
    }

    #[test]
    fn keys_are_split_at_their_first_colon_and_nothing_is_folded() {
        let homes = homes();
        let parse = |k: &str| Key::parse(k, 512, None, &homes).map(Key::into_owned);
        assert_eq!(parse("eu:a").expect("plain").as_str(), "eu:a");
        assert_eq!(parse("eu:eu:x").expect("colon inside").as_str(), "eu:eu:x");
        assert_eq!(parse("ca:1").expect("second prefix").home(), parse("us:1").expect("first prefix").home());
        assert_eq!(parse("eu: a ").expect("blanks stay").as_str(), "eu: a ");
        assert_eq!(parse(""), Err(KeyError::Blank));
        assert_eq!(parse("  "), Err(KeyError::Blank));
        assert_eq!(parse("k"), Err(KeyError::NoPrefix));
        assert_eq!(parse(":k"), Err(KeyError::NoPrefix));
        assert_eq!(parse("eu:"), Err(KeyError::EmptyRest));
        assert_eq!(parse("xx:"), Err(KeyError::EmptyRest));
        assert_eq!(parse("eu:a\0b"), Err(KeyError::Control { at: 4 }));
        assert_eq!(parse("eu:a\u{85}b"), Err(KeyError::Control { at: 4 }));
        assert_eq!(parse("eu:a\u{7f}"), Err(KeyError::Control { at: 4 }));
        assert!(matches!(parse("EU:a"), Err(KeyError::UnknownPrefix(_))), "case matters");
        assert!(matches!(parse(" eu:a"), Err(KeyError::UnknownPrefix(_))), "blanks matter");
        assert_eq!(parse(&format!("eu:{}", "x".repeat(510))), Err(KeyError::TooLong { max: 512, len: 513 }));
    }

    #[test]
    fn a_default_prefix_takes_keys_without_a_known_one() {
        let homes = homes();
        let parse = |k: &str| Key::parse(k, 512, Some("us"), &homes).map(Key::into_owned);
        assert_eq!(parse("k").expect("bare").as_str(), "us:k");
        assert_eq!(parse("urn:x").expect("unknown prefix").as_str(), "us:urn:x");
        assert_eq!(parse("eu:k").expect("known prefix stays").as_str(), "eu:k");
        assert_eq!(parse("eu:"), Err(KeyError::EmptyRest));
    }
}
