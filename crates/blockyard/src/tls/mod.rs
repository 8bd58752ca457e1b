//! TLS of servers and of connections to servers: certificates, keys, and the clients that may
//! connect.
//!
//! [`init`] makes a CA and a server's certificate, [`add_client`] a client's, and [`show`]
//! describes those of a directory. The files have the names of QEMU and nbdkit, which can use them.

mod make;
mod show;

pub use blockyard_host::tls::{
    Allowed, ClientConnection, ClientPolicy, Credentials, ServerName, ServerPolicy, StreamOwned,
    explain, names,
};
pub use blockyard_protocol::nbd::Tls;

pub use make::{Making, add_client, init};
pub use show::{Certificate, Flaw, show};
