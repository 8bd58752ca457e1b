//! The NBD session, seen from the client's end of the wire.
//!
//! Numbers and layouts are written out here, as the specification gives them, and not taken from
//! the crate: a wrong constant there must not make a test agree with it.

mod client;
mod cve;
mod garbage;
mod handshake;
mod meta;
mod replies;
mod requests;
mod splits;
mod status;
