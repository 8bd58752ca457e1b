//! Non-blocking handshake of one client, from the first byte to the open export.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use blockyard_protocol::nbd::{Event, Export, Session, Tls};
use rustix::event::PollFlags;
use rustls::ServerConfig;

use super::exports::ServedExport;
use super::socket::Socket;
use super::waiting::{Conversation, Progress};
use crate::log;
use crate::tls::Shake;

/// Buffer length for options, which is a session's limit. Further replies wait until the client has
/// read some.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// TLS of a server: whether clients need it, and the certificates.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// Whether clients need it.
    pub mode: Tls,
    /// Certificates and demands on clients.
    pub config: Arc<ServerConfig>,
}

/// A client in its handshake.
pub(super) struct Handshake {
    session: Session,
    offer: Arc<[Export]>,
    /// The export that the server has named in its last answer.
    answered: Option<Weak<ServedExport>>,
    tls: Option<Arc<ServerConfig>>,
    received: Vec<u8>,
    /// Replies; the first `sent_bytes` are sent.
    out: Vec<u8>,
    sent_bytes: usize,
    stage: Stage,
    /// The client has asked, and has an answer.
    is_answered: bool,
}

/// Stage of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Talking,
    /// The ACK of STARTTLS is to be sent in the clear.
    AcceptsTls,
    /// TLS's own handshake.
    ShakesTls,
    /// The client asks for an export.
    Asks {
        export: usize,
    },
    Opened,
    /// Only the remaining replies are to be sent.
    Ended,
}

/// Result of a handshake.
pub(super) struct Opened {
    pub(super) session: Session,
    /// `None`: the export was removed meanwhile.
    pub(super) export: Option<Arc<ServedExport>>,
    /// Unsent replies: the client learns that the export is open when its connection is served.
    pub(super) replies: Vec<u8>,
    /// Bytes received after the handshake.
    pub(super) received: Vec<u8>,
}

impl Handshake {
    pub(super) fn new(offer: Arc<[Export]>, tls: Option<&ServerTls>) -> Self {
        // Between two reloads there may be none.
        let default = (!offer.is_empty()).then_some(0);
        let session = Session::new(Arc::clone(&offer), default);
        let session = session.with_tls(tls.map_or(Tls::Off, |tls| tls.mode));
        let mut out = Vec::new();
        session.greeting(&mut out);
        let tls = tls.map(|tls| Arc::clone(&tls.config));
        let received = Vec::new();
        Self {
            session,
            offer,
            answered: None,
            tls,
            received,
            out,
            sent_bytes: 0,
            stage: Stage::Talking,
            is_answered: false,
        }
    }

    /// The name of the export that the client asks for.
    pub(super) fn asks(&self) -> Option<&str> {
        let Stage::Asks { export } = self.stage else { return None };
        Some(&self.offer[export].name)
    }

    /// Answers a client that asks: with the export and its description, or with a refusal.
    pub(super) fn answer(&mut self, export: Option<(&Arc<ServedExport>, Export)>) {
        let Stage::Asks { export: place } = self.stage else { return };
        match export {
            Some((export, description)) => {
                self.answered = Some(Arc::downgrade(export));
                self.session.opened(place, description);
            }
            None => self.session.refused(place),
        }
        self.stage = Stage::Talking;
        self.is_answered = true;
    }

    /// The export that the client has opened, unless it was closed or removed meanwhile.
    pub(super) fn opened(&self) -> Option<Arc<ServedExport>> {
        if self.stage != Stage::Opened {
            return None;
        }
        self.answered.as_ref()?.upgrade()
    }

    /// The result of a complete handshake.
    ///
    /// # Panics
    /// The handshake is incomplete.
    pub(super) fn into_opened(mut self) -> Opened {
        assert_eq!(self.stage, Stage::Opened, "the handshake is complete");
        self.out.drain(..self.sent_bytes);
        let export = self.opened();
        Opened { session: self.session, export, replies: self.out, received: self.received }
    }

    /// Parses received bytes; returns whether all are consumed and more are needed.
    fn parse(&mut self) -> bool {
        while self.stage == Stage::Talking && self.out.len() < HANDSHAKE_BYTES {
            let step = self.session.on_bytes(&self.received, &mut self.out);
            self.received.drain(..step.consumed);
            match step.event {
                Event::Continue => {}
                Event::NeedMore => return true,
                Event::Asked(export) => self.stage = Stage::Asks { export },
                Event::StartTls => self.stage = Stage::AcceptsTls,
                Event::Opened(_) => self.stage = Stage::Opened,
                Event::Closed | Event::Broken(_) => self.stage = Stage::Ended,
                Event::Request(_) | Event::Payload { .. } => {
                    unreachable!("requests come after an export is open")
                }
            }
        }
        false
    }

    /// Receives bytes; `None` if the connection has ended or the client sends too much.
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

    /// Begins TLS after the ACK of STARTTLS is sent.
    fn accept_tls(&mut self, socket: &Socket) -> Progress {
        // Bytes that came before the ACK were not sent by a client that waits for it.
        if self.sent_bytes == 0 && !matches!(socket.receive_now(&mut [0]), Ok(None)) {
            return Progress::Over;
        }
        match self.send(socket) {
            Err(_) => return Progress::Over,
            Ok(true) => return Progress::WaitsFor(PollFlags::OUT),
            Ok(false) => {}
        }
        let config = self.tls.as_ref().expect("the session offers TLS only with a configuration");
        if socket.start_tls(config).is_err() {
            return Progress::Over;
        }
        self.stage = Stage::ShakesTls;
        Progress::WaitsFor(PollFlags::IN)
    }

    fn shake_tls(&mut self, socket: &Socket) -> Progress {
        match socket.shake() {
            Ok(Shake::WaitsForInput) => Progress::WaitsFor(PollFlags::IN),
            Ok(Shake::WaitsForOutput) => Progress::WaitsFor(PollFlags::OUT),
            Ok(Shake::Done) => {
                self.stage = Stage::Talking;
                // The first options may have come with the end of TLS's handshake.
                Progress::WaitsFor(PollFlags::IN | PollFlags::OUT)
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                say_refused(&error);
                Progress::Over
            }
            Err(_) => Progress::Over,
        }
    }

    /// Sends replies to earlier options; then the client waits for the export.
    fn send_before_the_answer(&mut self, socket: &Socket) -> Progress {
        match self.send(socket) {
            Err(_) => Progress::Over,
            Ok(true) => Progress::WaitsFor(PollFlags::OUT),
            Ok(false) => Progress::Asks,
        }
    }

    /// Sends pending replies; returns whether the client must read first.
    fn send(&mut self, socket: &Socket) -> std::io::Result<bool> {
        self.sent_bytes += socket.send_now(&self.out[self.sent_bytes..])?;
        if self.sent_bytes < self.out.len() || socket.has_unsent() {
            return Ok(true);
        }
        self.out.clear();
        self.sent_bytes = 0;
        Ok(false)
    }
}

/// Reports a failure of TLS, at most once a second: clients without a certificate can cause many.
fn say_refused(error: &std::io::Error) {
    static SAID: Mutex<Option<Instant>> = Mutex::new(None);
    let now = Instant::now();
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.is_none_or(|said| now.duration_since(said) >= Duration::from_secs(1)) {
        *said = Some(now);
        log::Event::new(log::Kind::ClientRefused).say(format_args!("a client is refused: {error}"));
    }
}

impl Conversation for Handshake {
    const LEAVES_WITH: PollFlags = PollFlags::RDHUP;

    /// Receives at most one piece and sends at most one buffer of replies, so that other clients do
    /// not wait long.
    fn go_on(&mut self, socket: &Socket) -> Progress {
        match self.stage {
            Stage::AcceptsTls => return self.accept_tls(socket),
            Stage::ShakesTls => return self.shake_tls(socket),
            Stage::Asks { .. } => return self.send_before_the_answer(socket),
            Stage::Talking | Stage::Opened | Stage::Ended => {}
        }
        // Options that were received before the answer come first.
        let has_bytes = std::mem::take(&mut self.is_answered);
        if self.out.is_empty() && !has_bytes && self.receive(socket).is_none() {
            return Progress::Over;
        }
        let needs_more = self.parse();
        match self.stage {
            Stage::Opened => return Progress::Complete,
            Stage::AcceptsTls => return self.accept_tls(socket),
            Stage::Asks { .. } => return self.send_before_the_answer(socket),
            Stage::ShakesTls | Stage::Talking | Stage::Ended => {}
        }
        match self.send(socket) {
            Err(_) => Progress::Over,
            Ok(true) => Progress::WaitsFor(PollFlags::OUT),
            Ok(false) if self.stage == Stage::Ended => {
                socket.end_tls();
                Progress::Over
            }
            Ok(false) if needs_more && !socket.has_received() => Progress::WaitsFor(PollFlags::IN),
            // Unparsed options remain, because there was no room for their replies, or received
            // bytes of TLS.
            Ok(false) => Progress::WaitsFor(PollFlags::IN | PollFlags::OUT),
        }
    }

    fn time_is_up(&mut self) -> Progress {
        Progress::Over
    }
}
