//! Requests in the order of their sectors (`elv_rb_add`, the `sort_list` of the schedulers).
//!
//! Requests may start at the same sector: the later one follows. The order consists of positions,
//! not of links: neighbours by sector can be found even for a removed request.
//!
//! The kernel has a red-black tree here. This structure has blocks of sorted sectors below one
//! sorted index, with fewer dependent loads:
//!
//! ```text
//!   index    0            | 4096         | 9000         least sector of a block when it was made
//!            |            |              |
//!   blocks   8 16 800  <->  4096 5000  <-> 9000 9008    up to BLOCK sectors, none is empty
//! ```
//!
//! A full block is split, an empty one is removed unless it is the only one; small ones are not
//! joined. Blocks are reused: no request needs an allocation. A tree with one request or none, the
//! usual case under cfq, costs little.

use alloc::vec::Vec;

use crate::bio::Sector;
use crate::request::RequestId;

/// Sectors of a block. An insertion moves half of a block, so it must not be too large. A new or
/// removed block moves half of the index, so it must not be too small: a million requests have
/// 16,000 blocks.
const BLOCK: usize = 128;

/// Sectors that are counted one by one.
const RUN: usize = 16;
const _: () = assert!(BLOCK.is_multiple_of(RUN));

/// Sentinel after all sectors. The difference of two numbers up to it has the sign as its top bit.
const BEHIND: u64 = i64::MAX as u64;

/// No block.
const NOWHERE: u32 = u32::MAX;

/// Limits a sector to the comparable ones; no disk is that large.
fn comparable(sector: Sector) -> u64 {
    sector.0.min(BEHIND - 1)
}

/// 1 if `one` is less than `other`, else 0.
fn is_less(one: u64, other: u64) -> u64 {
    one.wrapping_sub(other) >> 63
}

/// A block of successive requests in the order.
#[derive(Debug)]
struct Block {
    len: usize,
    /// Neighbours by block number.
    prev: u32,
    next: u32,
    /// Sectors, [`BEHIND`] from `len` on.
    sectors: [u64; BLOCK],
    ids: [RequestId; BLOCK],
}

impl Block {
    const EMPTY: Self = Self {
        len: 0,
        prev: NOWHERE,
        next: NOWHERE,
        sectors: [BEHIND; BLOCK],
        ids: [RequestId(0); BLOCK],
    };

    /// Number of sectors below `sector`. A request's place is unpredictable: a branching search is
    /// mispredicted, a halving one waits for each load. Counting has neither cost.
    fn rank(&self, sector: u64) -> usize {
        let (runs, _) = self.sectors.as_chunks::<RUN>();
        let run = if self.len < RUN {
            0
        } else {
            let passed = runs.iter().map(|run| is_less(run[RUN - 1], sector)).sum::<u64>();
            (passed as usize).min(runs.len() - 1)
        };
        let less = runs[run].iter().map(|other| is_less(*other, sector)).sum::<u64>() as usize;
        run * RUN + less
    }

    fn insert(&mut self, place: usize, sector: u64, id: RequestId) {
        if place < self.len {
            self.sectors.copy_within(place..self.len, place + 1);
            self.ids.copy_within(place..self.len, place + 1);
        }
        self.sectors[place] = sector;
        self.ids[place] = id;
        self.len += 1;
    }

    fn remove(&mut self, place: usize) {
        if place + 1 < self.len {
            self.sectors.copy_within(place + 1..self.len, place);
            self.ids.copy_within(place + 1..self.len, place);
        }
        self.len -= 1;
        self.sectors[self.len] = BEHIND;
    }
}

/// Place of a request.
#[derive(Clone, Copy, Debug)]
struct Home {
    sector: u64,
    /// Number of its block, or [`NOWHERE`].
    block: u32,
}

/// A sort tree. Every request is in it at most once.
#[derive(Debug, Default)]
pub struct SortTree {
    /// Lower bound of each slot's block, which is an upper bound of the block before, in order. The
    /// first entry is zero.
    index: Vec<u64>,
    /// Block number by slot.
    numbers: Vec<u32>,
    /// Blocks by number.
    blocks: Vec<Block>,
    /// Numbers of blocks outside the index.
    free: Vec<u32>,
    /// Places by request.
    homes: Vec<Home>,
    len: usize,
}

impl SortTree {
    /// Inserts a request at its sector, after others with the same start.
    pub fn insert(&mut self, id: RequestId, sector: Sector) {
        if self.homes.len() <= id.index() {
            self.homes.resize(id.index() + 1, Home { sector: 0, block: NOWHERE });
        }
        assert!(self.homes[id.index()].block == NOWHERE, "a request is in a tree once");
        let sector = comparable(sector);
        if self.len == 0 {
            self.insert_only(id, sector);
            return;
        }
        let mut slot = self.slot(sector + 1);
        if self.block(slot).len == BLOCK {
            self.split(slot, sector);
            slot = self.slot(sector + 1);
        }
        let number = self.numbers[slot];
        let block = &mut self.blocks[number as usize];
        block.insert(block.rank(sector + 1), sector, id);
        self.homes[id.index()] = Home { sector, block: number };
        self.len += 1;
    }

    /// Inserts a request into the empty tree, without a search.
    fn insert_only(&mut self, id: RequestId, sector: u64) {
        if self.index.is_empty() {
            self.add_block(0, 0);
        }
        let number = self.numbers[0];
        let block = &mut self.blocks[number as usize];
        block.sectors[0] = sector;
        block.ids[0] = id;
        block.len = 1;
        self.homes[id.index()] = Home { sector, block: number };
        self.len = 1;
    }

    /// Removes a request; returns the next one ([`SortTree::next`]).
    ///
    /// # Panics
    /// When it is not in the tree.
    pub fn remove(&mut self, id: RequestId) -> Option<RequestId> {
        let [_, behind] = self.remove_between(id);
        behind
    }

    /// Removes a request; returns the ones before and after it.
    ///
    /// # Panics
    /// When it is not in the tree.
    pub fn remove_between(&mut self, id: RequestId) -> [Option<RequestId>; 2] {
        if self.len == 1 {
            self.remove_only(id);
            return [None; 2];
        }
        let (number, place) = self.place(id);
        let block = &self.blocks[number as usize];
        let neighbours = [self.in_front_of(block, place), self.at_or_behind(block, place + 1)];
        let block = &mut self.blocks[number as usize];
        block.remove(place);
        if block.len == 0 {
            self.remove_block(number, self.homes[id.index()].sector);
        }
        self.homes[id.index()].block = NOWHERE;
        self.len -= 1;
        neighbours
    }

    /// Removes the only request. Its block stays.
    fn remove_only(&mut self, id: RequestId) {
        let home = &mut self.homes[id.index()];
        assert!(home.block != NOWHERE, "the request is in this tree");
        let block = &mut self.blocks[home.block as usize];
        block.len = 0;
        block.sectors[0] = BEHIND;
        home.block = NOWHERE;
        self.len = 0;
    }

    /// Whether a request is in the tree.
    #[must_use]
    pub fn contains(&self, id: RequestId) -> bool {
        self.homes.get(id.index()).is_some_and(|home| home.block != NOWHERE)
    }

    /// The request after another one (`elv_rb_latter_request`).
    #[must_use]
    pub fn next(&self, id: RequestId) -> Option<RequestId> {
        let (number, place) = self.place(id);
        self.at_or_behind(&self.blocks[number as usize], place + 1)
    }

    /// The request before another one (`elv_rb_former_request`).
    #[must_use]
    pub fn prev(&self, id: RequestId) -> Option<RequestId> {
        let (number, place) = self.place(id);
        self.in_front_of(&self.blocks[number as usize], place)
    }

    /// The first request that starts at `sector` or later.
    #[must_use]
    pub fn first_from(&self, sector: Sector) -> Option<RequestId> {
        if self.is_empty() {
            return None;
        }
        let sector = comparable(sector);
        let block = self.block(self.slot(sector));
        self.at_or_behind(block, block.rank(sector))
    }

    /// The last request that starts before `sector`.
    #[must_use]
    pub fn last_before(&self, sector: Sector) -> Option<RequestId> {
        if self.is_empty() {
            return None;
        }
        let sector = comparable(sector);
        let block = self.block(self.slot(sector));
        self.in_front_of(block, block.rank(sector))
    }

    /// The request with the lowest sector.
    #[must_use]
    pub fn first(&self) -> Option<RequestId> {
        if self.is_empty() { None } else { Some(self.block(0).ids[0]) }
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the tree is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn block(&self, slot: usize) -> &Block {
        &self.blocks[self.numbers[slot] as usize]
    }

    /// The slot of the last block that may have a sector below `sector`.
    fn slot(&self, sector: u64) -> usize {
        self.index.partition_point(|least| *least < sector).saturating_sub(1)
    }

    /// Block and place of a request. Requests with equal sectors are searched linearly.
    fn place(&self, id: RequestId) -> (u32, usize) {
        let home = self.homes[id.index()];
        assert!(home.block != NOWHERE, "the request is in this tree");
        let block = &self.blocks[home.block as usize];
        let first = block.rank(home.sector);
        let among = block.ids[first..block.len].iter().position(|other| *other == id);
        (home.block, first + among.expect("a request is in the block of its home"))
    }

    fn at_or_behind(&self, block: &Block, place: usize) -> Option<RequestId> {
        if place < block.len {
            return Some(block.ids[place]);
        }
        self.blocks.get(block.next as usize).map(|next| next.ids[0])
    }

    fn in_front_of(&self, block: &Block, place: usize) -> Option<RequestId> {
        if place > 0 {
            return Some(block.ids[place - 1]);
        }
        self.blocks.get(block.prev as usize).map(|prev| prev.ids[prev.len - 1])
    }

    /// Splits a full block for a new sector. Ascending insertions leave full blocks behind.
    fn split(&mut self, slot: usize, sector: u64) {
        let full = self.block(slot);
        let keeps = if full.sectors[BLOCK - 1] <= sector { BLOCK } else { BLOCK / 2 };
        let least = if keeps == BLOCK { sector } else { full.sectors[keeps] };
        self.add_block(slot + 1, least);
        let lower = self.numbers[slot];
        let upper = self.numbers[slot + 1];
        let [lower, upper_block] = self
            .blocks
            .get_disjoint_mut([lower as usize, upper as usize])
            .expect("two blocks have two numbers");
        upper_block.len = BLOCK - keeps;
        upper_block.sectors[..BLOCK - keeps].copy_from_slice(&lower.sectors[keeps..]);
        upper_block.ids[..BLOCK - keeps].copy_from_slice(&lower.ids[keeps..]);
        lower.len = keeps;
        lower.sectors[keeps..].fill(BEHIND);
        for id in &upper_block.ids[..BLOCK - keeps] {
            self.homes[id.index()].block = upper;
        }
    }

    /// Adds an empty block in a slot.
    fn add_block(&mut self, slot: usize, least: u64) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block::EMPTY);
            u32::try_from(self.blocks.len() - 1).expect("fewer blocks than requests")
        });
        assert!(self.blocks[number as usize].len == 0);
        let prev = slot.checked_sub(1).map_or(NOWHERE, |slot| self.numbers[slot]);
        let next = self.numbers.get(slot).copied().unwrap_or(NOWHERE);
        self.join(prev, number);
        self.join(number, next);
        self.index.insert(slot, least);
        self.numbers.insert(slot, number);
    }

    /// Removes a block, one of several, whose last request started at `sector`.
    fn remove_block(&mut self, number: u32, sector: u64) {
        // Several successive blocks may begin with this sector.
        let mut slot = self.slot(sector);
        while self.numbers[slot] != number {
            slot += 1;
        }
        self.index.remove(slot);
        self.numbers.remove(slot);
        self.index[0] = 0;
        self.free.push(number);
        let Block { prev, next, .. } = self.blocks[number as usize];
        self.join(prev, next);
    }

    /// Links two blocks as neighbours, or one as the first or the last.
    fn join(&mut self, prev: u32, next: u32) {
        if let Some(block) = self.blocks.get_mut(prev as usize) {
            block.next = next;
        }
        if let Some(block) = self.blocks.get_mut(next as usize) {
            block.prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sectors_keep_their_order_of_arrival() {
        let mut tree = SortTree::default();
        for (id, sector) in [(0, 50), (1, 20), (2, 50), (3, 80)] {
            tree.insert(RequestId(id), Sector(sector));
        }
        let mut order = alloc::vec![tree.first().unwrap()];
        while let Some(next) = tree.next(order[order.len() - 1]) {
            order.push(next);
        }
        assert_eq!(order, [1, 0, 2, 3].map(RequestId));
        assert_eq!(tree.prev(RequestId(2)), Some(RequestId(0)));
        assert_eq!(tree.prev(RequestId(1)), None);
    }

    #[test]
    fn positions_without_a_request_have_neighbours() {
        let mut tree = SortTree::default();
        tree.insert(RequestId(0), Sector(10));
        tree.insert(RequestId(1), Sector(30));
        tree.remove(RequestId(0));
        tree.insert(RequestId(0), Sector(20));
        assert_eq!(tree.first_from(Sector(20)), Some(RequestId(0)));
        assert_eq!(tree.first_from(Sector(21)), Some(RequestId(1)));
        assert_eq!(tree.last_before(Sector(20)), None);
        assert_eq!(tree.first_from(Sector(31)), None);
    }

    #[test]
    fn neighbours_are_those_of_an_ordered_map() {
        compare_with_ordered_map(1000);
    }

    #[test]
    fn tree_that_is_emptied_again_and_again_is_like_new() {
        compare_with_ordered_map(3);
    }

    /// Compares with a `BTreeMap`: few sectors, so that many are equal, and ascending ones, so that
    /// blocks are left full.
    fn compare_with_ordered_map(ids: u64) {
        use alloc::collections::BTreeMap;
        let mut seed = 7_u64;
        let mut draw = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut tree = SortTree::default();
        let mut map = BTreeMap::new();
        let mut places = BTreeMap::<RequestId, (u64, u64)>::new();
        for step in 0..60_000_u64 {
            let id = RequestId(u32::try_from(draw(ids)).unwrap());
            if let Some(place) = places.remove(&id) {
                assert!(tree.contains(id));
                assert_eq!(
                    tree.next(id),
                    map.range((place.0, place.1 + 1)..).next().map(|(_, id)| *id)
                );
                assert_eq!(tree.prev(id), map.range(..place).next_back().map(|(_, id)| *id));
                tree.remove(id);
                map.remove(&place);
            } else {
                let sector = if step % 20_000 < 5000 { step } else { draw(400) };
                tree.insert(id, Sector(sector));
                places.insert(id, (sector, step));
                map.insert((sector, step), id);
            }
            let sector = draw(420);
            let from = map.range((sector, 0)..).next().map(|(_, id)| *id);
            let before = map.range(..(sector, 0)).next_back().map(|(_, id)| *id);
            assert_eq!(
                (tree.first_from(Sector(sector)), tree.last_before(Sector(sector))),
                (from, before)
            );
            let first = map.first_key_value().map(|(_, id)| *id);
            assert_eq!(
                (tree.first(), tree.len(), tree.is_empty()),
                (first, map.len(), map.is_empty())
            );
        }
    }
}
