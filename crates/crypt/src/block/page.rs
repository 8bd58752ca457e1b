//! Memory of a key schedule: pages of its own, protected before the key is written.

use std::mem::MaybeUninit;
use std::ops::Deref;

use super::BlockCipher;
use crate::secret;
use crate::stack::with_clean_stack;

/// Keys aligned to a page, so that no other data shares the page.
#[repr(C, align(4096))]
pub(crate) struct Page<K>(K);

impl<K> Page<K> {
    /// Boxes the result of `expand`. The stack that `expand` used is wiped.
    pub(crate) fn boxed(expand: impl FnOnce() -> K) -> Box<Self> {
        let mut page = Box::<Self>::new_zeroed();
        let len_bytes = size_of::<Self>();
        // SAFETY: the box has this many bytes, and all of them are zeros.
        secret::protect(unsafe { std::slice::from_raw_parts(page.as_ptr().cast(), len_bytes) });
        fill(&mut page, expand);
        // SAFETY: `fill` has written the one field.
        unsafe { page.assume_init() }
    }
}

fn fill<K>(page: &mut MaybeUninit<Page<K>>, expand: impl FnOnce() -> K) {
    with_clean_stack(|| {
        // Only the keys: the rest of the page would come from the stack.
        // SAFETY: the field lies within the page.
        unsafe { (&raw mut (*page.as_mut_ptr()).0).write(expand()) };
    });
}

impl<K> Deref for Page<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.0
    }
}

impl<C: BlockCipher> BlockCipher for Page<C> {
    fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    fn encrypt(&self, blocks: &mut [u8]) {
        assert_eq!(blocks.len() % self.block_bytes(), 0, "a block is cut short");
        self.0.encrypt(blocks);
    }

    fn decrypt(&self, blocks: &mut [u8]) {
        assert_eq!(blocks.len() % self.block_bytes(), 0, "a block is cut short");
        self.0.decrypt(blocks);
    }
}
