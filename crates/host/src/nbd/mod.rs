//! A device that is an export of an NBD server.
//!
//! The protocol is [`blockyard_protocol::nbd::client`]'s. Here are its sockets, and what is done
//! when one is lost. A `RemoteDisk` is first used by whoever opens the volume, one request at a
//! time, for headers. Then a thread of the device takes the connection over (`device`) and
//! answers the executors of all clients, as the thread of a disk with an elevator does.
//!
//! ```text
//!                dial           requests, replies          lost
//!   executors ─> device ─> link ═══════════════════ server ────> dying ─> dead: its writes may
//!                  ^        └─ one, or several                              be sent again
//!                  └── a thread that connects (getaddrinfo blocks)
//! ```
//! *Lost* is a closed connection, one on which a request took too long, and a server that breaks
//! the protocol. Requests that only read are then sent again, on the next connection. What writes
//! waits until the old connection is *dead*: the server has closed it, so that it will do nothing
//! more of what it was sent; else a late write could undo a newer one. A server behind TCP may be
//! gone without a word; it is given as long again as it may take for a request, and then the
//! connection is reset, which throws away what the server has not received. A server on this
//! machine that does not close its socket is waited for: when its process ends, the kernel closes
//! it.
//!
//! A device by itself waits for its server, up to a limit, and connects again and again. A path of
//! a multipath line does not: what it was asked for fails with [`BlkStatus::Transport`], another
//! path is taken, and the multipath target's checks connect again.
//!
//! A server that is lost may have lost what it has acknowledged and not flushed, and a flush on the
//! next connection is no proof of it. So the volume latches a loss then (`unflushed`), unless the
//! URI says `unflushed=trust`: only the process ends, and the page cache of its machine lives on.
//!
//! One file, one story: [`uri`] names an export, `dial` connects, `link` moves requests and replies
//! over a connection, `ops` knows how far each operation is, `unflushed` what is not stable yet,
//! `device` is the thread, `remote` the device before and around that.

mod device;
mod dial;
mod link;
mod ops;
mod remote;
#[cfg(test)]
mod tests;
mod unflushed;
pub mod uri;

#[cfg(doc)]
use blockyard_engine::bio::BlkStatus;

pub(crate) use remote::RemoteDisk;
pub(crate) use unflushed::Unflushed;
