//! The answer to BLOCK_STATUS for `base:allocation`: extents, merged, split and limited.
//!
//! The world gives its knowledge as a list of [`Extent`]s from the request's offset on, of any
//! length and fragmentation. This file enforces the rules of the wire: at least one extent, none of
//! length 0, never past the request (with or without REQ_ONE), neighbours merged, lengths that fit
//! their field, a limited number.

use alloc::vec::Vec;

use super::reply::{Answered, ChunkHead, ReplyMode};
use super::request::Request;
use super::wire::*;

/// Greatest number of extents in one reply. The specification's limit is 2^20. 2^16 keep a reply
/// below 1 MiB, and a client can ask again from the end of the reply.
const EXTENTS_MAX: usize = 1 << 16;

/// Longest extent in the 32-bit form: below 2^32, and a multiple of every valid minimum block (64
/// KiB). A longer extent is split.
const COMPACT_EXTENT_MAX_BYTES: u64 = (u32::MAX as u64) & !0xffff;

/// Id of `base:allocation`. Any number would do except 0, which is LIST's answer.
pub(super) const ALLOCATION_ID: u32 = 1;

/// A range of the export in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length; the range starts where the one before ended.
    pub len_bytes: u64,
    /// Not allocated: a write may fail for lack of space.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

impl Extent {
    /// The unknown state: maybe allocated, content unknown.
    pub const fn unknown(len_bytes: u64) -> Self {
        Self { len_bytes, hole: false, zero: false }
    }

    fn flags(self) -> u32 {
        (if self.hole { STATE_HOLE } else { 0 }) | (if self.zero { STATE_ZERO } else { 0 })
    }

    fn joins(self, other: Self) -> bool {
        self.hole == other.hole && self.zero == other.zero
    }
}

/// Limits of one reply.
struct Form {
    mode: ReplyMode,
    extent_max_bytes: u64,
    count_max: usize,
}

impl Form {
    fn new(mode: ReplyMode, request: &Request, payload_max_bytes: u32) -> Self {
        let (descriptor_bytes, extent_max_bytes) = match mode {
            ReplyMode::Extended => (16, u64::MAX),
            _ => (8, COMPACT_EXTENT_MAX_BYTES),
        };
        // The variable part of a chunk is subject to the advertised payload limit too.
        let fits = payload_max_bytes as usize / descriptor_bytes;
        let count_max = if request.req_one { 1 } else { fits.clamp(1, EXTENTS_MAX) };
        Self { mode, extent_max_bytes, count_max }
    }

    fn kind(&self) -> u16 {
        match self.mode {
            ReplyMode::Extended => REPLY_TYPE_BLOCK_STATUS_EXT,
            _ => REPLY_TYPE_BLOCK_STATUS,
        }
    }

    fn put_descriptor(&self, extent: Extent, out: &mut Vec<u8>) {
        if self.mode == ReplyMode::Extended {
            out.put64(extent.len_bytes);
            out.put64(u64::from(extent.flags()));
        } else {
            out.put32(u32::try_from(extent.len_bytes).expect("cut to the 32-bit limit"));
            out.put32(extent.flags());
        }
    }
}

/// Appends the single chunk of the reply. Not for simple replies.
pub(super) fn put_block_status(
    mode: ReplyMode,
    request: &Request,
    extents: &[Extent],
    payload_max_bytes: u32,
    out: &mut Vec<u8>,
) {
    let form = Form::new(mode, request, payload_max_bytes);
    let mut count = 0;
    // The header contains the length, so the descriptors are counted first.
    for_each_descriptor(&form, request, extents, |_| count += 1);
    assert!(count > 0 && count <= EXTENTS_MAX);
    let count = count as u32;
    let len_bytes = if mode == ReplyMode::Extended { 8 + 16 * count } else { 4 + 8 * count };
    let head = ChunkHead { kind: form.kind(), done: true, len_bytes };
    mode.put_chunk_head(Answered::from(request), head, out);
    out.put32(ALLOCATION_ID);
    if mode == ReplyMode::Extended {
        out.put32(count);
    }
    for_each_descriptor(&form, request, extents, |extent| form.put_descriptor(extent, out));
}

/// Iterates over the descriptors of the reply. Without extents the state is unknown, which is
/// always a true answer.
fn for_each_descriptor(
    form: &Form,
    request: &Request,
    extents: &[Extent],
    mut emit: impl FnMut(Extent),
) {
    let mut left_bytes = request.len_bytes;
    let mut left_count = form.count_max;
    let mut known = extents.iter().filter(|extent| extent.len_bytes > 0).peekable();
    if known.peek().is_none() {
        cut(form, Extent::unknown(left_bytes), &mut left_count, &mut emit);
        return;
    }
    while left_bytes > 0 && left_count > 0 {
        let Some(&first) = known.next() else { return };
        let mut extent = first;
        while let Some(next) = known.next_if(|next| next.joins(first)) {
            extent.len_bytes = extent.len_bytes.saturating_add(next.len_bytes);
        }
        extent.len_bytes = extent.len_bytes.min(left_bytes);
        left_bytes -= extent.len_bytes;
        cut(form, extent, &mut left_count, &mut emit);
    }
}

/// Splits one extent into valid descriptors, until `left_count` is used up.
fn cut(form: &Form, extent: Extent, left_count: &mut usize, emit: &mut impl FnMut(Extent)) {
    let mut left_bytes = extent.len_bytes;
    while left_bytes > 0 && *left_count > 0 {
        let len_bytes = left_bytes.min(form.extent_max_bytes);
        emit(Extent { len_bytes, ..extent });
        left_bytes -= len_bytes;
        *left_count -= 1;
    }
}
