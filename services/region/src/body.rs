//! Reading a body: bounded in bytes, in time and in depth; its mistakes named by JSON pointer.

use std::marker::PhantomData;
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use actix_web::web::{BytesMut, Payload};
use futures_util::StreamExt;
use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::problem::{Code, Problem};

/// Longest a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a JSON body of at most `max` bytes.
pub async fn read(request: &HttpRequest, mut payload: Payload, max: usize) -> Result<BytesMut, Problem> {
    // Required, so that no page of another site can post here without being asked for permission first.
    let media = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !media.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(Code::UnsupportedMediaType, "Content-Type must be application/json"));
    }
    if request.headers().get(CONTENT_ENCODING).is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Problem::new(Code::UnsupportedMediaType, "Content-Encoding must be absent: bodies are not compressed"));
    }
    let too_large = || Problem::new(Code::PayloadTooLarge, format!("the body must be at most {max} bytes")).with("max", max);
    let announced = request.headers().get("content-length").and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    if announced.is_some_and(|n| n > max) {
        return Err(too_large());
    }
    let mut body = BytesMut::with_capacity(announced.unwrap_or(0));
    let read = async {
        while let Some(chunk) = payload.next().await {
            let chunk = chunk.map_err(|e| Problem::new(Code::MalformedRequest, format!("the body broke off: {e}")))?;
            if body.len() + chunk.len() > max {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(())
    };
    match tokio::time::timeout(BODY_TIMEOUT, read).await {
        Ok(done) => done.map(|()| body),
        Err(_) => Err(Problem::new(Code::RequestTimeout, format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs()))),
    }
}

/// A `T` from a JSON object only: the derived parsers would take an array of the fields in order too, a wire format that nobody means.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Objects<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Objects<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Objects(PhantomData))
    }
}

/// Parses a JSON object as a `T`, naming what is wrong.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a [u8], depth_max: usize) -> Result<T, Problem> {
    // The fast parser first; only a refused text is looked at again, to find out what is wrong with it. (What the strict types take cannot be
    // deep; a raw part is looked at when it is parsed itself.)
    let parsed: Result<Object<T>, _> = serde_json::from_slice(text);
    parsed.map(|object| object.0).map_err(|first| check_depth(text, depth_max).err().unwrap_or_else(|| explain::<T>(text, &first)))
}

/// Parses the items of a batch, each by itself: a bad one is that item's problem. `Err`: it is no array, or too deep.
pub fn parse_items<'a, T: Deserialize<'a>>(items: &'a RawValue, depth_max: usize) -> Result<Vec<Result<T, Problem>>, Problem> {
    let text = items.get();
    if let Ok(all) = serde_json::from_str::<Vec<Object<T>>>(text) {
        return Ok(all.into_iter().map(|object| Ok(object.0)).collect());
    }
    check_depth(text.as_bytes(), depth_max.saturating_sub(1))?;
    let raw: Vec<&'a RawValue> = serde_json::from_str(text).map_err(|_| Problem::field("/items", "must be an array"))?;
    Ok(raw.into_iter().map(|item| parse(item.get().as_bytes(), depth_max)).collect())
}

fn check_depth(text: &[u8], max: usize) -> Result<(), Problem> {
    if deeper_than(text, max) {
        return Err(Problem::new(Code::MalformedRequest, format!("the body must be at most {max} levels deep")).with("max", max));
    }
    Ok(())
}

fn explain<'a, T: Deserialize<'a>>(text: &'a [u8], first: &serde_json::Error) -> Problem {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let Err(error) = serde_path_to_error::deserialize::<_, Object<T>>(&mut deserializer) else {
        // The value is fine and something follows it.
        return Problem::new(Code::MalformedRequest, first.to_string());
    };
    let inner = error.inner();
    let message = inner.to_string();
    let message = plain(message.rsplit_once(" at line ").map_or(message.as_str(), |(m, _)| m));
    // A null where a word is needed is reported like bad syntax, but the text is JSON.
    let is_json = serde_json::from_slice::<IgnoredAny>(text).is_ok();
    let syntax = inner.is_eof() || inner.is_syntax() && !(is_json && message == "expected value");
    if syntax || message.starts_with("duplicate field") {
        return Problem::new(Code::MalformedRequest, format!("{message} (line {}, column {})", inner.line(), inner.column()));
    }
    let mut pointer = String::new();
    for segment in error.path() {
        use serde_path_to_error::Segment;
        match segment {
            Segment::Map { key } => pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1"))),
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            _ => {}
        }
    }
    // A missing or unknown field is reported at its object: name the field itself.
    for what in ["missing field `", "unknown field `"] {
        if let Some((name, _)) = message.strip_prefix(what).and_then(|rest| rest.split_once('`'))
            && !pointer.ends_with(&format!("/{name}"))
        {
            pointer.push_str(&format!("/{name}"));
        }
    }
    if pointer.is_empty() {
        return Problem::new(Code::MalformedRequest, message);
    }
    let name = pointer.trim_start_matches('/');
    let detail = if message.contains(&format!("`{name}`")) { message } else { format!("{name}: {message}") };
    Problem::new(Code::InvalidField, detail).with("pointer", pointer)
}

/// The parser's words without those of its language.
fn plain(message: &str) -> String {
    let mut text = message.to_owned();
    for (rust, plain) in [(", expected u64", ", expected a whole number, at least 0"), (", expected i16", ", expected a whole number")] {
        text = text.replace(rust, plain);
    }
    text
}

/// Whether arrays and objects nest deeper than `max`, without parsing: a bomb is refused before anything is built.
fn deeper_than(text: &[u8], max: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > max {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only parsed")]
    struct Sample {
        key: String,
        lease_ms: Option<u64>,
    }

    fn problem(text: &str) -> (Code, Option<String>) {
        let problem = parse::<Sample>(text.as_bytes(), 4).expect_err("refused");
        (problem.code, problem.more.get("pointer").and_then(|p| p.as_str()).map(str::to_owned))
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(problem("{"), (Code::MalformedRequest, None));
        assert_eq!(problem("[]x"), (Code::MalformedRequest, None));
        assert_eq!(problem(r#"{"key":"a"} {}"#), (Code::MalformedRequest, None));
        assert_eq!(problem(r#"{"key":"a","key":"b"}"#), (Code::MalformedRequest, None));
        assert_eq!(problem("[[[[[]]]]]"), (Code::MalformedRequest, None));
        assert_eq!(problem("\"\\ud800\""), (Code::MalformedRequest, None));
        assert_eq!(problem("{}"), (Code::InvalidField, Some("/key".into())));
        assert_eq!(problem(r#"{"key":"a","kee":1}"#), (Code::InvalidField, Some("/kee".into())));
        assert_eq!(problem(r#"{"key":"a","lease_ms":-1}"#), (Code::InvalidField, Some("/lease_ms".into())));
        assert_eq!(problem(r#"{"key":"a","lease_ms":1.5}"#), (Code::InvalidField, Some("/lease_ms".into())));
        assert_eq!(problem(r#"["a",null]"#), (Code::MalformedRequest, None));
        assert_eq!(problem(r#"{"key":1}"#), (Code::InvalidField, Some("/key".into())));
        assert!(parse::<Sample>(br#"{"key":"[[[[[[\"[[[["}"#, 4).is_ok(), "brackets inside strings are text");
    }
}
