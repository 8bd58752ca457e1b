//! Parameters of one dm-crypt mapping: the common form of all volume formats.
//!
//! LUKS1, LUKS2 and plain volumes, and a `crypt` line of a dm table, all give a [`CryptParams`].
//! The code after this point is independent of the format.

use crate::cipher::{CipherSpec, SectorCipher};
use crate::secret::SecretBytes;
use crate::stack::with_wiped_stack;

/// One dm-crypt mapping (`drivers/md/dm-crypt.c`, `struct crypt_config`). Sectors are 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CryptParams {
    /// The cipher in a table line's form: `aes-xts-plain64`, `capi:xts(aes)-plain64`.
    pub cipher: String,
    /// The volume key.
    pub key: SecretBytes,
    /// Addend of the sector number for the IV.
    pub iv_offset_sectors: u64,
    /// Start of the ciphertext on its device.
    pub data_offset_sectors: u64,
    /// Length of the mapping; `None`: to the end of the device.
    pub len_sectors: Option<u64>,
    /// Encryption sector size, 512 to 4096 bytes.
    pub sector_size_bytes: u32,
    /// Whether the IV counts encryption sectors instead of 512-byte units.
    pub iv_large_sectors: bool,
    /// Flags from the volume's header or its table line.
    pub flags: CryptFlags,
}

impl CryptParams {
    /// A mapping of a whole device in sectors of 512 bytes, without an IV offset and flags.
    #[must_use]
    pub fn new(cipher: &str, key: SecretBytes) -> Self {
        Self {
            cipher: cipher.into(),
            key,
            iv_offset_sectors: 0,
            data_offset_sectors: 0,
            len_sectors: None,
            sector_size_bytes: 512,
            iv_large_sectors: false,
            flags: CryptFlags::default(),
        }
    }

    /// Makes the cipher once, so that opening the volume reports a key that does not fit.
    pub(crate) fn check_key(&self) -> Result<(), String> {
        with_wiped_stack(|| {
            let spec = CipherSpec::parse_line(&self.cipher)?;
            let key = self.key.as_slice();
            SectorCipher::new(&spec, key, self.sector_size_bytes, self.iv_large_sectors).map(drop)
        })
        .map_err(|error| error.to_string())
    }
}

/// A part of a volume that several mappings make up. The parts follow each other without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumePart {
    /// A mapping. Only that of a whole volume may have no length.
    Crypt(CryptParams),
    /// Sectors that read as zeros and forget writes.
    Zeros {
        /// Their number, of 512 bytes.
        len_sectors: u64,
    },
}

/// Optional parameters of a dm-crypt table line; LUKS2 can store them in its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags of the format, one bit each")]
pub struct CryptFlags {
    /// `allow_discards`: pass TRIM down.
    pub allow_discards: bool,
    /// `same_cpu_crypt`: encrypt on the submitting CPU.
    pub same_cpu_crypt: bool,
    /// `submit_from_crypt_cpus`: no writer thread.
    pub submit_from_crypt_cpus: bool,
    /// `high_priority`.
    pub high_priority: bool,
    /// `no_read_workqueue`.
    pub no_read_workqueue: bool,
    /// `no_write_workqueue`.
    pub no_write_workqueue: bool,
}
