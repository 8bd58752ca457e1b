//! Ciphers of the RustCrypto crates behind our trait. Their key schedules wipe themselves.

use aes::cipher::typenum::Unsigned;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit};
use zeroize::ZeroizeOnDrop;

use super::BlockCipher;
use super::page::Page;

/// A cipher of a RustCrypto crate with its key.
pub(super) struct CrateCipher<C>(C);

impl<C> CrateCipher<C>
where
    C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + ZeroizeOnDrop + Send + Sync + 'static,
{
    /// # Panics
    ///
    /// If the crate does not take a key of this length.
    pub(super) fn boxed(key: &[u8]) -> Box<dyn BlockCipher> {
        Page::boxed(|| Self(C::new_from_slice(key).expect("the caller checked the key length")))
    }
}

impl<C> BlockCipher for CrateCipher<C>
where
    C: BlockCipherEncrypt + BlockCipherDecrypt + ZeroizeOnDrop + Send + Sync,
{
    fn block_bytes(&self) -> usize {
        <C as BlockSizeUser>::BlockSize::USIZE
    }

    fn encrypt(&self, blocks: &mut [u8]) {
        self.0.encrypt_blocks(Array::slice_as_chunks_mut(blocks).0);
    }

    fn decrypt(&self, blocks: &mut [u8]) {
        self.0.decrypt_blocks(Array::slice_as_chunks_mut(blocks).0);
    }
}
