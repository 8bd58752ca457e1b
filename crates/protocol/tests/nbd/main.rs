//! The NBD session from the client's end of the wire.
//!
//! Numbers and layouts are written out from the specification and not taken from the crate, so that
//! a wrong constant in the crate fails a test.

mod client;
mod cve;
mod garbage;
mod handshake;
mod meta;
mod replies;
mod requests;
mod splits;
mod status;
mod tls;
