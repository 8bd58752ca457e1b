//! TLS under the NBD session, with `rustls` and `ring`.
//!
//! ```text
//! directory of PEM files ─ credentials ─> configuration ─┐
//! list of clients ─ allowed ─> verifier ─────────────────┴─> stream, over a socket of the caller
//! ```
//! Versions are TLS 1.3 and 1.2. AES-128-GCM comes first, because AES-256-GCM costs more, and data
//! on the way needs no stronger cipher. Sessions are not resumed: each connection
//! checks the certificates of both ends again.
//!
//! PSK (pre-shared keys) is not supported, because `rustls` has none.

mod allowed;
mod credentials;
mod problem;
mod stream;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub use allowed::{Allowed, Identity, identity};
pub use credentials::{ClientPolicy, Credentials, ServerPolicy, names};
pub use problem::explain;
pub(crate) use stream::{Shake, Stream};

pub use rustls::pki_types::ServerName;
pub use rustls::{ClientConfig, ClientConnection, ServerConfig, StreamOwned};

/// The algorithms, AES-128-GCM first.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| {
        let name = format!("{:?}", suite.suite());
        !name.contains("AES_128_GCM")
    });
    Arc::new(provider)
}
