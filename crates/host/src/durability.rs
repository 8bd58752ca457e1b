//! Whether what a volume has acknowledged can still reach stable storage.
//!
//! ```text
//!   intact ── a flush or FUA write of a device fails ──> lost
//!          <──── suspend, resume --accept-loss ─────────
//! ```
//! A system reports a failed write-back once, to one descriptor (`errseq_t`): afterwards its pages
//! are clean, or gone, and the next `fdatasync` succeeds. So the first failure is kept here, for
//! all clients. While it is, flushes fail, because they would promise what cannot be kept. Writes,
//! zeroes and discards fail too: a client that goes on writing after a lost write mixes new data
//! with old. Reads go on.
//!
//! Devices report, drivers ask.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use blockyard_engine::bio::{BlkStatus, Op};

use crate::log;

/// The first failure that may have lost acknowledged writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The file, device or server.
    pub device: String,
    /// What failed, in plain words.
    pub problem: String,
    /// When.
    pub at: SystemTime,
    /// What flushes and writes fail with.
    pub status: BlkStatus,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.device, self.problem)
    }
}

/// The latch of a volume; all its devices and drivers share it.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// `loss` has something: all that a bio pays for the look.
    is_lost: AtomicBool,
    loss: Mutex<Option<Loss>>,
}

impl Durability {
    fn lock(&self) -> MutexGuard<'_, Option<Loss>> {
        self.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a failure, if it is the first, and says so on standard error.
    pub(crate) fn lose(&self, device: String, problem: String, status: BlkStatus) {
        let mut kept = self.lock();
        if kept.is_some() {
            return;
        }
        let loss = Loss { device, problem, at: SystemTime::now(), status };
        log::say(format_args!(
            "{loss}; acknowledged writes may be lost: flushes and writes of the volume \
             fail from now on, until it is suspended and resumed with the loss accepted, or \
             opened again"
        ));
        *kept = Some(loss);
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// What an operation fails with that may not be accepted any more.
    #[inline]
    pub(crate) fn refusal(&self, op: Op) -> Option<BlkStatus> {
        if !self.is_lost.load(Ordering::Relaxed) || op == Op::Read {
            return None;
        }
        self.lock().as_ref().map(|loss| loss.status)
    }

    /// The first failure, unless it was accepted.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lock().clone()
    }

    /// The operator takes what was lost for lost.
    pub(crate) fn accept(&self) {
        let mut kept = self.lock();
        *kept = None;
        self.is_lost.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_is_kept_until_it_is_accepted() {
        let durability = Durability::default();
        assert_eq!(durability.refusal(Op::Flush), None);
        durability.lose("a".into(), "a flush failed".into(), BlkStatus::NoSpace);
        durability.lose("b".into(), "a flush failed".into(), BlkStatus::IoError);
        for op in [Op::Flush, Op::Write, Op::WriteZeroes, Op::Discard] {
            assert_eq!(durability.refusal(op), Some(BlkStatus::NoSpace), "{op:?}");
        }
        assert_eq!(durability.refusal(Op::Read), None);
        assert_eq!(durability.loss().unwrap().to_string(), "a: a flush failed");
        durability.accept();
        assert_eq!((durability.refusal(Op::Flush), durability.loss()), (None, None));
        durability.lose("b".into(), "a flush failed".into(), BlkStatus::IoError);
        assert_eq!(durability.refusal(Op::Flush), Some(BlkStatus::IoError));
    }
}
