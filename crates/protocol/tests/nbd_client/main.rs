//! The client's session, seen from the server's end of the wire.
//!
//! Numbers and layouts are written out here, as the specification gives them, and not taken from
//! the crate: a wrong constant there must not make a test agree with it.

mod both;
mod dice;
mod garbage;
mod handshake;
mod misbehaviour;
mod replies;
mod requests;
mod server;
