//! The thread of a device with an elevator: one queue and one ring for all connections.
//!
//! ```text
//!        ┌─ receive: batches of the connections ──> queue
//!        │  collect: completions of the device ──> queue
//!   loop ┤  dispatch: requests, in the elevator's order ──> ring
//!        │  answer: a batch to each connection
//!        └─ sleep: until the inbox, the ring, or the elevator's own time
//! ```
//! The kernel owns the memory of issued operations. So the thread ends only after all completions,
//! and an executor waits for its completions before it frees its buffers.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_engine::bio::IoContext;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::request::Tag;
use blockyard_engine::sq::Cqe;
use blockyard_engine::time::Nanos;

use super::DiskQueue;
use crate::device_thread::{Clients, DeviceThread, Inbox, Shared};
use crate::file::DeviceFile;
use crate::file_op::FileOp;
use crate::log::{Event, Kind};
use crate::ring::Ring;
use crate::{poll, sync_io};

/// A request that takes longer is reported on standard error (`BLK_TIMEOUT` of most drivers).
pub(crate) const TIMEOUT: Nanos = Nanos::from_ms(30_000);

/// Starts the thread of the table's device with this number.
///
/// # Errors
/// The system has no more descriptors or threads.
pub(crate) fn start(
    number: usize,
    file: Arc<DeviceFile>,
    config: QueueConfig,
    spec: &ElevatorSpec,
) -> io::Result<DeviceThread> {
    let fd = file.data_fd();
    let queue = DiskQueue::new(file, config, spec);
    DeviceThread::start(format!("disk/{number}"), move |inbox| {
        // A ring belongs to the thread that made it.
        Running::new(inbox, queue, Ring::new(config.queue_depth, vec![fd]).ok()).run();
    })
}

/// State of the thread.
struct Running {
    shared: Arc<Shared>,
    queue: DiskQueue,
    /// Without a ring the thread makes plain calls, one at a time.
    ring: Option<Ring<Tag>>,
    clients: Clients,
    stopping: bool,
    epoch: Instant,
    /// Emptied after each use; kept for their memory.
    received: Inbox,
    completed: Vec<(Tag, io::Result<()>)>,
    done: Vec<(IoContext, Cqe)>,
}

impl Running {
    fn new(shared: Arc<Shared>, queue: DiskQueue, ring: Option<Ring<Tag>>) -> Self {
        Self {
            shared,
            queue,
            ring,
            clients: Clients::default(),
            stopping: false,
            epoch: Instant::now(),
            received: Inbox::default(),
            completed: Vec::new(),
            done: Vec::new(),
        }
    }

    fn run(&mut self) {
        loop {
            let now = self.now();
            self.receive(now);
            self.collect(now);
            self.dispatch(now);
            self.answer();
            let slow = Event::new(Kind::SlowRequest);
            self.queue.newly_late(now, &mut |late| slow.say(format_args!("{late}")));
            if self.stopping && self.queue.len() == 0 {
                return;
            }
            self.sleep();
        }
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn receive(&mut self, now: Nanos) {
        self.shared.take(&mut self.received);
        let Inbox { joined, bios, batches, abandoned, left, nudged, ending, stopping } =
            &mut self.received;
        // A local disk answers soon in any case.
        abandoned.clear();
        (*nudged, *ending) = (false, false);
        joined.drain(..).for_each(|joined| self.clients.join(joined));
        let mut rest = bios.as_slice();
        for len in batches.drain(..) {
            let (batch, after) = rest.split_at(len);
            rest = after;
            // Each task has its own plug.
            for of_one in
                batch.chunk_by(|one, next| one.bio.origin.io_context == next.bio.origin.io_context)
            {
                let io_context = of_one[0].bio.origin.io_context;
                self.queue.plug(io_context);
                of_one.iter().for_each(|bio| self.queue.submit(now, *bio));
                self.queue.unplug(now, io_context);
            }
        }
        bios.clear();
        for io_context in left.drain(..) {
            self.clients.leave(io_context);
            self.queue.exit_context(now, io_context);
        }
        self.stopping |= std::mem::take(stopping);
    }

    fn collect(&mut self, now: Nanos) {
        if let Some(ring) = &mut self.ring {
            ring.take(&mut self.completed);
        }
        for (tag, result) in self.completed.drain(..) {
            self.queue.complete(now, tag, result);
        }
    }

    fn dispatch(&mut self, now: Nanos) {
        let Some(ring) = &mut self.ring else {
            // SAFETY: operations own their memory until their completion.
            let mut start = |op: FileOp<Tag>, memory: &mut Vec<libc::iovec>| unsafe {
                Some(sync_io::execute(op.fd, op.kind, memory))
            };
            return self.queue.dispatch(now, &mut start);
        };
        self.queue.dispatch(now, &mut |op, memory| {
            // SAFETY: operations own their memory until their completion; the ring is drained
            // before its thread ends.
            unsafe { ring.push(op, memory) };
            None
        });
        ring.submit();
    }

    fn answer(&mut self) {
        self.queue.take_done(&mut self.done);
        for (io_context, timed) in self.queue.take_timed() {
            self.clients.time(io_context, timed);
        }
        for (io_context, cqe) in self.done.drain(..) {
            self.clients.put(io_context, cqe, false);
        }
        self.clients.answer();
    }

    fn sleep(&self) {
        let limit = self.queue.wake_at().map(|at| Duration::from_nanos(at.since(self.now()).0));
        let ring = self.ring.as_ref().filter(|ring| ring.in_flight() > 0).map(AsFd::as_fd);
        if poll::readable(&[Some(self.shared.as_fd()), ring], limit).is_err() {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests;
