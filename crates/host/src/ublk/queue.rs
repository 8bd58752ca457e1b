//! The thread of one queue.
//!
//! ```text
//! prepare ─> the device is open ─> fetch each tag ─┐
//!                      ┌───────────────────────────┘
//!                      └─> request ─> submit ─> completions ─> commit and fetch
//!                             └─────────────<── sleep until the kernel or the device
//! ```
//! All that may fail comes before the device is open, as far as the kernel permits that: a takeover
//! that fails later loses the disk. The kernel takes commands for a queue from one thread only. The
//! thread ends when the kernel has taken back all tags.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::priority::Priority;
use blockyard_protocol::ublk::{self, DESCRIPTION_BYTES, Disk, Io};
use blockyard_protocol::virtio_blk::Command;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use super::control::{disabled, enable};
use crate::driver::{Driver, SLOT_BYTES};
use crate::log::{Event, Kind};
use crate::memory::{GRANT_MAX_BYTES, Region};
use crate::poll;
use crate::process::{flush_for_others, leave_signals_to_others};
use crate::requests::{Buffers, Ended, Piece, Requests, Taken};
use crate::threads::AbortOnPanic;
use crate::throttle::SharedThrottle;
use crate::volume::Volume;

/// Memory for ciphertext of writes in flight to a disk: as much as a connection has.
const BOUNCE_BYTES: usize = GRANT_MAX_BYTES / 2;

/// All that a queue needs.
pub(super) struct Setup {
    /// Name of the export, for the log.
    pub(super) name: String,
    /// Path of the disk, for sentences.
    pub(super) place: String,
    pub(super) volume: Arc<Volume>,
    pub(super) priority: Priority,
    pub(super) throttle: Option<Arc<SharedThrottle>>,
    pub(super) disk: Disk,
    pub(super) queue: u16,
    pub(super) depth: u16,
}

/// Serves a queue until the kernel stops the disk. Says when it is prepared, takes the open device,
/// and says when it waits for requests.
pub(super) fn serve(setup: Setup, device: &Receiver<Arc<File>>, ready: &Sender<io::Result<()>>) {
    // A thread that is gone would leave requests of the kernel without an end.
    let _abort = AbortOnPanic;
    leave_signals_to_others();
    flush_for_others();
    let opened = Prepared::new(setup).and_then(|prepared| {
        let _ = ready.send(Ok(()));
        // None comes if another queue has failed.
        device.recv().ok().map(|file| prepared.open(&file)).transpose()
    });
    match opened {
        Ok(Some(mut queue)) => {
            queue.ring.submit();
            let _ = ready.send(Ok(()));
            queue.run();
        }
        Ok(None) => {}
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    }
}

/// The descriptions of a queue's requests, which the kernel writes.
struct Descriptions {
    base: *mut u8,
    len_bytes: usize,
}

impl Descriptions {
    fn map(file: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let (offset_bytes, len_bytes) = ublk::descriptions(queue, depth, page_size());
        let protection = ProtFlags::READ;
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len_bytes, protection, flags, file, offset_bytes)?
        };
        Ok(Self { base: base.cast(), len_bytes })
    }

    /// The description of the request with this tag, which the kernel has shown.
    fn get(&self, tag: u16) -> [u8; DESCRIPTION_BYTES] {
        let at = usize::from(tag) * DESCRIPTION_BYTES;
        assert!(at + DESCRIPTION_BYTES <= self.len_bytes);
        // SAFETY: the place is inside of the mapping. The kernel writes there only before it shows
        // a request, and not until its end.
        unsafe { self.base.add(at).cast::<[u8; DESCRIPTION_BYTES]>().read_volatile() }
    }
}

impl Drop for Descriptions {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it after the drop.
        let unmapped = unsafe { munmap(self.base.cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A buffer for each tag, which the kernel fills and empties.
struct TagBuffers {
    buffer_bytes: usize,
}

impl Buffers for TagBuffers {
    type Request = u16;
    type Place = ();
    type Fault = Infallible;

    fn take(&mut self, tag: &mut u16, piece: Piece) -> Result<Option<Taken<()>>, Infallible> {
        let offset_bytes = usize::from(*tag) * self.buffer_bytes + piece.at_bytes as usize;
        Ok(Some(Taken { offset_bytes, place: () }))
    }

    fn end(&mut self, _: &u16, _: Piece, _: Taken<()>, _: bool) {}
}

/// The ring of a queue.
struct QueueRing {
    ring: IoUring<squeue::Entry, cqueue::Entry>,
    queue: u16,
    /// A buffer for each tag.
    buffers: Arc<Region>,
    buffer_bytes: usize,
}

impl QueueRing {
    fn push(&mut self, io: Io, tag: u16, result: i32) {
        let at = usize::from(tag) * self.buffer_bytes;
        let addr = self.buffers.at(at, self.buffer_bytes).expose_provenance();
        let command = opcode::UringCmd16::new(types::Fixed(0), io.number());
        let command = command.cmd(ublk::io(self.queue, tag, result, addr as u64));
        let entry = command.build().user_data(tag.into());
        // SAFETY: the buffer of the tag belongs to the kernel until the command ends. The thread
        // ends, and frees it, when no command is left.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("each tag has one command");
    }

    fn submit(&mut self) {
        while !self.ring.submission().is_empty() {
            // Signals interrupt it.
            let _ = self.ring.submit();
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// All parts of a queue that need no device.
struct Prepared {
    // First, as in `Queue`.
    driver: Driver,
    ring: IoUring<squeue::Entry, cqueue::Entry>,
    buffers: Arc<Region>,
    setup: Setup,
}

impl Prepared {
    fn new(setup: Setup) -> io::Result<Self> {
        let Setup { volume, disk, depth, .. } = &setup;
        let buffer_bytes = disk.buffer_bytes as usize;
        let buffers = Arc::new(Region::new(usize::from(*depth) * buffer_bytes)?);
        let bounce_slots = if volume.is_synchronous() { 0 } else { BOUNCE_BYTES / SLOT_BYTES };
        let world = vec![Arc::clone(&buffers)];
        let mut driver =
            Driver::new(&volume.parts, bounce_slots, world, setup.priority, Instant::now())?;
        driver.set_throttle(setup.throttle.as_ref());
        driver.log_slow_requests(&setup.name);
        if !volume.fans_out_pieces() {
            driver.stay_inline();
        }
        Ok(Self { driver, ring: disabled(u32::from(*depth))?, buffers, setup })
    }

    fn open(self, file: &File) -> io::Result<Queue> {
        let Self { driver, ring, buffers, setup } = self;
        let Setup { disk, queue, depth, .. } = setup;
        let descriptions = Descriptions::map(file, queue, depth)?;
        enable(&ring, file)?;
        let buffer_bytes = disk.buffer_bytes as usize;
        let mut ring = QueueRing { ring, queue, buffers, buffer_bytes };
        (0..depth).for_each(|tag| ring.push(Io::Fetch, tag, 0));
        Ok(Queue {
            driver,
            ring,
            requests: Requests::new(TagBuffers { buffer_bytes }),
            descriptions,
            disk,
            shown: VecDeque::new(),
            tags: usize::from(depth),
            place: setup.place,
        })
    }
}

struct Queue {
    // First, so that its drop has waited for the operations that use the memory of the others.
    driver: Driver,
    ring: QueueRing,
    requests: Requests<TagBuffers>,
    descriptions: Descriptions,
    disk: Disk,
    /// Path of the disk, for sentences.
    place: String,
    /// Requests that the kernel has shown and that have not begun.
    shown: VecDeque<u16>,
    /// Number of tags that the kernel has not taken back.
    tags: usize,
}

impl Queue {
    /// Serves until the kernel has taken back all tags.
    fn run(&mut self) {
        while self.tags > 0 {
            self.receive();
            self.begin();
            self.driver.poll();
            self.requests.collect(&mut self.driver);
            self.driver.unplug();
            self.requests.collect(&mut self.driver);
            // A request that continues has submitted again; the sleep requires an empty plug.
            self.driver.unplug();
            self.commit();
            if self.requests.len() == 0 {
                self.driver.end_requests();
            }
            self.ring.submit();
            if self.tags > 0 && !self.has_work() && !self.driver.help() {
                self.sleep();
            }
        }
    }

    /// Takes requests that the kernel has shown, and notes tags that it has taken back.
    fn receive(&mut self) {
        while let Some(end) = self.ring.ring.completion().next() {
            let tag = u16::try_from(end.user_data()).expect("a tag");
            match end.result() {
                0 => self.shown.push_back(tag),
                result => {
                    self.tags -= 1;
                    if result != -libc::ENODEV {
                        let error = io::Error::from_raw_os_error(-result);
                        Event::new(Kind::Warning).say(format_args!(
                            "{}: the kernel refuses a command: {error}",
                            self.place
                        ));
                    }
                }
            }
        }
    }

    /// Begins requests; none while the volume is suspended.
    fn begin(&mut self) {
        while let Some(&tag) = self.shown.front() {
            let is_refused = self.driver.is_stopped();
            if !is_refused && !self.driver.begin_request() {
                return;
            }
            self.shown.pop_front();
            self.driver.on_received();
            let command = self.disk.command(&self.descriptions.get(tag));
            let must_be_stable = command.is_some_and(|(_, fua)| fua);
            let command = command.map(|(command, _)| command).ok_or(BlkStatus::NotSupported);
            let command = if is_refused { Err(BlkStatus::IoError) } else { command };
            let Ok(()) = self.requests.begin(tag, command, must_be_stable, &mut self.driver);
        }
    }

    /// Returns ended requests to the kernel.
    fn commit(&mut self) {
        while let Some(ended) = self.requests.take_ended() {
            let result = result_of(&ended);
            self.ring.push(Io::CommitAndFetch, ended.own, result);
        }
    }

    fn has_work(&self) -> bool {
        self.driver.has_done() || !self.shown.is_empty() && !self.driver.is_suspended()
    }

    /// Sleeps until the kernel has a request, or the device has ended one.
    fn sleep(&mut self) {
        self.driver.on_sleep();
        let [ring, workers, gate, ranges] = self.driver.wake_sources();
        let gate = gate.or_else(|| self.driver.resumed());
        let sources = [Some(self.ring.as_fd()), ring, workers, gate, ranges];
        if poll::readable(&sources, self.driver.wake_after()).is_err() {
            std::thread::yield_now();
        }
    }
}

/// The result of a request for the kernel: the length of its data, or a negative error number.
fn result_of(ended: &Ended<u16>) -> i32 {
    match (ended.status, ended.command) {
        (BlkStatus::Ok, Some(Command::Read(range) | Command::Write(range))) => {
            i32::try_from(range.len_bytes).expect("at most a buffer")
        }
        (BlkStatus::Ok, _) => 0,
        (BlkStatus::NotSupported, _) => -libc::EOPNOTSUPP,
        (BlkStatus::NoSpace, _) => -libc::ENOSPC,
        (BlkStatus::Invalid, _) => -libc::EINVAL,
        (BlkStatus::Transport, _) => -libc::ENOLINK,
        (BlkStatus::Medium, _) => -libc::ENODATA,
        (BlkStatus::IoError, _) => -libc::EIO,
    }
}
