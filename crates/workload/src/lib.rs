//! Workloads that run in both worlds.
//!
//! A workload is a [`program::Program`]: phases of tasks that run side by side. A task is a state
//! machine that makes one system call after another; it learns the result of its last call and the
//! time at which the call returned. A world executes the calls: with threads on a real file, or on
//! a simulated machine. The results are plain data and print in the format of the original tool.
#![forbid(unsafe_code)]

pub mod fio;
pub mod fs_mark;
pub mod fsync_tester;
pub mod latency;
pub mod program;
pub mod random;
pub mod replay;
pub mod result_line;
pub mod tiotest;
pub mod trace;
