//! Volumes as block devices of this machine, by the kernel's ublk driver (RFD 13).
//!
//! ```text
//! /dev/ublk-control ─ control ─> disk: add or recover, start, stop
//! /dev/ublkcN ─ queue ─> requests ─> Driver        one thread for each queue
//! ```
//! The kernel copies the data of writes into the queue's memory before it shows a request, and that
//! of reads out of it when the request ends.

mod control;
mod disk;
mod queue;
mod takeover;

pub use control::check;
pub use disk::UblkOptions;
pub(crate) use disk::{Disk, Served};
