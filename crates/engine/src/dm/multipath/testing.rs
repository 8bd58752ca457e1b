//! What tests of selectors ask and answer.

use alloc::vec::Vec;

use super::selector::{Ask, PathSelector, Served};
use crate::time::Nanos;

/// An I/O at time zero on CPU zero.
pub(super) fn ask(len_bytes: u64) -> Ask {
    Ask { now: Nanos(0), cpu: 0, len_bytes }
}

/// An I/O of 4 KiB.
pub(super) fn ask_at(now_ns: u64) -> Ask {
    Ask { now: Nanos(now_ns), ..ask(4096) }
}

/// An I/O that was served between two times.
pub(super) fn served(len_bytes: u64, started_at_ns: u64, ended_at_ns: u64) -> Served {
    let (started_at, ended_at) = (Nanos(started_at_ns), Nanos(ended_at_ns));
    Served { len_bytes, started_at, ended_at }
}

/// What is chosen for so many I/Os of 512 bytes, none of which starts.
pub(super) fn choices(selector: &mut dyn PathSelector, count: usize) -> Vec<usize> {
    (0..count).map(|_| selector.choose(&ask(512)).unwrap()).collect()
}
