//! The client's end: encoders for its messages, and [`Peer`], which drives a session with them.

use std::sync::Arc;

use blockyard_protocol::nbd::{
    Command, Event, Export, Pieces, READ_HEADER_MAX, ReadChunk, Request, Session, Step, Violation,
};

pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;

pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const LIST: u32 = 3;
pub(crate) const PEEK_EXPORT: u32 = 4;
pub(crate) const STARTTLS: u32 = 5;
pub(crate) const INFO: u32 = 6;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED_REPLY: u32 = 8;
pub(crate) const LIST_META: u32 = 9;
pub(crate) const SET_META: u32 = 10;
pub(crate) const EXTENDED_HEADERS: u32 = 11;

pub(crate) const ACK: u32 = 1;
pub(crate) const SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const META_CONTEXT: u32 = 4;
pub(crate) const ERR_UNSUP: u32 = 0x8000_0001;
pub(crate) const ERR_INVALID: u32 = 0x8000_0003;
pub(crate) const ERR_UNKNOWN: u32 = 0x8000_0006;
pub(crate) const ERR_TOO_BIG: u32 = 0x8000_0009;
pub(crate) const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const DF: u16 = 4;
pub(crate) const REQ_ONE: u16 = 8;
pub(crate) const FAST_ZERO: u16 = 16;
pub(crate) const PAYLOAD_LEN: u16 = 32;

/// Form of requests and replies after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Simple,
    Structured,
    Extended,
}

pub(crate) const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// The 4 bytes of a modern client.
pub(crate) fn client_flags() -> Vec<u8> {
    vec![0, 0, 0, 3]
}

pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = option_header(number, data.len() as u32);
    bytes.extend_from_slice(data);
    bytes
}

pub(crate) fn option_header(number: u32, len: u32) -> Vec<u8> {
    let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(text);
    bytes
}

/// The data of INFO and GO.
pub(crate) fn info_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut bytes = string(name.as_bytes());
    bytes.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    for info in infos {
        bytes.extend_from_slice(&info.to_be_bytes());
    }
    bytes
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub(crate) fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string(name.as_bytes());
    bytes.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        bytes.extend_from_slice(&string(query.as_bytes()));
    }
    bytes
}

/// A request header, without payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) command: u16,
    pub(crate) flags: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Ask {
    pub(crate) fn new(command: u16, offset: u64, len: u64) -> Self {
        Self { command, flags: 0, cookie: 0x1122_3344_5566_7788, offset, len }
    }

    pub(crate) fn flags(self, flags: u16) -> Self {
        Self { flags, ..self }
    }

    pub(crate) fn cookie(self, cookie: u64) -> Self {
        Self { cookie, ..self }
    }

    /// The encoded header; a WRITE has PAYLOAD_LEN where it is mandatory.
    pub(crate) fn bytes(self, mode: Mode) -> Vec<u8> {
        let write = mode == Mode::Extended && self.command == WRITE;
        self.flags(self.flags | if write { PAYLOAD_LEN } else { 0 }).raw(mode)
    }

    /// The encoded header without changes.
    pub(crate) fn raw(self, mode: Mode) -> Vec<u8> {
        let magic: u32 = if mode == Mode::Extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.flags.to_be_bytes());
        bytes.extend_from_slice(&self.command.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        if mode == Mode::Extended {
            bytes.extend_from_slice(&self.len.to_be_bytes());
        } else {
            let len = u32::try_from(self.len).expect("a compact request has a 32-bit length");
            bytes.extend_from_slice(&len.to_be_bytes());
        }
        bytes
    }
}

/// Output of a session; adjacent payload pieces of one request are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionOutput {
    StartTls,
    Opened(usize),
    Request(Request),
    Payload { offset: u64, data: Vec<u8>, last: bool },
    Closed,
    Broken(Violation),
}

/// Drives one session and checks the contract of `on_bytes` at each step.
pub(crate) struct Peer {
    pub(crate) session: Session,
    /// Bytes to send that the test has not examined.
    pub(crate) out: Vec<u8>,
    pub(crate) seen: Vec<SessionOutput>,
    received: Vec<u8>,
    /// Disk on which requests are executed, if present.
    pub(crate) disk: Option<Vec<u8>>,
    current: Option<Request>,
    /// Closed exports that the client has asked for.
    pub(crate) asked: Vec<usize>,
    /// Answers to the next ones, from the last to the first; then they are refused.
    pub(crate) opens: Vec<Export>,
}

pub(crate) fn small_export() -> Export {
    let mut export = Export::new("disk", 1 << 20);
    export.can_trim = true;
    export.can_fast_zero = true;
    export
}

pub(crate) fn serve(exports: Vec<Export>) -> Peer {
    Peer::new(exports, Some(0))
}

/// A session in transmission on `export`, with `base:allocation` where the mode allows it.
pub(crate) fn opened(export: Export, mode: Mode) -> Peer {
    opened_asking(export, mode, &[])
}

/// A session in transmission for a client with these information requests.
pub(crate) fn opened_asking(export: Export, mode: Mode, kinds: &[u16]) -> Peer {
    let name = export.name.clone();
    let mut peer = serve(vec![export]);
    peer.feed(&client_flags());
    match mode {
        Mode::Simple => {}
        Mode::Structured => peer.feed(&option(STRUCTURED_REPLY, &[])),
        Mode::Extended => peer.feed(&option(EXTENDED_HEADERS, &[])),
    }
    if mode != Mode::Simple {
        peer.feed(&option(SET_META, &meta_data(&name, &["base:allocation"])));
    }
    peer.feed(&option(GO, &info_data(&name, kinds)));
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(0)]);
    peer.out.clear();
    peer
}

impl Peer {
    pub(crate) fn new(exports: Vec<Export>, default: Option<usize>) -> Self {
        Self {
            session: Session::new(Arc::from(exports), default),
            out: Vec::new(),
            seen: Vec::new(),
            received: Vec::new(),
            disk: None,
            current: None,
            asked: Vec::new(),
            opens: Vec::new(),
        }
    }

    /// A session after the client flags.
    pub(crate) fn haggling(exports: Vec<Export>) -> Self {
        let mut peer = serve(exports);
        peer.feed(&client_flags());
        peer
    }

    /// Passes the bytes in one piece, after the unconsumed rest.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        let received = std::mem::take(&mut self.received);
        let mut at = 0;
        loop {
            let Step { consumed, event } = self.session.on_bytes(&received[at..], &mut self.out);
            let taken = &received[at..at + consumed];
            at += consumed;
            match event {
                Event::NeedMore => {
                    assert_eq!(consumed, 0, "what is not enough is not consumed");
                    break;
                }
                Event::Closed => break self.seen.push(SessionOutput::Closed),
                Event::Broken(violation) => break self.seen.push(SessionOutput::Broken(violation)),
                Event::Asked(index) => {
                    self.asked.push(index);
                    match self.opens.pop() {
                        Some(export) => self.session.opened(index, export),
                        None => self.session.refused(index),
                    }
                }
                _ => assert!(consumed > 0, "no progress without bytes: {event:?}"),
            }
            self.on_event(event, taken);
        }
        self.received = received[at..].to_vec();
        assert!(self.received.len() < 64 << 10, "never asks for more than 64 KiB in one piece");
    }

    fn on_event(&mut self, event: Event, taken: &[u8]) {
        match event {
            Event::StartTls => self.seen.push(SessionOutput::StartTls),
            Event::Opened(index) => {
                assert!(self.session.is_transmission());
                assert_eq!(self.session.export(), Some(index));
                self.seen.push(SessionOutput::Opened(index));
            }
            Event::Request(request) => {
                self.seen.push(SessionOutput::Request(request));
                if request.command == Command::Write {
                    assert!(self.current.replace(request).is_none());
                } else if self.disk.is_some() {
                    self.execute(&request);
                }
            }
            Event::Payload { offset_bytes, len_bytes, last } => {
                assert_eq!(taken.len(), len_bytes);
                self.on_payload(offset_bytes, taken, last);
            }
            _ => {}
        }
    }

    fn on_payload(&mut self, offset: u64, data: &[u8], last: bool) {
        let request = self.current.expect("payload belongs to a write");
        if let Some(disk) = &mut self.disk {
            disk[offset as usize..][..data.len()].copy_from_slice(data);
        }
        match self.seen.last_mut() {
            Some(SessionOutput::Payload { offset: start, data: all, last: end }) if !*end => {
                assert_eq!(*start + all.len() as u64, offset, "pieces follow each other");
                all.extend_from_slice(data);
                *end = last;
            }
            _ => self.seen.push(SessionOutput::Payload { offset, data: data.to_vec(), last }),
        }
        if last {
            self.current = None;
            if self.disk.is_some() {
                self.session.reply(&request, None, &mut self.out);
            }
        }
    }

    /// Executes a request as a simple world; reads are sent in pieces of 1000 bytes.
    fn execute(&mut self, request: &Request) {
        let start = request.offset_bytes as usize;
        let end = start + request.len_bytes as usize;
        let disk = self.disk.as_mut().expect("only called with a disk");
        match request.command {
            Command::Read => {
                let data = disk[start..end].to_vec();
                self.send_data(request, &data);
            }
            Command::WriteZeroes | Command::Trim => {
                disk[start..end].fill(0);
                self.session.reply(request, None, &mut self.out);
            }
            Command::BlockStatus => self.session.block_status(request, &[], &[], &mut self.out),
            _ => self.session.reply(request, None, &mut self.out),
        }
    }

    pub(crate) fn send_data(&mut self, request: &Request, data: &[u8]) {
        let mut header = [0; READ_HEADER_MAX];
        let count = data.len().div_ceil(1000);
        for (index, piece) in data.chunks(1000).enumerate() {
            let chunk = ReadChunk {
                request: *request,
                offset_bytes: request.offset_bytes + 1000 * index as u64,
                len_bytes: piece.len() as u64,
                first: index == 0,
                last: index + 1 == count,
            };
            let header_bytes = self.session.read_header(&chunk, &mut header);
            if index > 0 && self.session.pieces_allowed(request) == Pieces::Ordered {
                assert_eq!(header_bytes, 0);
            }
            self.out.extend_from_slice(&header[..header_bytes]);
            self.out.extend_from_slice(piece);
            self.session.read_trailer(&chunk, &mut self.out);
        }
    }

    pub(crate) fn take_seen(&mut self) -> Vec<SessionOutput> {
        std::mem::take(&mut self.seen)
    }

    pub(crate) fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Sends one request and returns its single event.
    pub(crate) fn request(&mut self, bytes: &[u8]) -> Request {
        self.feed(bytes);
        match self.take_seen()[..] {
            [SessionOutput::Request(request)] => request,
            ref other => panic!("expected a request, got {other:?}, sent {:02x?}", self.out),
        }
    }

    /// Sends an option and returns type and data of each reply.
    pub(crate) fn haggle(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.out.clear();
        self.feed(&option(number, data));
        option_replies(number, &self.take_out())
    }

    /// Like [`Self::haggle`], for options that have a single reply.
    pub(crate) fn haggle_one(&mut self, number: u32, data: &[u8]) -> u32 {
        match &self.haggle(number, data)[..] {
            [(kind, _)] => *kind,
            other => panic!("expected one reply, got {other:?}"),
        }
    }
}

/// Parses option replies; all must answer `number`.
pub(crate) fn option_replies(number: u32, mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        assert_eq!(be32(&bytes[8..]), number);
        let kind = be32(&bytes[12..]);
        let end = 20 + be32(&bytes[16..]) as usize;
        replies.push((kind, bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    replies
}

/// A reply of the transmission phase, in any form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) done: bool,
    /// Chunk type; 0 for simple replies.
    pub(crate) kind: u16,
    /// Error of a simple reply.
    pub(crate) error: u32,
    pub(crate) payload: Vec<u8>,
}

/// Parses replies. Not for simple replies with data.
pub(crate) fn replies(mut bytes: &[u8]) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let (header, len) = match be32(bytes) {
            0x6744_6698 => (16, 0),
            0x668e_33ef => (20, be32(&bytes[16..]) as usize),
            0x6e8a_278c => (32, be64(&bytes[24..]) as usize),
            other => panic!("no reply begins with {other:#x}"),
        };
        let simple = header == 16;
        let flags = u16::from_be_bytes([bytes[4], bytes[5]]);
        assert!(simple || flags < 2, "unknown reply flags");
        replies.push(Reply {
            cookie: be64(&bytes[8..]),
            done: simple || flags == 1,
            kind: if simple { 0 } else { u16::from_be_bytes([bytes[6], bytes[7]]) },
            error: if simple { be32(&bytes[4..]) } else { 0 },
            payload: bytes[header..header + len].to_vec(),
        });
        bytes = &bytes[header + len..];
    }
    replies
}

/// The error number of a single reply that is an error, in any form.
pub(crate) fn error_of(bytes: &[u8]) -> u32 {
    match &replies(bytes)[..] {
        [reply] if reply.kind & 0x8000 != 0 => {
            assert!(reply.done);
            let text_len = u16::from_be_bytes([reply.payload[4], reply.payload[5]]);
            assert!(text_len > 0, "an error says why");
            be32(&reply.payload)
        }
        [reply] => reply.error,
        other => panic!("expected one reply, got {other:?}"),
    }
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

pub(crate) fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}
