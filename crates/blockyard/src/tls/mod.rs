//! TLS of servers and of connections to servers: certificates, keys, and the clients that may
//! connect.

pub use blockyard_host::tls::{
    Allowed, ClientPolicy, Credentials, ServerPolicy, StreamOwned, explain, names,
};
pub use blockyard_protocol::nbd::Tls;
