//! Faults on purpose, for tests that must find them: each place that makes things stable asks here
//! whether it is to lie.
//!
//! With the feature `canaries`, which no release has, the environment variable `BLOCKYARD_CANARY`
//! names one of them. Without it every question is answered at compile time: no.

use std::sync::OnceLock;

#[cfg(all(feature = "canaries", not(debug_assertions)))]
compile_error!("the feature `canaries` plants faults: it is for debug builds only");

/// A fault that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// `fdatasync` of files that are served does nothing, by call or by ring.
    Fdatasync,
    /// FUA is forgotten: a plain write.
    Fua,
    /// No flush follows a FUA request that was cut into parts, or that writes zeroes.
    CutFua,
    /// A flush reaches only the first of several devices.
    FirstDevice,
    /// A flush does nothing on a connection that has not written itself: as if each connection had
    /// a write-back cache of its own.
    OwnWrites,
    /// A flush is answered with one that was already running.
    JoinedFlush,
    /// What is served is not flushed when the server ends.
    ExitFlush,
    /// Headers are written without syncs.
    HeaderSync,
    /// A flush is not passed on to the server below.
    RemoteFlush,
    /// FUA is not passed on to the server below.
    RemoteFua,
    /// The directory of a created file is not synced.
    DirectorySync,
}

/// Their names.
const NAMES: &[(&str, Canary)] = &[
    ("fdatasync", Canary::Fdatasync),
    ("fua", Canary::Fua),
    ("cut-fua", Canary::CutFua),
    ("first-device", Canary::FirstDevice),
    ("own-writes", Canary::OwnWrites),
    ("joined-flush", Canary::JoinedFlush),
    ("exit-flush", Canary::ExitFlush),
    ("header-sync", Canary::HeaderSync),
    ("remote-flush", Canary::RemoteFlush),
    ("remote-fua", Canary::RemoteFua),
    ("directory-sync", Canary::DirectorySync),
];

/// Whether this fault is planted.
///
/// # Panics
/// When `BLOCKYARD_CANARY` has a name that is none of theirs.
#[must_use]
pub fn is_planted(canary: Canary) -> bool {
    static PLANTED: OnceLock<Option<Canary>> = OnceLock::new();
    let of_name = || {
        let name = std::env::var("BLOCKYARD_CANARY").ok()?;
        let known = NAMES.iter().find(|(known, _)| *known == name);
        Some(known.expect("BLOCKYARD_CANARY names a canary").1)
    };
    cfg!(feature = "canaries") && *PLANTED.get_or_init(of_name) == Some(canary)
}

#[cfg(feature = "canaries")]
pub(crate) use planted::Flushes;

#[cfg(feature = "canaries")]
mod planted {
    use std::sync::{Condvar, Mutex, PoisonError};

    use blockyard_engine::bio::BlkStatus;
    use blockyard_engine::sq::{DevId, Sqe, SqeOp};

    use super::{Canary, is_planted};
    use crate::plain::status;
    use crate::volume::Volume;

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
            let writes =
                |sqe: &Sqe| matches!(sqe.op, SqeOp::Write { .. } | SqeOp::WriteZeroes { .. });
            self.has_written |= sqes.iter().any(writes);
        }

        /// The answer to a flush of this device, if it lies.
        pub(crate) fn flush(&mut self, volume: &Volume, dev: DevId) -> Option<BlkStatus> {
            if is_planted(Canary::FirstDevice) && dev.0 > 0 {
                return Some(BlkStatus::Ok);
            }
            if is_planted(Canary::OwnWrites) {
                let has_written = std::mem::take(&mut self.has_written);
                return (!has_written).then_some(BlkStatus::Ok);
            }
            is_planted(Canary::JoinedFlush).then(|| self.join_or_flush(volume, dev))
        }

        /// The first device decides: a flush that runs is waited for, or this one runs, until its
        /// last device.
        fn join_or_flush(&mut self, volume: &Volume, dev: DevId) -> BlkStatus {
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
            let outcome = status(volume.devices[usize::from(dev.0)].file.flush());
            if usize::from(dev.0) + 1 == volume.devices.len() {
                let mut running = lock();
                *running = (false, running.1 + 1);
                ENDED.notify_all();
            }
            outcome
        }
    }
}
