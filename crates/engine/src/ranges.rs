//! Ranges in flight: a read-modify-write has exclusive access to its blocks; other writes pass each
//! other.
//!
//! A write of whole sectors is independent of its neighbours. A write of a part of a sector reads
//! the sector, changes it and writes it back, which would undo a write by another shard in between.
//! So each shard announces the ranges of its writes, and a read-modify-write waits for exclusive
//! access:
//!
//! ```text
//!   write ── announce ── no exclusive entry? ──yes──────────────────> goes on ── withdraw
//!                └─no─> one overlaps? ──no──────────────────────────> goes on ── withdraw
//!                          └─yes─> withdraw, shared entry, wait ────> goes on ── end
//!   read-modify-write ──> exclusive entry, wait until it is alone ──> goes on ── end
//! ```
//! The announcements of a shard are words that only its thread writes and others read. Entries are
//! in [`Ranges`], which has one owner at a time: a world with threads keeps it in a mutex. A write
//! without a conflicting neighbour never takes it. Overlapping entries are served in the order of
//! arrival, so that none starves.
//!
//! At least one of two conflicting sides sees the other. A shard stores its announcement and then
//! loads the number of exclusive entries. The owner of an exclusive entry adds to the number and
//! then loads the announcements. All four operations are `SeqCst`, so they have one order. If the
//! shard's load comes before the addition, its store does too, and the entry's owner sees the
//! announcement. Otherwise the shard sees the number and looks into [`Ranges`]. The end of a write
//! is the same pair: zero is stored, then the number is loaded. An owner that saw the announcement
//! before the zero was stored has added to the number before. So the shard sees the number, and
//! wakes the waiting entry.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Granularity of ranges: the largest sector of any volume.
pub const BLOCK_BYTES: u64 = 4096;
/// Announcements of a shard. A connection has at most 256 requests, most of which are one write;
/// surplus writes go through [`Ranges`].
pub const ANNOUNCEMENTS_MAX: usize = 512;

/// Contiguous blocks in one word: 44 bits of start, 20 of length, in units of [`BLOCK_BYTES`].
/// Never zero. A range beyond these limits is extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks(u64);

impl Blocks {
    const LEN_BITS: u32 = 20;
    /// A length that reaches the end of every volume.
    const LEN_MAX: u64 = (1 << Self::LEN_BITS) - 1;
    const START_MAX: u64 = (1 << (64 - Self::LEN_BITS)) - 1;

    /// The blocks that contain these bytes.
    #[must_use]
    pub fn around(start_bytes: u64, len_bytes: u64) -> Self {
        let start = (start_bytes / BLOCK_BYTES).min(Self::START_MAX);
        let end = start_bytes.saturating_add(len_bytes).div_ceil(BLOCK_BYTES);
        let len = end.saturating_sub(start).clamp(1, Self::LEN_MAX);
        Self(start << Self::LEN_BITS | len)
    }

    fn start(self) -> u64 {
        self.0 >> Self::LEN_BITS
    }

    fn end(self) -> u64 {
        match self.0 & Self::LEN_MAX {
            Self::LEN_MAX => u64::MAX,
            len => self.start() + len,
        }
    }

    /// The bytes of the blocks. Without an end if the blocks reach the end of every volume.
    fn bytes(self) -> Range<u64> {
        self.start() * BLOCK_BYTES..self.end().saturating_mul(BLOCK_BYTES)
    }

    /// Whether the two have a block in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start() < other.end() && other.start() < self.end()
    }
}

/// Announcements of one shard.
#[derive(Debug)]
struct Announced {
    /// [`Blocks`], or zero.
    slots: Box<[AtomicU64]>,
    /// First slot that has never been used.
    used: AtomicUsize,
}

impl Announced {
    fn overlaps(&self, blocks: Blocks) -> bool {
        self.each().any(|announced| announced.overlaps(blocks))
    }

    fn each(&self) -> impl Iterator<Item = Blocks> {
        let used = self.used.load(Ordering::SeqCst);
        let words = self.slots[..used].iter().map(|slot| slot.load(Ordering::SeqCst));
        words.filter(|word| *word != 0).map(Blocks)
    }
}

/// Index of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u16);

/// A shard's own handle: it announces on its thread.
#[derive(Debug)]
pub struct Announcer {
    shard: u32,
    announced: Arc<Announced>,
    exclusives: Arc<AtomicU32>,
    free: Vec<u16>,
    /// Copy of `used` in `announced`.
    used: usize,
}

impl Announcer {
    /// Number of the shard, as in [`Grant`].
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Announces a write. `true`: the write may start. `false`: there is an exclusive entry, and
    /// [`Ranges::admit`] decides. `None`: there is no free slot, and the write needs an entry
    /// ([`Ranges::enter`]).
    pub fn announce(&mut self, blocks: Blocks) -> Option<(Slot, bool)> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.used < self.announced.slots.len() => {
                self.used += 1;
                self.announced.used.store(self.used, Ordering::SeqCst);
                u16::try_from(self.used - 1).expect("there are few slots")
            }
            None => return None,
        };
        self.announced.slots[usize::from(place)].store(blocks.0, Ordering::SeqCst);
        Some((Slot(place), self.exclusives.load(Ordering::SeqCst) == 0))
    }

    /// Withdraws the announcement of an ended write. `Some`: an exclusive entry may wait for it;
    /// pass these blocks to [`Ranges::freed`].
    pub fn withdraw(&mut self, slot: Slot) -> Option<Blocks> {
        let word = &self.announced.slots[usize::from(slot.0)];
        // Only this thread writes the word.
        let blocks = Blocks(word.load(Ordering::Relaxed));
        debug_assert_ne!(blocks.0, 0, "a write ends once");
        word.store(0, Ordering::SeqCst);
        self.free.push(slot.0);
        (self.exclusives.load(Ordering::SeqCst) != 0).then_some(blocks)
    }
}

/// Sharing mode of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Shared with other writes, but with no read-modify-write.
    Writes,
    /// Exclusive.
    Nobody,
}

/// Number of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(u64);

#[derive(Debug)]
struct Entry {
    shard: u32,
    user: u64,
    blocks: Blocks,
    share: Share,
    is_granted: bool,
}

/// A grant for an entry that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Number of its shard.
    pub shard: u32,
    /// The `user` word of [`Ranges::enter`].
    pub user: u64,
}

/// Ranges of one volume: waiting entries, and those that block them.
#[derive(Debug, Default)]
pub struct Ranges {
    /// Number of exclusive entries, waiting ones included.
    exclusives: Arc<AtomicU32>,
    shards: BTreeMap<u32, Arc<Announced>>,
    next_shard: u32,
    /// Entries in the order of arrival.
    entries: BTreeMap<EntryId, Entry>,
    next_entry: u64,
    granted: Vec<Grant>,
}

impl Ranges {
    /// Adds a shard.
    pub fn join(&mut self) -> Announcer {
        let slots = (0..ANNOUNCEMENTS_MAX).map(|_| AtomicU64::new(0)).collect();
        let announced = Arc::new(Announced { slots, used: AtomicUsize::new(0) });
        let shard = self.next_shard;
        let exclusives = Arc::clone(&self.exclusives);
        self.next_shard += 1;
        self.shards.insert(shard, Arc::clone(&announced));
        Announcer { shard, announced, exclusives, free: Vec::new(), used: 0 }
    }

    /// Removes a shard without requests in flight, with its announcements and entries.
    pub fn leave(&mut self, announcer: &Announcer) {
        self.shards.remove(&announcer.shard);
        self.entries.retain(|_, entry| {
            let stays = entry.shard != announcer.shard;
            if !stays && entry.share == Share::Nobody {
                self.exclusives.fetch_sub(1, Ordering::SeqCst);
            }
            stays
        });
        self.granted.retain(|grant| grant.shard != announcer.shard);
        self.freed(Blocks::around(0, u64::MAX));
    }

    /// Whether an announced write may start. If not, it is withdrawn and returns its waiting entry.
    pub fn admit(&mut self, announcer: &mut Announcer, slot: Slot, user: u64) -> Option<EntryId> {
        let place = usize::from(slot.0);
        let blocks = Blocks(announcer.announced.slots[place].load(Ordering::Relaxed));
        let is_in_the_way =
            |entry: &Entry| entry.share == Share::Nobody && entry.blocks.overlaps(blocks);
        if !self.entries.values().any(is_in_the_way) {
            return None;
        }
        let (id, is_granted) = self.enter(announcer, blocks, Share::Writes, user);
        debug_assert!(!is_granted, "something is in the way");
        // An entry may have seen the announcement, and waited for it.
        if let Some(blocks) = announcer.withdraw(slot) {
            self.freed(blocks);
        }
        Some(id)
    }

    /// Adds an entry, and returns whether it may start at once. Otherwise [`Ranges::take_granted`]
    /// reports it later.
    pub fn enter(
        &mut self,
        announcer: &Announcer,
        blocks: Blocks,
        share: Share,
        user: u64,
    ) -> (EntryId, bool) {
        let id = EntryId(self.next_entry);
        self.next_entry += 1;
        if share == Share::Nobody {
            // Before the announcements are read.
            self.exclusives.fetch_add(1, Ordering::SeqCst);
        }
        let is_granted = self.is_free(id, blocks, share);
        let entry = Entry { shard: announcer.shard, user, blocks, share, is_granted };
        self.entries.insert(id, entry);
        (id, is_granted)
    }

    /// Ends an entry, or cancels it.
    ///
    /// # Panics
    /// When the entry does not exist.
    pub fn end(&mut self, id: EntryId) {
        let Entry { blocks, .. } = self.remove(id);
        self.freed(blocks);
    }

    /// Cancels the waiting entries of a shard. Returns their `user` words in the order of arrival.
    pub fn take_back(&mut self, announcer: &Announcer) -> Vec<u64> {
        let waits = |entry: &Entry| entry.shard == announcer.shard && !entry.is_granted;
        let waiting = self.entries.iter().filter(|(_, entry)| waits(entry));
        let ids: Vec<EntryId> = waiting.map(|(&id, _)| id).collect();
        // All of them first: the end of one must not grant the next.
        let taken: Vec<Entry> = ids.into_iter().map(|id| self.remove(id)).collect();
        let mut freed = Vec::new();
        taken.iter().for_each(|entry| note(&mut freed, entry.blocks));
        self.grant(|waiting| freed.iter().any(|blocks| blocks.overlaps(waiting)));
        taken.into_iter().map(|entry| entry.user).collect()
    }

    fn remove(&mut self, id: EntryId) -> Entry {
        let entry = self.entries.remove(&id).expect("an entry ends once");
        if entry.share == Share::Nobody {
            self.exclusives.fetch_sub(1, Ordering::SeqCst);
        }
        entry
    }

    /// The bytes that writes in flight may change, in whole blocks; waiting entries are included. A
    /// write that is not here was announced later than this call began, or had ended before.
    pub fn in_flight(&self) -> impl Iterator<Item = Range<u64>> {
        let announced = self.shards.values().flat_map(|shard| shard.each());
        let entered = self.entries.values().map(|entry| entry.blocks);
        announced.chain(entered).map(Blocks::bytes)
    }

    /// Wakes entries that waited for these blocks, which are free now.
    pub fn freed(&mut self, blocks: Blocks) {
        self.grant(|waiting| waiting.overlaps(blocks));
    }

    /// Grants entries that waited for blocks which are free now, as [`Ranges::is_free`] tells. Many
    /// may wait for the same blocks, so one pass looks at each different earlier range once.
    fn grant(&mut self, was_freed: impl Fn(Blocks) -> bool) {
        let waits = |entry: &Entry| !entry.is_granted && was_freed(entry.blocks);
        let waiting = || self.entries.values().filter(|entry| waits(entry)).map(|it| it.blocks);
        let start = waiting().map(Blocks::start).min();
        let Some(start) = start else { return };
        let end = waiting().map(Blocks::end).max().unwrap_or(start);
        let is_near = |blocks: Blocks| blocks.start() < end && start < blocks.end();
        let mut earlier = Vec::new();
        let mut exclusive = Vec::new();
        let mut free = Vec::new();
        for (&id, entry) in self.entries.iter().filter(|(_, entry)| is_near(entry.blocks)) {
            let Entry { blocks, share, .. } = *entry;
            let conflicting = if share == Share::Nobody { &earlier } else { &exclusive };
            let is_first = !conflicting.iter().any(|it: &Blocks| it.overlaps(blocks));
            if is_first && waits(entry) && self.is_unannounced(blocks, share) {
                free.push(id);
            }
            note(&mut earlier, blocks);
            if share == Share::Nobody {
                note(&mut exclusive, blocks);
            }
        }
        for id in free {
            let entry = self.entries.get_mut(&id).expect("it was just there");
            entry.is_granted = true;
            self.granted.push(Grant { shard: entry.shard, user: entry.user });
        }
    }

    /// The entries granted since the last call, in their order.
    pub fn take_granted(&mut self) -> impl Iterator<Item = Grant> {
        self.granted.drain(..)
    }

    /// Whether an entry is unblocked: no earlier overlapping entry, and, for an exclusive one, no
    /// write.
    fn is_free(&self, id: EntryId, blocks: Blocks, share: Share) -> bool {
        let conflicts = |other: &Entry| {
            (share == Share::Nobody || other.share == Share::Nobody)
                && other.blocks.overlaps(blocks)
        };
        if self.entries.range(..id).any(|(_, earlier)| conflicts(earlier)) {
            return false;
        }
        self.is_unannounced(blocks, share)
    }

    /// Whether no announced write is in the way.
    fn is_unannounced(&self, blocks: Blocks, share: Share) -> bool {
        share == Share::Writes || !self.shards.values().any(|shard| shard.overlaps(blocks))
    }
}

/// Adds blocks that are not there yet.
fn note(all: &mut Vec<Blocks>, blocks: Blocks) {
    if !all.contains(&blocks) {
        all.push(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0;
    const B: u64 = 4096;

    fn at(start_bytes: u64) -> Blocks {
        Blocks::around(start_bytes, 512)
    }

    fn granted(ranges: &mut Ranges) -> Vec<u64> {
        ranges.take_granted().map(|grant| grant.user).collect()
    }

    #[test]
    fn shard_takes_back_what_waits_and_others_go_on() {
        let mut ranges = Ranges::default();
        let [one, other] = [ranges.join(), ranges.join()];
        let mut enter = |shard, share, user| ranges.enter(shard, at(A), share, user);
        let (owner, _) = enter(&one, Share::Writes, 1);
        enter(&one, Share::Nobody, 2);
        enter(&one, Share::Writes, 3);
        enter(&other, Share::Writes, 4);
        assert_eq!(ranges.take_back(&one), [2, 3]);
        assert_eq!(granted(&mut ranges), [4], "no read-modify-write is before it");
        assert!(ranges.take_back(&other).is_empty(), "it has its range");
        ranges.end(owner);
        let mut announcer = ranges.join();
        assert!(matches!(announcer.announce(at(A)), Some((_, true))), "nothing excludes it");
    }

    #[test]
    fn exactly_those_entries_wait_that_an_earlier_one_excludes() {
        let mut ranges = Ranges::default();
        let shards = [ranges.join(), ranges.join()];
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for step in 0..5000 {
            let shard = &shards[random(2) as usize];
            let has_range = |(&id, entry): (&EntryId, &Entry)| entry.is_granted.then_some(id);
            let granted: Vec<_> = ranges.entries.iter().filter_map(has_range).collect();
            match random(20) {
                0 => drop(ranges.take_back(shard)),
                1..=9 if !granted.is_empty() => {
                    ranges.end(granted[random(3) as usize % granted.len()]);
                }
                _ => {
                    let share = if random(3) == 0 { Share::Nobody } else { Share::Writes };
                    let blocks = Blocks::around(random(12) * B, (1 + random(4)) * B);
                    ranges.enter(shard, blocks, share, step);
                }
            }
            for (&id, entry) in &ranges.entries {
                let is_free = ranges.is_free(id, entry.blocks, entry.share);
                assert_eq!(entry.is_granted, is_free, "step {step}: {entry:?}");
            }
        }
    }

    #[test]
    fn blocks_hold_all_bytes_and_never_fewer() {
        let near = Blocks::around(4095, 2);
        assert!(near.overlaps(at(A)) && near.overlaps(at(B)) && !near.overlaps(at(2 * B)));
        assert!(!at(A).overlaps(at(B)));
        let long = Blocks::around(B, 1 << 40);
        assert!(long.overlaps(at(1 << 50)) && !long.overlaps(at(A)));
        let far = Blocks::around(u64::MAX - 5000, 4096);
        assert!(far.overlaps(Blocks::around(u64::MAX - 100, 10)) && !far.overlaps(at(1 << 55)));
        assert!(Blocks::around((1 << 56) - 8192, 16384).overlaps(far));
        assert_ne!(Blocks::around(0, 0).0, 0);
    }

    #[test]
    fn read_modify_write_waits_for_the_writes_before_it_and_holds_up_those_behind() {
        let mut ranges = Ranges::default();
        let mut one = ranges.join();
        let mut two = ranges.join();
        let (first, may_go) = one.announce(at(A)).unwrap();
        assert!(may_go);
        let (patch, is_granted) = ranges.enter(&two, at(A), Share::Nobody, 7);
        assert!(!is_granted, "a write is in flight");
        // Other blocks are free.
        let (elsewhere, may_go) = two.announce(at(B)).unwrap();
        assert!(!may_go && ranges.admit(&mut two, elsewhere, 1).is_none());
        // A later write of the same block waits, otherwise the patch could starve.
        let (later, _) = two.announce(at(A)).unwrap();
        let later = ranges.admit(&mut two, later, 8).expect("it waits");
        assert!(granted(&mut ranges).is_empty());
        let freed = one.withdraw(first).expect("an exclusive entry waits");
        ranges.freed(freed);
        assert_eq!(granted(&mut ranges), [7]);
        ranges.end(patch);
        assert_eq!(granted(&mut ranges), [8]);
        // Its entry holds the blocks now, and a patch sees that.
        let (patch, is_granted) = ranges.enter(&one, at(A), Share::Nobody, 9);
        assert!(!is_granted);
        ranges.end(later);
        assert_eq!(granted(&mut ranges), [9]);
        ranges.end(patch);
        assert!(two.withdraw(elsewhere).is_none(), "nobody waits any more");
        assert!(one.announce(at(A)).unwrap().1);
    }

    #[test]
    fn read_modify_writes_of_one_block_have_it_in_turn() {
        let mut ranges = Ranges::default();
        let one = ranges.join();
        let (first, is_granted) = ranges.enter(&one, at(A), Share::Nobody, 1);
        assert!(is_granted);
        let (second, is_granted) = ranges.enter(&one, at(A), Share::Nobody, 2);
        assert!(!is_granted);
        assert!(!ranges.enter(&one, Blocks::around(A, 8192), Share::Nobody, 3).1);
        assert!(!ranges.enter(&one, at(B), Share::Nobody, 4).1, "it came behind one that waits");
        ranges.end(first);
        assert_eq!(granted(&mut ranges), [2]);
        ranges.end(second);
        assert_eq!(granted(&mut ranges), [3]);
    }

    #[test]
    fn withdrawn_announcement_that_a_waiting_entry_has_seen_lets_it_look_again() {
        let mut ranges = Ranges::default();
        let mut one = ranges.join();
        let two = ranges.join();
        let (holder, is_granted) = ranges.enter(&two, at(A), Share::Nobody, 1);
        assert!(is_granted);
        // A write of both blocks is announced, and has not checked yet when a patch of the second
        // block sees it.
        let (slot, _) = one.announce(Blocks::around(A, 8192)).unwrap();
        let (_, is_granted) = ranges.enter(&two, at(B), Share::Nobody, 2);
        assert!(!is_granted);
        ranges.admit(&mut one, slot, 3).expect("the holder is in the way");
        assert_eq!(granted(&mut ranges), [2]);
        ranges.end(holder);
        assert!(granted(&mut ranges).is_empty(), "the second patch is in the way still");
    }

    #[test]
    fn shard_that_leaves_is_in_nobodys_way() {
        let mut ranges = Ranges::default();
        let mut one = ranges.join();
        let two = ranges.join();
        one.announce(at(A)).unwrap();
        ranges.enter(&one, at(B), Share::Nobody, 1);
        assert!(!ranges.enter(&two, at(A), Share::Nobody, 2).1);
        assert!(!ranges.enter(&two, at(B), Share::Nobody, 3).1);
        ranges.leave(&one);
        assert_eq!(granted(&mut ranges), [2, 3]);
        assert_eq!(ranges.exclusives.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn grant_names_its_shard_and_is_forgotten_when_that_leaves() {
        let mut ranges = Ranges::default();
        let one = ranges.join();
        let two = ranges.join();
        assert_ne!(one.shard(), two.shard());
        let (holder, _) = ranges.enter(&one, at(A), Share::Nobody, 1);
        assert!(!ranges.enter(&one, at(A), Share::Writes, 2).1);
        assert!(!ranges.enter(&two, at(A), Share::Writes, 3).1);
        ranges.end(holder);
        ranges.leave(&one);
        let granted: Vec<Grant> = ranges.take_granted().collect();
        assert_eq!(granted, [Grant { shard: two.shard(), user: 3 }]);
    }

    #[test]
    fn places_are_used_again_and_running_out_is_told() {
        let mut ranges = Ranges::default();
        let mut one = ranges.join();
        let slots: Vec<Slot> = core::iter::from_fn(|| Some(one.announce(at(A))?.0)).collect();
        assert_eq!(slots.len(), ANNOUNCEMENTS_MAX);
        assert!(one.withdraw(slots[3]).is_none());
        assert_eq!(one.announce(at(A)), Some((slots[3], true)));
        assert!(!ranges.enter(&one, at(A), Share::Nobody, 1).1);
    }
}
