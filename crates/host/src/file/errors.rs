//! Reports errors of a file, each kind at a limited rate.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use blockyard_engine::bio::Op;

use crate::{file_op, log};

/// Interval between reports of one kind. Ours: often enough to be seen, without a flood.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Time of the last report of each error number.
#[derive(Debug, Default)]
pub(super) struct LoggedErrors(Mutex<BTreeMap<i32, Instant>>);

impl LoggedErrors {
    /// Reports an error on standard error, unless its kind was just reported. An operation that the
    /// device does not support is no failure.
    pub(super) fn say(&self, path: &Path, op: Op, error: &io::Error) {
        let errno = file_op::errno(error);
        if !matches!(errno, libc::EINVAL | libc::EOPNOTSUPP) && self.is_due(errno, Instant::now()) {
            log::say(format_args!("{}: {}", path.display(), failed(op, false, error)));
        }
    }

    fn is_due(&self, errno: i32, now: Instant) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = said.get(&errno).is_none_or(|before| now >= *before + AGAIN_AFTER);
        if is_due {
            said.insert(errno, now);
        }
        is_due
    }
}

/// Describes an error.
pub(super) fn failed(op: Op, fua: bool, error: &io::Error) -> String {
    let what = match op {
        Op::Read => "a read",
        Op::Write if fua => "a FUA write",
        Op::Write => "a write",
        Op::Flush => "a flush",
        Op::Discard => "a discard",
        Op::WriteZeroes => "a write of zeroes",
    };
    format!("{what} failed: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_said_once_in_a_while() {
        let said = LoggedErrors::default();
        let now = Instant::now();
        assert!(said.is_due(libc::EIO, now));
        assert!(!said.is_due(libc::EIO, now + AGAIN_AFTER / 2));
        assert!(said.is_due(libc::ENOSPC, now), "another kind");
        assert!(said.is_due(libc::EIO, now + AGAIN_AFTER));
        assert!(!said.is_due(libc::EIO, now + AGAIN_AFTER));
    }
}
