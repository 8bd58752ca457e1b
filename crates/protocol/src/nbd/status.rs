//! The answer to BLOCK_STATUS for `base:allocation`: extents, joined, cut and counted.
//!
//! The world says what it knows as a list of [`Extent`]s from the request's offset on, as short,
//! long or fragmented as it came. Each rule of the wire is kept here: at least one extent, none of
//! length 0, never past the request (with or without REQ_ONE), neighbours joined, lengths that fit
//! their field, a bounded count.

use alloc::vec::Vec;

use super::reply::{Answered, ChunkHead, ReplyMode};
use super::request::Request;
use super::wire::*;

/// Most extents in one reply. The specification's limit is 2^20; 2^16 keep a reply below 1 MiB, and
/// a client that wants to know more asks again from where the reply ended.
const EXTENTS_MAX: usize = 1 << 16;

/// Longest extent in the 32-bit form: below 2^32, and still a multiple of every block size that an
/// export may demand (64 KiB). A longer one is told as several.
const COMPACT_EXTENT_MAX_BYTES: u64 = (u32::MAX as u64) & !0xffff;

/// The id that `base:allocation` gets; any number would do, but 0 is what LIST answers.
pub(super) const ALLOCATION_ID: u32 = 1;

/// A range of the export that is all in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length; it starts where the one before ended.
    pub len_bytes: u64,
    /// Nothing is allocated for it: writing may fail for want of space.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

impl Extent {
    /// What is always true: allocated for all we know, content unknown.
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

/// What limits one reply.
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
        // The variable part of a chunk may not exceed the advertised payload limit either.
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

/// Appends the one chunk of the reply. Not for simple replies.
pub(super) fn put_block_status(
    mode: ReplyMode,
    request: &Request,
    extents: &[Extent],
    payload_max_bytes: u32,
    out: &mut Vec<u8>,
) {
    let form = Form::new(mode, request, payload_max_bytes);
    let mut count = 0;
    // The header tells the length, so the descriptors are counted before they are written.
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

/// Walks the descriptors that go on the wire. A world that knows nothing gives no extents; then the
/// state is unknown, which is always a true answer.
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

/// Emits one extent as descriptors that are short enough, while any are left.
fn cut(form: &Form, extent: Extent, left_count: &mut usize, emit: &mut impl FnMut(Extent)) {
    let mut left_bytes = extent.len_bytes;
    while left_bytes > 0 && *left_count > 0 {
        let len_bytes = left_bytes.min(form.extent_max_bytes);
        emit(Extent { len_bytes, ..extent });
        left_bytes -= len_bytes;
        *left_count -= 1;
    }
}
