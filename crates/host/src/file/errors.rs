//! Reports errors of a file, each kind at a limited rate.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use blockyard_engine::bio::{BlkStatus, Op, Sector};

use crate::file_op;
use crate::log::{Event, Kind, Value};

/// Interval between reports of one kind. Ours: often enough to be seen, without a flood.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Time of the last report of each error number.
#[derive(Debug, Default)]
pub(super) struct LoggedErrors(Mutex<BTreeMap<i32, Instant>>);

impl LoggedErrors {
    /// Reports an error on standard error, unless its kind was just reported. An operation that the
    /// device does not support is no failure.
    pub(super) fn say(
        &self,
        path: &Path,
        is_path: bool,
        (op, sector): (Op, Sector),
        error: &io::Error,
    ) {
        let errno = file_op::errno(error);
        if matches!(errno, libc::EINVAL | libc::EOPNOTSUPP) || !self.is_due(errno, Instant::now()) {
            return;
        }
        let is_lost = is_path
            && matches!(file_op::status_of(errno), BlkStatus::Transport | BlkStatus::IoError);
        let kind = if is_lost { Kind::PathLost } else { Kind::IoError };
        let device = path.display().to_string();
        let number = Value::Number(u64::from(errno.unsigned_abs()));
        let fields = [
            ("device", Value::Text(&device)),
            ("operation", Value::Text(name(op))),
            ("sector", Value::Number(sector.0)),
            ("errno", number),
        ];
        let place = match op {
            Op::Flush => String::new(),
            _ => format!(" at sector {}", sector.0),
        };
        let failed = failed(op, false, error);
        Event::new(kind).fields(&fields).say(format_args!("{device}{place}: {failed}"));
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

/// Name of an operation in JSON.
fn name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write-zeroes",
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
