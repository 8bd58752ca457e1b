//! The client side of the protocol: [`Session`], which opens an export and sends it requests.
//!
//! Like the server's session it owns no socket, no clock and no payload. A world passes what it
//! received, sends what was written, and moves the data of reads and writes itself.
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
//! let (mut send, mut disk) = (Vec::new(), [0; 512]);
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
//!         Event::Broken => break,  // send what was written, disconnect, look at `failure`
//!     }
//! }
//! assert_eq!(send[..4], [0, 0, 0, 3]);
//! ```
//!
//! Before it receives more, a world that has passed everything asks
//! [`payload_expected`](Session::payload_expected): what follows can go straight into the buffer of
//! the READ that it belongs to.
//!
//! The server is not trusted. A reply that is not exactly what the specification allows ends the
//! session, before its data is handed out; a number from the wire never becomes an allocation. The
//! one thing that is not noticed is a server that sends nothing: a world has the clock for it.
//!
//! One file, one story: `session` is the public face, `handshake` the first phase, `remote` what is
//! known of the export and which requests that allows, `request` how these look, `transmission`
//! and `head` the replies, `in_flight` and `coverage` what was heard of each request, `message` a
//! server's own words, `failure` every way in which it can end.

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
