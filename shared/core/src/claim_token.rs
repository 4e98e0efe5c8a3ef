//! Claim tokens: what alone completes, releases or extends a claim.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::Mac;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::{Digest, Fence, HomeId, HomeTable, Secret, Topic};

/// (home, topic, digest, fence), authenticated: a former owner who reads a newer fence somewhere cannot make the newer owner's token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimToken {
    /// Home of the record.
    pub home: HomeId,
    /// Topic: whoever presents the token must be allowed to use it.
    pub topic: Topic,
    /// The record.
    pub digest: Digest,
    /// The grant.
    pub fence: Fence,
}

/// A text that is no claim token of this deployment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not a claim token of this deployment")]
pub struct ClaimTokenError;

const PREFIX: &str = "dc1.";
const MAC_BYTES: usize = 12;

impl ClaimToken {
    /// The opaque text: `dc1.` and base64url of digest, fence, home and topic names, MAC.
    pub fn to_text(&self, secret: &Secret, homes: &HomeTable) -> String {
        let home = homes.get(self.home).name.as_bytes();
        let topic = self.topic.as_str().as_bytes();
        let mut raw = Vec::with_capacity(16 + 8 + 1 + home.len() + topic.len() + MAC_BYTES);
        raw.extend_from_slice(self.digest.as_bytes());
        raw.extend_from_slice(&self.fence.0.to_be_bytes());
        raw.push(u8::try_from(home.len()).expect("home names have at most 64 bytes"));
        raw.extend_from_slice(home);
        raw.extend_from_slice(topic);
        let mac = tag(secret, &raw);
        raw.extend_from_slice(&mac);
        let mut text = String::with_capacity(PREFIX.len() + raw.len() * 4 / 3 + 3);
        text.push_str(PREFIX);
        BASE64_URL_SAFE_NO_PAD.encode_string(&raw, &mut text);
        text
    }

    /// Parses and authenticates a text.
    pub fn parse(text: &str, secret: &Secret, homes: &HomeTable) -> Result<Self, ClaimTokenError> {
        let raw = text.strip_prefix(PREFIX).and_then(|t| BASE64_URL_SAFE_NO_PAD.decode(t).ok()).ok_or(ClaimTokenError)?;
        let (signed, mac) = raw.split_at_checked(raw.len().wrapping_sub(MAC_BYTES)).ok_or(ClaimTokenError)?;
        if !bool::from(tag(secret, signed).ct_eq(mac)) {
            return Err(ClaimTokenError);
        }
        let (digest, rest) = signed.split_first_chunk::<16>().ok_or(ClaimTokenError)?;
        let (fence, rest) = rest.split_first_chunk::<8>().ok_or(ClaimTokenError)?;
        let (len, rest) = rest.split_first().ok_or(ClaimTokenError)?;
        let (home, topic) = rest.split_at_checked(usize::from(*len)).ok_or(ClaimTokenError)?;
        let topic = std::str::from_utf8(topic).ok().and_then(|t| Topic::parse(t).ok()).ok_or(ClaimTokenError)?;
        let home = homes.iter().find(|(_, h)| h.name.as_bytes() == home).map(|(id, _)| id).ok_or(ClaimTokenError)?;
        Ok(Self { home, topic, digest: Digest(Uuid::from_bytes(*digest)), fence: Fence(i64::from_be_bytes(*fence)) })
    }
}

fn tag(secret: &Secret, signed: &[u8]) -> [u8; MAC_BYTES] {
    let mut mac = secret.token_mac();
    mac.update(signed);
    mac.finalize().into_bytes()[..MAC_BYTES].try_into().expect("12 of 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HomeSpec;

    #[test]
    fn only_the_unchanged_token_of_the_same_secret_is_taken() {
        let homes =
            HomeTable::new(vec![HomeSpec { name: "eu".into(), region: "eu".into(), prefixes: vec!["eu".into()] }]).expect("one home");
        let secret = Secret::new([1; 32]);
        let token = ClaimToken {
            home: HomeId(0),
            topic: Topic::parse("pay").expect("topic"),
            digest: Digest(Uuid::from_u128(77)),
            fence: Fence(4711),
        };
        let text = token.to_text(&secret, &homes);
        assert_eq!(ClaimToken::parse(&text, &secret, &homes), Ok(token.clone()));
        assert_eq!(ClaimToken::parse(&text, &Secret::new([2; 32]), &homes), Err(ClaimTokenError));
        for at in PREFIX.len()..text.len() {
            let mut forged = text.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).expect("ASCII");
            assert_ne!(ClaimToken::parse(&forged, &secret, &homes).as_ref(), Ok(&ClaimToken { fence: Fence(4712), ..token.clone() }));
            assert_eq!(ClaimToken::parse(&forged, &secret, &homes), Err(ClaimTokenError), "byte {at}");
        }
        for text in ["", "dc1.", "dc1.AAAA", "dc2.AAAA", "x"] {
            assert_eq!(ClaimToken::parse(text, &secret, &homes), Err(ClaimTokenError));
        }
    }
}
