//! Names of Redis keys; the only place that spells one.

use dedup_core::{Digest, Secret};

/// `dedup:1:<secret id>:<digest>`: deployments that share a Redis never meet.
pub fn record_key(prefix: &str, digest: &Digest) -> String {
    let mut key = String::with_capacity(prefix.len() + 32);
    key.push_str(prefix);
    key.push_str(digest.0.simple().encode_lower(&mut [0; 32]));
    key
}

/// The part that all keys of a deployment share.
pub fn prefix(secret: &Secret) -> String {
    let id: String = secret.id().iter().map(|b| format!("{b:02x}")).collect();
    format!("dedup:1:{id}:")
}
