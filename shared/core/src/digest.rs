//! Identity: what makes two questions ask about the same thing.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use uuid::Uuid;

use crate::{Group, Key, Secret, Topic};

/// First 128 bits of HMAC-SHA-256(secret, topic ‖ topic generation ‖ group ‖ group generation ‖ key), every part length-prefixed (u16,
/// big-endian), generations as 8 bytes big-endian. Identity is this digest; `dedup.digest_v1` in SQL computes the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub Uuid);

/// Everything of an identity but the key, hashed once for all keys of one topic and group.
#[derive(Clone)]
pub struct DigestScope(Hmac<Sha256>);

impl DigestScope {
    /// The scope of one topic and group.
    pub fn new(secret: &Secret, topic: &Topic, topic_generation: i64, group: &Group<'_>, group_generation: i64) -> Self {
        let mut mac = secret.digest_mac();
        part(&mut mac, topic.as_str().as_bytes());
        part(&mut mac, &topic_generation.to_be_bytes());
        part(&mut mac, group.as_str().as_bytes());
        part(&mut mac, &group_generation.to_be_bytes());
        Self(mac)
    }

    /// The digest of a key in it.
    pub fn digest(&self, key: &Key<'_>) -> Digest {
        let mut mac = self.0.clone();
        part(&mut mac, key.as_str().as_bytes());
        let out = mac.finalize().into_bytes();
        Digest(Uuid::from_bytes(out[..16].try_into().expect("16 of 32 bytes")))
    }
}

fn part(mac: &mut Hmac<Sha256>, bytes: &[u8]) {
    mac.update(&u16::try_from(bytes.len()).expect("every part is shorter than 64 KiB").to_be_bytes());
    mac.update(bytes);
}

impl Digest {
    /// The digest of one key in one topic and group.
    pub fn of(secret: &Secret, topic: &Topic, topic_generation: i64, group: &Group<'_>, group_generation: i64, key: &Key<'_>) -> Self {
        DigestScope::new(secret, topic, topic_generation, group, group_generation).digest(key)
    }

    /// The 16 bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HomeSpec, HomeTable};

    fn digest(topic: &str, group: &str, key: &str) -> Digest {
        let homes = HomeTable::new(vec![HomeSpec { name: "a".into(), region: "a".into(), prefixes: vec!["a".into(), "eu".into()] }])
            .expect("one home");
        let secret = Secret::new([7; 32]);
        Digest::of(
            &secret,
            &Topic::parse(topic).expect("topic"),
            0,
            &Group::parse(group).expect("group"),
            0,
            &Key::parse(key, 512, None, &homes).expect("key"),
        )
    }

    #[test]
    fn no_content_of_one_part_imitates_another() {
        // Case F3: the same bytes, cut elsewhere.
        assert_ne!(digest("t", "ga", "a:b"), digest("t", "g", "a:ab"));
        assert_ne!(digest("ta", "g", "a:b"), digest("t", "ag", "a:b"));
        assert_ne!(digest("t", "g", "a:b"), digest("t", "g", "a:b "));
        assert_ne!(digest("t", "g", "eu:x"), digest("t", "g", "eu:eu:x"));
    }
}
