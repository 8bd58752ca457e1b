//! The client side of the protocol: [`Session`], which opens an export and sends it requests.
//!
//! Like the server's session it owns no socket, no clock and no payload. A world passes received
//! bytes to it, sends the bytes that it wrote, and moves the data of reads and writes itself.
//!
//! ```text
//!                on_bytes(received)                    submit(request), on_bytes(received)
//!   greeting -> [ handshake: options ] -- Opened --> [ transmission: replies, payload ]
//!                     |                                    |
//!                  Broken                               Broken
//! ```
//!
//! ```
//! use blockyard_protocol::nbd::Command;
//! use blockyard_protocol::nbd::client::{Event, Request, Session, Settings};
//!
//! let mut session = Session::new(Settings::new("disk")).expect("the name is short");
//! let mut send = Vec::new();
//! let mut disk = [0; 512];
//! let received = b"NBDMAGICIHAVEOPT\0\x03"; // the server's greeting
//! let mut at = 0;
//! loop {
//!     let step = session.on_bytes(&received[at..], &mut send);
//!     let bytes = &received[at..at + step.consumed];
//!     at += step.consumed;
//!     match step.event {
//!         Event::NeedMore => break, // send, receive, and call again with what was not consumed
//!         Event::Opened => {
//!             let _cookie = session.submit(&Request::new(Command::Read, 0..512), &mut send);
//!         }
//!         Event::Payload(piece) => {
//!             let start = piece.start_bytes as usize;
//!             disk[start..start + bytes.len()].copy_from_slice(bytes);
//!         }
//!         Event::Zeroes(piece) => {
//!             disk[piece.start_bytes as usize..][..piece.len_bytes as usize].fill(0);
//!         }
//!         Event::Continue | Event::Extent { .. } => {}
//!         Event::Done { .. } => {} // the request has its reply
//!         Event::StartTls => break, // only if the settings ask: TLS begins behind these bytes
//!         Event::Broken => break,  // send what was written, disconnect, look at `failure`
//!     }
//! }
//! assert_eq!(send[..4], [0, 0, 0, 3]);
//! ```
//!
//! A world that has passed all its bytes asks [`payload_expected`](Session::payload_expected)
//! before it receives more: the next bytes can go straight into the buffer of their READ.
//!
//! The server is untrusted. An invalid reply ends the session before its data is returned, and a
//! number from the wire never determines the size of an allocation. The session cannot detect a
//! server that sends nothing: the world has the clock.
//!
//! The files: `session` is the public interface, `handshake` the first phase, `remote` the export's
//! properties and valid requests, `request` their encoding, `transmission` and `head` the replies,
//! `in_flight` and `coverage` the state of each request, `message` a server's text, `failure` all
//! final errors.

mod coverage;
mod failure;
mod handshake;
mod head;
mod in_flight;
mod message;
mod remote;
mod request;
mod session;
mod transmission;

pub use failure::{Failure, Violation};
pub use in_flight::Cookie;
pub use remote::{Remote, RemoteError};
pub use request::{Refusal, Request};
pub use session::{Event, Piece, Session, Settings, Step};
