//! Memory of a key schedule: pages of its own, protected before the key is there.

use std::mem::MaybeUninit;
use std::ops::Deref;

use crate::secret;
use crate::stack::with_wiped_stack;

/// Aligned to a page, so that it shares none with anything else.
#[repr(C, align(4096))]
pub(super) struct Page<T>(T);

impl<T> Page<T> {
    /// A box of what `make` returns. `make` may leave what it likes on the stack: it is wiped.
    pub(super) fn boxed(make: impl FnOnce() -> T) -> Box<Self> {
        let mut page = Box::<Self>::new_zeroed();
        let len_bytes = size_of::<Self>();
        // SAFETY: the box has this many bytes, and all are initialised to zero.
        secret::protect(unsafe { std::slice::from_raw_parts(page.as_ptr().cast(), len_bytes) });
        fill(&mut page, make);
        // SAFETY: `fill` has written the whole value.
        unsafe { page.assume_init() }
    }
}

fn fill<T>(page: &mut MaybeUninit<Page<T>>, make: impl FnOnce() -> T) {
    with_wiped_stack(|| {
        page.write(Page(make()));
    });
}

impl<T> Deref for Page<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
