//! A cipher whose key can be changed while it is not in use (`crypt_set_key`, `crypt_wipe_key`).

use std::cell::UnsafeCell;
use std::ops::Deref;

use blockyard_crypt::cipher::{CipherError, CipherSpec, SectorCipher};
use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;

/// A cipher, and what it takes to make it again with another key.
pub(crate) struct KeyedCipher {
    cipher: UnsafeCell<SectorCipher>,
    spec: CipherSpec,
    key_len_bytes: usize,
    sector_size_bytes: u32,
    iv_large_sectors: bool,
}

// SAFETY: a `SectorCipher` may be shared; it is replaced only by `KeyedCipher::replace`, whose
// caller sees to it that nobody else has it.
unsafe impl Sync for KeyedCipher where SectorCipher: Sync {}

impl KeyedCipher {
    pub(crate) fn new(params: &CryptParams) -> Result<Self, CipherError> {
        let spec = CipherSpec::parse(&params.cipher)?;
        let (sector_size_bytes, iv_large_sectors) =
            (params.sector_size_bytes, params.iv_large_sectors);
        let key = params.key.as_slice();
        let cipher = SectorCipher::new(&spec, key, sector_size_bytes, iv_large_sectors)?;
        let (cipher, key_len_bytes) = (UnsafeCell::new(cipher), params.key.len());
        Ok(Self { cipher, spec, key_len_bytes, sector_size_bytes, iv_large_sectors })
    }

    /// Whether cache timing may tell of its key; see [`CipherSpec::is_table_based`].
    pub(crate) fn is_table_based(&self) -> bool {
        self.spec.is_table_based()
    }

    /// Length of its key, which never changes.
    pub(crate) fn key_len_bytes(&self) -> usize {
        self.key_len_bytes
    }

    /// The same cipher with this key.
    pub(crate) fn with_key(&self, key: &SecretBytes) -> Result<SectorCipher, CipherError> {
        let key = key.as_slice();
        SectorCipher::new(&self.spec, key, self.sector_size_bytes, self.iv_large_sectors)
    }

    /// Puts another cipher in its place; the old one is wiped.
    ///
    /// # Safety
    /// Nobody uses the cipher meanwhile: the gate of its volume is closed, and whoever closed it
    /// has seen that no shard is busy.
    pub(crate) unsafe fn replace(&self, cipher: SectorCipher) {
        // SAFETY: the caller has the cipher for itself.
        unsafe { *self.cipher.get() = cipher };
    }
}

impl Deref for KeyedCipher {
    type Target = SectorCipher;

    fn deref(&self) -> &SectorCipher {
        // SAFETY: it is replaced only while no shard is busy, and only for a busy shard, or where
        // nothing can be replaced because there is no gate, is it borrowed.
        unsafe { &*self.cipher.get() }
    }
}
