//! A cipher whose key can be changed while the cipher is idle (`crypt_set_key`, `crypt_wipe_key`).

use std::cell::UnsafeCell;
use std::ops::Deref;

use blockyard_crypt::cipher::{CipherError, CipherSpec, SectorCipher};
use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;

/// A cipher with the data to rebuild it with another key.
pub(crate) struct KeyedCipher {
    cipher: UnsafeCell<SectorCipher>,
    spec: CipherSpec,
    key_len_bytes: usize,
    sector_size_bytes: u32,
    iv_large_sectors: bool,
}

// SAFETY: a `SectorCipher` may be shared. Only `KeyedCipher::replace` changes it, whose caller
// guarantees exclusive access.
unsafe impl Sync for KeyedCipher where SectorCipher: Sync {}

impl KeyedCipher {
    pub(crate) fn new(params: &CryptParams) -> Result<Self, CipherError> {
        let spec = CipherSpec::parse_line(&params.cipher)?;
        let sector_size_bytes = params.sector_size_bytes;
        let iv_large_sectors = params.iv_large_sectors;
        let key = params.key.as_slice();
        let cipher = SectorCipher::new(&spec, key, sector_size_bytes, iv_large_sectors)?;
        let cipher = UnsafeCell::new(cipher);
        let key_len_bytes = params.key.len();
        Ok(Self { cipher, spec, key_len_bytes, sector_size_bytes, iv_large_sectors })
    }

    /// Whether cache timing may leak its key; see [`CipherSpec::is_table_based`].
    pub(crate) fn is_table_based(&self) -> bool {
        self.spec.is_table_based()
    }

    /// Length of its key; constant.
    pub(crate) fn key_len_bytes(&self) -> usize {
        self.key_len_bytes
    }

    /// This cipher with another key.
    pub(crate) fn with_key(&self, key: &SecretBytes) -> Result<SectorCipher, CipherError> {
        let key = key.as_slice();
        SectorCipher::new(&self.spec, key, self.sector_size_bytes, self.iv_large_sectors)
    }

    /// Replaces the cipher; the old one is wiped.
    ///
    /// # Safety
    /// The cipher must be unused: the gate of its volume is closed, and all shards are idle.
    pub(crate) unsafe fn replace(&self, cipher: SectorCipher) {
        // SAFETY: the caller guarantees exclusive access.
        unsafe { *self.cipher.get() = cipher };
    }
}

impl Deref for KeyedCipher {
    type Target = SectorCipher;

    fn deref(&self) -> &SectorCipher {
        // SAFETY: the cipher is borrowed only by busy shards, or without a gate; it is replaced
        // only while all shards are idle, which needs a gate.
        unsafe { &*self.cipher.get() }
    }
}
