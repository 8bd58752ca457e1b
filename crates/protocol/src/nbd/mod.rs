//! The Network Block Device protocol: the server side, and in [`client`] the client side.
//!
//! The protocol is specified in `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>; the
//! 64-bit requests and replies in the same file of its branch `extension-ext-header`. "The
//! specification" means these two everywhere below.
//!
//! ```text
//!               on_bytes(received)                    on_bytes(received)
//!   greeting -> [ handshake: options ] -- Opened --> [ transmission: requests, payload ]
//!                     |    |                               |     |
//!                  Closed  Broken                       Closed   Broken
//! ```
//!
//! A world's loop, without its errors and its scheduling:
//!
//! ```
//! use std::sync::Arc;
//! use blockyard_protocol::nbd::{Event, Export, Session};
//!
//! let exports: Arc<[Export]> = Arc::new([Export::new("disk", 1 << 20)]);
//! let mut session = Session::new(exports, Some(0));
//! let mut send = Vec::new();
//! session.greeting(&mut send);
//! let received = [0, 0, 0, 3]; // the client's flags
//! let mut at = 0;
//! loop {
//!     let step = session.on_bytes(&received[at..], &mut send);
//!     at += step.consumed;
//!     match step.event {
//!         Event::NeedMore => break, // send, receive, and call again with what was not consumed
//!         Event::Continue | Event::Opened(_) => {}
//!         Event::Asked(export) => session.refused(export), // no export here is closed
//!         Event::StartTls => break, // without `Session::with_tls` it does not come
//!         Event::Request(_) | Event::Payload { .. } => {} // execute, then reply
//!         Event::Closed | Event::Broken(_) => break, // finish what is in flight and disconnect
//!     }
//! }
//! ```
//!
//! The files: `wire` has the protocol's numbers, `export` the served disks, `session` the public
//! interface, `handshake` and `options` the first phase, `meta` its metadata contexts,
//! `transmission` the requests, `reply` and `status` the replies.

pub mod client;
mod export;
mod handshake;
mod meta;
mod options;
mod reply;
mod request;
mod session;
mod status;
mod transmission;
mod wire;

pub use export::{Export, ExportError};
pub use reply::{Pieces, READ_HEADER_MAX, ReadChunk, ReadFailure, ReplyMode};
pub use request::{Command, Contexts, Errno, Request};
pub use session::{Event, Session, Step, Tls, Violation};
pub use status::{DirtyExtent, Extent};
