//! Workloads, for both worlds.
//!
//! A workload is a [`program::Program`]: phases of tasks that run side by side. A task makes one
//! system call after the other; it is a state machine that is told what its last call returned, and
//! when. Who executes the calls is a world: threads on a real file, or a simulated machine. What
//! was measured is plain data, and prints as the original tool prints it.
#![forbid(unsafe_code)]

pub mod fio;
pub mod fsync_tester;
pub mod latency;
pub mod program;
pub mod random;
pub mod replay;
pub mod result_line;
pub mod tiotest;
pub mod trace;
