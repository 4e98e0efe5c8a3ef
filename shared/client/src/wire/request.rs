//! Questions: check and claim.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::new_request_id;

/// A one-shot question: "am I the first?". A first marks the key done at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckRequest {
    /// `<region>:<rest>`, 1 to 512 bytes.
    pub key: String,
    /// Consumer group; absent = the service's `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Random id of this attempt of this worker; absent = the client makes one per call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Digest of the payload, made by the caller; another one for the same key is a mismatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// How long the key is remembered; absent = the topic's window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<Window>,
}

/// The first of three phases: claim, work, complete. A first holds a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClaimRequest {
    /// `<region>:<rest>`, 1 to 512 bytes.
    pub key: String,
    /// Consumer group; absent = the service's `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Random id of this attempt of this worker; absent = the client makes one per call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Digest of the payload, made by the caller; another one for the same key is a mismatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Who works, as shown to others while the claim is open; at most 128 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// How long the claim is held unless extended, milliseconds; absent = the topic's lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// How long the key is remembered; absent = the topic's window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<Window>,
    /// How long to wait for somebody else's open claim to end, milliseconds; absent = not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

impl CheckRequest {
    /// A question about `key`, everything else by default.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }
}

impl ClaimRequest {
    /// A claim of `key`, everything else by default.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }
}

/// A question with a request id, so that each repeat of the call is the same question.
pub(crate) trait Identified: Clone {
    /// The request itself, or a copy with a fresh id where it has none.
    fn identified(&self) -> Cow<'_, Self>;
}

impl Identified for CheckRequest {
    fn identified(&self) -> Cow<'_, Self> {
        match self.request_id {
            Some(_) => Cow::Borrowed(self),
            None => Cow::Owned(Self { request_id: Some(new_request_id()), ..self.clone() }),
        }
    }
}

impl Identified for ClaimRequest {
    fn identified(&self) -> Cow<'_, Self> {
        match self.request_id {
            Some(_) => Cow::Borrowed(self),
            None => Cow::Owned(Self { request_id: Some(new_request_id()), ..self.clone() }),
        }
    }
}

/// How long a key is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Milliseconds.
    Ms(u64),
    /// For good.
    Forever,
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Ms(ms) => serializer.serialize_u64(*ms),
            Self::Forever => serializer.serialize_str("forever"),
        }
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Ms(u64),
            Word(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Ms(ms) => Ok(Self::Ms(ms)),
            Raw::Word(word) if word == "forever" => Ok(Self::Forever),
            Raw::Word(word) => Err(de::Error::invalid_value(de::Unexpected::Str(&word), &"milliseconds or \"forever\"")),
        }
    }
}
