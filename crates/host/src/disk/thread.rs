//! The thread of a device that has an elevator: one queue and one ring for all connections.
//!
//! ```text
//!        ┌─ receive: batches of the connections ──> queue
//!        │  collect: what the device has answered ──> queue
//!   loop ┤  dispatch: requests, in the elevator's order ──> ring
//!        │  answer: a batch to each connection
//!        └─ sleep: until the inbox, the ring, or the elevator's own time
//! ```
//! The kernel owns the memory of what it has been given. So the thread ends only when everything is
//! answered, and an executor waits for its answers before it frees its buffers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockyard_engine::bio::{BlkStatus, IoContext};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::{QueueConfig, Tag};
use blockyard_engine::sq::Cqe;
use blockyard_engine::time::Nanos;
use rustix::event::{EventfdFlags, eventfd};

use super::{DiskOp, DiskQueue};
use crate::answers::Answers;
use crate::file::DeviceFile;
use crate::ring::Ring;
use crate::{plain, poll, process};

/// What a device may take for a request before it is said on standard error (`BLK_TIMEOUT` of most
/// drivers).
pub(crate) const TIMEOUT: Nanos = Nanos::from_ms(30_000);

/// A device's thread, until it is dropped.
pub(crate) struct Disk {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    /// Readable while something is in the inbox.
    wake: OwnedFd,
}

/// What connections have sent.
#[derive(Default)]
struct Inbox {
    /// Connections, and where they are answered. Each comes before its operations.
    joined: Vec<(IoContext, Arc<Answers>)>,
    ops: Vec<DiskOp>,
    /// How many operations each batch in `ops` has.
    batches: Vec<usize>,
    /// Connections that have ended. Each comes after its last answer.
    left: Vec<IoContext>,
    stopping: bool,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.joined.is_empty() && self.ops.is_empty() && self.left.is_empty() && !self.stopping
    }
}

impl Disk {
    /// Starts the thread of the table's device with this number.
    ///
    /// # Errors
    /// When the system has no more descriptors or threads.
    pub(crate) fn start(
        number: usize,
        file: Arc<DeviceFile>,
        config: QueueConfig,
        spec: &ElevatorSpec,
    ) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { inbox: Mutex::default(), wake });
        let queue = DiskQueue::new(file, config, spec);
        let inbox = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(format!("disk/{number}"));
        let thread = thread.spawn(move || {
            process::leave_signals_to_others();
            let _guard = AbortOnPanic;
            // A ring belongs to the thread that made it.
            Running::new(inbox, queue, Ring::new(config.queue_depth).ok()).run();
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// A connection begins.
    pub(crate) fn join(&self, io_context: IoContext, answers: Arc<Answers>) {
        self.shared.put(|inbox| inbox.joined.push((io_context, answers)));
    }

    /// Takes a batch of one connection; `batch` is empty afterwards. The memory of each operation
    /// stays valid until its answer.
    pub(crate) fn send(&self, batch: &mut Vec<DiskOp>) {
        self.shared.put(|inbox| {
            inbox.batches.push(batch.len());
            inbox.ops.append(batch);
        });
    }

    /// A connection has ended: everything it sent has been answered.
    pub(crate) fn leave(&self, io_context: IoContext) {
        self.shared.put(|inbox| inbox.left.push(io_context));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shared.put(|inbox| inbox.stopping = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn put(&self, put: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = inbox.is_empty();
        put(&mut inbox);
        if was_empty {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Moves everything to `to`, which is empty.
    fn take(&self, to: &mut Inbox) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if !inbox.is_empty() {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            std::mem::swap(&mut *inbox, to);
        }
    }
}

/// A thread that dies of a bug would leave every connection waiting for ever. What was answered is
/// with the device, not in this process: ending that loses nothing.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Where a connection is answered.
struct Client {
    answers: Arc<Answers>,
    /// What it has not been told yet.
    cqes: Vec<Cqe>,
}

/// The thread's own.
struct Running {
    shared: Arc<Shared>,
    queue: DiskQueue,
    /// Without one the thread does everything with plain calls, one at a time.
    ring: Option<Ring<Tag>>,
    clients: BTreeMap<IoContext, Client>,
    stopping: bool,
    epoch: Instant,
    /// Emptied after each use; kept for their memory.
    received: Inbox,
    completed: Vec<(Tag, BlkStatus)>,
    done: Vec<(IoContext, Cqe)>,
}

impl Running {
    fn new(shared: Arc<Shared>, queue: DiskQueue, ring: Option<Ring<Tag>>) -> Self {
        Self {
            shared,
            queue,
            ring,
            clients: BTreeMap::new(),
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
            self.queue.newly_late(now, &mut |late| eprintln!("blockyard: {late}"));
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
        let Inbox { joined, ops, batches, left, stopping } = &mut self.received;
        for (io_context, answers) in joined.drain(..) {
            self.clients.insert(io_context, Client { answers, cqes: Vec::new() });
        }
        let mut rest = ops.as_slice();
        for len in batches.drain(..) {
            let (batch, after) = rest.split_at(len);
            rest = after;
            // A task has a plug of its own.
            for of_one in
                batch.chunk_by(|one, next| one.origin.io_context == next.origin.io_context)
            {
                let io_context = of_one[0].origin.io_context;
                self.queue.plug(io_context);
                of_one.iter().for_each(|op| self.queue.submit(now, *op));
                self.queue.unplug(now, io_context);
            }
        }
        ops.clear();
        for io_context in left.drain(..) {
            self.clients.remove(&io_context);
            self.queue.exit_context(now, io_context);
        }
        self.stopping |= std::mem::take(stopping);
    }

    fn collect(&mut self, now: Nanos) {
        if let Some(ring) = &mut self.ring {
            ring.take(&mut self.completed);
        }
        for (tag, status) in self.completed.drain(..) {
            self.queue.complete(now, tag, status);
        }
    }

    fn dispatch(&mut self, now: Nanos) {
        let Some(ring) = &mut self.ring else {
            // SAFETY: operations own their memory until they are answered.
            let mut start = |op: crate::ring::FileOp<Tag>, memory: &mut Vec<libc::iovec>| unsafe {
                Some(plain::execute(op.fd, op.kind, memory))
            };
            return self.queue.dispatch(now, &mut start);
        };
        self.queue.dispatch(now, &mut |op, memory| {
            // SAFETY: as above; and the ring is drained before its thread ends.
            unsafe { ring.push(op, memory) };
            None
        });
        ring.submit();
    }

    fn answer(&mut self) {
        self.queue.take_done(&mut self.done);
        if self.done.is_empty() {
            return;
        }
        for (io_context, cqe) in self.done.drain(..) {
            let client = self.clients.get_mut(&io_context);
            client.expect("a connection leaves after its last answer").cqes.push(cqe);
        }
        for client in self.clients.values_mut().filter(|client| !client.cqes.is_empty()) {
            client.answers.push_disk(&mut client.cqes);
        }
    }

    fn sleep(&self) {
        let limit = self.queue.wake_at().map(|at| Duration::from_nanos(at.since(self.now()).0));
        let ring = self.ring.as_ref().filter(|ring| ring.in_flight() > 0).map(AsFd::as_fd);
        if poll::readable(&[Some(self.shared.wake.as_fd()), ring], limit).is_err() {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests;
