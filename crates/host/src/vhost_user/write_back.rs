//! Whether the writes of a guest may wait in a cache until it flushes.

use std::sync::atomic::{AtomicBool, Ordering};

/// The mode of one connection.
///
/// A guest that may switch the cache off may have done so with an earlier server or on another
/// host. Front ends do not repeat the switch, and such a guest does not flush. So its writes are
/// stable until a flush or a switch on this connection proves that it knows the mode.
#[derive(Debug, Default)]
pub(super) struct WriteBack {
    is_on: AtomicBool,
    is_proven: AtomicBool,
}

impl WriteBack {
    /// The mode by the features and the byte of the configuration.
    pub(super) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Release);
    }

    /// The guest knows the mode.
    pub(super) fn prove(&self) {
        self.is_proven.store(true, Ordering::Release);
    }

    /// Whether a write that begins now may end before it is stable.
    pub(super) fn is_obeyed(&self) -> bool {
        self.is_on.load(Ordering::Acquire) && self.is_proven.load(Ordering::Acquire)
    }
}
