//! The file that `dedup export` writes and `dedup import` takes: a JSON object on each line, the first one about the whole, the last one with
//! its size, so that a file that was cut off is noticed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use dedup_core::{Digest, FOREVER_MS, Key72};
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

/// Of the format.
pub const VERSION: u32 = 1;
/// How a header begins.
pub const HEADER: &str = "{\"dedup_export\":";
/// How the last line begins.
pub const END: &str = "{\"dedup_export_end\":";

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub dedup_export: u32,
    /// Of which home.
    pub home: String,
    /// Names the secret of its digests.
    pub secret_id: String,
    /// Home time of the moment, ms.
    pub exported_at_ms: i64,
    /// The generation of each topic: part of its digests.
    pub generations: BTreeMap<String, i64>,
    /// The same of groups that were forgotten by themselves, by topic.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, BTreeMap<String, i64>>,
}

/// The last line.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Lines between the first and this one.
    pub dedup_export_end: u64,
    /// Of these, with a key,
    pub keys: u64,
    /// with a digest,
    pub digests: u64,
    /// with the beginning of one.
    pub short_digests: u64,
}

/// How the remembered work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Succeeded,
    Failed,
}

/// A line between: a key with its topic and group, or a digest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line<'a> {
    #[serde(borrow, default)]
    pub topic: Option<Cow<'a, str>>,
    pub group: Option<Cow<'a, str>>,
    pub key: Option<Cow<'a, str>>,
    pub digest: Option<Cow<'a, str>>,
    pub first_seen_ms: i64,
    #[serde(deserialize_with = "until")]
    pub expires_ms: i64,
    pub outcome: Outcome,
}

/// A number, or `"forever"`.
fn until<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    struct Until;
    impl serde::de::Visitor<'_> for Until {
        type Value = i64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a time in milliseconds, or \"forever\"")
        }

        fn visit_u64<E: serde::de::Error>(self, ms: u64) -> Result<i64, E> {
            i64::try_from(ms).map_err(|_| E::custom("the time is too far away"))
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<i64, E> {
            if text == "forever" { Ok(FOREVER_MS) } else { Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)) }
        }
    }
    deserializer.deserialize_any(Until)
}

/// Which record a line is about.
pub enum Id<'a> {
    Key { topic: &'a str, group: &'a str, key: &'a str },
    Digest(Digest),
    Short(Key72),
}

/// Writes a line between.
pub fn write_line(out: &mut impl Write, id: &Id<'_>, first_seen_ms: i64, expires_ms: i64, failed: bool) -> io::Result<()> {
    match id {
        Id::Key { topic, group, key } => {
            out.write_all(b"{\"topic\":")?;
            serde_json::to_writer(&mut *out, topic)?;
            out.write_all(b",\"group\":")?;
            serde_json::to_writer(&mut *out, group)?;
            out.write_all(b",\"key\":")?;
            serde_json::to_writer(&mut *out, key)?;
        }
        Id::Digest(digest) => write!(out, "{{\"digest\":\"{}\"", digest.0.simple())?,
        Id::Short(key) => write!(out, "{{\"digest\":\"{:.18}\"", key.lowest().0.simple().to_string())?,
    }
    write!(out, ",\"first_seen_ms\":{first_seen_ms},\"expires_ms\":")?;
    if expires_ms == FOREVER_MS {
        out.write_all(b"\"forever\"")?
    } else {
        write!(out, "{expires_ms}")?
    }
    writeln!(out, ",\"outcome\":\"{}\"}}", if failed { "failed" } else { "succeeded" })
}

/// Reads hexadecimal digits: 32, or the 18 that an archive keeps.
pub fn parse_digest(text: &str) -> Option<Id<'static>> {
    if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let number = u128::from_str_radix(text, 16).ok()?;
    match text.len() {
        32 => Some(Id::Digest(Digest(Uuid::from_u128(number)))),
        18 => Some(Id::Short(Key72::of(&Digest(Uuid::from_u128(number << 56))))),
        _ => None,
    }
}

/// As the header has it.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(id: &Id<'_>, expires_ms: i64, failed: bool) -> String {
        let mut out = Vec::new();
        write_line(&mut out, id, 5, expires_ms, failed).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn lines_come_back_as_they_were() {
        let digest = Digest(Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef));
        let text = written(&Id::Digest(digest), FOREVER_MS, true);
        let line: Line<'_> = serde_json::from_str(&text).expect("a line");
        assert_eq!((line.first_seen_ms, line.expires_ms, line.outcome), (5, FOREVER_MS, Outcome::Failed));
        assert!(matches!(line.digest.as_deref().and_then(parse_digest), Some(Id::Digest(read)) if read == digest));
        let text = written(&Id::Short(Key72::of(&digest)), 7, false);
        let line: Line<'_> = serde_json::from_str(&text).expect("a line");
        assert_eq!((line.expires_ms, line.outcome, line.digest.as_deref()), (7, Outcome::Succeeded, Some("0123456789abcdef01")));
        assert!(matches!(line.digest.as_deref().and_then(parse_digest), Some(Id::Short(read)) if read == Key72::of(&digest)));
        let text = written(&Id::Key { topic: "t", group: "\u{e4} \"", key: "eu:\\\u{2028}" }, 7, false);
        let line: Line<'_> = serde_json::from_str(&text).expect("a line");
        assert_eq!((line.group.as_deref(), line.key.as_deref()), (Some("\u{e4} \""), Some("eu:\\\u{2028}")));
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn what_is_no_digest_is_none() {
        for text in ["", "+123456789abcdef01", "0123456789abcdef0", "0123456789abcdefg1", "0123456789abcdef0123456789abcdef0"] {
            assert!(parse_digest(text).is_none(), "{text}");
        }
    }
}
