//! Addresses of the engine's buffer handles.

use std::sync::Arc;

use blockyard_engine::buf::BufRef;
use blockyard_engine::pages::{PAGE_BYTES, Segment};
use blockyard_engine::sq::{Sqe, SqeOp};
use blockyard_engine::stack::Stack;

use crate::memory::{Address, Memory, Piece, Region, ZEROS};
use crate::pages::PagePool;

/// Addresses of one shard's buffer handles.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Bounce slots in order, or pages.
    pub(crate) bounce: Region,
    pub(crate) bounce_slot_bytes: usize,
    /// Bounce memory is in pages.
    pub(crate) has_pages: bool,
    /// Page lists of writes, if bounce memory is in pages.
    pub(crate) lists: Vec<Vec<Piece>>,
    /// Buffers of the front end: slot [`BufRef::FIRST_WORLD_SLOT`] and the following ones.
    pub(crate) world: Vec<Arc<Region>>,
}

impl Buffers {
    pub(super) fn at(&self, buf: BufRef) -> *mut u8 {
        let offset = buf.offset_bytes as usize;
        let len = buf.len_bytes as usize;
        match buf.slot {
            BufRef::ZEROS_SLOT => {
                assert!(len <= ZEROS.len());
                ZEROS.as_ptr().cast_mut()
            }
            slot if slot < BufRef::FIRST_WORLD_SLOT => {
                assert!(offset + len <= self.bounce_slot_bytes);
                self.bounce.at(slot as usize * self.bounce_slot_bytes + offset, len)
            }
            slot => self.world[(slot - BufRef::FIRST_WORLD_SLOT) as usize].at(offset, len),
        }
    }

    /// The memory of a handle that may be a page list, after [`Buffers::look_up`].
    pub(super) fn memory(&self, buf: BufRef) -> Memory {
        if !buf.is_list() {
            return Memory::Whole(Address(self.at(buf)));
        }
        let pieces = &self.lists[(buf.slot - BufRef::FIRST_LIST_SLOT) as usize];
        Memory::of(pieces, buf.offset_bytes as usize)
    }

    /// Notes the addresses of the page lists of encrypted writes.
    pub(super) fn look_up(&mut self, sqes: &[Sqe], shard: &Stack) {
        for sqe in sqes {
            if let SqeOp::Crypt { dst, .. } = sqe.op
                && dst.is_list()
            {
                let index = (dst.slot - BufRef::FIRST_LIST_SLOT) as usize;
                if index >= self.lists.len() {
                    self.lists.resize_with(index + 1, Vec::new);
                }
                describe(&mut self.lists[index], shard.segments(dst.slot), &self.bounce);
            }
        }
    }
}

/// Lists the pages of a write; adjacent pages are one piece.
fn describe(pieces: &mut Vec<Piece>, segments: &[Segment], pool: &Region) {
    pieces.clear();
    for segment in segments {
        let len_bytes = segment.pages() as usize * PAGE_BYTES as usize;
        let base = pool.at(PagePool::offset_bytes(segment.first), len_bytes);
        match pieces.last_mut() {
            Some(last) if last.base.get().wrapping_add(last.len_bytes) == base => {
                last.len_bytes += len_bytes;
            }
            _ => pieces.push(Piece { base: Address(base), len_bytes }),
        }
    }
}
