//! The deployment's secret: what keys the digests, the same for every instance and home.

use secrecy::{ExposeSecret, SecretBox};

use super::check::{Checker, hex_32};

/// The environment variable that holds the deployment's secret, 64 hexadecimal digits.
pub const SECRET_ENV: &str = "DEDUP_SECRET";

/// The deployment's secret, 32 bytes. `Debug` hides it and the memory is wiped after use.
#[derive(Debug)]
pub struct DeploymentSecret(SecretBox<[u8; 32]>);

impl DeploymentSecret {
    /// The 32 bytes. Give them to the digest only; never log or return them.
    #[must_use]
    pub fn expose_bytes(&self) -> &[u8; 32] {
        self.0.expose_secret()
    }
}

impl Clone for DeploymentSecret {
    fn clone(&self) -> Self {
        Self(SecretBox::new(Box::new(*self.expose_bytes())))
    }
}

pub(super) fn check(env: &impl Fn(&str) -> Option<String>, check: &mut Checker) -> Option<DeploymentSecret> {
    let text = env(SECRET_ENV)?;
    let bytes = hex_32(&text);
    if bytes.is_none() {
        check.note(SECRET_ENV, format!("must be 64 hexadecimal digits (32 bytes); it has {} characters", text.chars().count()));
    }
    bytes.map(|bytes| DeploymentSecret(SecretBox::new(Box::new(bytes))))
}
