//! Queues between a volume's targets and its devices, and the threads of elevators.
//!
//! | device | queue |
//! |---|---|
//! | tmpfs, page cache | none: the executor reads and writes |
//! | direct, elevator `none` | one for each connection, on its own thread and ring ([`queue`]) |
//! | direct, any other elevator | one for all, on a thread of the device ([`thread`]) |
//! | an export of an NBD server | the server's; a thread of the device (module `nbd`) |
//!
//! ```text
//!   connection ─ plug ─┐                             ┌─> answers of each connection
//!   connection ─ plug ─┴─> inbox ─> queue ─> ring ───┘
//! ```
//! A connection's bios are plugged (`struct blk_plug`) until it has nothing more to submit, or
//! [`PLUG_MAX`] operations wait. So there is one hand-over for all, and neighbours are merged.

mod choice;
mod queue;
pub(crate) mod thread;

pub(crate) use choice::default_elevator;
pub(crate) use queue::DiskQueue;
pub(crate) use thread::TIMEOUT;

use blockyard_engine::mq::QueueConfig;

use crate::device_thread::DeviceThread;

/// A plug of this length is flushed (`BLK_MAX_REQUEST_COUNT`, 16 until 2021, 32 since; from
/// memory).
pub(crate) const PLUG_MAX: usize = 32;

/// The queue between the executors and a device.
pub(crate) enum DeviceQueue {
    /// No queue: the page cache, or memory.
    Bypassed,
    /// Each connection has a hardware queue of its own.
    PerConnection(QueueConfig),
    /// A thread of an elevator, or of the connection to a server.
    Shared(DeviceThread),
}
