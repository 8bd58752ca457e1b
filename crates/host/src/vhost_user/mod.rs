//! Volumes as disks of virtual machines: vhost-user-blk (RFD 10).
//!
//! ```text
//! socket ─ channel ─> Session ─> device: memory, queues     one thread for each front end
//!                                   └ queue ─ virtqueue ─> requests ─> Driver
//!                                                             one thread for each queue
//! ```
//! The session and the checks of chains and requests are in `protocol`. `unsafe` is in [`memory`]
//! and [`interrupt`].

mod channel;
mod closing;
mod device;
mod dirty_log;
mod inflight;
mod interrupt;
mod memory;
mod origin;
mod pieces;
mod polling;
mod queue;
mod requests;
mod virtqueue;
mod write_back;

pub(crate) use device::Device;
pub use polling::Polling;
