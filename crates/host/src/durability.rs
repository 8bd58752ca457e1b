//! Tracks whether acknowledged writes of a volume can still reach stable storage.
//!
//! ```text
//!   intact ── a flush or FUA write of a device fails ──> lost
//!          <──── suspend, resume --accept-loss ─────────
//! ```
//! The system reports a failed write-back once per descriptor (`errseq_t`). Afterwards its pages
//! are clean or dropped, and the next `fdatasync` succeeds. So the first failure is latched here
//! for all clients. Until it is accepted, flushes fail, because they cannot keep their promise.
//! Writes, zeroes and discards fail too: a client that continues after a lost write would mix new
//! data with old. Reads succeed.
//!
//! Devices report, drivers ask.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use blockyard_engine::bio::{Bio, BlkStatus, Op};

use crate::log::{Event, Kind};

/// The first failure that may have lost acknowledged writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The file, device or server.
    pub device: String,
    /// Description of the failure.
    pub problem: String,
    /// Time of the failure.
    pub at: SystemTime,
    /// Status of failing flushes and writes.
    pub status: BlkStatus,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.device, self.problem)
    }
}

/// The latch of a volume, shared by its devices and drivers.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// Whether `loss` is set; the only cost for a bio.
    is_lost: AtomicBool,
    loss: Mutex<Option<Loss>>,
}

impl Durability {
    fn lock(&self) -> MutexGuard<'_, Option<Loss>> {
        self.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Latches the first failure and reports it on standard error.
    pub(crate) fn lose(&self, device: String, problem: String, status: BlkStatus) {
        let mut kept = self.lock();
        if kept.is_some() {
            return;
        }
        let loss = Loss { device, problem, at: SystemTime::now(), status };
        Event::new(Kind::WritesLost).say(format_args!(
            "{loss}; acknowledged writes may be lost: flushes and writes of the volume \
             fail from now on, until it is suspended and resumed with the loss accepted, or \
             opened again"
        ));
        *kept = Some(loss);
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// The status of an operation that is refused after a loss.
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

    /// Accepts the loss for the operator.
    pub(crate) fn accept(&self) {
        let mut kept = self.lock();
        *kept = None;
        self.is_lost.store(false, Ordering::Relaxed);
    }
}

/// The loss that the status of a remote disk's operation means, if any: after a failed flush or FUA
/// write, the state of acknowledged writes is unknown.
pub(crate) fn loss_of(bio: &Bio, status: BlkStatus, is_path: bool) -> Option<String> {
    let Bio { op, fua, .. } = *bio;
    let loses = match status {
        // The operation never reached the disk.
        BlkStatus::Ok | BlkStatus::Transport => false,
        BlkStatus::Invalid | BlkStatus::NotSupported => op == Op::Flush,
        // Another path may reach it.
        BlkStatus::IoError => !is_path && (fua || op == Op::Flush),
        BlkStatus::NoSpace | BlkStatus::Medium => fua || op == Op::Flush,
    };
    let what = if op == Op::Flush { "a flush" } else { "a FUA write" };
    loses.then(|| format!("{what} failed: {status}"))
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
