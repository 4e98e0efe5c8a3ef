//! Checks and claims as callers send them.

use std::borrow::Cow;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// A window: whole milliseconds, or `"forever"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowWord {
    /// Milliseconds.
    Ms(i64),
    /// `"forever"`.
    Forever,
}

impl utoipa::PartialSchema for WindowWord {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1000)).description(Some("whole milliseconds"));
        let word = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["forever"]));
        OneOfBuilder::new().item(number).item(word).examples([serde_json::json!(86_400_000)]).into()
    }
}

impl ToSchema for WindowWord {}

impl<'de> Deserialize<'de> for WindowWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = WindowWord;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("whole milliseconds or \"forever\"")
            }

            fn visit_u64<E: Error>(self, v: u64) -> Result<WindowWord, E> {
                // Larger than any allowed window, and named as such by the range check.
                Ok(WindowWord::Ms(i64::try_from(v).unwrap_or(i64::MAX)))
            }

            fn visit_i64<E: Error>(self, v: i64) -> Result<WindowWord, E> {
                Ok(WindowWord::Ms(v))
            }

            fn visit_f64<E: Error>(self, v: f64) -> Result<WindowWord, E> {
                // What no integer type holds comes as a float, although it was written as a whole number.
                let past_integers = v.abs() > i64::MAX as f64;
                let ms = if v < 0.0 { i64::MIN } else { i64::MAX };
                if past_integers { Ok(WindowWord::Ms(ms)) } else { Err(E::invalid_type(serde::de::Unexpected::Float(v), &self)) }
            }

            fn visit_str<E: Error>(self, v: &str) -> Result<WindowWord, E> {
                if v == "forever" { Ok(WindowWord::Forever) } else { Err(E::invalid_value(serde::de::Unexpected::Str(v), &self)) }
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// A text of the request, borrowed from its body where it has no escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, v: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(v)))
            }

            fn visit_str<E: Error>(self, v: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v.to_owned())))
            }
        }
        deserializer.deserialize_str(Texts)
    }
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// How much a batch answers for each item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// Everything a single call would say.
    #[default]
    Full,
    /// The verdict alone.
    Verdict,
}

/// A one-shot check.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckItem<'a> {
    /// `<region>:<rest>`, 1–512 bytes of UTF-8. May be given by the header `Idempotency-Key` instead.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, example = "eu:order-123")]
    pub key: Option<Text<'a>>,
    /// Consumer group, 1–255 bytes; `default` if absent.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    /// Random id of this attempt: repeat the very same call with it after a lost reply. Made by the service if absent.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub request_id: Option<Text<'a>>,
    /// Digest of the payload, 1–128 printable ASCII characters; another one under the same key is a `mismatch`.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub fingerprint: Option<Text<'a>>,
    /// How long the key is remembered; the topic's window if absent.
    pub window_ms: Option<WindowWord>,
}

/// A claim.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimItem<'a> {
    /// `<region>:<rest>`, 1–512 bytes of UTF-8. May be given by the header `Idempotency-Key` instead.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, example = "eu:acme/idem-8e03")]
    pub key: Option<Text<'a>>,
    /// Consumer group, 1–255 bytes; `default` if absent.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    /// Random id of this attempt: repeat the very same call with it after a lost reply. Made by the service if absent.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub request_id: Option<Text<'a>>,
    /// Digest of the payload, 1–128 printable ASCII characters; another one under the same key is a `mismatch`.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub fingerprint: Option<Text<'a>>,
    /// Who claims, at most 128 bytes; shown to others and to the next owner.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub owner: Option<Text<'a>>,
    /// How long the key is remembered; the topic's window if absent.
    pub window_ms: Option<WindowWord>,
    /// How long the work may take before somebody else may take over; the topic's lease if absent.
    #[schema(example = 30000)]
    pub lease_ms: Option<u64>,
    /// Wait this long (at most 30 s) while the verdict is `in_progress`. Single claims only.
    pub wait_ms: Option<u64>,
}

/// Many checks of one topic.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckBatch<'a> {
    /// For items without one.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    /// For items without one.
    pub window_ms: Option<WindowWord>,
    /// `full` (default) or `verdict`.
    #[serde(default)]
    pub detail: Detail,
    /// At most 1,000. Parsed one by one: a bad item is that item's problem.
    #[serde(borrow)]
    #[schema(value_type = Vec<CheckItem>)]
    pub items: &'a RawValue,
}

/// Many claims of one topic.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBatch<'a> {
    /// For items without one.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    /// For items without one.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub owner: Option<Text<'a>>,
    /// For items without one.
    pub window_ms: Option<WindowWord>,
    /// For items without one.
    pub lease_ms: Option<u64>,
    /// `full` (default) or `verdict`.
    #[serde(default)]
    pub detail: Detail,
    /// At most 1,000. Parsed one by one: a bad item is that item's problem.
    #[serde(borrow)]
    #[schema(value_type = Vec<ClaimItem>)]
    pub items: &'a RawValue,
}
