//! One connection: [`Session`].
//!
//! A session has two phases with a state machine each, `handshake` and `transmission`. This file is
//! the public interface for a world: bytes in, [`Event`]s out, and calls that encode replies.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::export::{Availability, Export, Exports, Looked};
use super::handshake::{Handshake, Progress, Security};
use super::reply::{Answered, Pieces, READ_HEADER_MAX, ReadChunk, ReadFailure, ReplyMode};
use super::request::{Contexts, Errno, Request};
use super::status::{DirtyExtent, Extent, put_block_status};
use super::transmission::Transmission;
use super::wire::*;

/// Result of [`Session::on_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the consumed bytes must not be passed again"]
pub struct Step {
    /// Number of consumed bytes. The rest must be passed again, with later bytes appended.
    pub consumed: usize,
    /// The event.
    pub event: Event,
}

impl Step {
    pub(super) const NEED_MORE: Self = Self { consumed: 0, event: Event::NeedMore };
}

/// An event on a connection. Every event but `NeedMore`, `Asked`, `Closed` and `Broken` consumed at
/// least one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are necessary: receive. At most 64 KiB in the handshake, and 48 bytes or one
    /// alignment unit of payload later, must be passed in one piece.
    NeedMore,
    /// Progress without a result, or a request answered by the session: call again.
    Continue,
    /// The client starts TLS: send the written bytes, then perform a TLS handshake. All later bytes
    /// must come out of TLS. Bytes that arrived before the end of sending break the protocol.
    StartTls,
    /// A client asks for the closed export with this index: call [`Session::opened`] or
    /// [`Session::refused`], then [`Session::on_bytes`] again.
    Asked(usize),
    /// The transmission phase begins, on the export with this index.
    Opened(usize),
    /// A request to execute. `Payload` events follow a WRITE.
    Request(Request),
    /// A piece of the current WRITE's payload: the first `len_bytes` of the passed bytes, which
    /// were consumed.
    Payload {
        /// Offset from the start of the export.
        offset_bytes: u64,
        /// Its length.
        len_bytes: usize,
        /// Whether the WRITE is complete and needs its reply.
        last: bool,
    },
    /// The client sent DISC: answer the requests in flight, then disconnect.
    Closed,
    /// The client violated the protocol: send the written bytes, then disconnect.
    Broken(Violation),
}

/// A client's violation of the protocol, after which the server must disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Unknown client flags: the specification demands a disconnect.
    #[error("client flags {0:#010x} were not offered: the client must set only bits 0 and 1")]
    ClientFlags(u32),
    /// An option other than EXPORT_NAME from a client without fixed newstyle.
    #[error("option {0} needs fixed newstyle: the client must set client flag bit 0")]
    NotFixedNewstyle(u32),
    /// Wrong magic of an option: not NBD, or the stream is out of step.
    #[error("wrong magic number {0:#018x} before an option")]
    OptionMagic(u64),
    /// Option data above the limit.
    #[error("option {option} has {len_bytes} bytes of data, above this server's limit")]
    OptionTooLong {
        /// The option's number.
        option: u32,
        /// Announced length.
        len_bytes: u32,
    },
    /// More options than the limit.
    #[error("too many options on one connection")]
    TooManyOptions,
    /// EXPORT_NAME of an unknown export: the option has no error reply.
    #[error("EXPORT_NAME asked for an export that does not exist")]
    UnknownExport,
    /// EXPORT_NAME of an export that does not open: the option has no error reply.
    #[error("EXPORT_NAME asked for an export that cannot be opened")]
    ExportNotAvailable,
    /// EXPORT_NAME after extended headers, which the specification forbids.
    #[error("EXPORT_NAME after EXTENDED_HEADERS: the client must use GO")]
    ExportNameAfterExtended,
    /// EXPORT_NAME without TLS: the option has no error reply.
    #[error("EXPORT_NAME without TLS, which this server requires")]
    ExportNameWithoutTls,
    /// Bytes behind STARTTLS, which would enter the protected stream in the clear.
    #[error("bytes after STARTTLS and before its answer")]
    BytesBehindStartTls,
    /// Wrong magic of a request: the stream is out of step.
    #[error("wrong magic number {0:#010x} before a request")]
    RequestMagic(u32),
    /// A payload above the limit.
    #[error("a request has {0} bytes of payload, above this server's limit")]
    PayloadTooLong(u64),
}

/// Use of TLS by a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// No TLS.
    #[default]
    Off,
    /// A client may start TLS.
    On,
    /// A client must start TLS before it can do anything else.
    Require,
}

/// Rule for splitting payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Alignment of the ends of pieces, a power of two.
    pub(super) align_bytes: usize,
    pub(super) max_bytes: usize,
}

/// The server's end of one connection.
#[derive(Debug)]
pub struct Session {
    exports: Exports,
    phase: Phase,
    piece: Piece,
}

#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    Transmission(Transmission),
}

impl Session {
    /// Creates a session for a new connection. Clients that give no name get `default_export`.
    ///
    /// # Panics
    ///
    /// If an export does not pass [`Export::check`], or the default does not exist.
    pub fn new(exports: Arc<[Export]>, default_export: Option<usize>) -> Self {
        for export in exports.iter() {
            assert_eq!(export.check(), Ok(()), "exports are checked before they are served");
        }
        assert!(default_export.is_none_or(|index| index < exports.len()));
        Self {
            exports: Exports { list: exports, default: default_export, answered: None },
            phase: Phase::Handshake(Handshake::new()),
            piece: Piece { align_bytes: 1, max_bytes: usize::MAX },
        }
    }

    /// Sets the use of TLS, before the first byte is passed. The default is none.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        if let Phase::Handshake(handshake) = &mut self.phase {
            handshake.security = match tls {
                Tls::Off => Security::NoTls,
                Tls::On => Security::Offered,
                Tls::Require => Security::Required,
            };
        }
        self
    }

    /// Appends the server's greeting, which is sent before anything is received.
    pub fn greeting(&self, out: &mut Vec<u8>) {
        out.put64(INIT_MAGIC);
        out.put64(OPTION_MAGIC);
        out.put16(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    }

    /// Sets the rule for splitting write payload. A piece ends on a multiple of `align_bytes` (a
    /// power of two) from the start of the export, or at the end of its request, and has at most
    /// `max_bytes`. The default is no rule. The rule may change between any two calls.
    ///
    /// # Panics
    ///
    /// If `align_bytes` is not a power of two or exceeds `max_bytes`.
    pub fn set_piece(&mut self, align_bytes: usize, max_bytes: usize) {
        assert!(align_bytes.is_power_of_two());
        assert!(max_bytes >= align_bytes);
        self.piece = Piece { align_bytes, max_bytes };
    }

    /// Takes a prefix of `bytes`, appends bytes for the client to `out`, and returns an event.
    ///
    /// Call it again with the unconsumed rest until it returns [`Event::NeedMore`]. One call
    /// answers at most one option or request, but a client that never reads can make many of them:
    /// when `out` has grown long, send it before the next call. After [`Event::Closed`] or
    /// [`Event::Broken`] it returns the same event forever, but replies to requests in flight can
    /// still be encoded.
    #[inline]
    pub fn on_bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Step {
        match &mut self.phase {
            Phase::Transmission(transmission) => transmission.on_bytes(bytes, self.piece, out),
            Phase::Handshake(_) => self.on_handshake_bytes(bytes, out),
        }
    }

    #[cold]
    fn on_handshake_bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Step {
        let Phase::Handshake(handshake) = &mut self.phase else { return Step::NEED_MORE };
        match handshake.on_bytes(&self.exports, bytes, out) {
            Progress::Step(step) => {
                // An answer is for the option that has asked.
                if !matches!(step.event, Event::Asked(_) | Event::NeedMore) {
                    self.exports.answered = None;
                }
                step
            }
            Progress::Open { consumed, opening } => {
                let index = opening.export;
                let Looked::Up(export) = self.exports.look_up(index) else {
                    unreachable!("the handshake has described it");
                };
                self.phase = Phase::Transmission(Transmission::new(export, opening));
                Step { consumed, event: Event::Opened(index) }
            }
        }
    }

    /// Describes a closed export that the client has asked for, as it is now. The next option that
    /// names it asks again.
    ///
    /// # Panics
    ///
    /// If the export does not pass [`Export::check`].
    pub fn opened(&mut self, index: usize, export: Export) {
        assert_eq!(export.check(), Ok(()), "exports are checked before they are served");
        self.exports.answered = Some((index, Availability::Opened(export)));
    }

    /// Refuses a closed export that the client has asked for. The next option that names it asks
    /// again.
    pub fn refused(&mut self, index: usize) {
        self.exports.answered = Some((index, Availability::Refused));
    }

    /// Whether the session is in the transmission phase.
    pub fn is_transmission(&self) -> bool {
        matches!(self.phase, Phase::Transmission(_))
    }

    /// Index of the open export.
    pub fn export(&self) -> Option<usize> {
        match &self.phase {
            Phase::Transmission(transmission) => Some(transmission.opening.export),
            Phase::Handshake(_) => None,
        }
    }

    /// Appends a reply without data: for all requests but a successful READ or BLOCK_STATUS. For a
    /// failed READ, [`Self::read_failed`] gives more information.
    #[inline]
    pub fn reply(&self, request: &Request, error: Option<Errno>, out: &mut Vec<u8>) {
        self.mode().put_reply(Answered::from(request), error, out);
    }

    /// The rules for the pieces of this READ.
    #[inline]
    pub fn pieces_allowed(&self, request: &Request) -> Pieces {
        self.mode().pieces(request)
    }

    /// Writes the bytes to send right before the data of a piece, and returns their number, which
    /// is 0 for the later pieces of an ordered reply. The data must be available: the header
    /// promises success.
    ///
    /// # Panics
    ///
    /// If the piece is empty or not within its READ.
    #[inline]
    pub fn read_header(&self, chunk: &ReadChunk, out: &mut [u8; READ_HEADER_MAX]) -> usize {
        self.mode().read_header(chunk, out)
    }

    /// Appends the bytes to send right after the data of a piece. There are none, except after the
    /// last of several pieces of a READ with DF: their one header was sent while a later piece
    /// could still fail, so it could not end the reply.
    #[inline]
    pub fn read_trailer(&self, chunk: &ReadChunk, out: &mut Vec<u8>) {
        self.mode().read_trailer(chunk, out);
    }

    /// Appends the whole answer for a piece of zeroes, without data. Returns false, and appends
    /// nothing, if the zeroes must be sent ([`Pieces::Ordered`]).
    ///
    /// # Panics
    ///
    /// If the piece is empty or not within its READ.
    pub fn reply_zero_hole(&self, chunk: &ReadChunk, out: &mut Vec<u8>) -> bool {
        self.mode().put_hole(chunk, out)
    }

    /// Ends a READ that failed at `offset_bytes` (from the start of the export). `started`: a piece
    /// was sent before. After the error reply no further piece of the request may be sent.
    pub fn read_failed(
        &self,
        request: &Request,
        offset_bytes: u64,
        started: bool,
        error: Errno,
        out: &mut Vec<u8>,
    ) -> ReadFailure {
        self.mode().read_failed(request, offset_bytes, started, error, out)
    }

    /// Appends the answer to a BLOCK_STATUS: the known state from the request's offset on, for each
    /// of its [`Request::contexts`]. Extents may have any length and number, and may end before or
    /// after the request does. Without extents the client learns that the allocation is unknown,
    /// and that the range is dirty.
    ///
    /// # Panics
    ///
    /// If the request was not returned by this session.
    pub fn block_status(
        &self,
        request: &Request,
        extents: &[Extent],
        dirty: &[DirtyExtent],
        out: &mut Vec<u8>,
    ) {
        let Phase::Transmission(transmission) = &self.phase else {
            panic!("a block status belongs to the transmission phase");
        };
        assert!(request.contexts != Contexts::NONE, "no context was negotiated");
        let limit = transmission.chunk_max_bytes;
        put_block_status(self.mode(), request, (extents, dirty), limit, out);
    }

    #[inline]
    fn mode(&self) -> ReplyMode {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.opening.mode,
            Phase::Handshake(handshake) => handshake.mode(),
        }
    }
}
