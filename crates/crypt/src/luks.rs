//! LUKS, either version: reads a header, opens it, and gives the parameters of the data's
//! encryption.
//!
//! ```text
//!   Header::read(source) -> unlock(passphrase) -> volume key -> crypt_params -> CryptParams
//! ```
//!
//! Reading never repairs: damage is returned as a [`Notice`], and [`repair`] is a separate call.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use crate::error::Error;
use crate::extent::Extent;
use crate::kdf::KdfLimits;
use crate::params::CryptParams;
use crate::secret::SecretBytes;
use crate::source::{HeaderDevice, HeaderSource};
use crate::{luks1, luks2};

/// The longest header that LUKS2 can have: two copies of 4 MiB and 128 MiB of keyslots. A LUKS1
/// header could name areas up to 2 TiB; such a one is not copied.
pub const HEADER_LEN_MAX_BYTES: u64 = (2 * 4 + 128) << 20;

/// The header of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum Header {
    /// LUKS1.
    Luks1(luks1::Header),
    /// LUKS2.
    Luks2(luks2::Header),
}

/// Facts of a header: all of its fields that are not secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum HeaderInfo {
    /// LUKS1.
    Luks1(luks1::Info),
    /// LUKS2.
    Luks2(luks2::Info),
}

/// A finding in a readable header that its owner should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// One copy of a LUKS2 header is damaged.
    DamagedCopy {
        /// The damaged copy.
        copy: luks2::Copy,
        /// The problem.
        problem: String,
    },
    /// One copy of a LUKS2 header is older than the other: an update was interrupted.
    OutdatedCopy {
        /// The outdated copy.
        copy: luks2::Copy,
        /// Its sequence id.
        seqid: u64,
        /// The sequence id of the copy in use.
        newest_seqid: u64,
    },
    /// Both copies are intact with the same sequence id, but differ.
    CopiesDiffer,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DamagedCopy { copy, problem } => write!(
                f,
                "the {copy} LUKS2 header is damaged ({problem}); the {} copy is intact and in \
                 use; repair the volume to make them equal again",
                copy.other()
            ),
            Self::OutdatedCopy { copy, seqid, newest_seqid } => write!(
                f,
                "the {copy} LUKS2 header is outdated (sequence id {seqid}, the {} copy in use has \
                 {newest_seqid}); a write was interrupted; repair the volume to make them equal \
                 again",
                copy.other()
            ),
            Self::CopiesDiffer => f.write_str(
                "the two copies of the LUKS2 header have the same sequence id but different \
                 contents; the primary copy is in use; repair the volume to make them equal again",
            ),
        }
    }
}

/// Options of unlocking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnlockOptions {
    /// Tries this keyslot only, even if its priority is "ignore".
    pub keyslot: Option<u32>,
    /// Limits on the header's demands.
    pub limits: KdfLimits,
}

/// Result of unlocking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlocked {
    /// The opened keyslot.
    pub keyslot: u32,
    /// The volume key, verified by the header's digest.
    pub volume_key: SecretBytes,
}

impl Header {
    /// Reads the header at the start of `source`. Nothing is repaired. Damage that leaves one LUKS2
    /// copy intact is a notice.
    ///
    /// # Errors
    /// When there is no LUKS header, or no intact and well-formed one; and when only the secondary
    /// LUKS2 header is left and another format stands at the start.
    pub fn read(source: &dyn HeaderSource) -> Result<(Self, Vec<Notice>), Error> {
        if luks1::Header::is_at(source)? {
            return Ok((Self::Luks1(luks1::Header::read(source)?), Vec::new()));
        }
        let (header, notices) = luks2::Header::read(source)?;
        Ok((Self::Luks2(header), notices))
    }

    /// Reads one copy of a LUKS2 header for inspection. The copy may be outdated, or belong to a
    /// former volume of a disk that has another use now. Callers must not write to the result.
    ///
    /// # Errors
    /// When this copy is missing or damaged.
    pub fn read_copy(source: &dyn HeaderSource, copy: luks2::Copy) -> Result<Self, Error> {
        luks2::Header::read_copy(source, copy).map(Self::Luks2)
    }

    /// Finds the keyslot that `passphrase` opens and returns its volume key. Key material is read
    /// from `source`.
    ///
    /// # Errors
    /// When the volume needs an unsupported feature, a limit forbids it, or no keyslot opens.
    pub fn unlock(
        &self,
        source: &dyn HeaderSource,
        passphrase: &SecretBytes,
        options: &UnlockOptions,
    ) -> Result<Unlocked, Error> {
        match self {
            Self::Luks1(header) => header.unlock(source, passphrase, options),
            Self::Luks2(header) => header.unlock(source, passphrase, options),
        }
    }

    /// Cipher and place of the data on a data device of `device_len_bytes`. `detached`: the data
    /// device is separate from the header's device.
    ///
    /// # Errors
    /// When the volume needs an unsupported feature, or the device is too small.
    pub fn crypt_params(
        &self,
        volume_key: &SecretBytes,
        device_len_bytes: u64,
        detached: bool,
    ) -> Result<CryptParams, Error> {
        match self {
            Self::Luks1(header) => header.crypt_params(volume_key, device_len_bytes, detached),
            Self::Luks2(header) => header.crypt_params(volume_key, device_len_bytes, detached),
        }
    }

    /// Length of the data in bytes on a device of this length.
    ///
    /// # Errors
    /// When the volume needs an unsupported feature, or the device is too small.
    pub fn data_len_bytes(&self, device_len_bytes: u64) -> Result<u64, Error> {
        Ok(self.extent()?.len_sectors(device_len_bytes)? * 512)
    }

    /// Length of the data up to the end of a device of this length, also if the header fixes
    /// another one.
    ///
    /// # Errors
    /// When the volume needs an unsupported feature, or the device ends before the data.
    pub fn room_bytes(&self, device_len_bytes: u64) -> Result<u64, Error> {
        let extent = Extent { len_bytes: None, ..self.extent()? };
        Ok(extent.len_sectors(device_len_bytes)? * 512)
    }

    /// Length of the data if the header has a fixed one; `None` if the data ends with its device.
    ///
    /// # Errors
    /// When the volume needs an unsupported feature.
    pub fn fixed_len_bytes(&self) -> Result<Option<u64>, Error> {
        Ok(self.extent()?.len_bytes)
    }

    fn extent(&self) -> Result<Extent, Error> {
        match self {
            Self::Luks1(header) => Ok(header.extent()),
            Self::Luks2(header) => header.extent(),
        }
    }

    /// UUID of the volume.
    #[must_use]
    pub fn uuid(&self) -> &str {
        match self {
            Self::Luks1(header) => header.uuid(),
            Self::Luks2(header) => header.uuid(),
        }
    }

    /// First byte of the data.
    #[must_use]
    pub fn data_offset_bytes(&self) -> u64 {
        match self {
            Self::Luks1(header) => header.data_offset_bytes(),
            Self::Luks2(header) => header.data_offset_bytes(),
        }
    }

    /// The areas of the keyslots in use, by number.
    pub(crate) fn areas(&self) -> Vec<(u32, Range<u64>)> {
        match self {
            Self::Luks1(header) => header.areas(),
            Self::Luks2(header) => header.areas(),
        }
    }

    /// End of the header without its keyslots.
    pub(crate) fn header_end_bytes(&self) -> u64 {
        match self {
            Self::Luks1(_) => luks1::PADDED_LEN_BYTES,
            Self::Luks2(header) => 2 * header.copy_len_bytes(),
        }
    }

    /// Length of a backup, as cryptsetup's.
    ///
    /// # Errors
    /// It is over [`HEADER_LEN_MAX_BYTES`].
    pub(crate) fn backup_len_bytes(&self) -> Result<usize, Error> {
        self.check_len()?;
        let len_bytes = match self {
            Self::Luks1(header) => header.keyslots_end_bytes().next_multiple_of(4096),
            Self::Luks2(header) => header.end_bytes(),
        };
        Ok(usize::try_from(len_bytes).expect("at most 136 MiB"))
    }

    /// Checks the header's length before it is copied or converted.
    pub(crate) fn check_len(&self) -> Result<(), Error> {
        let end_bytes = self.end_bytes();
        if end_bytes <= HEADER_LEN_MAX_BYTES {
            return Ok(());
        }
        let problem = format!(
            "with its keyslots it ends at byte {end_bytes}; headers of up to \
             {HEADER_LEN_MAX_BYTES} bytes are copied and converted"
        );
        Err(Error::header("LUKS header", problem))
    }

    /// End of the header with its keyslots. The last page of a LUKS1 backup may end after it, in
    /// the data.
    pub(crate) fn end_bytes(&self) -> u64 {
        match self {
            Self::Luks1(header) => header.keyslots_end_bytes(),
            Self::Luks2(header) => header.end_bytes(),
        }
    }

    /// Clears what is no part of a backup.
    pub(crate) fn clean_backup(&self, bytes: &mut [u8]) {
        if let Self::Luks1(header) = self {
            header.clean_backup(bytes);
        }
    }

    /// The facts of the header.
    #[must_use]
    pub fn info(&self) -> HeaderInfo {
        match self {
            Self::Luks1(header) => HeaderInfo::Luks1(header.info()),
            Self::Luks2(header) => HeaderInfo::Luks2(header.info()),
        }
    }
}

impl fmt::Display for Header {
    /// The text of `blockyard info`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Luks1(header) => header.fmt(f),
            Self::Luks2(header) => header.fmt(f),
        }
    }
}

/// Makes the two copies of a LUKS2 header equal, from the newest intact one, with its sequence id.
/// Returns the rewritten copies; empty if both were intact and equal.
///
/// # Errors
/// When no copy is intact, the volume is not LUKS2, or writing fails.
pub fn repair(device: &mut dyn HeaderDevice) -> Result<Vec<luks2::Copy>, Error> {
    if luks1::Header::is_at(&&*device)? {
        return Err(Error::unsupported(
            "LUKS1 header",
            "it has no second copy to repair it from; restore a header backup with blockyard \
             header restore",
        ));
    }
    luks2::repair(device)
}
