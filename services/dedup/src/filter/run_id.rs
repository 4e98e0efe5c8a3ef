//! The name of a run, and the request ids made of it.
//!
//! A request id is (run, line, key): the same run asks the same questions again, so after a crash it is told `first` for the very lines that
//! were first before, and for no others. Another run has other ids, and is a stranger to this one's grants.

use std::fmt::Write;

/// Longest run id, characters; keeps request ids below the service's 128 bytes.
pub const RUN_ID_CHARS_MAX: usize = 40;

/// Which run asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunId(String);

impl RunId {
    /// A new run's: 16 hexadecimal digits, random.
    pub fn random() -> Self {
        Self(format!("{:016x}", rand::random::<u64>()))
    }

    /// One that was printed before, or of the user's own making.
    ///
    /// # Errors
    /// In words, if it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if (1..=RUN_ID_CHARS_MAX).contains(&text.len()) && text.chars().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("a run id has 1 to {RUN_ID_CHARS_MAX} of A-Z a-z 0-9 - _ ."))
        }
    }

    /// As it is printed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The request id of one line into `id`, replacing what was there.
    pub fn write_request_id(&self, line: u64, digest: u128, id: &mut String) {
        id.clear();
        // Half of the digest says enough beside run and line. A string takes whatever is written.
        write!(id, "f1-{}-{line}-{:016x}", self.0, digest >> 64).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_name_run_line_and_key_and_fit() {
        let mut id = "old".to_owned();
        RunId::parse("night.1").expect("an id").write_request_id(7, 0xab << 120, &mut id);
        assert_eq!(id, "f1-night.1-7-ab00000000000000");
        RunId::parse(&"x".repeat(RUN_ID_CHARS_MAX)).expect("an id").write_request_id(u64::MAX, u128::MAX, &mut id);
        assert!(id.len() <= 128, "{}", id.len());
    }

    #[test]
    fn runs_are_told_apart() {
        assert_ne!(RunId::random(), RunId::random());
        assert_eq!(RunId::parse(RunId::random().as_str()).map(|id| id.as_str().len()), Ok(16));
        for bad in ["", "a b", "a/b", "é", &"x".repeat(RUN_ID_CHARS_MAX + 1)] {
            assert!(RunId::parse(bad).is_err(), "{bad}");
        }
    }
}
