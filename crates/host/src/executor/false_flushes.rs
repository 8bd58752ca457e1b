//! False flushes for tests that must find them: faults of [`Canary`] that need a connection's
//! state.

use std::sync::{Condvar, Mutex, PoisonError};

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::sq::{DevId, Sqe, SqeOp};

use crate::backend::Backend;
use crate::canary::{Canary, is_planted};
use crate::file_op::status;

/// Whether a flush of the process runs, and the number of ended flushes.
static RUNNING: Mutex<(bool, u64)> = Mutex::new((false, 0));
static ENDED: Condvar = Condvar::new();

/// State of a connection's false flushes.
#[derive(Default)]
pub(crate) struct Flushes {
    has_written: bool,
    /// Its flush joins that of another connection.
    is_joined: bool,
}

impl Flushes {
    /// Notes the connection's next SQEs.
    pub(crate) fn see(&mut self, sqes: &[Sqe]) {
        let writes = |sqe: &Sqe| matches!(sqe.op, SqeOp::Write { .. } | SqeOp::WriteZeroes { .. });
        self.has_written |= sqes.iter().any(writes);
    }

    /// The false completion of a flush of this device, if the fault is planted.
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

    /// At the first device: joins a running flush, or starts one that runs until the last device.
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
