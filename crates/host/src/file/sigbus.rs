//! Converts a SIGBUS on a mapped file into an error of the operation.
//!
//! An access to a page that cannot be provided (the file was truncated, the tmpfs is full) raises
//! SIGBUS. The handler replaces the rest of the mapping with zero pages and marks it as broken, so
//! that the access can continue. The user of the mapping checks the mark afterwards and repeats the
//! operation with `pread` or `pwrite`, which report the error properly.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Limit of mappings: files in memory, and the memory of virtual machines, which has up to 128
/// regions each.
const MAPPINGS_MAX: usize = 1024;

struct Slot {
    base: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicPtr<AtomicBool>,
}

static SLOTS: [Slot; MAPPINGS_MAX] = [const {
    Slot {
        base: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        broken: AtomicPtr::new(std::ptr::null_mut()),
    }
}; MAPPINGS_MAX];

static INSTALL: Once = Once::new();

/// A guarded range of addresses; the drop ends the guard.
#[derive(Debug)]
pub(crate) struct Guard {
    slot: usize,
}

/// Guards `base..end`: a SIGBUS there sets `broken`. `None` if too many ranges are guarded.
///
/// # Safety
/// The range is a mapping that outlives the guard, and so does `broken`.
pub(crate) unsafe fn guard(base: usize, end: usize, broken: *const AtomicBool) -> Option<Guard> {
    INSTALL.call_once(install);
    for (slot, entry) in SLOTS.iter().enumerate() {
        let taken =
            entry.base.compare_exchange(0, base, Ordering::SeqCst, Ordering::SeqCst).is_err();
        if !taken {
            entry.broken.store(broken.cast_mut(), Ordering::SeqCst);
            entry.end.store(end, Ordering::SeqCst);
            return Some(Guard { slot });
        }
    }
    None
}

impl Drop for Guard {
    fn drop(&mut self) {
        let entry = &SLOTS[self.slot];
        entry.end.store(0, Ordering::SeqCst);
        entry.broken.store(std::ptr::null_mut(), Ordering::SeqCst);
        entry.base.store(0, Ordering::SeqCst);
    }
}

fn install() {
    // SAFETY: the action is fully initialised, and the handler uses only async-signal-safe
    // operations: atomics, mmap, sigaction.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn on_sigbus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    const PAGE: usize = 4096;
    // SAFETY: the kernel passes a valid siginfo for SIGBUS, which carries an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for entry in &SLOTS {
        let base = entry.base.load(Ordering::SeqCst);
        let end = entry.end.load(Ordering::SeqCst);
        // Another thread may free and reuse a slot between the two loads. The slot of this address
        // does not change, because its mapping is in use.
        let is_stable = entry.base.load(Ordering::SeqCst) == base;
        if base == 0 || !is_stable || address < base || address >= end {
            continue;
        }
        let page = address & !(PAGE - 1);
        let broken = entry.broken.load(Ordering::SeqCst);
        // SAFETY: `broken` outlives the guard.
        unsafe {
            if !broken.is_null() {
                (*broken).store(true, Ordering::SeqCst);
            }
        }
        // A mapping of huge pages cannot be cut at a small one, so it is replaced as a whole.
        // SAFETY: the range is a mapping of ours until its guard is dropped, so replacing a part of
        // it affects no other memory.
        let is_replaced = unsafe { put_zeroes(page, end) || put_zeroes(base, end) };
        if is_replaced {
            return;
        }
    }
    // Not ours: the access faults again, and the default action ends the process.
    // SAFETY: SIG_DFL is a valid action for SIGBUS.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}

/// Replaces a range of addresses by zero pages; returns whether that worked.
///
/// # Safety
/// The range is a part of a mapping whose content nothing relies on.
unsafe fn put_zeroes(start: usize, end: usize) -> bool {
    // SAFETY: guaranteed by the caller.
    let made = unsafe {
        libc::mmap(
            start as *mut _,
            end - start,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    made != libc::MAP_FAILED
}
