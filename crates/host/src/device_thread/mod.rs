//! The thread of a device: its inbox, where connections send bios, and its life. An elevator
//! (`disk`) and a connection to a server (`nbd`) run on one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

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

/// A bio of a connection on its way to a device, and what no queue looks at. Its memory belongs to
/// it until it is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceBio {
    /// Its word is the queue's that takes it.
    pub(crate) bio: Bio,
    /// The bytes of its buffer.
    pub(crate) memory: Memory,
    /// What is answered, and to whom: the io-context of its origin may be another task's.
    pub(crate) token: Token,
    pub(crate) client: IoContext,
    /// A write whose memory is the front end's, which must not receive into it meanwhile.
    pub(crate) borrows: bool,
    /// A check: it connects once to a server that is away, and fails if that fails. The bytes of
    /// such a read are not used.
    pub(crate) is_check: bool,
    /// When it was plugged, if time is kept of its bio.
    pub(crate) submitted: Nanos,
}

/// A device's thread, until it is dropped.
pub(crate) struct DeviceThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Its number, once it runs.
    number: Arc<AtomicU32>,
}

/// A thread's end of the inbox.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    /// Readable while something is in the inbox.
    wake: OwnedFd,
}

/// What connections have sent.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Connections, and where they are answered. Each comes before its operations.
    pub(crate) joined: Vec<(IoContext, Arc<CompletionQueue>)>,
    pub(crate) bios: Vec<DeviceBio>,
    /// How many bios each batch in `bios` has.
    pub(crate) batches: Vec<usize>,
    /// Connections that are about to end: their operations are answered as soon as may be, and
    /// nobody cares how they went.
    pub(crate) abandoned: Vec<IoContext>,
    /// Connections that have ended. Each comes after its last answer.
    pub(crate) left: Vec<IoContext>,
    /// Something else has happened that the thread is to look at.
    pub(crate) nudged: bool,
    /// What waits for a server that is away is to fail: this one ends.
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
    /// Starts a device's thread: `run` takes from the inbox until that stops and all is answered.
    ///
    /// # Errors
    /// When the system has no more descriptors or threads.
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
        let thread = thread.spawn(move || {
            own.store(threads::this_thread(), Ordering::Relaxed);
            process::leave_signals_to_others();
            let _guard = threads::AbortOnPanic;
            run(inbox);
        })?;
        Ok(Self { shared, thread: Some(thread), number })
    }

    /// CPU time that its thread has used so far.
    pub(crate) fn usage(&self) -> Usage {
        threads::of_thread(self.number.load(Ordering::Relaxed))
    }

    /// A connection begins.
    pub(crate) fn join(&self, io_context: IoContext, completions: Arc<CompletionQueue>) {
        self.shared.put(|inbox| inbox.joined.push((io_context, completions)));
    }

    /// Takes a batch of one connection; `batch` is empty afterwards. The memory of each operation
    /// stays valid until its answer.
    pub(crate) fn send(&self, batch: &mut Vec<DeviceBio>) {
        self.shared.put(|inbox| {
            inbox.batches.push(batch.len());
            inbox.bios.append(batch);
        });
    }

    /// A connection is about to end: it waits for its answers, and wants them soon.
    pub(crate) fn abandon(&self, io_context: IoContext) {
        self.shared.put(|inbox| inbox.abandoned.push(io_context));
    }

    /// The server of the clients ends: nothing waits for a lost connection any more.
    pub(crate) fn end_waiting(&self) {
        self.shared.put(|inbox| inbox.ending = true);
    }

    /// A connection has ended: everything it sent has been answered.
    pub(crate) fn leave(&self, io_context: IoContext) {
        self.shared.put(|inbox| inbox.left.push(io_context));
    }

    /// Asks for a flush, or for a read of the first sector, whose bytes are not used.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub(crate) fn ask(&self, op: Op) -> io::Result<Asked<'_>> {
        let (completions, client) = (CompletionQueue::new()?, new_io_context());
        self.join(client, Arc::clone(&completions));
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

    /// A handle whose thread is the caller's.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (Self, Arc<Shared>) {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.expect("a test has descriptors");
        let shared = Arc::new(Shared { inbox: Mutex::default(), wake });
        let number = Arc::default();
        (Self { shared: Arc::clone(&shared), thread: None, number }, shared)
    }
}

/// What a device was asked for and has not answered.
pub(crate) struct Asked<'a> {
    disk: &'a DeviceThread,
    client: IoContext,
    completions: Arc<CompletionQueue>,
}

impl Asked<'_> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// When the device says so.
    pub(crate) fn answer(self) -> io::Result<()> {
        let mut cqes = Vec::new();
        while cqes.is_empty() {
            // The answer comes in any case, and before this client leaves.
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

    /// Wakes the thread for something that is not in the inbox.
    pub(crate) fn nudge(&self) {
        self.put(|inbox| inbox.nudged = true);
    }

    /// Moves everything to `to`, which is empty.
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

/// Where a connection is answered.
struct Client {
    completions: Arc<CompletionQueue>,
    /// What it has not been told yet.
    cqes: Vec<Cqe>,
    /// How many of these are of [`DeviceBio::borrows`].
    borrowed: usize,
    /// What was seen of the times of these.
    timed: Vec<Timed>,
}

/// The connections of a device.
#[derive(Default)]
pub(crate) struct Clients(BTreeMap<IoContext, Client>);

impl Clients {
    pub(crate) fn join(&mut self, io_context: IoContext, completions: Arc<CompletionQueue>) {
        self.0.insert(
            io_context,
            Client { completions, cqes: Vec::new(), borrowed: 0, timed: Vec::new() },
        );
    }

    pub(crate) fn leave(&mut self, io_context: IoContext) {
        self.0.remove(&io_context);
    }

    /// An answer to an operation that borrows its memory, or does not.
    pub(crate) fn put(&mut self, io_context: IoContext, cqe: Cqe, borrows: bool) {
        let client = self.0.get_mut(&io_context);
        let client = client.expect("a connection leaves after its last answer");
        client.cqes.push(cqe);
        client.borrowed += usize::from(borrows);
    }

    /// What was seen of the time of an operation, before its answer is put.
    pub(crate) fn time(&mut self, io_context: IoContext, timed: Timed) {
        self.0.get_mut(&io_context).expect("it waits for an answer").timed.push(timed);
    }

    /// Tells each what it has not been told yet.
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

    /// A device that answers each operation so, and tells how many are joined at its end.
    fn answering(status: BlkStatus, joined: mpsc::Sender<usize>) -> DeviceThread {
        let run = move |shared: Arc<Shared>| {
            let (mut clients, mut received) = (Clients::default(), Inbox::default());
            loop {
                let _ = poll::readable(&[Some(shared.as_fd())], None);
                shared.take(&mut received);
                for (io_context, completions) in received.joined.drain(..) {
                    clients.join(io_context, completions);
                }
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
