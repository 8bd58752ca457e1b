//! The back end's side of vhost-user, for a block device: [`Session`].
//!
//! A message is a header of 12 bytes, then its body, then descriptors beside it. A world receives
//! exactly one message at a time: a read ahead would take a message without descriptors and the
//! descriptors of the next one for one message.
//!
//! ```text
//! header ─ Session::on_header ─> length of the body ─ Session::on_message ─> Action
//!                                                      Action ─ the world ─> Session::finish
//! ```
//! The session checks all that can be checked without memory, and keeps what a queue needs to start
//! ([`Session::queue`]). The world maps memory, runs queues and owns descriptors.

mod fault;
mod inflight;
mod message;
mod session;

#[cfg(test)]
mod tests;

pub use fault::{Refusal, Violation};
pub use inflight::InflightArea;
pub use message::config_change;
pub use message::{BODY_MAX_BYTES, HEADER_BYTES, Header, MEMORY_REGIONS_MAX, MemoryRegion};
pub use session::{Action, Addresses, LogArea, Offer, Outcome, Queue, Session};

/// Feature of vhost: pages of the guest that are written are noted in a log.
pub const FEATURE_LOG_ALL: u64 = 1 << 26;
/// Feature of the ring: indirect descriptor tables.
pub const FEATURE_INDIRECT: u64 = 1 << 28;
/// Feature of the ring: wake-ups are asked for by index.
pub const FEATURE_EVENT_INDEX: u64 = 1 << 29;
/// Feature of vhost-user: protocol features exist, and queues start disabled.
pub const FEATURE_PROTOCOL: u64 = 1 << 30;
/// Feature of the device: version 1 of the standard.
pub const FEATURE_VERSION_1: u64 = 1 << 32;
