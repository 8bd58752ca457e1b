//! What a caller asks for: [`Request`], how it looks on the wire, and [`Refusal`], why it does not
//! go there.

use alloc::vec::Vec;
use core::ops::Range;

use crate::nbd::reply::ReplyMode;
use crate::nbd::request::Command;
use crate::nbd::wire::*;

/// One request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// Where.
    pub offset_bytes: u64,
    /// How much; 0 for FLUSH only.
    pub len_bytes: u64,
    /// WRITE, TRIM, WRITE_ZEROES: on stable storage before the reply.
    pub fua: bool,
    /// WRITE_ZEROES: the range must stay allocated.
    pub no_hole: bool,
    /// WRITE_ZEROES: an error at once rather than zeroes that are written slowly.
    pub fast_zero: bool,
    /// BLOCK_STATUS: one extent only.
    pub req_one: bool,
}

/// Why a request was not sent. Nothing has happened; other requests may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No slot is free: submit it again after a request is done.
    #[error("as many requests are in flight as the session was made for")]
    Busy,
    /// The handshake is not over, or the connection is.
    #[error("the connection is not open for requests")]
    NotOpen,
    /// [`super::Session::disconnect`] was called, or the server said ESHUTDOWN.
    #[error("the connection is about to end: it takes no new requests")]
    Closing,
    /// A WRITE, TRIM or WRITE_ZEROES.
    #[error("the export is read-only")]
    ReadOnly,
    /// The server does not offer this command or flag for the export.
    #[error("the server does not offer {0} for this export")]
    NotOffered(&'static str),
    /// A flag that the protocol does not know for this command.
    #[error("the flag {0} does not belong to this command")]
    Flag(&'static str),
    /// The range does not lie within the export.
    #[error("the range reaches past the end of the export")]
    Range,
    /// The server would refuse it.
    #[error("the range is not a multiple of the export's minimum block, {0} bytes")]
    Unaligned(u32),
    /// Split it: [`super::Remote::len_max_bytes`].
    #[error("the request is longer than the {0} bytes that one may have")]
    TooLong(u64),
    /// What a server does with a range of no bytes is not specified.
    #[error("the range is empty")]
    Empty,
}

impl Request {
    /// All that was answered before must be on stable storage.
    pub const FLUSH: Self = Self::new(Command::Flush, 0..0);

    /// A request without flags for these bytes of the export.
    pub const fn new(command: Command, bytes: Range<u64>) -> Self {
        Self {
            command,
            offset_bytes: bytes.start,
            len_bytes: bytes.end.saturating_sub(bytes.start),
            fua: false,
            no_hole: false,
            fast_zero: false,
            req_one: false,
        }
    }

    /// Appends the header; the payload of a WRITE has to follow it.
    pub(super) fn put_header(&self, mode: ReplyMode, cookie: u64, out: &mut Vec<u8>) {
        let extended = mode == ReplyMode::Extended;
        let payload = extended && self.command == Command::Write;
        let when = |condition: bool, flag: u16| if condition { flag } else { 0 };
        out.put32(if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC });
        out.put16(
            when(self.fua, CMD_FLAG_FUA)
                | when(self.no_hole, CMD_FLAG_NO_HOLE)
                | when(self.fast_zero, CMD_FLAG_FAST_ZERO)
                | when(self.req_one, CMD_FLAG_REQ_ONE)
                | when(payload, CMD_FLAG_PAYLOAD_LEN),
        );
        out.put16(self.command.code());
        out.put64(cookie);
        out.put64(self.offset_bytes);
        if extended {
            out.put64(self.len_bytes);
        } else {
            out.put32(u32::try_from(self.len_bytes).expect("limited when it was admitted"));
        }
    }
}

/// Appends the goodbye, which has no reply.
pub(super) fn put_disconnect(mode: ReplyMode, out: &mut Vec<u8>) {
    let extended = mode == ReplyMode::Extended;
    out.put32(if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC });
    out.put16(0);
    out.put16(CMD_DISC);
    // Cookie, offset and length: 28 bytes in all, or 32.
    out.extend_from_slice(&[0; 24][..if extended { 24 } else { 20 }]);
}
