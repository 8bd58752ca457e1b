//! The page cache: the file pages of 4 KiB in memory, and the state of their write-back.
//!
//! The functions of Linux's `mm/filemap.c`, `mm/page-writeback.c` and `mm/vmscan.c` as plain data.
//! The cache starts no I/O and waits for none: it tells the world which pages to read and to write
//! back, and the world reports the end.
//!
//! ```text
//!          begin_read           end_read             end_write_back
//!  absent ------------> reading ---------> clean <------------------ under write-back
//!     |                    |                 |                           ^        |
//!     |                    |                 | dirty    begin_write_back |        | dirty
//!     v                    v                 v                           |        v
//!     +------- dirty ------+------------> dirty -------------------------+       both
//!                                            ^                                    |
//!                                            +------------------------------------+
//!                                                       end_write_back
//!
//!                     dirty   begin_read end_read begin_w_b   end_w_b  forget    reclaim
//!  absent             dirty   reading    -        -           -        -         -
//!  reading            dirty   -          clean    -           -        absent    -
//!  clean              dirty   -          -        -           -        absent    absent
//!  dirty              -       -          -        under w-b   -        absent    -
//!  under write-back   both    -          -        -           clean    given up  -
//!  both               -       -          -        -           dirty    given up  -
//!  given up           both    reading    -        -           absent   -         -
//! ```
//!
//! A page that is written while it is under write-back (*both*) is dirty again afterwards, because
//! the device may have received the old content. [`PageCache::begin_write_back`] skips it until
//! then, like `WB_SYNC_NONE`. A page that is forgotten meanwhile (*given up*) cannot be found any
//! more, but counts as under write-back until the device has finished.
//!
//! # A read
//!
//! For each page, [`PageCache::lookup`]. *Absent*: [`ReadAhead::miss`], then
//! [`PageCache::begin_read`] of its window, and wait. *Reading*: if [`PageCache::take_mark`]
//! returns true, [`ReadAhead::mark`] and begin that window; then wait. *Marked*: the same, without
//! waiting. At the end of the call, [`ReadAhead::called`].
//!
//! # Memory
//!
//! A new page in full memory replaces the first page of a queue. Pages enter the queue at the back;
//! a page that was used a second time meanwhile moves to the back once more. The first use does not
//! count, because the page was read for it, and a long stream would otherwise evict pages in
//! repeated use. (The kernel has two lists, inactive and active, and moves a page to the second one
//! at its second use.) Pages that are dirty or under I/O stay; they move to the back at the end of
//! that state.
//!
//! # What is left out
//!
//! - **Waiting for memory.** If nothing can be reclaimed, the page is admitted anyway and counted
//!   ([`PageCache::admitted_over_limit`]). The kernel would make the task wait or write back.
//! - **Dirtyable memory.** Limits are percentages of `memory_bytes`. The kernel takes them of free
//!   and reclaimable memory, lowers them for heavy writers and slow devices, and raises them for
//!   real-time tasks.
//! - Other memory: anonymous pages, swap, metadata; `kswapd`, which reclaims in advance, in
//!   batches.
//! - Partly up-to-date pages: a write covers whole pages.
//! - The content.

mod read_ahead;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use blockyard_engine::time::Nanos;
use blockyard_workload::program::FileId;

pub use read_ahead::{ReadAhead, Window};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Sectors of a page.
pub const PAGE_SECTORS: u64 = PAGE_BYTES / 512;

/// Size of memory, and parameters of write-back and read-ahead.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Memory for file pages.
    pub memory_bytes: u64,
    /// Writers are throttled while more than this percentage of memory is dirty or under write-back
    /// (`vm.dirty_ratio`).
    pub dirty_ratio_percent: u32,
    /// Flushers write back while more than this percentage of memory is dirty
    /// (`vm.dirty_background_ratio`). Half of the limit unless below it.
    pub dirty_background_ratio_percent: u32,
    /// Age at which a dirty file is written back (`vm.dirty_expire_centisecs`: 30 s).
    pub dirty_expire: Nanos,
    /// Interval of the age check (`vm.dirty_writeback_centisecs`: 5 s).
    pub write_back_interval: Nanos,
    /// Longest read-ahead (`read_ahead_kb`: 128 KiB).
    pub read_ahead_bytes: u64,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The page is not in memory.
    Absent,
    /// The page is being read: wait, and look again. It may carry the mark:
    /// [`PageCache::take_mark`].
    Reading,
    /// The page is up to date.
    UpToDate,
    /// The page is up to date and carried the read-ahead mark (`PG_readahead`), which is now
    /// removed.
    Marked,
}

/// Amount of pages to write back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DirtyLevel {
    /// Pages are written back by age.
    Low,
    /// More pages are dirty than `dirty_background_ratio_percent` allows: flushers work.
    Background,
    /// More pages are dirty or under write-back than `dirty_ratio_percent` allows: writers are
    /// throttled.
    Limit,
}

/// The page is in memory.
const UP_TO_DATE: u8 = 1;
/// The page is being read.
const READING: u8 = 1 << 1;
/// The page is newer than the device's copy.
const DIRTY: u8 = 1 << 2;
/// The page is being written to the device. Without [`UP_TO_DATE`]: forgotten since.
const WRITE_BACK: u8 = 1 << 3;
/// The reader of this page starts the next read-ahead.
const MARK: u8 = 1 << 4;
/// The page was used since it came in.
const USED: u8 = 1 << 5;
/// The page was used more than once since it came in or since reclaim last saw it.
const USED_AGAIN: u8 = 1 << 6;
/// The reclaim queue has an entry for the page, which outlives the page.
const QUEUED: u8 = 1 << 7;

/// Uses memory.
const RESIDENT: u8 = UP_TO_DATE | READING | WRITE_BACK;
/// Cannot be reclaimed.
const BUSY: u8 = READING | DIRTY | WRITE_BACK;

/// Pages of one file.
#[derive(Debug, Default)]
struct File {
    /// Flags of each page up to the last one ever touched.
    pages: Vec<u8>,
    /// A bit per page: dirty and not under write-back.
    writable: Vec<u64>,
    dirty: u64,
    write_back: u64,
    /// Position among the dirty files.
    turn: Option<u64>,
    /// Start of its dirty state.
    dirty_since: Nanos,
}

impl File {
    fn grow(&mut self, pages: u64) {
        let pages = usize::try_from(pages).expect("fewer than 2^32");
        if self.pages.len() < pages {
            self.pages.resize(pages, 0);
            self.writable.resize(pages.div_ceil(64), 0);
        }
    }

    /// The part of a range that was ever touched.
    fn touched(&self, pages: Range<u64>) -> Range<usize> {
        let clip = |page| usize::try_from(page).unwrap_or(usize::MAX).min(self.pages.len());
        clip(pages.start)..clip(pages.end)
    }

    fn set_writable(&mut self, page: usize, to: bool) {
        let word = page / 64;
        let bit = page % 64;
        self.writable[word] = self.writable[word] & !(1 << bit) | u64::from(to) << bit;
    }

    fn is_writable(&self, page: usize) -> bool {
        self.writable.get(page / 64).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// The first page from `from` on that is dirty and not under write-back.
    fn next_writable(&self, from: usize) -> Option<usize> {
        let first = from / 64;
        let before = (1 << (from % 64)) - 1;
        let words = self.writable.iter().enumerate().skip(first);
        words
            .map(|(at, &word)| (at, if at == first { word & !before } else { word }))
            .find(|&(_, word)| word != 0)
            .map(|(at, word)| at * 64 + word.trailing_zeros() as usize)
    }
}

/// The page cache.
#[derive(Debug)]
pub struct PageCache {
    memory_pages: u64,
    limit_pages: u64,
    background_pages: u64,
    slots: BTreeMap<FileId, usize>,
    files: Vec<File>,
    /// Reclaim queue: slot of the file, and page; reclaim takes the front.
    queue: VecDeque<(u32, u32)>,
    /// Dirty files by turn, with their slots.
    turns: BTreeMap<u64, (FileId, usize)>,
    next_turn: u64,
    resident: u64,
    dirty: u64,
    write_back: u64,
    admitted_over_limit: u64,
}

impl PageCache {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig) -> Self {
        let memory_pages = config.memory_bytes / PAGE_BYTES;
        let percent = |percent: u32| memory_pages.saturating_mul(u64::from(percent)) / 100;
        let limit_pages = percent(config.dirty_ratio_percent);
        let background_pages = percent(config.dirty_background_ratio_percent);
        Self {
            memory_pages,
            limit_pages,
            background_pages: if background_pages < limit_pages {
                background_pages
            } else {
                limit_pages / 2
            },
            slots: BTreeMap::new(),
            files: Vec::new(),
            queue: VecDeque::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            resident: 0,
            dirty: 0,
            write_back: 0,
            admitted_over_limit: 0,
        }
    }

    /// Looks up a page for a reader; a page in memory counts as used.
    pub fn lookup(&mut self, file: FileId, page: u64) -> Lookup {
        let Some(state) = self.page(file, page) else { return Lookup::Absent };
        if *state & UP_TO_DATE == 0 {
            return if *state & READING == 0 { Lookup::Absent } else { Lookup::Reading };
        }
        *state = used(*state);
        if take_mark(state) { Lookup::Marked } else { Lookup::UpToDate }
    }

    /// Removes the read-ahead mark of a page, even during its read: the kernel starts the next
    /// read-ahead before it waits for the page.
    pub fn take_mark(&mut self, file: FileId, page: u64) -> bool {
        self.page(file, page).is_some_and(take_mark)
    }

    /// Starts to read the absent pages of a range; adds their runs to `absent`. `mark` gets the
    /// read-ahead mark if it is one of them; on a present page it would start a useless read-ahead.
    ///
    /// # Panics
    /// If a page number does not fit 32 bits.
    pub fn begin_read(
        &mut self,
        file: FileId,
        pages: Range<u64>,
        mark: Option<u64>,
        absent: &mut Vec<Range<u64>>,
    ) {
        let slot = self.slot_with(file, pages.end);
        let own = absent.len();
        for page in pages {
            let at = page as usize;
            let state = self.files[slot].pages[at];
            if state & (UP_TO_DATE | READING) != 0 {
                continue;
            }
            if state & RESIDENT == 0 {
                self.admit(slot, at);
            }
            let state = &mut self.files[slot].pages[at];
            *state |= READING | if mark == Some(page) { MARK } else { 0 };
            match absent[own..].last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => absent.push(page..page + 1),
            }
        }
    }

    /// Ends the read of these pages: they are up to date, unless they were forgotten meanwhile.
    pub fn end_read(&mut self, file: FileId, pages: Range<u64>) {
        let Some(&slot) = self.slots.get(&file) else { return };
        for at in self.files[slot].touched(pages) {
            let state = &mut self.files[slot].pages[at];
            if *state & READING != 0 {
                *state = *state & !READING | UP_TO_DATE;
                self.enqueue(slot, at);
            }
        }
    }

    /// A task has written these pages completely: they are in memory, and dirty.
    ///
    /// # Panics
    /// If a page number does not fit 32 bits.
    pub fn dirty(&mut self, now: Nanos, file: FileId, pages: Range<u64>) {
        let slot = self.slot_with(file, pages.end);
        for page in pages {
            let at = page as usize;
            if self.files[slot].pages[at] & RESIDENT == 0 {
                self.admit(slot, at);
            }
            let of = &mut self.files[slot];
            let state = of.pages[at];
            of.pages[at] = used(state) & !READING | UP_TO_DATE | DIRTY;
            if state & WRITE_BACK == 0 {
                of.set_writable(at, true);
            }
            if state & DIRTY == 0 {
                of.dirty += 1;
                self.dirty += 1;
            }
        }
        let of = &mut self.files[slot];
        if of.dirty > 0 && of.turn.is_none() {
            of.dirty_since = now;
            self.take_turn(file, slot);
        }
    }

    /// Starts write-back of the next run of dirty pages from `from` on, at most `max_pages`; the
    /// run is clean afterwards. `None` if there is none, although dirty pages may still be under
    /// write-back: a caller that needs those on the device asks again after its end.
    ///
    /// # Panics
    /// `max_pages` is zero.
    pub fn begin_write_back(
        &mut self,
        file: FileId,
        from: u64,
        max_pages: u64,
    ) -> Option<Range<u64>> {
        assert!(max_pages > 0, "a run has a page");
        let &slot = self.slots.get(&file)?;
        let of = &mut self.files[slot];
        if of.dirty == 0 {
            return None;
        }
        let start = of.next_writable(usize::try_from(from).ok()?)?;
        let mut end = start;
        while of.is_writable(end) && ((end - start) as u64) < max_pages {
            of.set_writable(end, false);
            of.pages[end] ^= DIRTY | WRITE_BACK;
            end += 1;
        }
        let pages = (end - start) as u64;
        of.dirty -= pages;
        of.write_back += pages;
        self.dirty -= pages;
        self.write_back += pages;
        if of.dirty == 0 {
            let turn = of.turn.take().expect("a file with dirty pages has a turn");
            self.turns.remove(&turn);
        }
        Some(start as u64..end as u64)
    }

    /// The device has these pages with their content from the start of the write-back.
    pub fn end_write_back(&mut self, file: FileId, pages: Range<u64>) {
        let Some(&slot) = self.slots.get(&file) else { return };
        for at in self.files[slot].touched(pages) {
            let of = &mut self.files[slot];
            if of.pages[at] & WRITE_BACK == 0 {
                continue;
            }
            of.pages[at] &= !WRITE_BACK;
            of.write_back -= 1;
            self.write_back -= 1;
            let state = of.pages[at];
            if state & DIRTY != 0 {
                of.set_writable(at, true);
            } else if state & RESIDENT == 0 {
                self.resident -= 1;
            } else {
                self.enqueue(slot, at);
            }
        }
    }

    /// Number of pages in memory.
    #[must_use]
    pub fn resident_pages(&self) -> u64 {
        self.resident
    }

    /// Number of pages that came in although memory was full and nothing could be reclaimed.
    #[must_use]
    pub fn admitted_over_limit(&self) -> u64 {
        self.admitted_over_limit
    }

    /// Number of dirty pages.
    #[must_use]
    pub fn dirty_pages(&self) -> u64 {
        self.dirty
    }

    /// Number of pages under write-back; pages that are dirty again count in both numbers.
    #[must_use]
    pub fn write_back_pages(&self) -> u64 {
        self.write_back
    }

    /// Number of dirty pages of a file.
    #[must_use]
    pub fn dirty_pages_of(&self, file: FileId) -> u64 {
        self.file(file).map_or(0, |file| file.dirty)
    }

    /// Number of pages of a file under write-back.
    #[must_use]
    pub fn write_back_pages_of(&self, file: FileId) -> u64 {
        self.file(file).map_or(0, |file| file.write_back)
    }

    /// The amount of pages to write back. Like in `balance_dirty_pages` and `background_writeout`,
    /// pages under write-back count against the limit, but not against the background limit, which
    /// decides whether flushers start more.
    #[must_use]
    pub fn level(&self) -> DirtyLevel {
        if self.dirty + self.write_back > self.limit_pages {
            DirtyLevel::Limit
        } else if self.dirty > self.background_pages {
            DirtyLevel::Background
        } else {
            DirtyLevel::Low
        }
    }

    /// The first file in the write-back order, and the start of its dirty state. Files queue up
    /// when they become dirty. After a requeue, a younger file may precede an older one.
    #[must_use]
    pub fn oldest_dirty(&self) -> Option<(FileId, Nanos)> {
        let (_, &(file, slot)) = self.turns.first_key_value()?;
        Some((file, self.files[slot].dirty_since))
    }

    /// The dirty files in the write-back order.
    pub fn dirty_files(&self) -> impl Iterator<Item = FileId> {
        self.turns.values().map(|(file, _)| *file)
    }

    /// Moves a file that is still dirty behind the others after its turn. Its age stays.
    pub fn requeue(&mut self, file: FileId) {
        let Some(&slot) = self.slots.get(&file) else { return };
        if let Some(turn) = self.files[slot].turn.take() {
            self.turns.remove(&turn);
            self.take_turn(file, slot);
        }
    }

    /// Truncates a file: nothing of it is cached or dirty. Pages under write-back count until its
    /// end. A read in flight ends without effect, unless the page is being read again: then it ends
    /// that read too. (The kernel truncates a page only without I/O on it.)
    pub fn forget(&mut self, file: FileId) {
        let Some(&slot) = self.slots.get(&file) else { return };
        let of = &mut self.files[slot];
        for state in &mut of.pages {
            let left = *state & (WRITE_BACK | QUEUED);
            self.resident -= u64::from(*state & RESIDENT != 0 && left & RESIDENT == 0);
            *state = left;
        }
        of.writable.fill(0);
        self.dirty -= of.dirty;
        of.dirty = 0;
        if let Some(turn) = of.turn.take() {
            self.turns.remove(&turn);
        }
    }

    fn file(&self, file: FileId) -> Option<&File> {
        self.slots.get(&file).map(|&slot| &self.files[slot])
    }

    fn page(&mut self, file: FileId, page: u64) -> Option<&mut u8> {
        let &slot = self.slots.get(&file)?;
        self.files[slot].pages.get_mut(usize::try_from(page).ok()?)
    }

    /// The slot of a file, with room for this many pages.
    fn slot_with(&mut self, file: FileId, pages: u64) -> usize {
        assert!(pages <= 1 << 32, "a file of {pages} pages");
        let slot = *self.slots.entry(file).or_insert_with(|| {
            self.files.push(File::default());
            self.files.len() - 1
        });
        self.files[slot].grow(pages);
        slot
    }

    fn take_turn(&mut self, file: FileId, slot: usize) {
        self.files[slot].turn = Some(self.next_turn);
        self.turns.insert(self.next_turn, (file, slot));
        self.next_turn += 1;
    }

    /// Makes room for a new page.
    fn admit(&mut self, slot: usize, at: usize) {
        while self.resident >= self.memory_pages {
            if !self.reclaim() {
                self.admitted_over_limit += 1;
                break;
            }
        }
        self.resident += 1;
        let state = &mut self.files[slot].pages[at];
        if *state & QUEUED != 0 {
            // The entry of a forgotten page is too near to the front for a new page.
            *state |= USED_AGAIN;
        }
        self.enqueue(slot, at);
    }

    fn enqueue(&mut self, slot: usize, at: usize) {
        let state = &mut self.files[slot].pages[at];
        if *state & QUEUED == 0 {
            *state |= QUEUED;
            // File numbers have 32 bits, and `slot_with` checked the page number.
            self.queue.push_back((slot as u32, at as u32));
        }
    }

    /// Evicts the clean page that was used longest ago; false if there is none. Each skipped entry
    /// was queued, or got its second chance, by an earlier call, so the amortised time is constant.
    fn reclaim(&mut self) -> bool {
        while let Some((slot, at)) = self.queue.pop_front() {
            let state = &mut self.files[slot as usize].pages[at as usize];
            if *state & RESIDENT == 0 || *state & BUSY != 0 {
                // Forgotten; or queued again at the end of its I/O.
                *state &= !QUEUED;
            } else if *state & USED_AGAIN != 0 {
                *state &= !USED_AGAIN;
                self.queue.push_back((slot, at));
            } else {
                *state = 0;
                self.resident -= 1;
                return true;
            }
        }
        false
    }
}

fn used(state: u8) -> u8 {
    state | if state & USED == 0 { USED } else { USED_AGAIN }
}

/// Removes the mark. Not during write-back, when the kernel uses the bit for another purpose.
fn take_mark(state: &mut u8) -> bool {
    let marked = *state & (MARK | WRITE_BACK) == MARK;
    if marked {
        *state &= !MARK;
    }
    marked
}
