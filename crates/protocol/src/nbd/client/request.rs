//! A caller's request: [`Request`], its encoding, and [`Refusal`], the reason why it is not sent.

use alloc::vec::Vec;
use core::ops::Range;

use crate::nbd::reply::ReplyMode;
use crate::nbd::request::Command;
use crate::nbd::wire::*;

/// One request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Command.
    pub command: Command,
    /// First byte.
    pub offset_bytes: u64,
    /// Length; 0 for FLUSH only.
    pub len_bytes: u64,
    /// WRITE, TRIM, WRITE_ZEROES: data on stable storage before the reply.
    pub fua: bool,
    /// WRITE_ZEROES: the range must stay allocated.
    pub no_hole: bool,
    /// WRITE_ZEROES: fail at once rather than write zeroes slowly.
    pub fast_zero: bool,
    /// BLOCK_STATUS: return one extent only.
    pub req_one: bool,
}

/// The reason why a request was not sent. The session is unchanged; other requests may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No slot is free: submit the request again after another one is done.
    #[error("the greatest number of requests is in flight")]
    Busy,
    /// The handshake has not ended, or the connection has.
    #[error("the connection is not open for requests")]
    NotOpen,
    /// [`super::Session::disconnect`] was called, or the server replied ESHUTDOWN.
    #[error("the connection is closing and takes no new requests")]
    Closing,
    /// A WRITE, TRIM or WRITE_ZEROES to a read-only export.
    #[error("the export is read-only")]
    ReadOnly,
    /// The server does not offer this command or flag for the export.
    #[error("the server does not offer {0} for this export")]
    NotOffered(&'static str),
    /// A flag that is not valid for this command.
    #[error("the flag {0} is not valid for this command")]
    Flag(&'static str),
    /// The range does not lie within the export.
    #[error("the range reaches past the end of the export")]
    Range,
    /// The range is not a multiple of the minimum block.
    #[error("the range is not a multiple of the export's minimum block, {0} bytes")]
    Unaligned(u32),
    /// The request is too long; split it: [`super::Remote::len_max_bytes`].
    #[error("the request is longer than {0} bytes")]
    TooLong(u64),
    /// The range is empty, which the specification leaves undefined.
    #[error("the range is empty")]
    Empty,
}

impl Request {
    /// A flush: all acknowledged writes must be on stable storage.
    pub const FLUSH: Self = Self::new(Command::Flush, 0..0);

    /// A request without flags for this range of the export.
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

    /// Appends the header; the payload of a WRITE must follow it.
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

/// Appends DISC, which has no reply.
pub(super) fn put_disconnect(mode: ReplyMode, out: &mut Vec<u8>) {
    let extended = mode == ReplyMode::Extended;
    out.put32(if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC });
    out.put16(0);
    out.put16(CMD_DISC);
    // Cookie, offset and length: 28 bytes in all, or 32.
    out.extend_from_slice(&[0; 24][..if extended { 24 } else { 20 }]);
}
