//! Threads that nobody asked for: flushers, writers above the limit, the journal, housekeeping.

use std::collections::VecDeque;

use blockyard_engine::bio::Op;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::{FileId, Task};

use super::thread::{Doing, Kind, Out, Purpose, Step};
use super::trace::{Observer, Wait};
use super::{Housekeeping, Timer, Turn, World};
use crate::cache::DirtyLevel;
use crate::cpu::{Affinity, CpuId, ThreadId};

/// Who finds the queue congested, or too much under write-back, looks again after this time
/// (`congestion_wait(WRITE, HZ / 10)`).
const CONGESTION_WAIT: Nanos = Nanos::from_ms(100);

/// Where the journal is.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) thread: ThreadId,
    /// The transaction that takes changes.
    pub(super) running: u64,
    /// The last that somebody waits for.
    pub(super) wanted: u64,
    /// The last that is on the device.
    pub(super) committed: u64,
    /// When the running one is committed unasked.
    due: Nanos,
}

impl Journal {
    pub(super) fn new(thread: ThreadId, interval: Nanos) -> Self {
        Self { thread, running: 1, wanted: 0, committed: 0, due: interval }
    }
}

impl<T: Task, O: Observer> World<'_, T, O> {
    /// Takes dirty pages of a file from `from` on and makes bios of them; how many pages, and where
    /// the last of them ends.
    fn gather(
        &mut self,
        thread: ThreadId,
        file: FileId,
        from: u64,
        most: u64,
        sync: bool,
    ) -> (u64, u64) {
        let (mut taken, mut next) = (0, from);
        let mut extents = std::mem::take(&mut self.extents);
        while taken < most
            && let Some(run) = self.cache.begin_write_back(file, next, most - taken)
        {
            taken += run.end - run.start;
            next = run.end;
            self.fs.place(file, run, &mut extents);
            for extent in extents.drain(..) {
                let number = self.write_backs.begin(file, extent, self.config.bio_sectors);
                self.cut(thread, extent, Op::Write, sync, |page, pages| Purpose::WriteBack {
                    file,
                    page,
                    pages,
                    number,
                });
            }
        }
        self.extents = extents;
        (taken, next)
    }

    /// Everything of a file.
    pub(super) fn gather_all(&mut self, thread: ThreadId, file: FileId, sync: bool) {
        self.gather(thread, file, 0, u64::MAX, sync);
    }

    /// Some of the first file in turn that has anything to write, from where its last turn ended;
    /// how many pages.
    fn gather_turn(&mut self, thread: ThreadId, most: u64) -> u64 {
        let turn = |world: &Self| world.cache.oldest_dirty().map(|(file, _)| file);
        let first = turn(self);
        let mut next = first;
        while let Some(file) = next {
            let taken = self.gather_file(thread, file, most);
            self.cache.requeue(file);
            next = turn(self);
            // The first stays dirty when nothing of it was taken: the round ends there.
            if taken > 0 || next == first {
                return taken;
            }
        }
        0
    }

    fn gather_file(&mut self, thread: ThreadId, file: FileId, most: u64) -> u64 {
        let cursor = self.cursors.get(&file).copied().unwrap_or(0);
        let (mut taken, mut next) = self.gather(thread, file, cursor, most, false);
        if taken < most && cursor > 0 {
            let (more, end) = self.gather(thread, file, 0, most - taken, false);
            taken += more;
            next = if more > 0 { end } else { next };
        }
        self.cursors.insert(file, next);
        taken
    }

    pub(super) fn wake_flushers(&mut self) {
        for number in 0..self.config.write_back.flushers {
            // A flusher that waits for congestion to end looks at the clock only.
            if self.threads[number as usize].doing == Doing::Next {
                self.wake_from(ThreadId(number), Wait::Work);
            }
        }
    }

    /// A flusher looks for work.
    pub(super) fn flush(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        let expire = self.config.cache.dirty_expire;
        let is_old = |(_, since): (FileId, Nanos)| self.now.since(since) >= expire;
        let wanted = self.cache.level() >= DirtyLevel::Background
            || self.cache.oldest_dirty().is_some_and(is_old);
        if !wanted {
            self.set(thread, Doing::Next);
            self.wake_at(thread, self.now + self.config.cache.write_back_interval);
            return Turn::Block(Wait::Work);
        }
        let congested = self.block.queue().is_congested(false);
        let most = u64::from(self.config.write_back.flusher_pages);
        if congested || self.gather_turn(thread, most) == 0 {
            self.set(thread, Doing::Throttled);
            self.wake_at(thread, self.now + CONGESTION_WAIT);
            return Turn::Block(Wait::Work);
        }
        self.go(cpu, thread, false, Nanos(0))
    }

    /// A writer is above the limit: it writes back more than it wrote, or waits.
    pub(super) fn throttle(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        if self.cache.level() < DirtyLevel::Limit {
            self.set(thread, Doing::Next);
            return Turn::Run(Nanos(0));
        }
        let write_back = &self.config.write_back;
        let share = u64::from(write_back.writer_pages) * 3 / 2;
        if write_back.writers_write && self.gather_turns(thread, share) > 0 {
            self.set(thread, Doing::Next);
            return self.go(cpu, thread, false, Nanos(0));
        }
        self.limit_waiters.push(thread);
        self.wake_at(thread, self.now + CONGESTION_WAIT);
        Turn::Block(Wait::DirtyLimit)
    }

    /// Turns of several files, until enough pages have been taken.
    fn gather_turns(&mut self, thread: ThreadId, most: u64) -> u64 {
        let mut taken = 0;
        while taken < most {
            match self.gather_turn(thread, most - taken) {
                0 => break,
                more => taken += more,
            }
        }
        taken
    }

    /// The journal goes on.
    pub(super) fn journal(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        match self.threads[thread.0 as usize].doing.clone() {
            Doing::CommitData { files, writes, steps, transaction } => {
                match files.iter().find(|file| self.write_backs.are_running(**file, writes)) {
                    Some(file) => {
                        if let Some(turn) = self.unplug_for(cpu, thread) {
                            return turn;
                        }
                        self.write_waiters.push((thread, *file, writes));
                        Turn::Block(Wait::Writes)
                    }
                    None => {
                        self.set(thread, Doing::CommitSteps { steps, transaction });
                        Turn::Run(Nanos(0))
                    }
                }
            }
            Doing::CommitSteps { .. } if self.threads[thread.0 as usize].in_flight > 0 => {
                self.unplug_for(cpu, thread).unwrap_or(Turn::Block(Wait::Writes))
            }
            Doing::CommitSteps { steps, transaction } => {
                self.next_step(cpu, thread, steps, transaction)
            }
            _ => self.begin_commit(cpu, thread),
        }
    }

    fn begin_commit(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        let asked = self.journal.wanted > self.journal.committed;
        if !asked && self.now < self.journal.due {
            self.wake_at(thread, self.journal.due);
            return Turn::Block(Wait::Work);
        }
        self.journal.due = self.now + self.commit_interval;
        let transaction = self.journal.running;
        self.journal.running += 1;
        let Some(commit) = self.fs.commit() else {
            self.end_commit(transaction);
            return Turn::Run(Nanos(0));
        };
        for file in &commit.data_first {
            self.gather_all(thread, *file, self.config.sync_flags);
        }
        let (files, steps) = (commit.data_first, commit.steps.into());
        let writes = self.write_backs.so_far();
        self.set(thread, Doing::CommitData { files, writes, steps, transaction });
        self.go(cpu, thread, true, Nanos(0))
    }

    fn next_step(
        &mut self,
        cpu: CpuId,
        thread: ThreadId,
        mut steps: VecDeque<Step>,
        transaction: u64,
    ) -> Turn {
        let Some(step) = steps.pop_front() else {
            self.set(thread, Doing::Next);
            self.end_commit(transaction);
            return Turn::Run(Nanos(0));
        };
        self.set(thread, Doing::CommitSteps { steps, transaction });
        let sync = self.config.sync_flags;
        let committer = &mut self.threads[thread.0 as usize];
        for (number, (sector, sectors)) in step.writes.iter().enumerate() {
            committer.outbox.push_back(Out {
                op: Op::Write,
                sector: *sector,
                sectors: *sectors,
                sync,
                preflush: step.preflush && number == 0,
                fua: step.fua,
                purpose: Purpose::Commit,
            });
        }
        if step.writes.is_empty() && step.preflush {
            let purpose = Purpose::Commit;
            let (sector, sectors, preflush, fua) = (0, 0, false, false);
            let op = Op::Flush;
            committer.outbox.push_back(Out { op, sector, sectors, sync, preflush, fua, purpose });
        }
        committer.in_flight = u32::try_from(committer.outbox.len()).expect("bios are few");
        self.go(cpu, thread, true, Nanos(0))
    }

    fn end_commit(&mut self, transaction: u64) {
        self.journal.committed = transaction;
        let is_done = |waiter: &(ThreadId, u64)| waiter.1 <= transaction;
        while let Some(place) = self.commit_waiters.iter().position(is_done) {
            let (thread, _) = self.commit_waiters.remove(place);
            self.wake_from(thread, Wait::Commit);
        }
    }

    /// Makes a thread for each CPU that does what the CPU has to do beside.
    pub(super) fn spawn_housekeepers(&mut self) {
        let Some(Housekeeping { every, .. }) = self.config.housekeeping else { return };
        let cpus = self.config.topology.cpus();
        for cpu in 0..cpus {
            let thread = self.cpus.spawn(Affinity::Cpu(CpuId(cpu)));
            self.put_to_sleep(Kind::Housekeeper, thread);
            // Not on all CPUs at once.
            let first = Nanos(every.0 * u64::from(cpu + 1) / u64::from(cpus));
            let wait_number = self.threads[thread.0 as usize].wait_number;
            self.timers.schedule(first, Timer { thread, wait_number });
        }
    }

    /// Housekeeping: the next time comes.
    pub(super) fn keep_house(&mut self, thread: ThreadId) -> Turn {
        let Some(Housekeeping { every, takes }) = self.config.housekeeping else {
            unreachable!("somebody has spawned it");
        };
        if self.threads[thread.0 as usize].doing == Doing::Next {
            self.set(thread, Doing::Throttled);
            return Turn::Run(takes);
        }
        self.set(thread, Doing::Next);
        self.wake_at(thread, self.now + every);
        Turn::Block(Wait::Work)
    }
}
