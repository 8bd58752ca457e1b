//! Between a volume's targets and its devices: queues, and the threads that elevators run on.
//!
//! | device | queue |
//! |---|---|
//! | tmpfs, page cache | none: the executor reads and writes |
//! | direct, elevator `none` | one for each connection, on its own thread and ring ([`queue`]) |
//! | direct, any other elevator | one for all, on a thread of the device ([`thread`]) |
//! | an export of an NBD server | the server's; a thread of the device ([`crate::nbd`]) |
//!
//! ```text
//!   connection ─ plug ─┐                             ┌─> answers of each connection
//!   connection ─ plug ─┴─> inbox ─> queue ─> ring ───┘
//! ```
//! What a connection submits is plugged (`struct blk_plug`) until it has nothing more to submit, or
//! [`PLUG_MAX`] operations wait: one hand-over for all, and neighbours are merged.

mod choice;
mod inbox;
mod queue;
pub(crate) mod thread;

pub(crate) use choice::{Facts, default_elevator};
pub(crate) use inbox::{Asked, Clients, Disk, Inbox, Shared};
pub(crate) use queue::DiskQueue;
pub(crate) use thread::TIMEOUT;

use blockyard_engine::bio::{IoContext, Op, Origin, Sector};
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::sq::Token;
use blockyard_engine::time::Nanos;

use crate::memory::Memory;

/// A plug with so many operations is pulled (`BLK_MAX_REQUEST_COUNT`, which was 16 until 2021 and
/// is 32 since; from memory).
pub(crate) const PLUG_MAX: usize = 32;

/// What lies between the executors and a device.
pub(crate) enum DeviceQueue {
    /// Nothing: the page cache, or memory.
    Bypassed,
    /// Each connection has a hardware queue of its own.
    PerConnection(QueueConfig),
    /// A thread: of an elevator, or of the connection to a server.
    Shared(Disk),
}

/// An operation of a connection. Its memory belongs to it until it is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskOp {
    /// What is answered, and to whom: the io-context of `origin` may be another task's.
    pub(crate) token: Token,
    pub(crate) client: IoContext,
    pub(crate) op: Op,
    pub(crate) sector: Sector,
    pub(crate) len: Sector,
    /// What is read or written.
    pub(crate) memory: Memory,
    pub(crate) fua: bool,
    /// A write whose memory is the front end's, which must not receive into it meanwhile.
    pub(crate) borrows: bool,
    /// A server that is away is connected to for it, once, and it fails if that fails. The bytes
    /// of such a read are wanted by nobody.
    pub(crate) is_check: bool,
    pub(crate) origin: Origin,
    /// When it was plugged, if time is kept of its bio.
    pub(crate) submitted: Nanos,
}
