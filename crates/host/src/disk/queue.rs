//! A request queue with its waiting bios: bios enter, one system call per request leaves.
//!
//! Merged bios become one vectored transfer. The caller of [`DiskQueue::dispatch`] chooses the
//! executor: a ring, plain calls, a test.

use std::io;
use std::sync::Arc;

use blockyard_engine::bio::{Bio, Done, IoContext, Op, Sample, Sector};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::{Issue, QueueConfig, RequestQueue};
use blockyard_engine::request::Tag;
use blockyard_engine::slab::Slab;
use blockyard_engine::sq::Cqe;
use blockyard_engine::time::Nanos;

use crate::canary::{Canary, is_planted};
use crate::device_thread::DeviceBio;
use crate::file::DeviceFile;
use crate::file_op::{FileOp, FileOpKind, iovec};
use crate::stages::{self, Span, Stage, Timed};

/// Starts an operation. `Some` if it has already ended; its memory may then be reused.
pub(crate) type Start<'a> =
    dyn FnMut(FileOp<Tag>, &mut Vec<libc::iovec>) -> Option<io::Result<()>> + 'a;

/// A sampled bio.
struct Sampled {
    /// Index in `bios`.
    user: u64,
    /// Time of issue to the device; a preflush counts.
    issued: Option<Nanos>,
}

/// The queue of one device.
pub(crate) struct DiskQueue {
    queue: RequestQueue,
    file: Arc<DeviceFile>,
    /// Bios by [`Bio::user`] in the queue.
    bios: Slab<DeviceBio>,
    /// Sampled bios; few.
    sampled: Vec<Sampled>,
    /// Timings and the io-contexts of their submitters.
    timed: Vec<(IoContext, Timed)>,
    /// Issued requests by tag.
    issued: Vec<Option<Issued>>,
    /// Emptied after each use; kept for its memory.
    issues: Vec<Issue>,
    done: Vec<Done>,
    memory: Vec<libc::iovec>,
    unparked: Vec<u64>,
}

// SAFETY: the addresses in `memory` are used only during the call that filled it.
unsafe impl Send for DiskQueue {}

/// A request at the device.
#[derive(Clone, Copy)]
struct Issued {
    issue: Issue,
    /// Its delay has been reported.
    is_reported: bool,
}

impl DiskQueue {
    pub(crate) fn new(file: Arc<DeviceFile>, config: QueueConfig, spec: &ElevatorSpec) -> Self {
        assert_eq!(config.hw_queues, 1, "a tag's index names a request");
        Self {
            queue: RequestQueue::new(config, spec),
            file,
            bios: Slab::default(),
            sampled: Vec::new(),
            timed: Vec::new(),
            issued: vec![None; config.queue_depth as usize],
            issues: Vec::new(),
            done: Vec::new(),
            memory: Vec::new(),
            unparked: Vec::new(),
        }
    }

    /// Holds bios of this submitter back until [`DiskQueue::unplug`].
    pub(crate) fn plug(&mut self, io_context: IoContext) {
        self.queue.plug(io_context);
    }

    /// Submits a bio.
    pub(crate) fn submit(&mut self, now: Nanos, bio: DeviceBio) {
        let user = u64::from(self.bios.insert(bio));
        if bio.bio.origin.sample != Sample::NONE {
            self.sampled.push(Sampled { user, issued: None });
        }
        // The queue owns the bio until its end, parked or not: no thread sleeps for a free request,
        // and a connection's buffers bound its bios.
        self.queue.submit_bio(now, Bio { user, ..bio.bio });
    }

    /// Ends a plug: the submitter has no more bios for now.
    pub(crate) fn unplug(&mut self, now: Nanos, io_context: IoContext) {
        self.queue.unplug(now, io_context);
    }

    /// Starts all requests that the device accepts now.
    pub(crate) fn dispatch(&mut self, now: Nanos, start: &mut Start<'_>) {
        loop {
            let mut issues = std::mem::take(&mut self.issues);
            self.queue.dispatch(now, &mut issues);
            let mut ended = false;
            for issue in issues.drain(..) {
                self.issued[issue.tag.index as usize] = Some(Issued { issue, is_reported: false });
                if !self.sampled.is_empty() {
                    self.note_issue(issue.tag);
                }
                if let Some(result) = self.start(&issue, start) {
                    self.complete(now, issue.tag, result);
                    ended = true;
                }
            }
            self.issues = issues;
            if !ended {
                return;
            }
        }
    }

    fn note_issue(&mut self, tag: Tag) {
        let issued = stages::now();
        for bio in self.queue.bios(tag) {
            if let Some(sampled) = self.sampled.iter_mut().find(|one| one.user == bio.user) {
                sampled.issued.get_or_insert(issued);
            }
        }
    }

    fn start(&mut self, issue: &Issue, start: &mut Start<'_>) -> Option<io::Result<()>> {
        let Issue { tag, op, sector, len, fua, .. } = *issue;
        let offset_bytes = sector.bytes();
        let len_bytes = len.bytes();
        let kind = match op {
            Op::Read => FileOpKind::Read { offset_bytes },
            Op::Write => FileOpKind::Write { offset_bytes, fua },
            Op::Flush if is_planted(Canary::Fdatasync) => return Some(Ok(())),
            Op::Flush => FileOpKind::Flush,
            Op::Discard if !self.file.is_block_device() => {
                FileOpKind::PunchHole { offset_bytes, len_bytes }
            }
            // io_uring has no operations for these on old kernels.
            Op::Discard => return Some(self.file.discard(offset_bytes, len_bytes)),
            Op::WriteZeroes => {
                return Some(self.file.write_zeroes(offset_bytes, len_bytes));
            }
        };
        self.memory.clear();
        if matches!(op, Op::Read | Op::Write) {
            self.gather(tag, sector);
        }
        start(FileOp { user: tag, fd: self.file.data_fd(), kind }, &mut self.memory)
    }

    /// Collects the memory of a request, in sector order; adjacent buffers are one piece.
    fn gather(&mut self, tag: Tag, first: Sector) {
        let mut next = first;
        for bio in self.queue.bios(tag) {
            assert_eq!(bio.sector, next, "the bios of a request follow each other");
            next = bio.sector + bio.len;
            let whole = self.bios.get(u32::try_from(bio.user).expect("an index of `bios`"));
            let skip_bytes = Sector(bio.sector.0 - whole.bio.sector.0).bytes() as usize;
            let memory = &mut self.memory;
            let add = |base: *mut u8, len_bytes| match memory.last_mut() {
                Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == base.cast() => {
                    last.iov_len += len_bytes;
                }
                _ => memory.push(iovec(base, len_bytes)),
            };
            // SAFETY: the bio is in `bios` until its completion.
            unsafe { whole.memory.each(skip_bytes, bio.len.bytes() as usize, add) };
        }
    }

    /// Completes a request.
    pub(crate) fn complete(&mut self, now: Nanos, tag: Tag, result: io::Result<()>) {
        let issued = self.issued[tag.index as usize].take();
        let Issue { op, sector, fua, .. } =
            issued.expect("the device answers what it was given").issue;
        self.queue.complete(now, tag, self.file.ended(op, sector, fua, result));
    }

    /// Moves completions to the end of `out`, each with its io-context.
    pub(crate) fn take_done(&mut self, out: &mut Vec<(IoContext, Cqe)>) {
        self.queue.take_unparked(&mut self.unparked);
        self.unparked.clear();
        self.queue.take_done(&mut self.done);
        let mut done = std::mem::take(&mut self.done);
        for Done { user, status } in done.drain(..) {
            let bio = self.bios.remove(u32::try_from(user).expect("an index of `bios`"));
            if bio.bio.origin.sample != Sample::NONE {
                self.note_end(user, &bio);
            }
            out.push((bio.client, Cqe { token: bio.token, status }));
        }
        self.done = done;
    }

    fn note_end(&mut self, user: u64, bio: &DeviceBio) {
        let ended = stages::now();
        let place = self.sampled.iter().position(|one| one.user == user);
        let place = place.expect("noted when it was submitted");
        let issued = self.sampled.swap_remove(place).issued.unwrap_or(ended);
        for (stage, from, to) in
            [(Stage::Queue, bio.submitted, issued), (Stage::Device, issued, ended)]
        {
            let span = Span { stage, from, to };
            self.timed.push((bio.client, Timed { sample: bio.bio.origin.sample, span }));
        }
    }

    /// Timings of the bios that [`DiskQueue::take_done`] returned.
    pub(crate) fn take_timed(&mut self) -> impl Iterator<Item = (IoContext, Timed)> {
        self.timed.drain(..)
    }

    /// Ends a submitter.
    pub(crate) fn exit_context(&mut self, now: Nanos, io_context: IoContext) {
        self.queue.exit_context(now, io_context);
    }

    /// Next time at which [`DiskQueue::dispatch`] has work without any event.
    pub(crate) fn wake_at(&self) -> Option<Nanos> {
        self.queue.wake_at()
    }

    /// Number of bios in flight.
    pub(crate) fn len(&self) -> usize {
        self.bios.len()
    }

    /// Reports each request that the device has had for too long, once. The queue continues to
    /// wait, because the kernel owns the memory.
    pub(crate) fn newly_late(&mut self, now: Nanos, tell: &mut dyn FnMut(&str)) {
        let mut tags = Vec::new();
        self.queue.timed_out(now, &mut tags);
        for tag in tags {
            let Some(issued) = &mut self.issued[tag.index as usize] else { continue };
            if !issued.is_reported {
                issued.is_reported = true;
                tell(&format!("{}: {}", self.file.path().display(), late(&issued.issue)));
            }
        }
    }

    /// Counters of the queue.
    #[cfg(test)]
    pub(crate) fn counters(&self) -> blockyard_engine::mq::Counters {
        *self.queue.counters()
    }
}

fn late(issue: &Issue) -> String {
    let what = match issue.op {
        Op::Read => "a read",
        Op::Write => "a write",
        Op::Flush => "a flush",
        Op::Discard => "a discard",
        Op::WriteZeroes => "a write of zeroes",
    };
    let place = match issue.len {
        Sector(0) => String::new(),
        len => format!(" of {} sectors at sector {}", len.0, issue.sector.0),
    };
    format!(
        "{what}{place} has been with the device for {} s; the server still waits for it",
        super::TIMEOUT.0 / 1_000_000_000
    )
}

#[cfg(test)]
mod tests;
