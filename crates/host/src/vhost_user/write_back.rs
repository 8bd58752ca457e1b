//! Whether the writes of a guest may wait in a cache until it flushes.

use std::sync::atomic::{AtomicBool, Ordering};

/// The mode of the driver in a guest.
///
/// A guest that may switch the cache off may have done so with an earlier server or on another
/// host. Front ends do not repeat the switch, and such a guest does not flush. So the writes of
/// each new driver are stable until a flush or a switch proves that it knows the mode.
#[derive(Debug, Default)]
pub(super) struct WriteBack {
    is_on: AtomicBool,
    is_proven: AtomicBool,
}

impl WriteBack {
    /// Takes the mode by the features and the byte of the configuration. The proof of an earlier
    /// driver, such as that of the firmware, does not count.
    pub(super) fn set(&self, is_on: bool, needs_proof: bool) {
        self.is_on.store(is_on, Ordering::Release);
        self.is_proven.store(!needs_proof, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_that_may_switch_proves_for_itself_that_it_knows_the_mode() {
        let mode = WriteBack::default();
        assert!(!mode.is_obeyed(), "without features nothing flushes");
        mode.set(true, false);
        assert!(mode.is_obeyed(), "firmware that cannot switch");
        mode.set(true, true);
        assert!(!mode.is_obeyed());
        mode.prove();
        assert!(mode.is_obeyed());
        mode.set(true, true);
        assert!(!mode.is_obeyed(), "the next driver");
        mode.set(false, false);
        mode.prove();
        assert!(!mode.is_obeyed());
    }
}
