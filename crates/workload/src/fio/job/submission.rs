//! How a clone submits its requests.

use blockyard_engine::priority::Priority;

use super::super::command_priority::CommandPriority;

/// Submission of requests and syncs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// `direct`: direct I/O with many requests in flight (`libaio`); otherwise buffered (`psync`).
    pub direct: bool,
    /// `iodepth`: number of direct requests in flight; buffered I/O has one.
    pub iodepth: u32,
    /// `ioengine=null`: requests go to no device, so the job measures the generator.
    pub goes_nowhere: bool,
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
            goes_nowhere: false,
            priority: None,
            command: CommandPriority::default(),
            fsync_every: 0,
            end_fsync: false,
        }
    }
}
