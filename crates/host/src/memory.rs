//! Buffers: page-aligned memory, and the budget that all connections share.
//!
//! A [`Region`] uses no memory until it is touched, and none again after [`Region::release`].

use std::sync::{Arc, Mutex, PoisonError};

use blockyard_engine::dm::crypt::ZEROS_MAX_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// All buffers of all connections of a server with the default number of connections. With 64
/// connections each has twice its minimum; a single one has as much as it can use (RFD 1, 6).
pub const BUDGET_BYTES: usize = 64 << 20;
/// Minimum for each connection: a receive buffer, an outbox and two slots.
pub const GRANT_MIN_BYTES: usize = 512 << 10;
/// Maximum for a connection: 28 reads and 28 writes of 64 KiB in flight.
pub const GRANT_MAX_BYTES: usize = 4 << 20;

/// Zeroes to write. The program's file holds them, so there is one copy for all.
pub(crate) static ZEROS: [u8; ZEROS_MAX_BYTES as usize] = [0; ZEROS_MAX_BYTES as usize];

/// Free memory that a new client requires: its buffers (at most [`GRANT_MAX_BYTES`]), and twice as
/// much for small allocations of all clients.
const HEADROOM_BYTES: usize = 3 * GRANT_MAX_BYTES;

/// Whether a new client can be served safely: a small allocation that fails ends the process, so
/// the last memory is reserved for these.
#[must_use]
pub fn has_headroom() -> bool {
    Region::new(HEADROOM_BYTES).is_ok()
}

/// Anonymous page-aligned memory.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    len_bytes: usize,
}

// SAFETY: a region is plain memory that it owns alone; a pointer into it is valid on any thread.
unsafe impl Send for Region {}
// SAFETY: shared access returns only the base pointer; its dereference needs a promise of its own.
unsafe impl Sync for Region {}

impl Region {
    /// A region of zeroes.
    ///
    /// # Errors
    /// The address space or the memory limit is exhausted.
    pub fn new(len_bytes: usize) -> std::io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        Ok(Self { base: base.cast(), len_bytes })
    }

    /// First byte.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Length.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Address of `len_bytes` bytes at `offset_bytes`.
    ///
    /// # Panics
    /// The range is not inside the region.
    #[must_use]
    pub fn at(&self, offset_bytes: usize, len_bytes: usize) -> *mut u8 {
        assert!(offset_bytes <= self.len_bytes && len_bytes <= self.len_bytes - offset_bytes);
        // SAFETY: the offset is inside of the mapping, as just asserted.
        unsafe { self.base.add(offset_bytes) }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable, writable and initialised by the kernel, and `&mut self`
        // keeps other safe users away.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len_bytes) }
    }

    /// Returns the pages to the system. The content is zeroes afterwards.
    pub fn release(&self) {
        // SAFETY: the range is our own private mapping; nothing relies on its contents.
        let released = unsafe { madvise(self.base.cast(), self.len_bytes, Advice::LinuxDontNeed) };
        debug_assert!(released.is_ok());
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no operation on it outlives its owner.
        let unmapped = unsafe { munmap(self.base.cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// An address that another thread may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: the memory behind it belongs to one operation, and so to its executing thread.
unsafe impl Send for Address {}

impl Address {
    pub(crate) fn get(self) -> *mut u8 {
        self.0
    }
}

/// A contiguous piece of an operation's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) base: Address,
    pub(crate) len_bytes: usize,
}

/// The memory of an operation, which belongs to the operation until its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// Contiguous memory from this address on.
    Whole(Address),
    /// `count` pieces from `first` on, without the first `skip_bytes`.
    Pieces { first: *const Piece, count: usize, skip_bytes: usize },
}

// SAFETY: the descriptions of pieces are read-only and do not change until completion; the memory
// belongs to the executing thread.
unsafe impl Send for Memory {}

impl Memory {
    /// No memory.
    pub(crate) const NONE: Self = Self::Whole(Address(std::ptr::null_mut()));

    /// The bytes of these pieces from `skip_bytes` on.
    pub(crate) fn of(pieces: &[Piece], skip_bytes: usize) -> Self {
        match *pieces {
            [Piece { base, len_bytes }] => {
                assert!(skip_bytes < len_bytes);
                Self::Whole(Address(base.get().wrapping_add(skip_bytes)))
            }
            _ => Self::Pieces { first: pieces.as_ptr(), count: pieces.len(), skip_bytes },
        }
    }

    /// Calls `each` for each contiguous range of the bytes from `skip_bytes` on.
    ///
    /// # Safety
    /// The operation has not completed.
    pub(crate) unsafe fn each(
        self,
        mut skip_bytes: usize,
        mut len_bytes: usize,
        mut each: impl FnMut(*mut u8, usize),
    ) {
        let (first, count) = match self {
            Self::Whole(base) => return each(base.get().wrapping_add(skip_bytes), len_bytes),
            Self::Pieces { first, count, skip_bytes: first_bytes } => {
                skip_bytes += first_bytes;
                (first, count)
            }
        };
        // SAFETY: guaranteed by the caller; the descriptions have not changed.
        for piece in unsafe { std::slice::from_raw_parts(first, count) } {
            if skip_bytes >= piece.len_bytes {
                skip_bytes -= piece.len_bytes;
                continue;
            }
            if len_bytes == 0 {
                return;
            }
            let len_here = len_bytes.min(piece.len_bytes - skip_bytes);
            each(piece.base.get().wrapping_add(skip_bytes), len_here);
            (skip_bytes, len_bytes) = (0, len_bytes - len_here);
        }
        assert!(len_bytes == 0, "the pieces are as long as the operation");
    }
}

/// The rest of the budget of all connections.
#[derive(Debug)]
pub struct Budget {
    /// Ungranted bytes, without the minimum reserved for each future connection.
    spare_bytes: Mutex<usize>,
}

impl Budget {
    /// A budget for at most `connections` connections: [`BUDGET_BYTES`], or twice their minimum, if
    /// that is more. Untouched memory costs nothing.
    #[must_use]
    pub fn new(connections: usize) -> Arc<Self> {
        let reserved = connections * GRANT_MIN_BYTES;
        Arc::new(Self { spare_bytes: Mutex::new(BUDGET_BYTES.max(2 * reserved) - reserved) })
    }

    /// Grants the minimum and more, up to `useful_bytes`, but at most a quarter of the spare bytes.
    #[must_use]
    pub fn grant(self: &Arc<Self>, useful_bytes: usize) -> Grant {
        let mut spare = self.spare_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = useful_bytes.saturating_sub(GRANT_MIN_BYTES);
        let extra = (*spare / 4).min(wanted) / 4096 * 4096;
        *spare -= extra;
        Grant { budget: Arc::clone(self), extra_bytes: extra }
    }
}

/// A connection's share of the budget; the drop returns it.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    extra_bytes: usize,
}

impl Grant {
    /// Bytes that the connection may use.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        GRANT_MIN_BYTES + self.extra_bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut spare = self.budget.spare_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *spare += self.extra_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_together_stay_inside_the_budget_and_each_has_its_least() {
        let budget = Budget::new(64);
        let grants: Vec<_> = (0..64).map(|_| budget.grant(GRANT_MAX_BYTES)).collect();
        let total: usize = grants.iter().map(Grant::len_bytes).sum();
        assert!(total <= BUDGET_BYTES);
        assert!(grants.iter().all(|grant| grant.len_bytes() >= GRANT_MIN_BYTES));
        assert_eq!(grants[0].len_bytes(), GRANT_MAX_BYTES);
        drop(grants);
        assert_eq!(budget.grant(GRANT_MAX_BYTES).len_bytes(), GRANT_MAX_BYTES);
        let budget = Budget::new(256);
        let grants: Vec<_> = (0..256).map(|_| budget.grant(GRANT_MAX_BYTES)).collect();
        let total: usize = grants.iter().map(Grant::len_bytes).sum();
        assert!(total > 256 * GRANT_MIN_BYTES && total <= 4 * BUDGET_BYTES, "{total}");
    }

    #[test]
    fn released_region_reads_as_zeros() {
        let mut region = Region::new(1 << 16).unwrap();
        region.bytes().fill(7);
        region.release();
        assert!(region.bytes().iter().all(|byte| *byte == 0));
    }
}
