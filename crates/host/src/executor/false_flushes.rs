//! Flushes that lie, for tests that must find them: the faults of [`Canary`] that need the state of
//! a connection.

use std::sync::{Condvar, Mutex, PoisonError};

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::sq::{DevId, Sqe, SqeOp};

use crate::backend::Backend;
use crate::canary::{Canary, is_planted};
use crate::file_op::status;

/// Whether a flush of the process runs, and how many have ended.
static RUNNING: Mutex<(bool, u64)> = Mutex::new((false, 0));
static ENDED: Condvar = Condvar::new();

/// How a connection's flushes lie.
#[derive(Default)]
pub(crate) struct Flushes {
    has_written: bool,
    /// Its flush is that of another connection.
    is_joined: bool,
}

impl Flushes {
    /// What the connection is about to do.
    pub(crate) fn see(&mut self, sqes: &[Sqe]) {
        let writes = |sqe: &Sqe| matches!(sqe.op, SqeOp::Write { .. } | SqeOp::WriteZeroes { .. });
        self.has_written |= sqes.iter().any(writes);
    }

    /// The answer to a flush of this device, if it lies.
    pub(crate) fn flush(&mut self, backend: &Backend, dev: DevId) -> Option<BlkStatus> {
        if is_planted(Canary::FirstDevice) && dev.0 > 0 {
            return Some(BlkStatus::Ok);
        }
        if is_planted(Canary::OwnWrites) {
            let has_written = std::mem::take(&mut self.has_written);
            return (!has_written).then_some(BlkStatus::Ok);
        }
        is_planted(Canary::JoinedFlush).then(|| self.join_or_flush(backend, dev))
    }

    /// The first device decides: a flush that runs is waited for, or this one runs, until its
    /// last device.
    fn join_or_flush(&mut self, backend: &Backend, dev: DevId) -> BlkStatus {
        let lock = || RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if dev.0 == 0 {
            let mut running = lock();
            self.is_joined = running.0;
            let ended = running.1;
            while self.is_joined && running.1 == ended {
                running = ENDED.wait(running).unwrap_or_else(PoisonError::into_inner);
            }
            running.0 |= !self.is_joined;
        }
        if self.is_joined {
            return BlkStatus::Ok;
        }
        let outcome = status(backend.device(dev).file.flush());
        if usize::from(dev.0) + 1 == backend.devices.len() {
            let mut running = lock();
            *running = (false, running.1 + 1);
            ENDED.notify_all();
        }
        outcome
    }
}
