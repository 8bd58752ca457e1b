//! One connection: [`Session`].
//!
//! A session has two phases with a state machine each, `handshake` and `transmission`. This file is
//! what a world sees of them: bytes in, [`Event`]s out, and the calls that encode replies.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::export::{Export, Exports};
use super::handshake::{Handshake, Progress};
use super::reply::{Answered, Pieces, READ_HEADER_MAX, ReadChunk, ReadFailure, ReplyMode};
use super::request::{Errno, Request};
use super::status::{Extent, put_block_status};
use super::transmission::Transmission;
use super::wire::*;

/// What [`Session::on_bytes`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the consumed bytes must not be passed again"]
pub struct Step {
    /// How many of the bytes are done with. The rest must be passed again, with more behind.
    pub consumed: usize,
    /// What happened.
    pub event: Event,
}

impl Step {
    pub(super) const NEED_MORE: Self = Self { consumed: 0, event: Event::NeedMore };
}

/// What happened on a connection. Every event but `NeedMore`, `Closed` and `Broken` consumed at
/// least one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The bytes are not enough for anything: receive more. At most 64 KiB in the handshake, and 44
    /// bytes or one alignment unit of payload later, have to lie in one piece.
    NeedMore,
    /// The handshake went on, or a request was answered here: call again.
    Continue,
    /// The transmission phase begins, on the export with this index.
    Opened(usize),
    /// A request to execute. For a WRITE, its `Payload` events follow.
    Request(Request),
    /// A piece of the current WRITE's payload: the first `len_bytes` of what was passed, which were
    /// consumed.
    Payload {
        /// Where it belongs, counted from the start of the export.
        offset_bytes: u64,
        /// Its length.
        len_bytes: usize,
        /// The WRITE is complete: it wants its reply.
        last: bool,
    },
    /// The client said goodbye: answer what is in flight, then disconnect.
    Closed,
    /// The client cannot be talked to: send what was written, then drop it.
    Broken(Violation),
}

/// What a client did that leaves only the disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Unknown client flags: the specification demands the disconnect.
    #[error("client flags {0:#010x} were not offered: the client must set only bits 0 and 1")]
    ClientFlags(u32),
    /// A client without fixed newstyle can be given nothing but EXPORT_NAME.
    #[error("option {0} needs fixed newstyle: the client must set client flag bit 0")]
    NotFixedNewstyle(u32),
    /// The stream is not NBD, or out of step.
    #[error("wrong magic number {0:#018x} in front of an option")]
    OptionMagic(u64),
    /// Option data beyond what is worth reading.
    #[error("option {option} has {len_bytes} bytes of data, more than this server will read")]
    OptionTooLong {
        /// The option's number.
        option: u32,
        /// The length it announced.
        len_bytes: u32,
    },
    /// Haggling without end.
    #[error("too many options on one connection")]
    TooManyOptions,
    /// EXPORT_NAME has no way to say no.
    #[error("EXPORT_NAME asked for an export that does not exist")]
    UnknownExport,
    /// EXPORT_NAME after extended headers, which the specification forbids.
    #[error("EXPORT_NAME after EXTENDED_HEADERS: the client must use GO")]
    ExportNameAfterExtended,
    /// The stream is out of step.
    #[error("wrong magic number {0:#010x} in front of a request")]
    RequestMagic(u32),
    /// A payload beyond what is worth reading.
    #[error("a request has {0} bytes of payload, more than this server will read")]
    PayloadTooLong(u64),
}

/// How payload is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// A power of two.
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
    /// A session for a new connection. `default_export` is opened by clients that give no name.
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
            exports: Exports { list: exports, default: default_export },
            phase: Phase::Handshake(Handshake::new()),
            piece: Piece { align_bytes: 1, max_bytes: usize::MAX },
        }
    }

    /// Appends the server's first bytes, which are sent before anything is received.
    pub fn greeting(&self, out: &mut Vec<u8>) {
        out.put64(INIT_MAGIC);
        out.put64(OPTION_MAGIC);
        out.put16(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    }

    /// How the payload of writes is cut: pieces end on multiples of `align_bytes` (a power of two),
    /// counted from the start of the export, unless they end a request; and none is longer than
    /// `max_bytes`. At first: as it comes. May change between any two calls.
    ///
    /// # Panics
    ///
    /// If `align_bytes` is not a power of two or does not fit into `max_bytes`.
    pub fn set_piece(&mut self, align_bytes: usize, max_bytes: usize) {
        assert!(align_bytes.is_power_of_two());
        assert!(max_bytes >= align_bytes);
        self.piece = Piece { align_bytes, max_bytes };
    }

    /// Takes a prefix of `bytes`, appends to `out` what must be sent, and tells what happened.
    ///
    /// To be called again, with what was not consumed, until it says [`Event::NeedMore`]. One call
    /// answers at most one option or request, but a client that never reads can make many of them:
    /// when `out` has grown long, send it before the next call. After
    /// [`Event::Closed`] or [`Event::Broken`] it says the same for ever, but replies to requests
    /// that are still in flight can be encoded.
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
            Progress::Step(step) => step,
            Progress::Open { consumed, opening } => {
                let export = &self.exports.list[opening.export];
                self.phase = Phase::Transmission(Transmission::new(export, opening));
                Step { consumed, event: Event::Opened(opening.export) }
            }
        }
    }

    /// Whether options are over and requests come.
    pub fn is_transmission(&self) -> bool {
        matches!(self.phase, Phase::Transmission(_))
    }

    /// The index of the export that was opened.
    pub fn export(&self) -> Option<usize> {
        match &self.phase {
            Phase::Transmission(transmission) => Some(transmission.opening.export),
            Phase::Handshake(_) => None,
        }
    }

    /// Appends the reply to a request that carries no data: anything but a successful READ or
    /// BLOCK_STATUS. A READ that failed is better served by [`Self::read_failed`].
    #[inline]
    pub fn reply(&self, request: &Request, error: Option<Errno>, out: &mut Vec<u8>) {
        self.mode().put_reply(Answered::from(request), error, out);
    }

    /// How the pieces of this READ may be sent.
    #[inline]
    pub fn pieces_allowed(&self, request: &Request) -> Pieces {
        self.mode().pieces(request)
    }

    /// Writes what must be sent right before the data of a piece, and returns its length, which is
    /// 0 for the later pieces of an ordered reply. The data of the piece must have been read: its
    /// success is promised here.
    ///
    /// # Panics
    ///
    /// If the piece is empty or not within its READ.
    #[inline]
    pub fn read_header(&self, chunk: &ReadChunk, out: &mut [u8; READ_HEADER_MAX]) -> usize {
        self.mode().read_header(chunk, out)
    }

    /// Appends what must be sent right after the data of a piece: nothing, except for the last of
    /// several pieces of a READ with DF. Their one header was sent while a later piece could still
    /// fail, so it was not allowed to end the reply.
    #[inline]
    pub fn read_trailer(&self, chunk: &ReadChunk, out: &mut Vec<u8>) {
        self.mode().read_trailer(chunk, out);
    }

    /// Appends the whole answer for a piece that reads as zeroes, without data. Returns false, and
    /// appends nothing, if the zeroes have to be sent ([`Pieces::Ordered`]).
    ///
    /// # Panics
    ///
    /// If the piece is empty or not within its READ.
    pub fn reply_zero_hole(&self, chunk: &ReadChunk, out: &mut Vec<u8>) -> bool {
        self.mode().put_hole(chunk, out)
    }

    /// Ends a READ that failed at `offset_bytes` (counted from the start of the export), after
    /// something of it was sent (`started`) or not. Once this has replied, no further piece of the
    /// request may be sent.
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

    /// Appends the answer to a BLOCK_STATUS: what is known from the request's offset on. Extents
    /// may be of any length and number, and may end before or after the request does; of none, the
    /// client learns that the state is unknown.
    ///
    /// # Panics
    ///
    /// If the request is not one that this session handed out.
    pub fn block_status(&self, request: &Request, extents: &[Extent], out: &mut Vec<u8>) {
        let Phase::Transmission(transmission) = &self.phase else {
            panic!("a block status belongs to the transmission phase");
        };
        assert!(transmission.opening.allocation, "no context was negotiated");
        let limit = transmission.chunk_max_bytes;
        put_block_status(self.mode(), request, extents, limit, out);
    }

    #[inline]
    fn mode(&self) -> ReplyMode {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.opening.mode,
            Phase::Handshake(handshake) => handshake.mode(),
        }
    }
}
