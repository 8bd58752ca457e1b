//! The log of a live migration: a bit for each page of the guest that this side has written.
//!
//! ```text
//! data, status, used ring ─ stored, then marked ─> log   front end: bit cleared, then page copied
//! ```
//! So a page that was stored and not copied is marked. The log is the front end's memory, like the
//! guest's: it may be too short for an address, and it may be taken away.

use std::sync::atomic::{AtomicBool, Ordering};

use super::memory::Window;

const PAGE_BYTES: u64 = 4096;

/// The log of one front end, which all its queues write to.
#[derive(Debug)]
pub(super) struct DirtyLog {
    window: Window,
    /// A page was written that has no bit. It is lost to the migration.
    is_short: AtomicBool,
}

impl DirtyLog {
    pub(super) fn new(window: Window) -> Self {
        Self { window, is_short: AtomicBool::new(false) }
    }

    /// Marks the pages of a range that was written; it does not wrap.
    pub(super) fn mark(&self, addr: u64, len_bytes: u64) {
        if len_bytes == 0 {
            return;
        }
        for page in addr / PAGE_BYTES..=(addr + (len_bytes - 1)) / PAGE_BYTES {
            if page / 8 >= self.window.len_bytes() as u64 {
                return self.is_short.store(true, Ordering::Release);
            }
            self.window.set_bits((page / 8) as usize, 1 << (page % 8));
        }
    }

    /// Whether each page of a range has a bit.
    pub(super) fn covers(&self, addr: u64, len_bytes: u64) -> bool {
        let pages = self.window.len_bytes() as u64 * 8;
        addr.checked_add(len_bytes).is_some_and(|end| end.div_ceil(PAGE_BYTES) <= pages)
    }

    /// Whether the front end has taken the log away.
    pub(super) fn is_broken(&self) -> bool {
        self.window.is_broken()
    }

    /// Whether a page without a bit was written.
    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Acquire)
    }
}
