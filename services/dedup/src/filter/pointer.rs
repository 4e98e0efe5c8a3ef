//! JSON pointers (RFC 6901) into lines of NDJSON, without building the documents.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::line::Bad;

/// Where in a document the key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(Vec<String>);

impl Pointer {
    /// Parses `/a/b/0`; `~1` stands for a slash, `~0` for a tilde. The empty pointer names the whole document.
    ///
    /// # Errors
    /// In words, if it does not begin with a slash.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix('/') {
            Some(rest) => Ok(Self(rest.split('/').map(|token| token.replace("~1", "/").replace("~0", "~")).collect())),
            None if text.is_empty() => Ok(Self(Vec::new())),
            None => Err("a JSON pointer begins with a slash, for instance /id".to_owned()),
        }
    }

    /// The string or number there. A number is taken as it is written: as a float, long ids would melt into one.
    pub fn text_in<'a>(&self, line: &'a [u8]) -> Result<Cow<'a, str>, Bad> {
        let not_json = |error: serde_json::Error| Bad::NotJson(error.to_string().into());
        let mut document = serde_json::Deserializer::from_slice(line);
        let found = Find(&self.0).deserialize(&mut document).map_err(not_json)?;
        document.end().map_err(not_json)?;
        let raw = found.ok_or(Bad::Absent)?.get();
        match raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(plain) if !plain.contains('\\') => Ok(Cow::Borrowed(plain)),
            Some(_) => serde_json::from_str(raw).map(Cow::Owned).map_err(not_json),
            None if raw.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => Ok(Cow::Borrowed(raw)),
            None => Err(Bad::NotText),
        }
    }
}

/// Follows the tokens from where the document is read.
struct Find<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Self::Value, D::Error> {
        match self.0.split_first() {
            None => <&RawValue>::deserialize(document).map(Some),
            Some((token, rest)) => document.deserialize_any(Step { token, rest }),
        }
    }
}

/// One token into an object or array; anything else has nothing below it.
struct Step<'p> {
    token: &'p str,
    rest: &'p [String],
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    /// Of a repeated member the last one counts, as in most parsers.
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(wanted) = members.next_key_seed(Is(self.token))? {
            if wanted {
                found = members.next_value_seed(Find(self.rest))?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let index = self.token.parse::<usize>().ok().filter(|index| index.to_string() == self.token);
        let mut found = None;
        for at in 0_usize.. {
            if index == Some(at) {
                let Some(element) = elements.next_element_seed(Find(self.rest))? else { break };
                found = element;
            } else if elements.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Whether a member's name is this one; compared in place.
struct Is<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pointer: &str, line: &str) -> Result<String, Bad> {
        Pointer::parse(pointer).expect("a pointer").text_in(line.as_bytes()).map(Cow::into_owned)
    }

    #[test]
    fn strings_and_numbers_are_found_at_any_depth() {
        assert_eq!(at("/id", r#"{"x":[1,{}],"id":"a","y":null}"#).as_deref(), Ok("a"));
        assert_eq!(at("/a/1/b", r#"{"a":[{"b":1},{"b":2}]}"#).as_deref(), Ok("2"));
        assert_eq!(at("", r#""whole""#).as_deref(), Ok("whole"));
        assert_eq!(at("/a~1b/~0", r#"{"a/b":{"~":"x"}}"#).as_deref(), Ok("x"));
        assert_eq!(at("/", r#"{"":"empty name"}"#).as_deref(), Ok("empty name"));
        assert_eq!(at("/id", r#"{"id":1,"id":2}"#).as_deref(), Ok("2"));
        assert_eq!(at("/id", r#"{"id":"\u00e9\"\\"}"#).as_deref(), Ok("é\"\\"));
        assert_eq!(at("/\u{e9}", r#"{"\u00e9":7}"#).as_deref(), Ok("7"), "names are compared as text");
    }

    #[test]
    fn numbers_keep_their_digits() {
        for number in ["12345678901234567890123", "-1", "1.0", "1e2"] {
            assert_eq!(at("/id", &format!("{{\"id\": {number} }}")).as_deref(), Ok(number));
        }
    }

    #[test]
    fn what_is_no_key_is_told_apart() {
        for absent in [r#"{"a":1}"#, "[1]", "1", r#""id""#, "null", "{}", "true", "1.5", "-3"] {
            assert_eq!(at("/id", absent), Err(Bad::Absent), "{absent}");
        }
        assert_eq!(at("/01", "[1,2]"), Err(Bad::Absent), "an index has no leading zero");
        for other in ["true", "null", "[]", "{}"] {
            assert_eq!(at("/id", &format!("{{\"id\":{other}}}")), Err(Bad::NotText), "{other}");
        }
        for broken in ["", "{", r#"{"id":1"#, r#"{"id":1} x"#, r#"{"id":1}{"id":2}"#, "id"] {
            assert!(matches!(at("/id", broken), Err(Bad::NotJson(_))), "{broken}");
        }
        assert!(Pointer::parse("id").is_err());
    }
}
