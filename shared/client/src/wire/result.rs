//! What a piece of work ended with, kept to be replayed byte for byte.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A stored result. The body is text in [`StoredResult::body`], or bytes in [`StoredResult::body_base64`], or absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResult {
    /// The body's media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// An HTTP status to replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// HTTP headers to replay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in standard base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

impl StoredResult {
    /// A result with this body: as text if it is UTF-8, else in base64.
    pub fn from_bytes(media_type: impl Into<String>, bytes: &[u8]) -> Self {
        let result = Self { media_type: Some(media_type.into()), ..Self::default() };
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { body: Some(text.to_owned()), ..result },
            Err(_) => Self { body_base64: Some(STANDARD.encode(bytes)), ..result },
        }
    }

    /// The body's bytes; `None` if there is no body.
    ///
    /// # Errors
    /// [`Error::Decode`] if `body_base64` is no base64.
    pub fn bytes(&self) -> Result<Option<Vec<u8>>> {
        match (&self.body, &self.body_base64) {
            (Some(text), _) => Ok(Some(text.clone().into_bytes())),
            (None, Some(text)) => STANDARD.decode(text).map(Some).map_err(|error| Error::Decode(format!("body_base64: {error}"))),
            (None, None) => Ok(None),
        }
    }
}
