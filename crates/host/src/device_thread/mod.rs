//! The thread of a device: its inbox, where connections send bios, and its life. An elevator
//! (`disk`) and a connection to a server (`nbd`) run on one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, IoContext, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::sq::{Cqe, Owner, Token};
use blockyard_engine::time::Nanos;
use rustix::event::{EventfdFlags, eventfd};

use crate::completions::CompletionQueue;
use crate::memory::Memory;
use crate::stages::Timed;
use crate::submitter::new_io_context;
use crate::threads::{self, Usage};
use crate::{poll, process};

/// A bio of a connection on its way to a device, with data that queues ignore. Its memory belongs
/// to the bio until the completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceBio {
    /// The bio; the receiving queue sets `user`.
    pub(crate) bio: Bio,
    /// The bytes of its buffer.
    pub(crate) memory: Memory,
    /// Token and io-context of the connection; the bio's origin may have another task's io-context.
    pub(crate) token: Token,
    pub(crate) client: IoContext,
    /// A write from the front end's buffer, which the front end must not overwrite meanwhile.
    pub(crate) borrows: bool,
    /// A check: it makes one attempt to connect to a server that is away, and fails with it. The
    /// bytes of its read are not used.
    pub(crate) is_check: bool,
    /// Time of plugging, if the bio is sampled.
    pub(crate) submitted: Nanos,
}

/// Handle of a device's thread; the drop stops the thread.
pub(crate) struct DeviceThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Thread number, once the thread runs.
    number: Arc<AtomicU32>,
}

/// The thread's end of the inbox.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    /// Readable while something is in the inbox.
    wake: OwnedFd,
}

/// A new connection.
pub(crate) struct Joined {
    pub(crate) io_context: IoContext,
    pub(crate) completions: Arc<CompletionQueue>,
    /// No request of the client is older.
    pub(crate) since: Instant,
}

/// Messages from connections.
#[derive(Default)]
pub(crate) struct Inbox {
    /// New connections. Each precedes its operations.
    pub(crate) joined: Vec<Joined>,
    pub(crate) bios: Vec<DeviceBio>,
    /// Number of bios in each batch of `bios`.
    pub(crate) batches: Vec<usize>,
    /// Connections that are about to end: their operations complete as soon as possible, with any
    /// status.
    pub(crate) abandoned: Vec<IoContext>,
    /// Ended connections. Each follows its last completion.
    pub(crate) left: Vec<IoContext>,
    /// Another event needs the thread's attention.
    pub(crate) nudged: bool,
    /// The server ends, so operations that wait for a remote server fail.
    pub(crate) ending: bool,
    pub(crate) stopping: bool,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        let no_clients =
            self.joined.is_empty() && self.abandoned.is_empty() && self.left.is_empty();
        no_clients && self.bios.is_empty() && !self.nudged && !self.ending && !self.stopping
    }
}

impl DeviceThread {
    /// Starts a device's thread: `run` takes from the inbox until it stops and all operations are
    /// complete.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub(crate) fn start(
        name: String,
        run: impl FnOnce(Arc<Shared>) + Send + 'static,
    ) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { inbox: Mutex::default(), wake });
        let inbox = Arc::clone(&shared);
        let number = Arc::<AtomicU32>::default();
        let own = Arc::clone(&number);
        let thread = std::thread::Builder::new().name(name);
        let run = move || {
            own.store(threads::this_thread(), Ordering::Relaxed);
            let _guard = threads::AbortOnPanic;
            run(inbox);
        };
        // From its first instruction on, no signal is delivered to it.
        let thread = process::with_signals_blocked(|| thread.spawn(run))?;
        Ok(Self { shared, thread: Some(thread), number })
    }

    /// CPU time of the thread so far.
    pub(crate) fn usage(&self) -> Usage {
        threads::of_thread(self.number.load(Ordering::Relaxed))
    }

    /// Adds a connection. No request of its client is older than `since`.
    pub(crate) fn join(
        &self,
        io_context: IoContext,
        completions: Arc<CompletionQueue>,
        since: Instant,
    ) {
        self.shared.put(|inbox| inbox.joined.push(Joined { io_context, completions, since }));
    }

    /// Sends a batch of one connection; `batch` is empty afterwards. The memory of each operation
    /// stays valid until its completion.
    pub(crate) fn send(&self, batch: &mut Vec<DeviceBio>) {
        self.shared.put(|inbox| {
            inbox.batches.push(batch.len());
            inbox.bios.append(batch);
        });
    }

    /// Announces the end of a connection, which waits for its completions.
    pub(crate) fn abandon(&self, io_context: IoContext) {
        self.shared.put(|inbox| inbox.abandoned.push(io_context));
    }

    /// The server ends: operations no longer wait for a lost connection.
    pub(crate) fn end_waiting(&self) {
        self.shared.put(|inbox| inbox.ending = true);
    }

    /// Removes a connection, after all its completions.
    pub(crate) fn leave(&self, io_context: IoContext) {
        self.shared.put(|inbox| inbox.left.push(io_context));
    }

    /// Requests a flush, or a read of the first sector whose bytes are not used.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn ask(&self, op: Op) -> io::Result<Asked<'_>> {
        let completions = CompletionQueue::new()?;
        let client = new_io_context();
        self.join(client, Arc::clone(&completions), Instant::now());
        let len = if op == Op::Flush { Sector(0) } else { Sector(1) };
        let origin = Origin { io_context: client, ..Origin::default() };
        let bio = Bio { origin, ..Bio::new(op, Sector(0), len, BufRef::NONE, 0) };
        self.send(&mut vec![DeviceBio {
            bio,
            memory: Memory::NONE,
            token: Token { owner: Owner::Shard, index: 0 },
            client,
            borrows: false,
            is_check: true,
            submitted: Nanos(0),
        }]);
        Ok(Asked { disk: self, client, completions })
    }

    /// A handle for a test, which runs the loop itself.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (Self, Arc<Shared>) {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.expect("a test has descriptors");
        let shared = Arc::new(Shared { inbox: Mutex::default(), wake });
        let number = Arc::default();
        (Self { shared: Arc::clone(&shared), thread: None, number }, shared)
    }
}

/// An operation without completion so far.
pub(crate) struct Asked<'a> {
    disk: &'a DeviceThread,
    client: IoContext,
    completions: Arc<CompletionQueue>,
}

impl Asked<'_> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The device reports an error.
    pub(crate) fn answer(self) -> io::Result<()> {
        let mut cqes = Vec::new();
        while cqes.is_empty() {
            // The completion always arrives, and before this client leaves.
            if poll::readable(&[Some(self.completions.ready())], None).is_err() {
                std::thread::yield_now();
            }
            self.completions.take(&mut cqes, &mut Vec::new());
        }
        self.disk.leave(self.client);
        match cqes[0].status {
            BlkStatus::Ok => Ok(()),
            status => Err(io::Error::other(status.to_string())),
        }
    }
}

impl Drop for DeviceThread {
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

    /// Wakes the thread for an event outside the inbox.
    pub(crate) fn nudge(&self) {
        self.put(|inbox| inbox.nudged = true);
    }

    /// Moves the content to `to`, which is empty.
    pub(crate) fn take(&self, to: &mut Inbox) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if !inbox.is_empty() {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            std::mem::swap(&mut *inbox, to);
        }
    }
}

impl AsFd for Shared {
    /// Readable while something is in the inbox.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// A connection and its pending completions.
struct Client {
    completions: Arc<CompletionQueue>,
    /// Completions to send.
    cqes: Vec<Cqe>,
    /// Number of them for operations with [`DeviceBio::borrows`].
    borrowed: usize,
    /// Timings to send.
    timed: Vec<Timed>,
}

/// The connections of a device.
#[derive(Default)]
pub(crate) struct Clients(BTreeMap<IoContext, Client>);

impl Clients {
    pub(crate) fn join(&mut self, joined: Joined) {
        let Joined { io_context, completions, .. } = joined;
        self.0.insert(
            io_context,
            Client { completions, cqes: Vec::new(), borrowed: 0, timed: Vec::new() },
        );
    }

    pub(crate) fn leave(&mut self, io_context: IoContext) {
        self.0.remove(&io_context);
    }

    /// Adds a completion; `borrows` tells whether the operation borrowed its memory.
    pub(crate) fn put(&mut self, io_context: IoContext, cqe: Cqe, borrows: bool) {
        let client = self.0.get_mut(&io_context);
        let client = client.expect("a connection leaves after its last answer");
        client.cqes.push(cqe);
        client.borrowed += usize::from(borrows);
    }

    /// Adds the timing of an operation, before its completion.
    pub(crate) fn time(&mut self, io_context: IoContext, timed: Timed) {
        self.0.get_mut(&io_context).expect("it waits for an answer").timed.push(timed);
    }

    /// Sends all pending completions.
    pub(crate) fn answer(&mut self) {
        for client in self.0.values_mut().filter(|client| !client.cqes.is_empty()) {
            let borrowed = std::mem::take(&mut client.borrowed);
            client.completions.push_device(&mut client.cqes, &mut client.timed, borrowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Starts a device that completes each operation with `status`, and reports the number of its
    /// clients at the end.
    fn answering(status: BlkStatus, joined: mpsc::Sender<usize>) -> DeviceThread {
        let run = move |shared: Arc<Shared>| {
            let mut clients = Clients::default();
            let mut received = Inbox::default();
            loop {
                let _ = poll::readable(&[Some(shared.as_fd())], None);
                shared.take(&mut received);
                received.joined.drain(..).for_each(|joined| clients.join(joined));
                for DeviceBio { client, token, borrows, .. } in received.bios.drain(..) {
                    clients.put(client, Cqe { token, status }, borrows);
                }
                clients.answer();
                for io_context in received.left.drain(..) {
                    clients.leave(io_context);
                }
                if received.stopping {
                    joined.send(clients.0.len()).unwrap();
                    return;
                }
                received.batches.clear();
            }
        };
        DeviceThread::start("answers".into(), run).unwrap()
    }

    #[test]
    fn flush_of_a_device_leaves_however_it_ends() {
        for (status, is_ok) in [(BlkStatus::Ok, true), (BlkStatus::IoError, false)] {
            let (tell, joined) = mpsc::channel();
            let disk = answering(status, tell);
            assert_eq!(disk.ask(Op::Flush).unwrap().answer().is_ok(), is_ok);
            drop(disk);
            assert_eq!(joined.recv(), Ok(0), "{status}");
        }
    }
}
