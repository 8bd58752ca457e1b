//! Cleans the stack after secrets were worked on.
//!
//! Libraries for ciphers, hashes and KDFs keep keys and states in local arrays, move them by value
//! and spill them from registers; what they zeroise on drop is only the last copy. So everything
//! that touches a secret runs in [`with_wiped_stack`], which overwrites the stack that it used
//! before anything else runs there. XTS on VAES is the exception: it keeps round keys in
//! registers, as `tests/key_residue.rs` proves.
//!
//! Vector registers are cleared too: a signal, or the dynamic linker when it binds a symbol, saves
//! all of them on the stack of the thread, much later. On other architectures than x86-64 they are
//! left as they are.

use std::hint::black_box;

use crate::cipher::clear_registers;

/// More than the deepest call below [`with_wiped_stack`] uses: an argon2 pass keeps five blocks of
/// 1 KiB, a key schedule less; the rest is margin. Far below the 2 MiB of a thread's stack.
const WIPE_LEN_BYTES: usize = 64 * 1024;

/// Runs `work` and overwrites the stack it used. Only what it returns stays.
pub(crate) fn with_wiped_stack<R>(work: impl FnOnce() -> R) -> R {
    with_wiped_stack_of::<WIPE_LEN_BYTES, R>(work)
}

/// [`with_wiped_stack`] for work that is done often and uses less: `LEN_BYTES` at most.
#[inline]
pub(crate) fn with_wiped_stack_of<const LEN_BYTES: usize, R>(work: impl FnOnce() -> R) -> R {
    let result = run(work);
    wipe::<LEN_BYTES>();
    clear_registers();
    result
}

/// A frame of its own below the caller's, at the place that [`wipe`] overwrites afterwards.
#[inline(never)]
fn run<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[inline(never)]
fn wipe<const LEN_BYTES: usize>() {
    let mut region = [0u8; LEN_BYTES];
    black_box(&mut region);
}
