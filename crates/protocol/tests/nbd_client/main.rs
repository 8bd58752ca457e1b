//! The client's session from the server's end of the wire.
//!
//! Numbers and layouts are written out from the specification and not taken from the crate, so that
//! a wrong constant in the crate fails a test.

mod both;
mod dice;
mod garbage;
mod handshake;
mod misbehaviour;
mod replies;
mod requests;
mod server;
