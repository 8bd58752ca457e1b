//! The thread of one client, from the opening of its export on.

use std::io;
use std::sync::{Arc, PoisonError};

use super::Shared;
use super::handshake::Opened;
use super::socket::Socket;
use super::transmission::{Ended, Transmission};
use crate::{log, memory};

/// Serves the client until it or the server ends the connection.
pub(super) fn serve(shared: &Shared, socket: &Arc<Socket>, opened: Opened) {
    // A client that vanished or broke the protocol is not an error of the server.
    let (Ok(()) | Err(Ended)) = transmit(shared, socket, opened);
    socket.end_tls();
}

fn transmit(shared: &Shared, socket: &Arc<Socket>, opened: Opened) -> Result<(), Ended> {
    let Opened { session, export, mut replies, received } = opened;
    let served = &shared.served[export];
    let mut transmission = {
        // One connection at a time: the memory found free must still be free when taken.
        let _turn = shared.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if !memory::has_headroom() {
            log::say(format_args!("a client is refused: there is no memory for it"));
            return Err(Ended);
        }
        let grant = shared.budget.grant(Transmission::useful_bytes(&served.volume));
        Transmission::new(Arc::clone(socket), session, served, grant, &received)?
    };
    let vec = libc::iovec { iov_base: replies.as_mut_ptr().cast(), iov_len: replies.len() };
    socket.send(&mut [vec])?;
    drop((replies, received));
    transmission.run()
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self
    }
}
