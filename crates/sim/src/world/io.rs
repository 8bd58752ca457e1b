//! Bios on their way down and back up.

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::mq::{Issue, Submitted};
use blockyard_engine::time::Nanos;
use blockyard_workload::program::{FileId, Task};

use super::World;
use super::deeds::Context;
use super::null::Null;
use super::thread::{Doing, InFlight, Out, Purpose};
use super::trace::{Event, Observer, Wait};
use crate::cache::DirtyLevel;
use crate::cpu::{CpuId, ThreadId};

/// The CPU that keeps the queue's own timers.
pub(super) const KEEPER: CpuId = CpuId(0);

impl<T: Task, O: Observer> World<'_, T, O> {
    /// Submits a bio that a thread has made; true if the submitter has to wait for a request.
    pub(super) fn submit(&mut self, by: Context, thread: ThreadId, out: &Out) -> bool {
        let bio = self.bio_of(by.cpu(), thread, out);
        if self.mapped.is_some() {
            self.submit_mapped(by, bio, thread);
            return false;
        }
        let parked = self.enters_queue(bio, thread);
        if parked {
            self.parked.push((bio.user, thread));
        }
        self.run_queue(by);
        parked
    }

    /// The bio that a thread has made; it is in flight from now on.
    pub(super) fn bio_of(&mut self, cpu: CpuId, thread: ThreadId, out: &Out) -> Bio {
        let submitter = &self.threads[thread.0 as usize];
        let bytes = u64::from(out.sectors) * 512;
        let user =
            self.in_flight.insert(InFlight { thread: thread.0, purpose: out.purpose, bytes });
        let origin = Origin {
            io_context: submitter.io_context,
            cpu: cpu.0,
            priority: submitter.priority,
            sync: out.sync,
            ..Origin::default()
        };
        let buf = match out.op {
            Op::Read | Op::Write => BufRef::zeros(out.sectors * 512),
            _ => BufRef::NONE,
        };
        let (preflush, fua) = (out.preflush, out.fua);
        let (sector, len) = (Sector(out.sector), Sector(u64::from(out.sectors)));
        Bio { preflush, fua, origin, ..Bio::new(out.op, sector, len, buf, user) }
    }

    /// A bio enters the queue; true if it is parked there.
    pub(super) fn enters_queue(&mut self, bio: Bio, thread: ThreadId) -> bool {
        self.note_submit(&bio, thread);
        self.block.submit(self.now, bio) == Submitted::Parked
    }

    /// A bio is submitted.
    pub(super) fn note_submit(&mut self, bio: &Bio, thread: ThreadId) {
        let sync = bio.is_sync();
        if sync {
            self.causes.sync_bios += 1;
            self.causes.bytes_ahead_of_sync += self.queued_bytes;
        }
        self.queued_bytes += bio.len.bytes();
        self.note_idle();
        let (op, sector, user) = (bio.op, bio.sector.0, bio.user);
        let sectors = u32::try_from(bio.len.0).expect("bios are short");
        let (fua, preflush, priority) = (bio.fua, bio.preflush, bio.origin.priority);
        let event =
            Event::Submit { bio: user, thread, op, sector, sectors, sync, fua, preflush, priority };
        self.trace.event(self.now, event);
    }

    /// It has ended there.
    pub(super) fn leaves_queue(&mut self, user: u64, bytes: u64, status: BlkStatus) {
        self.trace.event(self.now, Event::End { bio: user, status });
        self.queued_bytes -= bytes;
        self.note_idle();
    }

    /// Keeps account of writes by size, and of requests that hold bios of several submitters.
    pub(super) fn note_issue(&mut self, issue: &Issue) {
        if issue.op != Op::Write {
            return;
        }
        self.causes.write_requests += 1;
        self.causes.write_sectors += issue.len.0;
        let mut bios = self.block.queue().bios(issue.tag);
        let first = bios.next().map(|bio| bio.origin.io_context);
        let mixed = bios.any(|bio| Some(bio.origin.io_context) != first);
        self.causes.mixed_write_requests += u64::from(mixed);
    }

    /// Keeps account of the time in which the device has nothing although bios wait.
    pub(super) fn note_idle(&mut self) {
        let idles = self.device_owes == 0 && self.queued_bytes > 0;
        match (self.idle_since, idles) {
            (None, true) => self.idle_since = Some(self.now),
            (Some(since), false) => {
                self.causes.idle_waiting = self.causes.idle_waiting + self.now.since(since);
                self.idle_since = None;
            }
            _ => {}
        }
    }

    /// Something happens in the queue or the device.
    pub(super) fn advance_block(&mut self) {
        let mut ended = std::mem::take(&mut self.device_ended);
        self.block.advance_device(self.now, &mut ended);
        for (at, tag) in ended.drain(..) {
            self.device_has -= 1;
            self.trace.event(at, Event::Complete { tag: tag.index });
            self.device_interrupts(tag);
        }
        self.device_ended = ended;
        self.run_queue(Context::Interrupt(KEEPER));
    }

    /// Bios that have ended in the queue go to whom they belong.
    pub(super) fn deliver_block(&mut self, by: Context) {
        let mut done = std::mem::take(&mut self.done);
        self.block.queue().take_done(&mut done);
        for Done { user, status } in done.drain(..) {
            if self.mapped.is_some() {
                self.end_lower(by.cpu(), user, status);
            } else {
                self.leaves_queue(user, self.in_flight.bytes(user), status);
                self.end_bio(user, status);
            }
        }
        self.done = done;
        self.wake_unparked();
    }

    fn wake_unparked(&mut self) {
        let mut unparked = std::mem::take(&mut self.unparked);
        self.block.queue().take_unparked(&mut unparked);
        self.wake_parked(&mut unparked);
        self.unparked = unparked;
    }

    /// Bios that were parked have got their requests.
    pub(super) fn wake_parked(&mut self, unparked: &mut Vec<u64>) {
        for user in unparked.drain(..) {
            let place = self.parked.iter().position(|(parked, _)| *parked == user);
            if let Some(place) = place {
                let (_, thread) = self.parked.swap_remove(place);
                self.wake_from(thread, Wait::Request);
            }
        }
    }

    /// A bio of a thread has ended.
    pub(super) fn end_bio(&mut self, user: u64, status: BlkStatus) {
        let InFlight { thread, purpose, .. } = self.in_flight.remove(user);
        match purpose {
            Purpose::Pages { file, page, pages } => {
                self.cache.end_read(file, page..page + pages);
                let came = |waiter: &(ThreadId, _, u64)| {
                    waiter.1 == file && (page..page + pages).contains(&waiter.2)
                };
                while let Some(place) = self.page_waiters.iter().position(came) {
                    let (thread, ..) = self.page_waiters.remove(place);
                    self.wake_from(thread, Wait::Pages);
                }
            }
            Purpose::WriteBack { file, page, pages, number } => {
                self.cache.end_write_back(file, page..page + pages);
                self.write_backs.end_bio(file, number);
                self.wake_for_write_back(file);
            }
            Purpose::Commit => {
                let thread = &mut self.threads[thread as usize];
                thread.in_flight -= 1;
                if thread.in_flight == 0 {
                    self.wake_from(self.journal.thread, Wait::Writes);
                }
            }
            Purpose::Direct { id } => self.end_direct(ThreadId(thread), id, status),
        }
    }

    fn wake_for_write_back(&mut self, file: FileId) {
        let have_ended = |world: &Self| {
            world.write_waiters.iter().position(|(_, waits_for, writes)| {
                *waits_for == file && !world.write_backs.are_running(file, *writes)
            })
        };
        while let Some(place) = have_ended(self) {
            let (thread, ..) = self.write_waiters.remove(place);
            self.wake_from(thread, Wait::Writes);
        }
        if !self.limit_waiters.is_empty() && self.cache.level() < DirtyLevel::Limit {
            for thread in std::mem::take(&mut self.limit_waiters) {
                self.wake_from(thread, Wait::DirtyLimit);
            }
        }
    }

    fn end_direct(&mut self, thread: ThreadId, id: u32, status: BlkStatus) {
        let now = self.now;
        let owner = &mut self.threads[thread.0 as usize];
        let status = if status == BlkStatus::Ok { Ok(()) } else { Err(EIO) };
        owner.direct.end_bio(now, id, status);
        if let Doing::Reap { at_least, .. } = &owner.doing
            && owner.direct.ended.len() >= *at_least as usize
        {
            self.wake_from(thread, Wait::Direct);
        }
    }

    /// Wakes a thread up, if that is what it waits for.
    pub(super) fn wake_from(&mut self, thread: ThreadId, from: Wait) {
        let sleeper = &mut self.threads[thread.0 as usize];
        if sleeper.waits == Some(from) && !sleeper.is_over() {
            sleeper.waits = None;
            self.trace.event(self.now, Event::Wake { thread });
            // A timer is kept by the CPU that its sleeper ran on.
            let by = self.running_on.unwrap_or_else(|| self.cpus.last_of(thread));
            // A null device's context has done what it has spent before it wakes.
            let before = self.null.as_ref().map_or(Nanos(0), Null::spent);
            self.cpus.wake(self.now, thread, by, before);
        }
    }
}

/// `errno` of a failed transfer.
const EIO: i32 = 5;
