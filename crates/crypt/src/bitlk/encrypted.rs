//! Keys and hashes encrypted with AES-256-CCM, with a nonce of 12 bytes and a tag of 16 bytes.

use aes::Aes256;
use ccm::Ccm;
use ccm::aead::inout::InOutBuf;
use ccm::aead::{AeadInOut, KeyInit};
use digest::consts::{U12, U16};

use super::datum::HEADER_LEN_BYTES;
use super::le16;
use crate::secret::SecretBytes;
use crate::stack::with_wiped_stack;

const NONCE_LEN_BYTES: usize = 12;
const TAG_LEN_BYTES: usize = 16;
/// Length of the fields before a decrypted key: an entry's, and the method.
const KEY_HEADER_LEN_BYTES: usize = HEADER_LEN_BYTES + 4;
/// Length of every key that encrypts others.
pub(super) const WRAPPING_KEY_LEN_BYTES: usize = 32;

/// Ciphertext with nonce and tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encrypted {
    nonce: [u8; NONCE_LEN_BYTES],
    tag: [u8; TAG_LEN_BYTES],
    bytes: Vec<u8>,
}

impl Encrypted {
    pub(super) fn parse(data: &[u8]) -> Option<Self> {
        let (nonce, rest) = data.split_first_chunk()?;
        let (tag, bytes) = rest.split_first_chunk()?;
        Some(Self { nonce: *nonce, tag: *tag, bytes: bytes.to_vec() })
    }

    /// The plaintext; `None` if it is not of this key.
    pub(super) fn decrypt(&self, key: &SecretBytes) -> Option<SecretBytes> {
        with_wiped_stack(|| {
            let cipher = Ccm::<Aes256, U16, U12>::new_from_slice(key.as_slice()).ok()?;
            let mut plain = SecretBytes::copy_of(&self.bytes);
            let buffer = InOutBuf::from(plain.as_mut_slice());
            let tag = self.tag.into();
            cipher.decrypt_inout_detached(&self.nonce.into(), &[], buffer, &tag).ok()?;
            Some(plain)
        })
    }

    /// The key in it: an entry of exactly its length.
    pub(super) fn decrypt_key(&self, key: &SecretBytes) -> Option<SecretBytes> {
        let plain = self.decrypt(key)?;
        let bytes = plain.as_slice();
        let found = bytes.get(KEY_HEADER_LEN_BYTES..)?;
        (usize::from(le16(bytes, 0)) == bytes.len()).then(|| SecretBytes::copy_of(found))
    }
}
