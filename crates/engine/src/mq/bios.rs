//! The bios of a queue, and the state of split ones (`bio_split`, `bio_chain`).
//!
//! A request is a chain of parts in sector order. A part is a whole bio, or a piece of a bio above
//! the device's limits. A split bio ends with its last piece, and the last failed piece determines
//! its status.

use alloc::vec::Vec;

use crate::bio::{Bio, BlkStatus, Done, Op, Sector};
use crate::buf::BufRef;
use crate::slab::Slab;

/// A bio, or a piece of one.
#[derive(Clone, Copy, Debug)]
struct Part {
    bio: Bio,
    /// The next part of its request.
    next: Option<u32>,
    /// Index of its bio among the split ones.
    split: Option<u32>,
}

/// A split bio.
#[derive(Debug)]
struct Split {
    pieces_left: u32,
    /// Number of pieces that wait for a request.
    parked: u32,
    status: BlkStatus,
}

/// All bios of a queue.
#[derive(Debug, Default)]
pub(super) struct Bios {
    parts: Slab<Part>,
    splits: Slab<Split>,
    done: Vec<Done>,
    unparked: Vec<u64>,
}

impl Bios {
    /// Registers a bio of `pieces` pieces.
    pub(super) fn split(&mut self, pieces: u32) -> u32 {
        self.splits.insert(Split { pieces_left: pieces, parked: 0, status: BlkStatus::Ok })
    }

    /// Adds a bio, or a piece of one.
    pub(super) fn insert(&mut self, bio: Bio, split: Option<u32>) -> u32 {
        self.parts.insert(Part { bio, next: None, split })
    }

    pub(super) fn bio(&self, part: u32) -> &Bio {
        &self.parts.get(part).bio
    }

    /// Appends the chain `behind` to the end of another, `last`.
    pub(super) fn link(&mut self, last: u32, behind: u32) {
        let next = &mut self.parts.at(last).next;
        assert!(next.is_none(), "a chain grows at its end");
        *next = Some(behind);
    }

    /// The bios of a chain; empty without a chain.
    pub(super) fn chain(&self, first: Option<u32>) -> impl Iterator<Item = &Bio> {
        core::iter::successors(first, |part| self.parts.get(*part).next)
            .map(|part| &self.parts.get(part).bio)
    }

    /// Ends every part of a chain.
    pub(super) fn end_chain(&mut self, first: u32, status: BlkStatus) {
        let mut next = Some(first);
        while let Some(part) = next {
            next = self.end_part(part, status);
        }
    }

    /// Ends a part; returns the next one.
    fn end_part(&mut self, part: u32, status: BlkStatus) -> Option<u32> {
        let Part { bio, next, split } = self.parts.remove(part);
        match split {
            None => self.done.push(Done { user: bio.user, status }),
            Some(split) => self.end_piece(split, bio.user, status),
        }
        next
    }

    /// Completes the first `len` of a chain: ends the parts in it, and shortens the next one.
    /// Returns the rest of the chain, and the number of ended parts.
    pub(super) fn advance(&mut self, first: u32, len: Sector) -> (u32, u16) {
        let mut first = first;
        let mut len = len;
        let mut ended = 0;
        while len.0 >= self.bio(first).len.0 {
            len = Sector(len.0 - self.bio(first).len.0);
            first = self.end_part(first, BlkStatus::Ok).expect("the last part is not done");
            ended += 1;
        }
        if len.0 > 0 {
            let bio = &mut self.parts.at(first).bio;
            *bio = rest(bio, len);
        }
        (first, ended)
    }

    fn end_piece(&mut self, index: u32, user: u64, status: BlkStatus) {
        let split = self.splits.at(index);
        if status != BlkStatus::Ok {
            split.status = status;
        }
        split.pieces_left -= 1;
        if split.pieces_left == 0 {
            let status = self.splits.remove(index).status;
            self.done.push(Done { user, status });
        }
    }

    /// Ends a bio without a request.
    pub(super) fn end_at_once(&mut self, bio: &Bio) {
        self.done.push(Done { user: bio.user, status: BlkStatus::Ok });
    }

    /// Notes that the part waits for a request.
    pub(super) fn park(&mut self, part: u32) {
        if let Some(split) = self.parts.get(part).split {
            self.splits.at(split).parked += 1;
        }
    }

    /// Notes that the part has its request; a bio is unparked with its last piece.
    pub(super) fn unpark(&mut self, part: u32) {
        let Part { bio, split, .. } = *self.parts.get(part);
        let waiting = split.map_or(0, |split| {
            let parked = &mut self.splits.at(split).parked;
            *parked -= 1;
            *parked
        });
        if waiting == 0 {
            self.unparked.push(bio.user);
        }
    }

    pub(super) fn take_done(&mut self, out: &mut Vec<Done>) {
        if !self.done.is_empty() {
            out.append(&mut self.done);
        }
    }

    pub(super) fn take_unparked(&mut self, out: &mut Vec<u64>) {
        if !self.unparked.is_empty() {
            out.append(&mut self.unparked);
        }
    }

    /// Whether all bios have ended.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// A bio without its first sectors.
fn rest(bio: &Bio, skip: Sector) -> Bio {
    let len = Sector(bio.len.0 - skip.0);
    Bio { sector: bio.sector + skip, len, buf: part(bio, skip, len), ..*bio }
}

/// Buffer of a part of a bio.
fn part(bio: &Bio, skip: Sector, len: Sector) -> BufRef {
    if len == bio.len || !matches!(bio.op, Op::Read | Op::Write) {
        return bio.buf;
    }
    let bytes = |sectors: Sector| {
        u32::try_from(sectors.bytes()).expect("a piece lies in a buffer of 32-bit length")
    };
    bio.buf.part(bytes(skip), bytes(len))
}

/// Pieces of at most `max_sectors` of a read or a write. Discards and write zeroes move no bytes
/// and have other limits in the kernel: they are not split.
pub(super) fn pieces(bio: &Bio, max_sectors: u32) -> impl Iterator<Item = Bio> {
    let bio = *bio;
    let whole = !matches!(bio.op, Op::Read | Op::Write);
    let max = if whole { bio.len.0.max(1) } else { u64::from(max_sectors) };
    (0..bio.len.0.div_ceil(max)).map(move |piece| {
        let skip = piece * max;
        let len = Sector(max.min(bio.len.0 - skip));
        Bio { sector: bio.sector + Sector(skip), len, buf: part(&bio, Sector(skip), len), ..bio }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_write_is_cut_with_its_buffer_and_a_discard_is_not() {
        let buf =
            BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 4096, len_bytes: 20 * 512 };
        let write = Bio::new(Op::Write, Sector(100), Sector(20), buf, 1);
        let cut: Vec<_> = pieces(&write, 8)
            .map(|bio| (bio.sector.0, bio.len.0, bio.buf.offset_bytes, bio.buf.len_bytes))
            .collect();
        assert_eq!(cut, [(100, 8, 4096, 4096), (108, 8, 8192, 4096), (116, 4, 12288, 2048)]);
        let discard = Bio::new(Op::Discard, Sector(0), Sector(20), BufRef::NONE, 1);
        assert_eq!(pieces(&discard, 8).count(), 1);
    }
}
