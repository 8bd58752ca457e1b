//! One client's thread: the handshake under a deadline, then the transmission.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use blockyard_export::nbd::{Event, Session};

use super::Shared;
use super::socket::Socket;
use super::transmission::{Ended, Transmission};

/// Options are parsed from a buffer of this size, which a session never asks to exceed.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// A client that has connected.
pub(super) struct Connection {
    shared: Arc<Shared>,
    socket: Arc<Socket>,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, socket: Arc<Socket>) -> Self {
        Self { shared, socket }
    }

    /// Serves the client until it or the server ends the connection.
    pub(super) fn serve(self) {
        let served = self.handshake().and_then(|opened| match opened {
            Some((session, export, rest)) => self.transmit(session, export, &rest),
            None => Ok(()),
        });
        // A client that vanished, or broke the protocol, is its own affair.
        let (Ok(()) | Err(Ended)) = served;
    }

    /// Options, until an export is opened. `None` when the client said goodbye.
    fn handshake(&self) -> Result<Option<(Session, usize, Vec<u8>)>, Ended> {
        let deadline = Instant::now() + self.shared.options.handshake_timeout;
        let mut session = Session::new(Arc::clone(&self.shared.exports), Some(0));
        let mut received: Vec<u8> = Vec::new();
        let mut out = Vec::new();
        session.greeting(&mut out);
        loop {
            let step = session.on_bytes(&received, &mut out);
            received.drain(..step.consumed);
            match step.event {
                Event::Continue if out.len() < HANDSHAKE_BYTES => {}
                Event::Continue => self.send(&mut out)?,
                Event::NeedMore => {
                    self.send(&mut out)?;
                    self.receive_until(deadline, &mut received)?;
                }
                Event::Opened(export) => {
                    self.send(&mut out)?;
                    return Ok(Some((session, export, received)));
                }
                Event::Closed | Event::Broken(_) => {
                    self.send(&mut out)?;
                    return Ok(None);
                }
                Event::Request(_) | Event::Payload { .. } => {
                    unreachable!("requests come after an export is open")
                }
            }
        }
    }

    fn send(&self, out: &mut Vec<u8>) -> Result<(), Ended> {
        let vec = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
        if !out.is_empty() {
            self.socket.send(&mut [vec])?;
        }
        out.clear();
        Ok(())
    }

    /// Receives something before the deadline; a client that is too slow is dropped.
    fn receive_until(&self, deadline: Instant, received: &mut Vec<u8>) -> Result<(), Ended> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || received.len() >= HANDSHAKE_BYTES {
            return Err(Ended);
        }
        self.socket.set_receive_timeout(left);
        let len = received.len();
        received.resize(HANDSHAKE_BYTES, 0);
        let got = self.socket.receive(received[len..].as_mut_ptr(), HANDSHAKE_BYTES - len);
        received.truncate(len + got.as_ref().map_or(0, |got| got.unwrap_or(0)));
        match got? {
            Some(1..) => Ok(()),
            Some(0) | None => Err(Ended),
        }
    }

    fn transmit(&self, session: Session, export: usize, rest: &[u8]) -> Result<(), Ended> {
        let served = &self.shared.served[export];
        let grant = self.shared.budget.grant(Transmission::useful_bytes(&served.volume));
        let mut transmission =
            Transmission::new(Arc::clone(&self.socket), session, served, grant, rest)?;
        transmission.run()
    }
}

impl Drop for Connection {
    /// Also when its thread panics: the client must not wait for ever.
    fn drop(&mut self) {
        self.socket.shut_down();
    }
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self
    }
}
