//! The thread of one client, from the opening of its export on.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::Shared;
use super::exports::ServedExport;
use super::handshake::Opened;
use super::socket::Socket;
use super::transmission::{Ended, Totals, Transmission};
use crate::log::{Event, Kind, Value};
use crate::memory;

/// Serves the client until it or the server ends the connection.
pub(super) fn serve(shared: &Shared, socket: &Arc<Socket>, served: &ServedExport, opened: Opened) {
    let client = Client::new(socket, &served.name);
    let mut totals = Totals::default();
    // A client that vanished or broke the protocol is not an error of the server.
    let outcome = transmit(shared, socket, served, opened, &mut totals);
    socket.end_tls();
    client.left(outcome.is_ok(), &totals);
}

/// A client in the log.
struct Client<'a> {
    peer: String,
    export: &'a str,
    came: Instant,
}

impl<'a> Client<'a> {
    fn new(socket: &Socket, export: &'a str) -> Self {
        let client = Self { peer: socket.peer_name(), export, came: Instant::now() };
        let Self { peer, .. } = &client;
        let event = Event::new(Kind::ClientConnected).export(export).peer(peer);
        event.say(format_args!("{peer} has opened export {export:?}"));
        client
    }

    fn left(&self, in_order: bool, totals: &Totals) {
        let Self { peer, export, came } = self;
        let Totals { reads, bytes_read, writes, bytes_written, others, errors } = *totals;
        let seconds = came.elapsed().as_secs();
        let fields = [
            ("seconds", Value::Number(seconds)),
            ("reads", Value::Number(reads)),
            ("bytes_read", Value::Number(bytes_read)),
            ("writes", Value::Number(writes)),
            ("bytes_written", Value::Number(bytes_written)),
            ("other_requests", Value::Number(others)),
            ("errors", Value::Number(errors)),
            ("end", Value::Text(if in_order { "in-order" } else { "lost" })),
        ];
        let event = Event::new(Kind::ClientDisconnected).export(export).peer(peer).fields(&fields);
        let end = if in_order { "has left" } else { "was disconnected or is lost, and has left" };
        let counted =
            |count: u64, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        event.say(format_args!(
            "{peer} {end} export {export:?} after {seconds} s: {} of {bytes_read} bytes, {} of \
             {bytes_written} bytes, {}, {}",
            counted(reads, "read"),
            counted(writes, "write"),
            counted(others, "other request"),
            counted(errors, "error"),
        ));
    }
}

fn transmit(
    shared: &Shared,
    socket: &Arc<Socket>,
    served: &ServedExport,
    opened: Opened,
    totals: &mut Totals,
) -> Result<(), Ended> {
    let Opened { session, mut replies, received, .. } = opened;
    let mut transmission = {
        // One connection at a time: the memory found free must still be free when taken.
        let _turn = shared.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if !memory::has_headroom() {
            let refused = Event::new(Kind::ClientRefused).export(&served.name);
            refused.say(format_args!("a client is refused: there is no memory for it"));
            return Err(Ended);
        }
        let grant = shared.budget.grant(Transmission::useful_bytes(&served.volume));
        Transmission::new(Arc::clone(socket), session, served, grant, &received)?
    };
    let vec = libc::iovec { iov_base: replies.as_mut_ptr().cast(), iov_len: replies.len() };
    socket.send(&mut [vec])?;
    drop((replies, received));
    let outcome = transmission.run();
    *totals = transmission.totals;
    outcome
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self
    }
}
