//! From a line to its key, or why it has none.

use super::pointer::Pointer;

/// Longest key the service takes, bytes, region prefix included.
pub const KEY_BYTES_MAX: usize = 512;

/// Why a line cannot be asked about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    #[error("it is blank")]
    Blank,
    #[error("it is not UTF-8")]
    NotUtf8,
    #[error("its key has a control character at byte {at}")]
    Control { at: usize },
    #[error("its key has {bytes} bytes with the region; at most {KEY_BYTES_MAX} are allowed")]
    TooLong { bytes: usize },
    #[error("it is not JSON: {0}")]
    NotJson(Box<str>),
    #[error("it has nothing at the pointer")]
    Absent,
    #[error("what the pointer names is neither a string nor a number")]
    NotText,
    #[error("the service refused its key: {0}")]
    Refused(Box<str>),
}

/// How lines become keys.
#[derive(Debug)]
pub struct KeyRule {
    prefix: String,
    pointer: Option<Pointer>,
}

impl KeyRule {
    /// Keys get `<region>:` in front; with a pointer they are a value inside the line, otherwise the whole line.
    pub fn new(region: Option<&str>, pointer: Option<Pointer>) -> Self {
        Self { prefix: region.map(|region| format!("{region}:")).unwrap_or_default(), pointer }
    }

    /// Appends the key of a line (its bytes without the line's end) to `keys`; answers how many bytes it has.
    pub fn append(&self, line: &[u8], keys: &mut String) -> Result<usize, Bad> {
        if line.trim_ascii().is_empty() {
            return Err(Bad::Blank);
        }
        match &self.pointer {
            Some(pointer) => self.append_text(&pointer.text_in(line)?, keys),
            None => self.append_text(std::str::from_utf8(line).map_err(|_| Bad::NotUtf8)?, keys),
        }
    }

    fn append_text(&self, text: &str, keys: &mut String) -> Result<usize, Bad> {
        let bytes = self.prefix.len() + text.len();
        if bytes > KEY_BYTES_MAX {
            return Err(Bad::TooLong { bytes });
        }
        // ASCII without control characters is the common case and needs no decoding.
        if !text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
            && let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control())
        {
            return Err(Bad::Control { at });
        }
        if text.trim().is_empty() {
            return Err(Bad::Blank);
        }
        keys.push_str(&self.prefix);
        keys.push_str(text);
        Ok(bytes)
    }
}

/// The line without its end: LF, or CR LF, so that files from both worlds have the same keys.
pub fn without_end(line: &[u8]) -> &[u8] {
    let Some(line) = line.strip_suffix(b"\n") else { return line };
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(region: Option<&str>, line: &[u8]) -> Result<String, Bad> {
        let mut keys = "before".to_owned();
        let bytes = KeyRule::new(region, None).append(line, &mut keys);
        let key = keys.strip_prefix("before").expect("what was there stays");
        bytes.map(|bytes| {
            assert_eq!(bytes, key.len());
            key.to_owned()
        })
    }

    #[test]
    fn the_whole_line_is_the_key_behind_its_region() {
        assert_eq!(key(Some("eu"), b"a b").as_deref(), Ok("eu:a b"));
        assert_eq!(key(None, b"us:a").as_deref(), Ok("us:a"));
        assert_eq!(key(Some("eu"), " é ".as_bytes()).as_deref(), Ok("eu: é "), "blanks inside stay");
    }

    #[test]
    fn what_the_service_would_refuse_is_told_apart() {
        assert_eq!(key(Some("eu"), b""), Err(Bad::Blank));
        assert_eq!(key(Some("eu"), b" \t "), Err(Bad::Blank));
        assert_eq!(key(Some("eu"), "\u{a0}".as_bytes()), Err(Bad::Blank));
        assert_eq!(key(None, b"a\xff"), Err(Bad::NotUtf8));
        assert_eq!(key(None, b"ab\tc"), Err(Bad::Control { at: 2 }));
        assert_eq!(key(None, "a\u{85}".as_bytes()), Err(Bad::Control { at: 1 }));
        assert_eq!(key(None, b"a\x7f"), Err(Bad::Control { at: 1 }));
        assert!(key(Some("eu"), &[b'x'; 509]).is_ok());
        assert_eq!(key(Some("eu"), &[b'x'; 510]), Err(Bad::TooLong { bytes: 513 }));
    }

    #[test]
    fn an_end_is_lf_or_cr_lf() {
        assert_eq!(without_end(b"a\n"), b"a");
        assert_eq!(without_end(b"a\r\n"), b"a");
        assert_eq!(without_end(b"a\r"), b"a\r", "a CR alone ends no line");
        assert_eq!(without_end(b"a"), b"a");
        assert_eq!(without_end(b"\n"), b"");
    }
}
