//! What a task's calls do: the system call layer, from the task down to bios.

use std::ops::Range;

use blockyard_engine::bio::Op;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::{Call, DirectOp, FileId, Reaped, Returned, Task, Usage};

use super::thread::{Doing, Kind, Out, Purpose, WritesUpTo};
use super::trace::{Observer, Wait};
use super::{Turn, World};
use crate::cache::{DirtyLevel, Lookup, PAGE_BYTES, PAGE_SECTORS, ReadAhead};
use crate::cpu::{CpuId, Switches, ThreadId};

impl<T: Task, O: Observer> World<'_, T, O> {
    /// The task says its next call, and does something itself before.
    pub(super) fn next_call(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        let turn = self.call_of(cpu, thread);
        let Turn::Run(burst) = turn else { return turn };
        let caller = &mut self.threads[thread.0 as usize];
        caller.user = caller.user + self.config.costs.user;
        Turn::Run(burst + self.config.costs.user)
    }

    fn usage(&self, thread: ThreadId) -> Usage {
        let user = self.threads[thread.0 as usize].user;
        let Switches { voluntary, involuntary } = self.cpus.switches_of(thread);
        let system = self.cpus.used(thread) - user;
        let switches = self.cpus.switches_to(thread);
        Usage { user, system, switches, voluntary, involuntary }
    }

    fn call_of(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        let usage = self.usage(thread);
        let Kind::Task { task: Some(task), status, reaped, .. } =
            &mut self.threads[thread.0 as usize].kind
        else {
            unreachable!("only tasks make calls");
        };
        let call = task.next(self.now, &Returned { status: *status, reaped, usage });
        *status = Ok(());
        reaped.clear();
        let costs = &self.config.costs;
        match call {
            Call::Create(file) => {
                self.cache.forget(file);
                self.fs.create(file);
                Turn::Run(costs.syscall)
            }
            Call::Open(file) => {
                self.threads[thread.0 as usize].read_ahead.retain(|(open, _)| *open != file);
                Turn::Run(costs.syscall)
            }
            Call::Layout { file, len_bytes } => {
                self.cache.forget(file);
                self.fs.layout(file, len_bytes.div_ceil(PAGE_BYTES));
                Turn::Run(Nanos(0))
            }
            Call::Read { file, offset_bytes, len_bytes } => {
                let pages = pages(offset_bytes, len_bytes);
                let pages = pages.start..pages.end.min(self.fs.file_pages(file));
                self.set(thread, Doing::Read { file, pages, waited: false });
                self.read(cpu, thread, costs.syscall)
            }
            Call::Write { file, offset_bytes, len_bytes } => {
                let pages = pages(offset_bytes, len_bytes);
                let cost = costs.syscall + Nanos(costs.page.0 * (pages.end - pages.start));
                self.set(thread, Doing::Write { file, pages });
                Turn::Run(cost)
            }
            Call::Fsync(file) => {
                self.gather_all(thread, file, self.config.sync_flags);
                let writes = self.write_backs.so_far();
                self.set(thread, Doing::FsyncPages { file, again: true, writes });
                self.go(cpu, thread, true, costs.syscall)
            }
            Call::Close(_) => Turn::Run(costs.syscall),
            Call::Submit { id, file, op, offset_bytes, len_bytes } => {
                self.submit_direct(thread, id, file, op, (offset_bytes, len_bytes));
                self.go(cpu, thread, true, costs.syscall)
            }
            Call::Reap { at_least, at_most } => {
                self.set(thread, Doing::Reap { at_least, at_most, until: None });
                Turn::Run(costs.syscall)
            }
            Call::ReapBefore(until) => {
                let (at_least, at_most, until) = (1, u32::MAX, Some(until));
                self.set(thread, Doing::Reap { at_least, at_most, until });
                Turn::Run(costs.syscall)
            }
            Call::Priority(priority) => {
                self.threads[thread.0 as usize].priority = priority;
                Turn::Run(Nanos(0))
            }
            Call::Sleep(pause) => {
                self.wake_at(thread, self.now + pause);
                Turn::Block(Wait::Sleep)
            }
            Call::Usage => Turn::Run(costs.syscall),
            Call::Exit => Turn::Exit,
        }
    }

    /// Goes on with what the thread is in the middle of.
    pub(super) fn go_on(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        match self.threads[thread.0 as usize].doing.clone() {
            Doing::Next => self.next_call(cpu, thread),
            Doing::Read { .. } => self.read(cpu, thread, Nanos(0)),
            Doing::Write { file, pages } => self.write(thread, file, pages),
            Doing::Throttled => self.throttle(cpu, thread),
            Doing::FsyncPages { file, again, writes } => {
                self.fsync_pages(cpu, thread, file, again, writes)
            }
            Doing::FsyncCommit { transaction } if self.journal.committed < transaction => {
                self.commit_waiters.push((thread, transaction));
                Turn::Block(Wait::Commit)
            }
            Doing::FsyncCommit { .. } => self.returns(thread),
            Doing::Reap { at_least, at_most, until } => self.reap(thread, at_least, at_most, until),
            Doing::CommitData { .. } | Doing::CommitSteps { .. } => {
                unreachable!("only the journal commits")
            }
        }
    }

    pub(super) fn set(&mut self, thread: ThreadId, doing: Doing) {
        self.threads[thread.0 as usize].doing = doing;
    }

    /// The call has been made.
    fn returns(&mut self, thread: ThreadId) -> Turn {
        self.set(thread, Doing::Next);
        Turn::Run(Nanos(0))
    }

    /// Pages that are there are copied; the first that is not is waited for.
    fn read(&mut self, cpu: CpuId, thread: ThreadId, before: Nanos) -> Turn {
        let Doing::Read { file, mut pages, mut waited } =
            self.threads[thread.0 as usize].doing.clone()
        else {
            unreachable!("it reads");
        };
        let mut cost = before;
        while let Some(page) = pages.clone().next() {
            let window = match self.cache.lookup(file, page) {
                Lookup::UpToDate => None,
                Lookup::Marked => {
                    let file_pages = self.fs.file_pages(file);
                    self.read_ahead(thread, file).mark(page, file_pages)
                }
                Lookup::Reading if self.cache.take_mark(file, page) => {
                    // The next window is asked for before this one is waited for.
                    let file_pages = self.fs.file_pages(file);
                    self.set(thread, Doing::Read { file, pages, waited: true });
                    if let Some(window) = self.read_ahead(thread, file).mark(page, file_pages) {
                        self.gather_read(thread, file, window.pages, window.mark);
                    }
                    return self.go(cpu, thread, true, cost);
                }
                Lookup::Reading if cost > Nanos(0) => {
                    self.set(thread, Doing::Read { file, pages, waited: true });
                    return Turn::Run(cost);
                }
                Lookup::Reading => {
                    self.set(thread, Doing::Read { file, pages, waited: true });
                    if let Some(turn) = self.unplug_for(cpu, thread) {
                        return turn;
                    }
                    self.page_waiters.push((thread, file, page));
                    return Turn::Block(Wait::Pages);
                }
                Lookup::Absent => {
                    let (left, file_pages) = (pages.end - page, self.fs.file_pages(file));
                    let window = self.read_ahead(thread, file).miss(page, left, file_pages);
                    self.gather_read(thread, file, window.pages, window.mark);
                    self.set(thread, Doing::Read { file, pages, waited: true });
                    return self.go(cpu, thread, true, cost);
                }
            };
            pages.start += 1;
            cost = cost + self.config.costs.page;
            self.causes.page_lookups += 1;
            self.causes.page_hits += u64::from(!std::mem::take(&mut waited));
            if let Some(window) = window {
                self.gather_read(thread, file, window.pages, window.mark);
                self.set(thread, Doing::Read { file, pages, waited });
                return self.go(cpu, thread, false, cost);
            }
        }
        if pages.start > 0 {
            self.read_ahead(thread, file).called(pages.start - 1);
        }
        self.set(thread, Doing::Next);
        Turn::Run(cost)
    }

    fn read_ahead(&mut self, thread: ThreadId, file: FileId) -> &mut ReadAhead {
        let max_pages = self.config.cache.read_ahead_bytes / PAGE_BYTES;
        let open = &mut self.threads[thread.0 as usize].read_ahead;
        let place = open.iter().position(|(open, _)| *open == file).unwrap_or_else(|| {
            open.push((file, ReadAhead::new(max_pages)));
            open.len() - 1
        });
        &mut open[place].1
    }

    fn gather_read(
        &mut self,
        thread: ThreadId,
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
                self.cut(thread, extent, Op::Read, false, |page, pages| Purpose::Pages {
                    file,
                    page,
                    pages,
                });
            }
        }
        self.extents = extents;
    }

    /// Pages that lie nowhere read as zeros at once.
    fn end_holes(&mut self, file: FileId, run: Range<u64>, extents: &[crate::fs::Extent]) {
        let mut from = run.start;
        for extent in extents {
            self.cache.end_read(file, from..extent.page);
            from = extent.page + extent.pages;
        }
        self.cache.end_read(file, from..run.end);
    }

    /// Makes bios of an extent, none longer than the configuration allows.
    pub(super) fn cut(
        &mut self,
        thread: ThreadId,
        extent: crate::fs::Extent,
        op: Op,
        sync: bool,
        purpose: impl Fn(u64, u64) -> Purpose,
    ) {
        let most = u64::from(self.config.bio_sectors) / PAGE_SECTORS;
        let mut done = 0;
        while done < extent.pages {
            let pages = most.min(extent.pages - done);
            let sectors = u32::try_from(pages * PAGE_SECTORS).expect("bios are short");
            let sector = extent.sector + done * PAGE_SECTORS;
            let purpose = purpose(extent.page + done, pages);
            let out = Out { op, sector, sectors, sync, preflush: false, fua: false, purpose };
            self.threads[thread.0 as usize].outbox.push_back(out);
            done += pages;
        }
    }

    /// Pages have been copied, and are dirty.
    fn write(&mut self, thread: ThreadId, file: FileId, pages: Range<u64>) -> Turn {
        let count = u32::try_from(pages.end - pages.start).expect("writes are short");
        self.fs.write(file, pages.clone());
        self.cache.dirty(self.now, file, pages);
        let writer = &mut self.threads[thread.0 as usize];
        writer.doing = Doing::Next;
        writer.dirtied += count;
        if writer.dirtied >= self.config.write_back.writer_pages {
            writer.dirtied = 0;
            let level = self.cache.level();
            if level >= DirtyLevel::Background {
                self.wake_flushers();
            }
            if level == DirtyLevel::Limit {
                self.set(thread, Doing::Throttled);
            }
        }
        Turn::Run(Nanos(0))
    }

    fn fsync_pages(
        &mut self,
        cpu: CpuId,
        thread: ThreadId,
        file: FileId,
        again: bool,
        writes: WritesUpTo,
    ) -> Turn {
        if self.write_backs.are_running(file, writes) {
            if let Some(turn) = self.unplug_for(cpu, thread) {
                return turn;
            }
            self.write_waiters.push((thread, file, writes));
            return Turn::Block(Wait::Writes);
        }
        if again && self.cache.dirty_pages_of(file) > 0 {
            // They were written to while the device was being given what they had before.
            self.gather_all(thread, file, self.config.sync_flags);
            let writes = self.write_backs.so_far();
            self.set(thread, Doing::FsyncPages { file, again: false, writes });
            return self.go(cpu, thread, true, Nanos(0));
        }
        let transaction = self.journal.running;
        self.journal.wanted = transaction;
        self.set(thread, Doing::FsyncCommit { transaction });
        self.wake_from(self.journal.thread, Wait::Work);
        Turn::Run(Nanos(0))
    }

    fn submit_direct(
        &mut self,
        thread: ThreadId,
        id: u32,
        file: FileId,
        op: DirectOp,
        (offset_bytes, len_bytes): (u64, u64),
    ) {
        if let DirectOp::Bio { op, sync, fua, preflush } = op {
            let sectors =
                u32::try_from(len_bytes / 512).expect("its length was 32 bits of sectors");
            let (sector, purpose) = (offset_bytes / 512, Purpose::Direct { id });
            let out = Out { op, sector, sectors, sync, preflush, fua, purpose };
            let submitter = &mut self.threads[thread.0 as usize];
            submitter.outbox.push_back(out);
            submitter.direct.running.push((id, 1, Ok(())));
            return;
        }
        let mut extents = std::mem::take(&mut self.extents);
        if op != DirectOp::Flush {
            self.fs.map(file, pages(offset_bytes, len_bytes), &mut extents);
        }
        let op = match op {
            DirectOp::Read => Op::Read,
            DirectOp::Write => Op::Write,
            DirectOp::Flush => Op::Flush,
            DirectOp::Discard => unreachable!("the lab takes no jobs that trim"),
            DirectOp::Bio { .. } => unreachable!("it has its way above"),
        };
        let before = self.threads[thread.0 as usize].outbox.len();
        for extent in extents.drain(..) {
            self.cut(thread, extent, op, true, |_, _| Purpose::Direct { id });
        }
        self.extents = extents;
        let submitter = &mut self.threads[thread.0 as usize];
        if op == Op::Flush {
            let purpose = Purpose::Direct { id };
            let (sector, sectors) = (0, 0);
            let (preflush, fua) = (false, false);
            let out = Out { op, sector, sectors, sync: true, preflush, fua, purpose };
            submitter.outbox.push_back(out);
        }
        let bios = u32::try_from(submitter.outbox.len() - before).expect("bios are few");
        if bios == 0 {
            submitter.direct.ended.push(Reaped { id, status: Ok(()), ended: self.now });
        } else {
            submitter.direct.running.push((id, bios, Ok(())));
        }
    }

    fn reap(&mut self, thread: ThreadId, least: u32, at_most: u32, until: Option<Nanos>) -> Turn {
        let reaper = &mut self.threads[thread.0 as usize];
        let enough = reaper.direct.ended.len() >= least as usize;
        let waits = match until {
            Some(until) => self.now < until,
            None => !reaper.direct.running.is_empty(),
        };
        if !enough && waits {
            if let Some(until) = until {
                self.wake_at(thread, until);
            }
            return Turn::Block(Wait::Direct);
        }
        let ended = &mut reaper.direct.ended;
        if let Kind::Task { reaped, .. } = &mut reaper.kind {
            reaped.extend(ended.drain(..ended.len().min(at_most as usize)));
        }
        self.returns(thread)
    }
}

/// The pages that a range of bytes touches.
fn pages(offset_bytes: u64, len_bytes: u64) -> Range<u64> {
    offset_bytes / PAGE_BYTES..(offset_bytes + len_bytes).div_ceil(PAGE_BYTES)
}
