//! The answer to BLOCK_STATUS: a chunk for each context, with extents, merged, split and limited.
//!
//! The world gives its knowledge as a list of [`Extent`]s for `base:allocation`, and of
//! [`DirtyExtent`]s for the dirty bitmap, from the request's offset on, of any
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

/// Id of the dirty bitmap.
pub(super) const DIRTY_ID: u32 = 2;

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

    fn run(self) -> Run {
        let hole = if self.hole { STATE_HOLE } else { 0 };
        let zero = if self.zero { STATE_ZERO } else { 0 };
        Run { len_bytes: self.len_bytes, flags: hole | zero }
    }
}

/// A range of the export that is clean or dirty as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyExtent {
    /// Length; the range starts where the one before ended.
    pub len_bytes: u64,
    /// It may have changed since the last backup.
    pub is_dirty: bool,
}

impl DirtyExtent {
    fn run(self) -> Run {
        Run { len_bytes: self.len_bytes, flags: if self.is_dirty { STATE_DIRTY } else { 0 } }
    }
}

/// A range with its flags on the wire.
#[derive(Clone, Copy)]
struct Run {
    len_bytes: u64,
    flags: u32,
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

    fn put_descriptor(&self, run: Run, out: &mut Vec<u8>) {
        if self.mode == ReplyMode::Extended {
            out.put64(run.len_bytes);
            out.put64(u64::from(run.flags));
        } else {
            out.put32(u32::try_from(run.len_bytes).expect("cut to the 32-bit limit"));
            out.put32(run.flags);
        }
    }
}

/// Appends the chunks of the reply, one for each context. Not for simple replies.
pub(super) fn put_block_status(
    mode: ReplyMode,
    request: &Request,
    (extents, dirty): (&[Extent], &[DirtyExtent]),
    payload_max_bytes: u32,
    out: &mut Vec<u8>,
) {
    let form = Form::new(mode, request, payload_max_bytes);
    let contexts = request.contexts;
    if contexts.allocation {
        let context = Context { id: ALLOCATION_ID, unknown: 0, is_last: !contexts.dirty };
        put_chunk(&form, request, context, extents.iter().map(|extent| extent.run()), out);
    }
    if contexts.dirty {
        let context = Context { id: DIRTY_ID, unknown: STATE_DIRTY, is_last: true };
        put_chunk(&form, request, context, dirty.iter().map(|extent| extent.run()), out);
    }
}

/// A context in a reply.
#[derive(Clone, Copy)]
struct Context {
    id: u32,
    /// Flags of the unknown state, which is always a true answer.
    unknown: u32,
    is_last: bool,
}

fn put_chunk(
    form: &Form,
    request: &Request,
    context: Context,
    runs: impl Iterator<Item = Run> + Clone,
    out: &mut Vec<u8>,
) {
    let mode = form.mode;
    let mut count = 0;
    // The header contains the length, so the descriptors are counted first.
    for_each_descriptor(form, request, context, runs.clone(), |_| count += 1);
    assert!(count > 0 && count <= EXTENTS_MAX);
    let count = count as u32;
    let len_bytes = if mode == ReplyMode::Extended { 8 + 16 * count } else { 4 + 8 * count };
    let head = ChunkHead { kind: form.kind(), done: context.is_last, len_bytes };
    mode.put_chunk_head(Answered::from(request), head, out);
    out.put32(context.id);
    if mode == ReplyMode::Extended {
        out.put32(count);
    }
    for_each_descriptor(form, request, context, runs, |run| form.put_descriptor(run, out));
}

/// Iterates over the descriptors of a chunk. Without runs the state is unknown.
fn for_each_descriptor(
    form: &Form,
    request: &Request,
    context: Context,
    runs: impl Iterator<Item = Run>,
    mut emit: impl FnMut(Run),
) {
    let mut left_bytes = request.len_bytes;
    let mut left_count = form.count_max;
    let mut known = runs.filter(|run| run.len_bytes > 0).peekable();
    if known.peek().is_none() {
        let unknown = Run { len_bytes: left_bytes, flags: context.unknown };
        cut(form, unknown, &mut left_count, &mut emit);
        return;
    }
    while left_bytes > 0 && left_count > 0 {
        let Some(first) = known.next() else { return };
        let mut run = first;
        while let Some(next) = known.next_if(|next| next.flags == first.flags) {
            run.len_bytes = run.len_bytes.saturating_add(next.len_bytes);
        }
        run.len_bytes = run.len_bytes.min(left_bytes);
        left_bytes -= run.len_bytes;
        cut(form, run, &mut left_count, &mut emit);
    }
}

/// Splits one run into valid descriptors, until `left_count` is used up.
fn cut(form: &Form, run: Run, left_count: &mut usize, emit: &mut impl FnMut(Run)) {
    let mut left_bytes = run.len_bytes;
    while left_bytes > 0 && *left_count > 0 {
        let len_bytes = left_bytes.min(form.extent_max_bytes);
        emit(Run { len_bytes, ..run });
        left_bytes -= len_bytes;
        *left_count -= 1;
    }
}
