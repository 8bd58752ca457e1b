//! The handshake of one client, without waiting for it: bytes in, replies out, until it has opened
//! an export.

use std::sync::Arc;

use blockyard_protocol::nbd::{Event, Export, Session};
use rustix::event::PollFlags;

use super::socket::Socket;
use super::waiting::{Conversation, Progress};

/// Options are parsed from a buffer of this size, which a session never asks to exceed. Replies
/// beyond it wait until the client has read some.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// A client that negotiates.
pub(super) struct Handshake {
    session: Session,
    received: Vec<u8>,
    /// Replies, of which the first `sent_bytes` are on their way.
    out: Vec<u8>,
    sent_bytes: usize,
    stage: Stage,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Talking,
    Opened {
        export: usize,
    },
    /// What was answered is still to be sent.
    Ended,
}

/// What a handshake has led to.
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) export: usize,
    /// Not sent yet: the client learns that the export is open when it is served.
    pub(super) replies: Vec<u8>,
    /// What the client has sent behind its handshake.
    pub(super) received: Vec<u8>,
}

impl Handshake {
    pub(super) fn new(exports: Arc<[Export]>) -> Self {
        let session = Session::new(exports, Some(0));
        let mut out = Vec::new();
        session.greeting(&mut out);
        Self { session, received: Vec::new(), out, sent_bytes: 0, stage: Stage::Talking }
    }

    /// The outcome of a complete handshake.
    ///
    /// # Panics
    /// When it is not complete.
    pub(super) fn into_opened(mut self) -> Opened {
        let Stage::Opened { export } = self.stage else { panic!("the handshake is complete") };
        self.out.drain(..self.sent_bytes);
        Opened { session: self.session, export, replies: self.out, received: self.received }
    }

    /// Handles what was received; whether all of it, and more is needed.
    fn parse(&mut self) -> bool {
        while self.stage == Stage::Talking && self.out.len() < HANDSHAKE_BYTES {
            let step = self.session.on_bytes(&self.received, &mut self.out);
            self.received.drain(..step.consumed);
            match step.event {
                Event::Continue => {}
                Event::NeedMore => return true,
                Event::Opened(export) => self.stage = Stage::Opened { export },
                Event::Closed | Event::Broken(_) => self.stage = Stage::Ended,
                Event::Request(_) | Event::Payload { .. } => {
                    unreachable!("requests come after an export is open")
                }
            }
        }
        false
    }

    /// Receives something; `None` when the connection has ended, or the client sends too much.
    fn receive(&mut self, socket: &Socket) -> Option<()> {
        let mut bytes = [0; 4096];
        let room = bytes.len().min(HANDSHAKE_BYTES - self.received.len());
        match socket.receive_now(&mut bytes[..room]) {
            Ok(Some(0)) | Err(_) => None,
            Ok(None) => Some(()),
            Ok(Some(len)) => {
                self.received.try_reserve(len).ok()?;
                self.received.extend_from_slice(&bytes[..len]);
                Some(())
            }
        }
    }

    /// Sends what there is; whether the client has to read before there can be more.
    fn send(&mut self, socket: &Socket) -> std::io::Result<bool> {
        self.sent_bytes += socket.send_now(&self.out[self.sent_bytes..])?;
        if self.sent_bytes < self.out.len() {
            return Ok(true);
        }
        self.out.clear();
        self.sent_bytes = 0;
        Ok(false)
    }
}

impl Conversation for Handshake {
    const LEAVES_WITH: PollFlags = PollFlags::RDHUP;

    /// One piece is received and one buffer of replies sent at most: the others wait meanwhile.
    fn go_on(&mut self, socket: &Socket) -> Progress {
        if self.out.is_empty() && self.receive(socket).is_none() {
            return Progress::Over;
        }
        let needs_more = self.parse();
        if matches!(self.stage, Stage::Opened { .. }) {
            return Progress::Complete;
        }
        match self.send(socket) {
            Err(_) => Progress::Over,
            Ok(true) => Progress::WaitsFor(PollFlags::OUT),
            Ok(false) if self.stage == Stage::Ended => Progress::Over,
            Ok(false) if needs_more => Progress::WaitsFor(PollFlags::IN),
            // Options lie here, whose replies had no room.
            Ok(false) => Progress::WaitsFor(PollFlags::IN | PollFlags::OUT),
        }
    }

    fn time_is_up(&mut self) -> Progress {
        Progress::Over
    }
}
