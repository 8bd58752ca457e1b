//! The server's end: encoders for its messages, and [`Client`], which drives a session with them.

use blockyard_protocol::nbd::client::{
    Cookie, Event, Failure, Piece, Request, Session, Settings, Step, Violation,
};
use blockyard_protocol::nbd::{Errno, Extent, ReplyMode};

pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const STARTTLS: u32 = 5;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED_REPLY: u32 = 8;
pub(crate) const SET_META: u32 = 10;
pub(crate) const EXTENDED_HEADERS: u32 = 11;

pub(crate) const ACK: u32 = 1;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const META_CONTEXT: u32 = 4;
pub(crate) const ERR_UNSUP: u32 = 0x8000_0001;
pub(crate) const ERR_POLICY: u32 = 0x8000_0002;
pub(crate) const ERR_INVALID: u32 = 0x8000_0003;
pub(crate) const ERR_TLS_REQD: u32 = 0x8000_0005;
pub(crate) const ERR_UNKNOWN: u32 = 0x8000_0006;
pub(crate) const ERR_SHUTDOWN: u32 = 0x8000_0007;

pub(crate) const NONE: u16 = 0;
pub(crate) const DATA: u16 = 1;
pub(crate) const HOLE: u16 = 2;
pub(crate) const STATUS: u16 = 5;
pub(crate) const STATUS_EXT: u16 = 6;
pub(crate) const ERROR: u16 = 0x8001;
pub(crate) const ERROR_OFFSET: u16 = 0x8002;

pub(crate) const MODES: [ReplyMode; 3] =
    [ReplyMode::Simple, ReplyMode::Structured, ReplyMode::Extended];
pub(crate) const CHUNKS: [ReplyMode; 2] = [ReplyMode::Structured, ReplyMode::Extended];

/// Flags of an export with all features: 0x1fff without READ_ONLY and RESIZE.
pub(crate) const EVERYTHING: u16 = 0x1dfd;
/// Size of the export that [`opened`] opens.
pub(crate) const SIZE: u64 = 8 << 30;
/// The server's id of `base:allocation`.
pub(crate) const CONTEXT: u32 = 0xc0de;

/// A modern server's greeting.
pub(crate) fn greeting() -> Vec<u8> {
    b"NBDMAGICIHAVEOPT\0\x03".to_vec()
}

pub(crate) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = option_reply_header(option, kind, data.len() as u32);
    bytes.extend_from_slice(data);
    bytes
}

pub(crate) fn option_reply_header(option: u32, kind: u32, len: u32) -> Vec<u8> {
    let mut bytes = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
    for number in [option, kind, len] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// The mandatory information in reply to GO.
pub(crate) fn info_export(size: u64, flags: u16) -> Vec<u8> {
    let data = [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
    option_reply(GO, REP_INFO, &data)
}

pub(crate) fn info_block_size(sizes: [u32; 3]) -> Vec<u8> {
    let mut data = vec![0, 3];
    data.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
    option_reply(GO, REP_INFO, &data)
}

pub(crate) fn meta_context(id: u32, name: &[u8]) -> Vec<u8> {
    option_reply(SET_META, META_CONTEXT, &[&id.to_be_bytes(), name].concat())
}

pub(crate) fn simple(cookie: u64, error: u32) -> Vec<u8> {
    let mut bytes = 0x6744_6698_u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&error.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes
}

/// A sent request, identified as in its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) mode: ReplyMode,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
}

impl Sent {
    /// One chunk with its payload.
    pub(crate) fn chunk(self, done: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = self.header(done, kind, payload.len() as u64);
        bytes.extend_from_slice(payload);
        bytes
    }

    pub(crate) fn header(self, done: bool, kind: u16, len: u64) -> Vec<u8> {
        let extended = self.mode == ReplyMode::Extended;
        let magic: u32 = if extended { 0x6e8a_278c } else { 0x668e_33ef };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend_from_slice(&u16::from(done).to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        if extended {
            bytes.extend_from_slice(&self.offset.to_be_bytes());
            bytes.extend_from_slice(&len.to_be_bytes());
        } else {
            bytes.extend_from_slice(&(len as u32).to_be_bytes());
        }
        bytes
    }

    pub(crate) fn data(self, done: bool, offset: u64, data: &[u8]) -> Vec<u8> {
        self.chunk(done, DATA, &[&offset.to_be_bytes()[..], data].concat())
    }

    pub(crate) fn hole(self, done: bool, offset: u64, len: u32) -> Vec<u8> {
        self.chunk(done, HOLE, &[&offset.to_be_bytes()[..], &len.to_be_bytes()].concat())
    }

    pub(crate) fn error(self, done: bool, error: u32, text: &[u8]) -> Vec<u8> {
        self.chunk(done, ERROR, &error_body(error, text))
    }

    pub(crate) fn error_at(self, done: bool, error: u32, offset: u64) -> Vec<u8> {
        let body = [error_body(error, b"here").as_slice(), &offset.to_be_bytes()].concat();
        self.chunk(done, ERROR_OFFSET, &body)
    }

    pub(crate) fn none(self) -> Vec<u8> {
        self.chunk(true, NONE, &[])
    }

    /// A status chunk of the kind that belongs to the mode.
    pub(crate) fn status(self, done: bool, context: u32, extents: &[(u64, u64)]) -> Vec<u8> {
        let mut body = context.to_be_bytes().to_vec();
        if self.mode == ReplyMode::Extended {
            body.extend_from_slice(&(extents.len() as u32).to_be_bytes());
            body.extend(
                extents
                    .iter()
                    .flat_map(|(len, flags)| [len.to_be_bytes(), flags.to_be_bytes()].concat()),
            );
            return self.chunk(done, STATUS_EXT, &body);
        }
        body.extend(extents.iter().flat_map(|(len, flags)| {
            [(*len as u32).to_be_bytes(), (*flags as u32).to_be_bytes()].concat()
        }));
        self.chunk(done, STATUS, &body)
    }
}

/// Error, length of the message, message.
pub(crate) fn error_body(error: u32, text: &[u8]) -> Vec<u8> {
    [&error.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text].concat()
}

/// Output of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionOutput {
    StartTls,
    Opened,
    Payload { cookie: Cookie, start: u64, data: Vec<u8> },
    Zeroes { cookie: Cookie, start: u64, len: u64 },
    Extent { cookie: Cookie, extent: Extent },
    Done { cookie: Cookie, result: Result<(), Errno> },
    Broken(Failure),
}

/// Drives one session and checks the contract of `on_bytes` at each step.
pub(crate) struct Client {
    pub(crate) session: Session,
    /// Bytes to send that the test has not examined.
    pub(crate) out: Vec<u8>,
    pub(crate) seen: Vec<SessionOutput>,
    received: Vec<u8>,
    /// Whether the bytes arrive one at a time.
    pub(crate) dribble: bool,
}

impl Client {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            session: Session::new(settings).expect("a short name"),
            out: Vec::new(),
            seen: Vec::new(),
            received: Vec::new(),
            dribble: false,
        }
    }

    /// Passes the bytes after the unconsumed rest.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let at_once = if self.dribble { 1 } else { bytes.len().max(1) };
        for piece in bytes.chunks(at_once) {
            self.received.extend_from_slice(piece);
            self.drain();
        }
    }

    fn drain(&mut self) {
        let received = std::mem::take(&mut self.received);
        let mut at = 0;
        loop {
            let Step { consumed, event } = self.session.on_bytes(&received[at..], &mut self.out);
            let bytes = &received[at..at + consumed];
            at += consumed;
            match event {
                Event::NeedMore => {
                    assert_eq!(consumed, 0);
                    assert!(received.len() - at < 134, "it leaves too much lying about");
                    self.received = received[at..].to_vec();
                    break;
                }
                Event::Broken => {
                    assert_eq!(consumed, 0);
                    let failure = self.session.failure().expect("it broke").clone();
                    if self.seen.last() != Some(&SessionOutput::Broken(failure.clone())) {
                        self.seen.push(SessionOutput::Broken(failure));
                    }
                    break;
                }
                Event::Done { cookie, result } => {
                    self.seen.push(SessionOutput::Done { cookie, result });
                }
                _ => assert!(consumed > 0, "it does not move: {event:?}"),
            }
            match event {
                Event::StartTls => self.seen.push(SessionOutput::StartTls),
                Event::Opened => self.seen.push(SessionOutput::Opened),
                Event::Payload(piece) => self.see_payload(piece, bytes),
                Event::Zeroes(Piece { cookie, start_bytes: start, len_bytes: len }) => {
                    self.seen.push(SessionOutput::Zeroes { cookie, start, len });
                }
                Event::Extent { cookie, extent } => {
                    self.seen.push(SessionOutput::Extent { cookie, extent });
                }
                _ => {}
            }
        }
    }

    /// Joins adjacent pieces.
    fn see_payload(&mut self, piece: Piece, bytes: &[u8]) {
        assert_eq!(piece.len_bytes, bytes.len() as u64);
        if let Some(SessionOutput::Payload { cookie, start, data }) = self.seen.last_mut()
            && *cookie == piece.cookie
            && *start + data.len() as u64 == piece.start_bytes
        {
            data.extend_from_slice(bytes);
            return;
        }
        let Piece { cookie, start_bytes: start, .. } = piece;
        self.seen.push(SessionOutput::Payload { cookie, start, data: bytes.to_vec() });
    }

    pub(crate) fn take_seen(&mut self) -> Vec<SessionOutput> {
        std::mem::take(&mut self.seen)
    }

    pub(crate) fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Submits a request and returns its identity for the reply.
    pub(crate) fn submit(&mut self, request: Request) -> (Cookie, Sent) {
        self.out.clear();
        let cookie = self.session.submit(&request, &mut self.out).expect("it can be sent");
        let mode = self.session.remote().expect("it is open").mode;
        let header = self.take_out();
        let on_wire = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
        (cookie, Sent { mode, cookie: on_wire, offset: request.offset_bytes })
    }

    /// The final failure.
    pub(crate) fn failure(&mut self) -> Failure {
        match self.seen.last() {
            Some(SessionOutput::Broken(failure)) => failure.clone(),
            _ => panic!("it did not fail: {:?}", self.seen),
        }
    }

    pub(crate) fn violation(&mut self) -> Violation {
        match self.failure() {
            Failure::Violation(violation) => violation,
            other => panic!("that is no violation: {other:?}"),
        }
    }
}

pub(crate) fn settings(mode_max: ReplyMode) -> Settings {
    Settings { mode_max, allocation: true, ..Settings::new("disk") }
}

/// All messages of a server until an export of [`SIZE`] bytes is open in this mode.
pub(crate) fn opening(mode: ReplyMode) -> Vec<Vec<u8>> {
    let mut bytes = vec![greeting()];
    match mode {
        ReplyMode::Simple => {}
        ReplyMode::Structured => bytes.push(option_reply(STRUCTURED_REPLY, ACK, &[])),
        ReplyMode::Extended => bytes.push(option_reply(EXTENDED_HEADERS, ACK, &[])),
    }
    if mode != ReplyMode::Simple {
        bytes.push(meta_context(CONTEXT, b"base:allocation"));
        bytes.push(option_reply(SET_META, ACK, &[]));
    }
    bytes.push(info_export(SIZE, EVERYTHING));
    bytes.push(info_block_size([1, 4096, 32 << 20]));
    bytes.push(option_reply(GO, ACK, &[]));
    bytes
}

/// A session in transmission.
pub(crate) fn opened(mode: ReplyMode) -> Client {
    let mut client = Client::new(settings(mode));
    for bytes in opening(mode) {
        client.feed(&bytes);
    }
    assert_eq!(client.take_seen(), [SessionOutput::Opened]);
    client.out.clear();
    client
}
