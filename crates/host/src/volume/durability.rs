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
//! Devices report ([`crate::file::DeviceFile::ended`], [`crate::nbd`]), drivers ask.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::dm::table::{Table, TargetSpec};
use blockyard_engine::sq::DevId;

use super::{Device, Volume};
use crate::Error;
use crate::disk::Asked;
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
             fail from now on, until it is suspended and resumed with --accept-loss, or opened \
             again"
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

impl Volume {
    /// Everything written and answered is on stable storage when this returns. All devices are
    /// flushed, also behind one that fails.
    ///
    /// # Errors
    /// When a file cannot be synchronised, or a flush has failed before: the first failure.
    pub fn flush(&self) -> Result<(), Error> {
        // Servers are asked first: they flush at the same time.
        let asked: Vec<_> = self.devices.iter().map(|device| device.ask(Op::Flush)).collect();
        let devices = self.devices.iter().zip(asked);
        let flushed: Vec<_> = devices.map(|(device, asked)| device.flush(asked)).collect();
        // All paths of a line lead to one disk.
        let is_lost = |dev: &DevId| dev.below().is_none() && flushed[usize::from(dev.0)].is_err();
        let lines = self.table.layers().flat_map(Table::extents);
        let lost_paths = lines.filter_map(|line| match &line.target {
            TargetSpec::Multipath(line) => Some(&line.devs).filter(|devs| devs.iter().all(is_lost)),
            _ => None,
        });
        let lost_paths: Vec<_> = lost_paths.flatten().map(|dev| usize::from(dev.0)).collect();
        let devices = self.devices.iter().zip(flushed).enumerate();
        let mut counted = devices
            .filter(|(index, (device, _))| !device.is_path || lost_paths.contains(index))
            .map(|(_, (_, flushed))| flushed);
        match self.durability.loss() {
            Some(loss) => Err(Error::Lost(loss)),
            None => counted.find(Result::is_err).unwrap_or(Ok(())),
        }
    }
}

impl Device {
    /// Asks the server that it is on, if it is on one.
    pub(super) fn ask(&self, op: Op) -> Option<io::Result<Asked<'_>>> {
        self.file.remote().and_then(|_| self.disk()).map(|disk| disk.ask(op))
    }

    fn flush(&self, asked: Option<io::Result<Asked<'_>>>) -> Result<(), Error> {
        let flushed = match asked {
            Some(asked) => asked.and_then(Asked::answer),
            None => self.file.flush(),
        };
        flushed.map_err(|error| Error::io(self.file.path(), "flush", error))
    }
}

#[cfg(test)]
mod tests;
