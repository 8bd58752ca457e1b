//! A device that is an export of an NBD server.
//!
//! The protocol is [`blockyard_protocol::nbd::client`]. This module has its sockets, and handles
//! lost connections. First the opener of the volume uses a `NbdDisk`, one request at a time,
//! for headers. Then a thread of the device takes the connection over (`device`) and completes
//! operations of all clients, like the thread of a disk with an elevator.
//!
//! ```text
//!                dial           requests, replies          lost
//!   executors ─> device ─> link ═══════════════════ server ────> dying ─> dead: its writes may
//!                  ^        └─ one, or several                              be sent again
//!                  └── a thread that connects (getaddrinfo blocks)
//! ```
//! A connection is *lost* if it is closed, if a request takes too long, or if the server breaks the
//! protocol. Reads are then sent again on the next connection. Operations that change data wait
//! until the old connection is *dead*: the server has closed it, so it executes no further request;
//! otherwise a late write could undo a newer one. A server behind TCP may vanish silently; it has
//! the time limit of a request once more, and then the connection is reset, which discards data
//! that the server has not received. A local server that does not close its socket has no limit:
//! when its process ends, the kernel closes the socket.
//!
//! A plain device holds operations for its server, up to a limit, and reconnects repeatedly. A path
//! of a multipath line holds none: lost operations fail with [`BlkStatus::Transport`], and another
//! path is used. It reconnects too, and at once for a check of the multipath target.
//!
//! A lost server may have lost acknowledged, unflushed writes, and a flush on the next connection
//! does not prove the opposite. So the volume latches a loss then (`unflushed`), unless the URI
//! has `unflushed=trust`: only the server's process ends, and the page cache of its machine
//! survives.
//!
//! [`uri`] names an export, `dial` connects, `link` transfers requests and replies on a connection,
//! `ops` has the state of each operation, `unflushed` tracks unstable writes, `device` is the
//! thread, `remote` is the device before and around the thread.

mod device;
mod dial;
mod link;
mod ops;
mod remote;
#[cfg(test)]
mod tests;
mod unflushed;
pub mod uri;
mod wire;

#[cfg(doc)]
use blockyard_engine::bio::BlkStatus;

pub(crate) use remote::NbdDisk;
pub(crate) use unflushed::Unflushed;
