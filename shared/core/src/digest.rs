//! Identity: what makes two questions ask about the same thing.

use hmac::Mac;
use uuid::Uuid;

use crate::{Group, Key, Secret, Topic};

/// First 128 bits of HMAC-SHA-256(secret, topic ‖ topic generation ‖ group ‖ group generation ‖ key), every part length-prefixed (u16,
/// big-endian), generations as 8 bytes big-endian. Identity is this digest; `dedup.digest_v1` in SQL computes the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub Uuid);

impl Digest {
    /// The digest of one key in one topic and group.
    pub fn of(secret: &Secret, topic: &Topic, topic_generation: i64, group: &Group, group_generation: i64, key: &Key) -> Self {
        let mut mac = secret.digest_mac();
        let mut part = |bytes: &[u8]| {
            mac.update(&u16::try_from(bytes.len()).expect("every part is shorter than 64 KiB").to_be_bytes());
            mac.update(bytes);
        };
        part(topic.as_str().as_bytes());
        part(&topic_generation.to_be_bytes());
        part(group.as_str().as_bytes());
        part(&group_generation.to_be_bytes());
        part(key.as_str().as_bytes());
        let out = mac.finalize().into_bytes();
        Self(Uuid::from_bytes(out[..16].try_into().expect("16 of 32 bytes")))
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
