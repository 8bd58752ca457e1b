//! Wipes the stack after work on secrets.
//!
//! Libraries for ciphers, hashes and KDFs keep keys and states in local arrays, move them by value
//! and spill them from registers; they zeroise only the last copy on drop. So all work on secrets
//! runs in [`with_wiped_stack`], which overwrites the used stack afterwards. XTS on VAES is the
//! exception: it keeps round keys in registers, as `tests/key_residue.rs` proves.
//!
//! Vector registers are cleared too: a signal, or the dynamic linker when it binds a symbol, saves
//! all of them on the thread's stack, possibly much later. On other architectures than x86-64 they
//! are left unchanged.

use std::hint::black_box;

use crate::cipher::clear_registers;

/// Stack that is wiped: more than the deepest call uses. An argon2 pass keeps five blocks of 1 KiB,
/// a key schedule less; the rest is margin. Far below the 2 MiB of a thread's stack.
const WIPE_LEN_BYTES: usize = 64 * 1024;

/// Runs `work` and overwrites the stack that it used. Only its result remains.
pub(crate) fn with_wiped_stack<R>(work: impl FnOnce() -> R) -> R {
    with_wiped_stack_of::<WIPE_LEN_BYTES, R>(work)
}

/// [`with_wiped_stack`] for a key schedule that is moved to its own memory. The move copies the
/// unused parts of an enum too, and the stack is wiped first so that these are zeros, not the data
/// of earlier calls.
pub(crate) fn with_clean_stack<R>(work: impl FnOnce() -> R) -> R {
    wipe::<WIPE_LEN_BYTES>();
    with_wiped_stack(work)
}

/// [`with_wiped_stack`] for frequent work with less stack: at most `LEN_BYTES`.
#[inline]
pub(crate) fn with_wiped_stack_of<const LEN_BYTES: usize, R>(work: impl FnOnce() -> R) -> R {
    let result = run(work);
    wipe::<LEN_BYTES>();
    clear_registers();
    result
}

/// A separate frame below the caller's, at the place that [`wipe`] overwrites afterwards.
#[inline(never)]
fn run<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[inline(never)]
fn wipe<const LEN_BYTES: usize>() {
    let mut region = [0u8; LEN_BYTES];
    black_box(&mut region);
}
