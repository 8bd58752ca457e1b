//! Threads that serve one client each. The end of a thread wakes the accepting thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::socket::Socket;
use crate::log::{Event, Kind};
use crate::{memory, poll};

const STACK_BYTES: usize = 256 << 10;

/// Readable when a thread of any [`Threads`] that share this value has ended.
#[derive(Clone, Debug)]
pub(super) struct Ends(Arc<OwnedFd>);

impl Ends {
    /// # Errors
    /// The system has no more descriptors.
    pub(super) fn new() -> std::io::Result<Self> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(ready)))
    }

    /// Clears the signal; call it before the check for ended threads, so that none is missed.
    pub(super) fn reset(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }

    pub(super) fn signal(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Ends {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The running threads of one kind.
pub(super) struct Threads {
    name: &'static str,
    ends: Ends,
    running: Vec<Running>,
}

struct Running {
    /// Number of what the client uses.
    of: usize,
    socket: Arc<Socket>,
    has_ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Threads {
    pub(super) fn new(name: &'static str, ends: Ends) -> Self {
        Self { name, ends, running: Vec::new() }
    }

    /// Number of threads that were not joined.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Serves a client that uses the thing of this number; its connection ends with the thread.
    /// Without a thread the connection is closed and the reason is logged.
    pub(super) fn start(
        &mut self,
        socket: Socket,
        of: usize,
        serve: impl FnOnce(&Arc<Socket>) + Send + 'static,
    ) {
        if !memory::has_headroom() {
            let refused = Event::new(Kind::ClientRefused);
            refused.say(format_args!("a client is refused: there is no memory for it"));
            return;
        }
        let socket = Arc::new(socket);
        let has_ended = Arc::new(AtomicBool::new(false));
        let end = End {
            socket: Arc::clone(&socket),
            has_ended: Arc::clone(&has_ended),
            ends: self.ends.clone(),
        };
        let thread = std::thread::Builder::new().name(self.name.into()).stack_size(STACK_BYTES);
        match thread.spawn(move || serve(&{ end }.socket)) {
            Ok(thread) => self.running.push(Running { of, socket, has_ended, thread }),
            Err(error) => Event::new(Kind::ClientRefused)
                .say(format_args!("a client is refused: no thread for it: {error}")),
        }
    }

    /// Joins threads until a time, and leaves the others alone.
    pub(super) fn join_until(&mut self, deadline: Instant) {
        loop {
            self.ends.reset();
            self.join_ended();
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = || poll::readable(&[Some(self.ends.as_fd())], Some(left));
            if self.running.is_empty() || left.is_zero() || wait().is_err() {
                break;
            }
        }
        self.running.clear();
    }

    /// Joins ended threads.
    pub(super) fn join_ended(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].has_ended.load(Ordering::Acquire) {
                let _ = self.running.swap_remove(index).thread.join();
            }
        }
    }

    /// Number of threads that serve clients of such things.
    pub(super) fn count(&self, is_it: impl Fn(usize) -> bool) -> usize {
        self.running.iter().filter(|running| is_it(running.of)).count()
    }

    /// Whether a thread serves a client of such a thing.
    pub(super) fn any(&self, is_it: impl Fn(usize) -> bool) -> bool {
        self.running.iter().any(|running| is_it(running.of))
    }

    /// Stops receiving from clients of these things, which may still read replies.
    pub(super) fn stop_receiving(&self, is_it: impl Fn(usize) -> bool) {
        let running = self.running.iter().filter(|running| is_it(running.of));
        running.for_each(|running| running.socket.stop_receiving());
    }

    /// Ends the connections of these things, regardless of their threads' states.
    pub(super) fn shut_down(&self, is_it: impl Fn(usize) -> bool) {
        let running = self.running.iter().filter(|running| is_it(running.of));
        running.for_each(|running| running.socket.shut_down());
    }

    /// Waits for all threads.
    pub(super) fn join(&mut self) {
        for running in self.running.drain(..) {
            let _ = running.thread.join();
        }
    }
}

/// Signals the end of a thread, also after a panic, so that its client does not wait forever and
/// its place is freed.
struct End {
    socket: Arc<Socket>,
    has_ended: Arc<AtomicBool>,
    ends: Ends,
}

impl Drop for End {
    fn drop(&mut self) {
        self.socket.shut_down();
        self.has_ended.store(true, Ordering::Release);
        self.ends.signal();
    }
}
