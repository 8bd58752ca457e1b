//! Doors for clients, as sans-IO sessions: bytes in, events and bytes out.
//!
//! A session owns no socket, no thread, no clock and no payload buffer. A world feeds it what it
//! received, sends what the session wrote, and executes the requests that come out. The crate is
//! `no_std` so that this stays true: it could not open a socket if it wanted to.
//!
//! Today there is one door to the volumes, [`nbd`]; with it comes the way through other people's,
//! [`nbd::client`]. Beside it, [`http`] is as much as a scraper of figures needs.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod http;
pub mod nbd;
