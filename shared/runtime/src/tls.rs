//! One TLS provider for the whole process.

/// Makes `ring` the process's TLS provider. Call it first in `main`: a client built earlier would find no provider and fail.
///
/// Safe to call again: the first installation stays.
pub fn install_crypto_provider() {
    // An error only says that a provider is there already.
    _ = rustls::crypto::ring::default_provider().install_default();
}
