//! Replies of the transmission phase, in the three forms that a client can negotiate.
//!
//! ```text
//!   simple       magic error cookie                            | payload of a READ
//!   structured   magic flags type cookie length                | payload: one chunk of several
//!   extended     magic flags type cookie offset length(64 bit) | the same chunks
//! ```
//!
//! A reply in chunks ends with the chunk that carries DONE, and DONE must not be sent while an
//! error is still possible. So the header of a piece is requested when its data is available
//! ([`ReadChunk`]). A READ with DF in several pieces under a single header gets a separate closing
//! chunk.

use alloc::vec::Vec;

use super::request::{Command, Errno, Request};
use super::wire::*;

/// Greatest length of the header of a piece of a READ.
pub const READ_HEADER_MAX: usize = 48;

/// Length of the header of a structured chunk, and of an extended one.
const STRUCTURED_HEADER_BYTES: usize = 20;
const EXTENDED_HEADER_BYTES: usize = 32;

/// A piece of a READ's data: a non-empty range within the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadChunk {
    /// The READ.
    pub request: Request,
    /// Start of the piece, counted from the start of the export.
    pub offset_bytes: u64,
    /// Length of the piece.
    pub len_bytes: u64,
    /// Whether this is the first piece of the request.
    pub first: bool,
    /// Whether this is the last piece of the request.
    pub last: bool,
}

/// Rules for the pieces of a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// One header for all pieces: without gaps, in the order of their offsets, without other
    /// replies between.
    Ordered,
    /// A header for each piece: in any order, with other replies between.
    Chunks,
}

/// Consequence of a failed READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a reply that cannot be finished leaves only the disconnect"]
pub enum ReadFailure {
    /// An error reply was sent; the request has ended, and nothing more may be sent for it.
    Replied,
    /// The announced data cannot be sent: disconnect.
    MustDisconnect,
}

/// The negotiated form of replies; each is an extension of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyMode {
    /// Error, cookie and for a READ all of its data.
    Simple,
    /// Replies are made of chunks; errors have a place and a message, holes need no data.
    Structured,
    /// Replies in chunks, with lengths of 64 bits in requests and replies.
    Extended,
}

/// The request of a reply; also a request that was refused before it became a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) cookie: u64,
    /// Offset field of the request; extended replies repeat it.
    pub(super) offset_bytes: u64,
}

impl From<&Request> for Answered {
    #[inline]
    fn from(request: &Request) -> Self {
        Self { cookie: request.cookie, offset_bytes: request.offset_bytes }
    }
}

/// Header fields that depend on the chunk's kind.
#[derive(Clone, Copy)]
pub(super) struct ChunkHead {
    pub(super) kind: u16,
    pub(super) done: bool,
    /// Length of the payload: limited by one reply, so 32 bits suffice in both forms.
    pub(super) len_bytes: u32,
}

impl ReplyMode {
    /// The reply without data: success, or an error with its message.
    #[inline]
    pub(super) fn put_reply(self, to: Answered, error: Option<Errno>, out: &mut Vec<u8>) {
        match (self, error) {
            (Self::Simple, None) => out.extend_from_slice(&simple_reply(to, 0)),
            (_, None) => {
                let head = ChunkHead { kind: REPLY_TYPE_NONE, done: true, len_bytes: 0 };
                self.put_chunk_head(to, head, out);
            }
            (_, Some(errno)) => self.put_error(to, errno, errno.text(), out),
        }
    }

    /// Appends an error with its message, which ends the reply.
    #[cold]
    pub(super) fn put_error(self, to: Answered, errno: Errno, text: &str, out: &mut Vec<u8>) {
        if self == Self::Simple {
            out.extend_from_slice(&simple_reply(to, errno.code()));
        } else {
            self.put_error_head(to, REPLY_TYPE_ERROR, 0, text, out);
            put_error_body(errno, text, out);
        }
    }

    /// Appends an error with its offset, which ends the reply. Only for replies in chunks.
    fn put_error_at(self, to: Answered, errno: Errno, at_bytes: u64, out: &mut Vec<u8>) {
        let text = errno.text();
        self.put_error_head(to, REPLY_TYPE_ERROR_OFFSET, 8, text, out);
        put_error_body(errno, text, out);
        out.put64(at_bytes);
    }

    fn put_error_head(self, to: Answered, kind: u16, tail: u32, text: &str, out: &mut Vec<u8>) {
        assert!(text.len() <= STRING_MAX_BYTES);
        let len_bytes = 4 + 2 + text.len() as u32 + tail;
        self.put_chunk_head(to, ChunkHead { kind, done: true, len_bytes }, out);
    }

    /// Appends the header of a chunk. Not for simple replies.
    #[inline]
    pub(super) fn put_chunk_head(self, to: Answered, head: ChunkHead, out: &mut Vec<u8>) {
        match self {
            Self::Extended => out.extend_from_slice(&extended_head(to, head)),
            _ => out.extend_from_slice(&structured_head(to, head)),
        }
    }

    /// See [`super::Session::read_header`].
    #[inline]
    pub(super) fn read_header(self, chunk: &ReadChunk, out: &mut [u8; READ_HEADER_MAX]) -> usize {
        check_chunk(chunk);
        let request = &chunk.request;
        let to = Answered::from(request);
        if self.pieces(request) == Pieces::Ordered && !chunk.first {
            return 0;
        }
        // An ordered reply announces all of its data in the first piece.
        let (offset_bytes, len_bytes) = match self.pieces(request) {
            Pieces::Ordered => (request.offset_bytes, request.len_bytes),
            Pieces::Chunks => (chunk.offset_bytes, chunk.len_bytes),
        };
        let done = chunk.last;
        let len_bytes = u32::try_from(len_bytes + 8).expect("a READ is limited to fit its chunk");
        let head = ChunkHead { kind: REPLY_TYPE_OFFSET_DATA, done, len_bytes };
        let header_bytes = match self {
            Self::Simple => {
                out[..16].copy_from_slice(&simple_reply(to, 0));
                return 16;
            }
            Self::Structured => {
                let header = structured_head(to, head);
                out[..STRUCTURED_HEADER_BYTES].copy_from_slice(&header);
                STRUCTURED_HEADER_BYTES
            }
            Self::Extended => {
                out[..EXTENDED_HEADER_BYTES].copy_from_slice(&extended_head(to, head));
                EXTENDED_HEADER_BYTES
            }
        };
        out[header_bytes..header_bytes + 8].copy_from_slice(&offset_bytes.to_be_bytes());
        header_bytes + 8
    }

    /// See [`super::Session::read_trailer`].
    #[inline]
    pub(super) fn read_trailer(self, chunk: &ReadChunk, out: &mut Vec<u8>) {
        let ordered = self.pieces(&chunk.request) == Pieces::Ordered;
        if self != Self::Simple && ordered && chunk.last && !chunk.first {
            self.put_reply(Answered::from(&chunk.request), None, out);
        }
    }

    /// See [`super::Session::reply_zero_hole`].
    pub(super) fn put_hole(self, chunk: &ReadChunk, out: &mut Vec<u8>) -> bool {
        check_chunk(chunk);
        if self.pieces(&chunk.request) == Pieces::Ordered {
            return false;
        }
        let len_bytes = u32::try_from(chunk.len_bytes).expect("a READ is limited to fit its chunk");
        let head = ChunkHead { kind: REPLY_TYPE_OFFSET_HOLE, done: chunk.last, len_bytes: 12 };
        self.put_chunk_head(Answered::from(&chunk.request), head, out);
        out.put64(chunk.offset_bytes);
        out.put32(len_bytes);
        true
    }

    /// See [`super::Session::read_failed`].
    pub(super) fn read_failed(
        self,
        request: &Request,
        at_bytes: u64,
        started: bool,
        error: Errno,
        out: &mut Vec<u8>,
    ) -> ReadFailure {
        if started && self.pieces(request) == Pieces::Ordered {
            return ReadFailure::MustDisconnect;
        }
        let to = Answered::from(request);
        if self == Self::Simple {
            self.put_error(to, error, error.text(), out);
        } else {
            let last_bytes = request.offset_bytes + (request.len_bytes - 1);
            self.put_error_at(to, error, at_bytes.clamp(request.offset_bytes, last_bytes), out);
        }
        ReadFailure::Replied
    }

    /// See [`super::Session::pieces_allowed`].
    #[inline]
    pub(super) fn pieces(self, request: &Request) -> Pieces {
        if self == Self::Simple || request.dont_fragment { Pieces::Ordered } else { Pieces::Chunks }
    }
}

/// Panics on a piece outside its request, which would put the stream out of step.
#[inline]
fn check_chunk(chunk: &ReadChunk) {
    let request = &chunk.request;
    assert_eq!(request.command, Command::Read);
    assert!(chunk.len_bytes > 0 && chunk.len_bytes <= request.len_bytes);
    let start_bytes = chunk.offset_bytes.wrapping_sub(request.offset_bytes);
    assert!(start_bytes <= request.len_bytes - chunk.len_bytes);
}

fn put_error_body(errno: Errno, text: &str, out: &mut Vec<u8>) {
    out.put32(errno.code());
    out.put16(text.len() as u16);
    out.extend_from_slice(text.as_bytes());
}

#[inline]
fn simple_reply(to: Answered, error: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&to.cookie.to_be_bytes());
    bytes
}

#[inline]
fn structured_head(to: Answered, head: ChunkHead) -> [u8; STRUCTURED_HEADER_BYTES] {
    let mut bytes = [0; STRUCTURED_HEADER_BYTES];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&head.flags().to_be_bytes());
    bytes[6..8].copy_from_slice(&head.kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&to.cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&head.len_bytes.to_be_bytes());
    bytes
}

#[inline]
fn extended_head(to: Answered, head: ChunkHead) -> [u8; EXTENDED_HEADER_BYTES] {
    let mut bytes = [0; EXTENDED_HEADER_BYTES];
    bytes[..4].copy_from_slice(&EXTENDED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&head.flags().to_be_bytes());
    bytes[6..8].copy_from_slice(&head.kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&to.cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&to.offset_bytes.to_be_bytes());
    bytes[24..].copy_from_slice(&u64::from(head.len_bytes).to_be_bytes());
    bytes
}

impl ChunkHead {
    #[inline]
    fn flags(self) -> u16 {
        if self.done { REPLY_FLAG_DONE } else { 0 }
    }
}
