//! How a clone submits its requests.

use blockyard_engine::priority::Priority;

use super::super::command_priority::CommandPriority;
use crate::program::Interface;

/// Numbers of requests that a call submits or reaps, of direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// `iodepth_batch`: number of requests of a submit call; 0: `iodepth`.
    pub submit: u32,
    /// `iodepth_batch_complete_min`: least number of ended requests that a reap call waits for.
    pub reap_min: u32,
    /// `iodepth_batch_complete_max`: greatest number that a reap call takes; at least `reap_min`.
    /// If both are 0, each request is reaped before the next one.
    pub reap_max: u32,
    /// `iodepth_low`: a clone with its full depth reaps until so many are left; 0: `iodepth`.
    pub low: u32,
}

impl Batching {
    /// The rule for a depth: fio replaces what exceeds it.
    pub(in super::super) fn within(self, depth: u32) -> Self {
        let or_depth = |number| if number == 0 || number > depth { depth } else { number };
        Self { submit: or_depth(self.submit), low: or_depth(self.low), ..self }
    }

    /// The least and the greatest number to reap of those in flight.
    pub(in super::super) fn reaps(self, in_flight: u32) -> (u32, u32) {
        let at_least = self.reap_min.clamp(1, in_flight);
        (at_least, self.reap_max.clamp(at_least, in_flight))
    }
}

impl Default for Batching {
    fn default() -> Self {
        Self { submit: 1, reap_min: 1, reap_max: 0, low: 0 }
    }
}

/// Submission of requests and syncs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// `direct`: direct I/O with many requests in flight (`libaio`); otherwise buffered (`psync`).
    pub direct: bool,
    /// `iodepth`: number of direct requests in flight; buffered I/O has one.
    pub iodepth: u32,
    /// `iodepth_batch` and its like.
    pub batching: Batching,
    /// `ioengine`: system calls of direct requests.
    pub interface: Interface,
    /// `prioclass` and `prio`: priority of the clones (`ionice`); `None`: the default.
    pub priority: Option<Priority>,
    /// `cmdprio_percentage` and its like: priorities of single requests.
    pub command: CommandPriority,
    /// `fsync`: number of writes between two `fsync` calls; 0: never.
    pub fsync_every: u32,
    /// `end_fsync`: one more `fsync` after the last write.
    pub end_fsync: bool,
}

impl Default for Submission {
    fn default() -> Self {
        Self {
            direct: false,
            iodepth: 1,
            batching: Batching::default(),
            interface: Interface::default(),
            priority: None,
            command: CommandPriority::default(),
            fsync_every: 0,
            end_fsync: false,
        }
    }
}
