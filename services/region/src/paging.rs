//! Cursors of lists over all homes: where to go on in each, and which homes were left out.
//!
//! Opaque to callers: base64url of `1`, then a line per home (`name`, and a place or `-` for a home that could not be asked), so that a
//! later page neither repeats nor silently drops a home.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use dedup_core::HomeTable;

use crate::problem::Problem;
use crate::query::parameter;

/// Longest cursor that is looked at, bytes.
const CURSOR_BYTES_MAX: usize = 16_384;

/// Where a list goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Per home that was begun or ended: its place, as the list spells it. Homes without one are yet to come.
    pub places: BTreeMap<String, String>,
    /// Homes that could not be asked and are not asked again in this list.
    pub skipped: Vec<String>,
}

impl Cursor {
    /// The text of a cursor.
    pub fn to_text(&self) -> String {
        let mut text = String::from("1");
        for (home, place) in &self.places {
            text.push_str(&format!("\n{home} {place}"));
        }
        for home in &self.skipped {
            text.push_str(&format!("\n{home} -"));
        }
        BASE64_URL_SAFE_NO_PAD.encode(text)
    }

    /// Reads a text that [`Cursor::to_text`] made over the same homes.
    pub fn parse(text: Option<&str>, table: &HomeTable) -> Result<Self, Problem> {
        let Some(text) = text else { return Ok(Self::default()) };
        Self::read(text, table).ok_or_else(bad_cursor)
    }

    fn read(text: &str, table: &HomeTable) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok().filter(|b| b.len() <= CURSOR_BYTES_MAX)?;
        let text = String::from_utf8(bytes).ok()?;
        let mut lines = text.split('\n');
        if lines.next() != Some("1") {
            return None;
        }
        let mut cursor = Self::default();
        for line in lines {
            let (home, place) = line.split_once(' ')?;
            table.iter().find(|(_, spec)| spec.name == home)?;
            match place {
                "-" => cursor.skipped.push(home.to_owned()),
                place => drop(cursor.places.insert(home.to_owned(), place.to_owned())),
            }
        }
        Some(cursor)
    }
}

/// A text that is no cursor of this list.
pub fn bad_cursor() -> Problem {
    parameter("cursor", "is not the next_cursor of this list")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dedup_core::HomeSpec;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_does() {
        let home = |name: &str| HomeSpec { name: name.into(), region: name.into(), prefixes: vec![name.into()] };
        let table = HomeTable::new(vec![home("eu"), home("us")]).expect("two homes");
        let cursor = Cursor { places: [("eu".to_owned(), "7 x".to_owned())].into(), skipped: vec!["us".into()] };
        assert_eq!(Cursor::parse(Some(&cursor.to_text()), &table).expect("its own text"), cursor);
        assert_eq!(Cursor::parse(None, &table).expect("a beginning"), Cursor::default());
        let other = Cursor { places: [("mars".to_owned(), "7".to_owned())].into(), skipped: vec![] };
        for text in ["", "x", "MQp4", "!!!", &BASE64_URL_SAFE_NO_PAD.encode("2"), &other.to_text()] {
            assert!(Cursor::parse(Some(text), &table).is_err(), "{text}");
        }
    }
}
