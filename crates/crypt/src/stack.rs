//! Cleans the stack after secrets were worked on.
//!
//! Libraries for hashes and KDFs keep keys and states in local arrays and move them by value;
//! what they zeroise on drop is only the last copy. So everything that touches a secret runs in
//! [`with_wiped_stack`], which overwrites the stack that it used before anybody else runs there.

use std::hint::black_box;

/// More than the deepest call below [`with_wiped_stack`] uses: an argon2 pass keeps five blocks of
/// 1 KiB, a key schedule less; the rest is margin. Far below the 2 MiB of a thread's stack.
const WIPE_LEN_BYTES: usize = 64 * 1024;

/// Runs `work` and overwrites the stack it used. Only what it returns stays.
pub(crate) fn with_wiped_stack<R>(work: impl FnOnce() -> R) -> R {
    let result = run(work);
    wipe();
    result
}

/// A frame of its own below the caller's, at the place that [`wipe`] overwrites afterwards.
#[inline(never)]
fn run<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[inline(never)]
fn wipe() {
    let mut region = [0u8; WIPE_LEN_BYTES];
    black_box(&mut region);
}
