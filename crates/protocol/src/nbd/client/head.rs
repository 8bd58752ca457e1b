//! The header of a reply, in the three forms. Its fields are checked here, except those that need
//! the chunk's own fields.

use super::failure::Violation;
use super::request::Request;
use crate::nbd::reply::ReplyMode;
use crate::nbd::request::Command;
use crate::nbd::wire::*;

const SIMPLE_BYTES: usize = 16;
const STRUCTURED_BYTES: usize = 20;
const EXTENDED_BYTES: usize = 32;

/// Most extents in one chunk, the specification's recommendation to servers.
const EXTENTS_MAX: u64 = 1 << 20;

/// Longest error chunk: 18 bytes, a message of up to 4096, and room for fields of later kinds. Our
/// choice.
const ERROR_MAX_BYTES: u64 = 8192;

/// A reply header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Simple { error: u32, cookie: u64 },
    Chunk(Chunk),
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) kind: u16,
    pub(super) done: bool,
    pub(super) cookie: u64,
    /// Offset of the request; in extended replies only.
    pub(super) offset_bytes: Option<u64>,
    /// Length of the payload.
    pub(super) len_bytes: u64,
}

impl Head {
    /// Parses a header and returns its length; `None` if bytes are missing. A wrong magic is an
    /// error even in an incomplete header.
    #[inline]
    pub(super) fn parse(mode: ReplyMode, bytes: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        let Some(magic) = bytes.first_chunk::<4>() else { return Ok(None) };
        Ok(match (be32(magic, 0), mode) {
            (SIMPLE_REPLY_MAGIC, ReplyMode::Simple | ReplyMode::Structured) => {
                bytes.first_chunk().map(|head| (Self::simple(head), SIMPLE_BYTES))
            }
            (STRUCTURED_REPLY_MAGIC, ReplyMode::Structured) => {
                bytes.first_chunk().map(|head| (Self::structured(head), STRUCTURED_BYTES))
            }
            (EXTENDED_REPLY_MAGIC, ReplyMode::Extended) => {
                bytes.first_chunk().map(|head| (Self::extended(head), EXTENDED_BYTES))
            }
            (magic, _) => return Err(Violation::ReplyMagic(magic)),
        })
    }

    fn simple(head: &[u8; SIMPLE_BYTES]) -> Self {
        Self::Simple { error: be32(head, 4), cookie: be64(head, 8) }
    }

    #[inline]
    fn structured(head: &[u8; STRUCTURED_BYTES]) -> Self {
        Self::Chunk(Chunk {
            kind: be16(head, 6),
            done: be16(head, 4) & REPLY_FLAG_DONE != 0,
            cookie: be64(head, 8),
            offset_bytes: None,
            len_bytes: u64::from(be32(head, 16)),
        })
    }

    #[inline]
    fn extended(head: &[u8; EXTENDED_BYTES]) -> Self {
        Self::Chunk(Chunk {
            kind: be16(head, 6),
            done: be16(head, 4) & REPLY_FLAG_DONE != 0,
            cookie: be64(head, 8),
            offset_bytes: Some(be64(head, 16)),
            len_bytes: be64(head, 24),
        })
    }
}

impl Chunk {
    /// Checks that the chunk's type and length are valid for the request.
    #[inline]
    pub(super) fn check(&self, mode: ReplyMode, request: &Request) -> Result<(), Violation> {
        let Self { kind, len_bytes, .. } = *self;
        if let Some(offset_bytes) = self.offset_bytes
            && offset_bytes != request.offset_bytes
        {
            return Err(Violation::ReplyOffset(offset_bytes));
        }
        let descriptors_ok = |fixed_bytes: u64, each_bytes: u64| {
            let room = len_bytes.saturating_sub(fixed_bytes);
            (1..=EXTENTS_MAX * each_bytes).contains(&room) && room.is_multiple_of(each_bytes)
        };
        let len_ok = match (kind, request.command) {
            (REPLY_TYPE_NONE, _) if !self.done => return Err(Violation::NoneWithoutDone),
            (REPLY_TYPE_NONE, _) => len_bytes == 0,
            (REPLY_TYPE_OFFSET_DATA, Command::Read) => {
                len_bytes > 8 && len_bytes - 8 <= request.len_bytes
            }
            (REPLY_TYPE_OFFSET_HOLE, Command::Read) => len_bytes == 12,
            (REPLY_TYPE_BLOCK_STATUS, Command::BlockStatus) if mode == ReplyMode::Structured => {
                descriptors_ok(4, 8)
            }
            (REPLY_TYPE_BLOCK_STATUS_EXT, Command::BlockStatus) if mode == ReplyMode::Extended => {
                descriptors_ok(8, 16)
            }
            (REPLY_TYPE_ERROR_OFFSET, _) => (14..=ERROR_MAX_BYTES).contains(&len_bytes),
            (kind, _) if kind & REPLY_TYPE_IS_ERROR != 0 => {
                (6..=ERROR_MAX_BYTES).contains(&len_bytes)
            }
            _ => return Err(Violation::ChunkType(kind)),
        };
        if len_ok { Ok(()) } else { Err(Violation::ChunkLen { kind, len_bytes }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a status chunk with this length of payload is accepted.
    fn accepts(mode: ReplyMode, kind: u16, len_bytes: u64) -> bool {
        let request = Request::new(Command::BlockStatus, 0..1 << 40);
        let chunk = Chunk { kind, done: true, cookie: 0, offset_bytes: None, len_bytes };
        chunk.check(mode, &request).is_ok()
    }

    #[test]
    fn status_has_at_most_a_million_extents() {
        for (mode, kind, fixed_bytes, each_bytes) in [
            (ReplyMode::Structured, REPLY_TYPE_BLOCK_STATUS, 4, 8),
            (ReplyMode::Extended, REPLY_TYPE_BLOCK_STATUS_EXT, 8, 16),
        ] {
            let of = |count: u64| accepts(mode, kind, fixed_bytes + count * each_bytes);
            assert!(of(1) && of(1 << 20));
            assert!(!of(0) && !of((1 << 20) + 1));
        }
    }
}
