//! Files in memory: the page cache, the file system and its journal, write-back, and the threads
//! that wait for one of them.
//!
//! Bios are made here, in the outbox of a thread. The thread submits them in its turn.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::time::Nanos;
use blockyard_workload::program::{DirectOp, FileId};

use super::config::Config;
use super::in_flight::{InFlight, Mark, Out, Purpose, WriteBacks, WritesUpTo};
use super::thread::Doing;
use super::threads::Threads;
use super::trace::Wait;
use crate::cache::{DirtyLevel, PAGE_BYTES, PAGE_SECTORS, PageCache};
use crate::cpu::ThreadId;
use crate::fs::{Extent, FileSystem, SyncRule};

/// Page cache, file system, journal and write-back.
pub(super) struct Files<'a> {
    config: &'a Config,
    pub(super) cache: PageCache,
    pub(super) fs: Box<dyn FileSystem>,
    pub(super) journal: Journal,
    pub(super) write_backs: WriteBacks,
    /// Start of a file's next turn.
    cursors: BTreeMap<FileId, u64>,
    /// Blocks of metadata that are being read, by sector.
    metadata_reads: Vec<u64>,
    pub(super) waiters: Waiters,
    /// Emptied after each use; kept for their memory.
    extents: Vec<Extent>,
}

/// Threads that wait for pages, metadata, write-back, a commit, or fewer dirty pages.
#[derive(Default)]
pub(super) struct Waiters {
    pub(super) pages: Vec<(ThreadId, FileId, u64)>,
    pub(super) writes: Vec<(ThreadId, FileId, WritesUpTo)>,
    pub(super) commit: Vec<(ThreadId, u64)>,
    pub(super) metadata: Vec<(ThreadId, u64)>,
    pub(super) handle: Vec<ThreadId>,
    pub(super) copies: Vec<ThreadId>,
    pub(super) limit: Vec<ThreadId>,
}

/// State of the journal.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) thread: ThreadId,
    /// The running transaction.
    pub(super) running: u64,
    /// The last transaction with a waiter.
    pub(super) wanted: u64,
    /// The last transaction on the device.
    pub(super) committed: u64,
    /// Time of the next periodic commit.
    pub(super) due: Nanos,
    /// Interval of periodic commits.
    pub(super) interval: Nanos,
    /// Handles of the running transaction: writes that have begun and not ended.
    pub(super) handles: u32,
    /// The running transaction takes no further handles (`T_LOCKED`): its commit waits for their
    /// end.
    pub(super) locked: bool,
}

impl<'a> Files<'a> {
    /// The flushers are the first threads, followed by the journal.
    pub(super) fn new(config: &'a Config) -> Self {
        let sectors = config.sectors();
        let interval =
            config.fs.as_ref().map_or(Nanos::from_ms(5_000), crate::fs::FsConfig::commit_interval);
        let thread = ThreadId(config.write_back.flushers);
        Self {
            config,
            cache: PageCache::new(config.cache),
            fs: match &config.fs {
                Some(fs) => fs.build(sectors),
                None => Box::new(crate::fs::raw::Raw::new(sectors)),
            },
            journal: Journal {
                thread,
                running: 1,
                wanted: 0,
                committed: 0,
                due: interval,
                interval,
                handles: 0,
                locked: false,
            },
            write_backs: WriteBacks::default(),
            cursors: BTreeMap::new(),
            metadata_reads: Vec::new(),
            waiters: Waiters::default(),
            extents: Vec::new(),
        }
    }

    /// Splits an extent into bios of the configured maximum length.
    fn cut(
        &self,
        outbox: &mut VecDeque<Out>,
        extent: Extent,
        (op, mark): (Op, Mark),
        purpose: impl Fn(u64, u64) -> Purpose,
    ) {
        let most = u64::from(self.config.bio_sectors) / PAGE_SECTORS;
        let mut done = 0;
        while done < extent.pages {
            let pages = most.min(extent.pages - done);
            let sectors = u32::try_from(pages * PAGE_SECTORS).expect("bios are short");
            let sector = extent.sector + done * PAGE_SECTORS;
            let purpose = purpose(extent.page + done, pages);
            outbox.push_back(Out {
                op,
                sector,
                sectors,
                mark,
                preflush: false,
                fua: false,
                purpose,
            });
            done += pages;
        }
    }

    /// Makes bios that read absent pages.
    pub(super) fn gather_read(
        &mut self,
        outbox: &mut VecDeque<Out>,
        file: FileId,
        pages: Range<u64>,
        mark: Option<u64>,
    ) {
        let mut absent = Vec::new();
        self.cache.begin_read(file, pages, mark, &mut absent);
        let mut extents = std::mem::take(&mut self.extents);
        for run in absent {
            self.fs.map(file, run.clone(), &mut extents);
            let mapped: u64 = extents.iter().map(|extent| extent.pages).sum();
            if mapped < run.end - run.start {
                self.end_holes(file, run, &extents);
            }
            for extent in extents.drain(..) {
                self.cut(outbox, extent, (Op::Read, Mark::Async), |page, pages| Purpose::Pages {
                    file,
                    page,
                    pages,
                });
            }
        }
        self.extents = extents;
    }

    /// Unallocated pages read as zeroes immediately.
    fn end_holes(&mut self, file: FileId, run: Range<u64>, extents: &[Extent]) {
        let mut from = run.start;
        for extent in extents {
            self.cache.end_read(file, from..extent.page);
            from = extent.page + extent.pages;
        }
        self.cache.end_read(file, from..run.end);
    }

    /// Takes dirty pages of a file from `from` on and makes bios of them; returns the number of
    /// pages, and the end of the last one.
    fn gather(
        &mut self,
        outbox: &mut VecDeque<Out>,
        file: FileId,
        (from, most): (u64, u64),
        sync: bool,
    ) -> (u64, u64) {
        let rule = self.fs.sync_rule();
        let mark = match rule {
            SyncRule::EachWrite if sync => Mark::SyncNoidle,
            SyncRule::EachWrite | SyncRule::SegmentEnd { .. } => Mark::Async,
        };
        let mut taken = 0;
        let mut next = from;
        let mut extents = std::mem::take(&mut self.extents);
        while taken < most
            && let Some(run) = self.cache.begin_write_back(file, next, most - taken)
        {
            taken += run.end - run.start;
            next = run.end;
            self.fs.place(file, run, &mut extents);
            for extent in extents.drain(..) {
                let number = self.write_backs.begin(file, extent, self.config.bio_sectors);
                self.cut(outbox, extent, (Op::Write, mark), |page, pages| Purpose::WriteBack {
                    file,
                    page,
                    pages,
                    number,
                });
                if let SyncRule::SegmentEnd { blocks } = rule
                    && self.config.sync_flags
                    && extent.end_block().is_multiple_of(blocks)
                    && let Some(last) = outbox.back_mut()
                {
                    last.mark = Mark::Sync;
                }
            }
        }
        self.extents = extents;
        (taken, next)
    }

    /// Takes all dirty pages of a file, for a waiter.
    pub(super) fn gather_all(&mut self, outbox: &mut VecDeque<Out>, file: FileId, sync: bool) {
        self.gather(outbox, file, (0, u64::MAX), sync);
    }

    /// Takes some dirty pages of the next file in turn, from the end of its last turn; returns the
    /// number of pages.
    pub(super) fn gather_turn(&mut self, outbox: &mut VecDeque<Out>, most: u64) -> u64 {
        let turn = |files: &Self| files.cache.oldest_dirty().map(|(file, _)| file);
        let first = turn(self);
        let mut next = first;
        while let Some(file) = next {
            let taken = self.gather_file(outbox, file, most);
            self.cache.requeue(file);
            next = turn(self);
            // The first stays dirty if none of its pages was taken; the round ends there.
            if taken > 0 || next == first {
                return taken;
            }
        }
        0
    }

    fn gather_file(&mut self, outbox: &mut VecDeque<Out>, file: FileId, most: u64) -> u64 {
        let cursor = self.cursors.get(&file).copied().unwrap_or(0);
        let (mut taken, mut next) = self.gather(outbox, file, (cursor, most), false);
        if taken < most && cursor > 0 {
            let (more, end) = self.gather(outbox, file, (0, most - taken), false);
            taken += more;
            next = if more > 0 { end } else { next };
        }
        self.cursors.insert(file, next);
        taken
    }

    /// Takes turns of several files, until enough pages are taken.
    pub(super) fn gather_turns(&mut self, outbox: &mut VecDeque<Out>, most: u64) -> u64 {
        let mut taken = 0;
        while taken < most {
            match self.gather_turn(outbox, most - taken) {
                0 => break,
                more => taken += more,
            }
        }
        taken
    }

    /// Makes the bios of a direct operation; returns their number.
    pub(super) fn make_direct(
        &mut self,
        outbox: &mut VecDeque<Out>,
        id: u32,
        file: FileId,
        op: DirectOp,
        (offset_bytes, len_bytes): (u64, u64),
    ) -> u32 {
        let before = outbox.len();
        let purpose = Purpose::Direct { id };
        let bio = |op, sector, sectors, sync| {
            let mark = if sync { Mark::Sync } else { Mark::Async };
            let preflush = false;
            let fua = false;
            Out { op, sector, sectors, mark, preflush, fua, purpose }
        };
        match op {
            DirectOp::Bio { op, sync, fua, preflush } => {
                let sectors =
                    u32::try_from(len_bytes / 512).expect("its length was 32 bits of sectors");
                let bio = bio(op, offset_bytes / 512, sectors, sync);
                outbox.push_back(Out { fua, preflush, ..bio });
            }
            DirectOp::Read | DirectOp::Write => {
                let op = if op == DirectOp::Read { Op::Read } else { Op::Write };
                let mut extents = std::mem::take(&mut self.extents);
                self.fs.map(file, pages(offset_bytes, len_bytes), &mut extents);
                for extent in extents.drain(..) {
                    self.cut(outbox, extent, (op, Mark::Sync), |_, _| purpose);
                }
                self.extents = extents;
            }
            DirectOp::Flush => outbox.push_back(bio(Op::Flush, 0, 0, true)),
            DirectOp::Discard => unreachable!("the lab takes no jobs that trim"),
        }
        u32::try_from(outbox.len() - before).expect("bios are few")
    }

    /// Makes the bio that reads a block of metadata; false if it is being read already.
    pub(super) fn begin_metadata_read(&mut self, outbox: &mut VecDeque<Out>, sector: u64) -> bool {
        if self.metadata_reads.contains(&sector) {
            return false;
        }
        self.metadata_reads.push(sector);
        outbox.push_back(Out {
            op: Op::Read,
            sector,
            sectors: PAGE_SECTORS as u32,
            mark: Mark::Async,
            preflush: false,
            fua: false,
            purpose: Purpose::Metadata { sector },
        });
        true
    }

    /// Marks written pages of a file as dirty. After many pages the writer checks the limits.
    pub(super) fn write(
        &mut self,
        threads: &mut Threads<'_>,
        thread: ThreadId,
        file: FileId,
        pages: Range<u64>,
    ) {
        let count = u32::try_from(pages.end - pages.start).expect("writes are short");
        self.cache.dirty(threads.now(), file, pages);
        let writer = &mut threads[thread];
        writer.doing = Doing::Next;
        writer.dirtied += count;
        if writer.dirtied >= self.config.write_back.writer_pages {
            writer.dirtied = 0;
            let level = self.cache.level();
            if level >= DirtyLevel::Background {
                self.wake_flushers(threads);
            }
            if level == DirtyLevel::Limit {
                threads.set(thread, Doing::Throttled);
            }
        }
    }

    fn wake_flushers(&self, threads: &mut Threads<'_>) {
        for flusher in (0..self.config.write_back.flushers).map(ThreadId) {
            // A flusher in a congestion wait only watches the clock.
            if threads[flusher].doing == Doing::Next {
                threads.wake_from(flusher, Wait::Work);
            }
        }
    }

    /// Begins a handle of the running transaction; false if the thread must wait for the next one
    /// (`start_this_handle`).
    pub(super) fn begin_handle(&mut self, thread: ThreadId) -> bool {
        if self.journal.locked {
            self.waiters.handle.push(thread);
            return false;
        }
        self.journal.handles += 1;
        true
    }

    /// Ends a handle, and wakes a commit that waits for the last one.
    pub(super) fn end_handle(&mut self, threads: &mut Threads<'_>) {
        self.journal.handles -= 1;
        if self.journal.locked && self.journal.handles == 0 {
            threads.wake_from(self.journal.thread, Wait::Journal);
        }
    }

    /// Locks the running transaction; returns whether its handles have ended, and then admits
    /// handles of the next one.
    pub(super) fn lock_transaction(&mut self, threads: &mut Threads<'_>) -> bool {
        self.journal.locked = self.journal.handles > 0;
        if self.journal.locked {
            return false;
        }
        for thread in std::mem::take(&mut self.waiters.handle) {
            threads.wake_from(thread, Wait::Journal);
        }
        true
    }

    /// The journal begins to write copies, or has written them; then their waiters wake up.
    pub(super) fn copies(&mut self, threads: &mut Threads<'_>, are_written: bool) {
        self.fs.copies(are_written);
        if are_written {
            for thread in std::mem::take(&mut self.waiters.copies) {
                threads.wake_from(thread, Wait::Journal);
            }
        }
    }

    /// Ends a commit, and wakes its waiters.
    pub(super) fn end_commit(&mut self, threads: &mut Threads<'_>, transaction: u64) {
        self.journal.committed = transaction;
        let is_done = |waiter: &(ThreadId, u64)| waiter.1 <= transaction;
        while let Some(place) = self.waiters.commit.iter().position(is_done) {
            let (thread, _) = self.waiters.commit.remove(place);
            threads.wake_from(thread, Wait::Commit);
        }
    }

    /// Ends a bio of a thread.
    pub(super) fn end_bio(&mut self, threads: &mut Threads<'_>, bio: InFlight, status: BlkStatus) {
        let thread = ThreadId(bio.thread);
        match bio.purpose {
            Purpose::Pages { file, page, pages } => {
                self.end_read(threads, file, page..page + pages);
            }
            Purpose::WriteBack { file, page, pages, number } => {
                self.cache.end_write_back(file, page..page + pages);
                self.write_backs.end_bio(file, number);
                self.wake_for_write_back(threads, file);
            }
            Purpose::Metadata { sector } => self.end_metadata_read(threads, sector),
            Purpose::Commit => {
                threads[thread].in_flight -= 1;
                if threads[thread].in_flight == 0 {
                    threads.wake_from(self.journal.thread, Wait::Writes);
                }
            }
            Purpose::Direct { id } => end_direct(threads, thread, id, status),
        }
    }

    fn end_read(&mut self, threads: &mut Threads<'_>, file: FileId, pages: Range<u64>) {
        self.cache.end_read(file, pages.clone());
        let came = |waiter: &(ThreadId, FileId, u64)| waiter.1 == file && pages.contains(&waiter.2);
        while let Some(place) = self.waiters.pages.iter().position(came) {
            let (thread, ..) = self.waiters.pages.remove(place);
            threads.wake_from(thread, Wait::Pages);
        }
    }

    fn end_metadata_read(&mut self, threads: &mut Threads<'_>, sector: u64) {
        self.fs.metadata_read(sector);
        self.metadata_reads.retain(|reading| *reading != sector);
        let came = |waiter: &(ThreadId, u64)| waiter.1 == sector;
        while let Some(place) = self.waiters.metadata.iter().position(came) {
            let (thread, _) = self.waiters.metadata.remove(place);
            threads.wake_from(thread, Wait::Pages);
        }
    }

    fn wake_for_write_back(&mut self, threads: &mut Threads<'_>, file: FileId) {
        let have_ended = |files: &Self| {
            files.waiters.writes.iter().position(|(_, waits_for, writes)| {
                *waits_for == file && !files.write_backs.are_running(file, *writes)
            })
        };
        while let Some(place) = have_ended(self) {
            let (thread, ..) = self.waiters.writes.remove(place);
            threads.wake_from(thread, Wait::Writes);
        }
        if !self.waiters.limit.is_empty() && self.cache.level() < DirtyLevel::Limit {
            for thread in std::mem::take(&mut self.waiters.limit) {
                threads.wake_from(thread, Wait::DirtyLimit);
            }
        }
    }
}

/// Ends a bio of a direct operation.
fn end_direct(threads: &mut Threads<'_>, thread: ThreadId, id: u32, status: BlkStatus) {
    let now = threads.now();
    let owner = &mut threads[thread];
    let status = if status == BlkStatus::Ok { Ok(()) } else { Err(EIO) };
    owner.direct.end_bio(now, id, status);
    if let Doing::Reap { at_least, .. } = &owner.doing
        && owner.direct.ended.len() >= *at_least as usize
    {
        threads.wake_from(thread, Wait::Direct);
    }
}

/// The pages of a range of bytes.
pub(super) fn pages(offset_bytes: u64, len_bytes: u64) -> Range<u64> {
    offset_bytes / PAGE_BYTES..(offset_bytes + len_bytes).div_ceil(PAGE_BYTES)
}

/// `errno` of a failed transfer.
const EIO: i32 = 5;
