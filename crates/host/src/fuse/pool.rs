//! The clients of a file's threads.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use blockyard_engine::priority::Priority;
use rustix::io::Errno;

use crate::Error;
use crate::calls::Calls;
use crate::local::Client;
use crate::threads::AbortOnPanic;
use crate::volume::Volume;

/// One client for each thread of a session.
pub(super) struct Pool {
    state: Mutex<State>,
    returned: Condvar,
    threads: usize,
    sector_bytes: u32,
    size_bytes: u64,
}

struct State {
    idle: Vec<Client>,
    is_closed: bool,
}

impl Pool {
    pub(super) fn new(volume: &Arc<Volume>, threads: usize) -> Result<Self, Error> {
        let clients = (0..threads).map(|_| Client::new(volume, Priority::default()));
        let idle: Vec<_> = clients.collect::<Result<_, _>>()?;
        Ok(Self {
            size_bytes: idle[0].size_bytes(),
            state: Mutex::new(State { idle, is_closed: false }),
            returned: Condvar::new(),
            threads,
            sector_bytes: volume.sector_size_bytes(),
        })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs a request on an idle client; fails on a closed pool.
    pub(super) fn run<T>(&self, call: impl FnOnce(Calls<'_>) -> io::Result<T>) -> io::Result<T> {
        let mut client = {
            let mut state = self.lock();
            if state.is_closed {
                return Err(Errno::IO.into());
            }
            state.idle.pop().expect("each thread uses one client at a time")
        };
        // The kernel would wait for the answer of a thread that is gone.
        let abort = AbortOnPanic;
        let outcome = call(Calls::new(&mut client, self.sector_bytes, self.size_bytes));
        drop(abort);
        self.lock().idle.push(client);
        self.returned.notify_one();
        outcome
    }

    /// Refuses further requests, waits for those in progress, and flushes the volume.
    pub(super) fn close_and_flush(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.is_closed = true;
        while state.idle.len() < self.threads {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Calls::new(&mut state.idle[0], self.sector_bytes, self.size_bytes).flush()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads).finish_non_exhaustive()
    }
}
