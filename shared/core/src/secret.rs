//! The deployment's one secret and everything keyed by it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};

/// 32 random bytes, one per deployment. Identity of keys, hashes of request ids, claim tokens and cached values all hang on it, so
/// nobody can guess keys offline, forge a token or write a cache entry.
#[derive(Clone)]
pub struct Secret {
    id: [u8; 8],
    bytes: [u8; 32],
    keyed: Hmac<Sha256>,
    tokens: Hmac<Sha256>,
    requests: Hmac<Sha256>,
    fingerprints: Hmac<Sha256>,
    cache: Hmac<Sha256>,
}

impl Secret {
    /// Takes 32 bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        let keyed: Hmac<Sha256> = KeyInit::new_from_slice(&bytes).expect("HMAC takes keys of any length");
        // Uses other than the digest have keys of their own, so that no message of one can be passed off as another's.
        let derive = |label: &[u8]| {
            let mut mac = keyed.clone();
            mac.update(label);
            <Hmac<Sha256> as KeyInit>::new_from_slice(&mac.finalize().into_bytes()).expect("HMAC takes keys of any length")
        };
        let id = Sha256::new().chain_update(b"dedup-secret-id").chain_update(bytes).finalize();
        Self {
            id: id[..8].try_into().expect("8 of 32 bytes"),
            bytes,
            tokens: derive(b"dedup claim token v1"),
            requests: derive(b"dedup request id v1"),
            fingerprints: derive(b"dedup fingerprint v1"),
            cache: derive(b"dedup cached value v1"),
            keyed,
        }
    }

    /// Parses 64 hexadecimal digits.
    pub fn parse_hex(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(Self::new(bytes))
    }

    /// Names the secret without telling it: equal ids, equal secrets.
    pub fn id(&self) -> [u8; 8] {
        self.id
    }

    /// The bytes, for `dedup migrate` to put into a home.
    pub fn expose(&self) -> &[u8; 32] {
        &self.bytes
    }

    pub(crate) fn digest_mac(&self) -> Hmac<Sha256> {
        self.keyed.clone()
    }

    pub(crate) fn token_mac(&self) -> Hmac<Sha256> {
        self.tokens.clone()
    }

    pub(crate) fn request_mac(&self) -> Hmac<Sha256> {
        self.requests.clone()
    }

    pub(crate) fn fingerprint_mac(&self) -> Hmac<Sha256> {
        self.fingerprints.clone()
    }

    /// First 16 bytes of the MAC over `parts` as a cached value carries it.
    pub fn cache_mac(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut mac = self.cache.clone();
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes()[..16].try_into().expect("16 of 32 bytes")
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}
