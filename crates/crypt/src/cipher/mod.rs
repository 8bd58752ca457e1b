//! Sector ciphers: all non-authenticated ones of dm-crypt, over runs of encryption sectors.
//!
//! ```text
//!            CipherSpec::parse("aes-xts-plain64")      spec.rs, rules.rs
//!                  |  + key, sector size
//!            SectorCipher::new ---- Tier::best()       tier.rs, schedule.rs (the key's only copy)
//!                  |
//!   encrypt / decrypt(src, dst, iv_sector, hints)      job.rs, iv.rs
//!                  |
//!      AES, XTS or CBC, usual IVs ----------------- all others
//!                  |                                   |
//!      xts/{vaes512,vaes256,aesni,portable}.rs      generic/: any block cipher, mode and IV
//!      cbc/{vaes512,vaes256,aesni,portable}.rs
//! ```
//!
//! On the left, a call goes over its bytes once, from source to destination or in place. So
//! encryption into a file's pages needs no copy. There is one kernel per file, chosen once, and
//! every tier computes the same bytes. On the right, sectors go through a buffer. A call allocates
//! nothing and cannot fail; [`SectorCipher::new`] reports all errors.
//!
//! Not here: authenticated modes.

#[cfg(target_arch = "x86_64")]
mod aesni;
mod cbc;
mod error;
mod generic;
mod iv;
mod job;
mod portable;
mod registers;
mod rules;
mod schedule;
mod spec;
mod tier;
mod xts;

#[cfg(test)]
mod tests;

use std::fmt;

pub use self::error::CipherError;
use self::generic::Generic;
use self::iv::IvCounter;
pub use self::job::Hints;
use self::job::{Job, Kernels};
pub(crate) use self::registers::clear as clear_registers;
use self::schedule::Schedule;
pub use self::spec::CipherSpec;
use self::spec::IvMode;
pub use self::tier::Tier;
use self::tier::Tiered;

/// Unit of sector numbers, regardless of the encryption sector size.
const IV_UNIT_BYTES: u32 = 512;

/// A keyed cipher over encryption sectors.
///
/// ```
/// use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
///
/// let spec = CipherSpec::parse("aes-xts-plain64")?;
/// let key: Vec<u8> = (0..64).collect();
/// let cipher = SectorCipher::new(&spec, &key, 4096, false)?;
/// let mut data = vec![0u8; 8192];
/// cipher.encrypt_in_place(&mut data, 2048);
/// cipher.decrypt_in_place(&mut data, 2048);
/// assert_eq!(data, vec![0u8; 8192]);
/// # Ok::<(), blockyard_crypt::cipher::CipherError>(())
/// ```
pub struct SectorCipher {
    path: Path,
    tier: Tier,
    sector_size_bytes: u32,
    /// `IvCounter::shift` of every call.
    iv_shift: u32,
    /// `IvCounter::mask` of every call.
    iv_mask: u64,
    /// The further ciphers of a cascade.
    then: Vec<SectorCipher>,
}

/// The keys and their code.
enum Path {
    /// A kernel for this mode, tier and key length.
    Tiered {
        /// Round keys, on pages of their own.
        schedule: Box<Schedule>,
        kernels: Kernels,
    },
    Generic(Box<Generic>),
}

impl SectorCipher {
    /// Creates a cipher on the fastest tier of this CPU.
    ///
    /// # Errors
    ///
    /// [`CipherError::BadKeyLength`], [`CipherError::BadSectorSize`] or
    /// [`CipherError::SmallSectorsOnly`].
    pub fn new(
        spec: &CipherSpec,
        key: &[u8],
        sector_size_bytes: u32,
        iv_large_sectors: bool,
    ) -> Result<Self, CipherError> {
        Self::with_tier(spec, key, sector_size_bytes, iv_large_sectors, Tier::best())
    }

    /// Creates a cipher on a given tier, for comparisons and tests.
    ///
    /// # Errors
    ///
    /// As [`SectorCipher::new`], and [`CipherError::TierUnavailable`].
    pub fn with_tier(
        spec: &CipherSpec,
        key: &[u8],
        sector_size_bytes: u32,
        iv_large_sectors: bool,
        tier: Tier,
    ) -> Result<Self, CipherError> {
        if !matches!(sector_size_bytes, 512 | 1024 | 2048 | 4096) {
            return Err(CipherError::BadSectorSize { got: sector_size_bytes });
        }
        if matches!(spec.iv, IvMode::Lmk | IvMode::Tcw) && sector_size_bytes != IV_UNIT_BYTES {
            let spec = spec.as_str().to_owned();
            let got = sector_size_bytes;
            return Err(CipherError::SmallSectorsOnly { spec, got });
        }
        if !tier.is_available() {
            return Err(CipherError::TierUnavailable { tier });
        }
        let stage_len = key.len() / (1 + spec.then.len());
        let (key, mut rest) =
            if spec.then.is_empty() { (key, &[][..]) } else { key.split_at(stage_len) };
        let layout = spec.key_layout(key.len())?;
        let mut then = Vec::new();
        for (index, stage) in spec.then.iter().enumerate() {
            // The last one gets all that is left, so that a surplus is an error.
            let is_last = index + 1 == spec.then.len();
            let len = if is_last { rest.len() } else { stage_len };
            let (key, later) = rest.split_at(len);
            then.push(Self::with_tier(stage, key, sector_size_bytes, iv_large_sectors, tier)?);
            rest = later;
        }
        let (path, tier) = match Tiered::of(spec) {
            Some(tiered) => (Path::tiered(tiered, key, tier), tier),
            None => (Path::Generic(Box::new(Generic::new(spec, key, layout))), Tier::Portable),
        };
        let units_per_sector = sector_size_bytes / IV_UNIT_BYTES;
        Ok(Self {
            path,
            tier,
            sector_size_bytes,
            iv_shift: if iv_large_sectors { units_per_sector.trailing_zeros() } else { 0 },
            iv_mask: match spec.iv {
                IvMode::Plain => u64::from(u32::MAX),
                _ => u64::MAX,
            },
            then,
        })
    }

    /// The encryption sector size; the length of every call is a multiple of it.
    #[must_use]
    pub fn sector_size_bytes(&self) -> u32 {
        self.sector_size_bytes
    }

    /// The cipher's tier: `Portable` for all ciphers without specialised kernels.
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Encrypts `src` into `dst`. `iv_sector` numbers the first sector in 512-byte units.
    ///
    /// # Panics
    ///
    /// If the lengths differ or are not a multiple of the sector size.
    pub fn encrypt(&self, src: &[u8], dst: &mut [u8], iv_sector: u64, hints: Hints) {
        assert_eq!(src.len(), dst.len(), "source and destination differ in length");
        // SAFETY: both slices are valid for their common length, and a shared and an exclusive
        // borrow cannot overlap.
        unsafe { self.encrypt_raw(src.as_ptr(), dst.as_mut_ptr(), src.len(), iv_sector, hints) }
    }

    /// Decrypts `src` into `dst`. `iv_sector` numbers the first sector in 512-byte units.
    ///
    /// # Panics
    ///
    /// If the lengths differ or are not a multiple of the sector size.
    pub fn decrypt(&self, src: &[u8], dst: &mut [u8], iv_sector: u64, hints: Hints) {
        assert_eq!(src.len(), dst.len(), "source and destination differ in length");
        // SAFETY: as in `encrypt`.
        unsafe { self.decrypt_raw(src.as_ptr(), dst.as_mut_ptr(), src.len(), iv_sector, hints) }
    }

    /// Encrypts `data` in place.
    ///
    /// # Panics
    ///
    /// If the length is not a multiple of the sector size.
    pub fn encrypt_in_place(&self, data: &mut [u8], iv_sector: u64) {
        let bytes = data.as_mut_ptr();
        // SAFETY: the slice is valid for reads and writes; source and destination are the same.
        unsafe { self.encrypt_raw(bytes, bytes, data.len(), iv_sector, Hints::default()) }
    }

    /// Decrypts `data` in place.
    ///
    /// # Panics
    ///
    /// If the length is not a multiple of the sector size.
    pub fn decrypt_in_place(&self, data: &mut [u8], iv_sector: u64) {
        let bytes = data.as_mut_ptr();
        // SAFETY: as in `encrypt_in_place`.
        unsafe { self.decrypt_raw(bytes, bytes, data.len(), iv_sector, Hints::default()) }
    }

    /// Encrypts `len_bytes` from `src` to `dst`, both without alignment requirements.
    ///
    /// # Safety
    ///
    /// `src` must be valid for reads and `dst` for reads and writes of `len_bytes`, and they must
    /// be the same address or not overlap. Either may lie in a shared file mapping: a concurrent
    /// change by another process affects the resulting bytes only.
    ///
    /// # Panics
    ///
    /// If `len_bytes` is not a multiple of the sector size.
    pub unsafe fn encrypt_raw(
        &self,
        src: *const u8,
        dst: *mut u8,
        len_bytes: usize,
        iv_sector: u64,
        hints: Hints,
    ) {
        let job = self.job(src, dst, len_bytes, iv_sector, hints);
        match &self.path {
            Path::Tiered { schedule, kernels } => {
                // SAFETY: the caller vouches for the memory. The schedule was made for this tier,
                // and the constructor checked the CPU for its instructions.
                unsafe { kernels.run(kernels.encrypt, &raw const **schedule, &job) }
            }
            // SAFETY: the caller vouches for the memory.
            Path::Generic(generic) => unsafe { generic.encrypt(&job) },
        }
        for stage in &self.then {
            // SAFETY: the caller vouches for `dst`, which the first cipher has filled.
            unsafe { stage.encrypt_raw(dst, dst, len_bytes, iv_sector, hints) };
        }
    }

    /// Decrypts `len_bytes` from `src` to `dst`, both without alignment requirements.
    ///
    /// # Safety
    ///
    /// As [`SectorCipher::encrypt_raw`].
    ///
    /// # Panics
    ///
    /// If `len_bytes` is not a multiple of the sector size.
    pub unsafe fn decrypt_raw(
        &self,
        src: *const u8,
        dst: *mut u8,
        len_bytes: usize,
        iv_sector: u64,
        hints: Hints,
    ) {
        let mut src = src;
        for stage in self.then.iter().rev() {
            // SAFETY: as in `encrypt_raw`.
            unsafe { stage.decrypt_raw(src, dst, len_bytes, iv_sector, hints) };
            src = dst;
        }
        let job = self.job(src, dst, len_bytes, iv_sector, hints);
        match &self.path {
            Path::Tiered { schedule, kernels } => {
                // SAFETY: as in `encrypt_raw`.
                unsafe { kernels.run(kernels.decrypt, &raw const **schedule, &job) }
            }
            // SAFETY: the caller vouches for the memory.
            Path::Generic(generic) => unsafe { generic.decrypt(&job) },
        }
    }

    #[inline]
    fn job(
        &self,
        src: *const u8,
        dst: *mut u8,
        len_bytes: usize,
        iv_sector: u64,
        hints: Hints,
    ) -> Job {
        let sector_bytes = self.sector_size_bytes as usize;
        assert_eq!(len_bytes % sector_bytes, 0, "length is not a multiple of the sector size");
        let iv = IvCounter {
            first: iv_sector,
            step: u64::from(self.sector_size_bytes / IV_UNIT_BYTES),
            shift: self.iv_shift,
            mask: self.iv_mask,
            high: 0,
        };
        Job { src, dst, sector_bytes, sectors: len_bytes / sector_bytes, iv, hints }
    }
}

impl fmt::Debug for SectorCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SectorCipher")
            .field("tier", &self.tier)
            .field("sector_size_bytes", &self.sector_size_bytes)
            .finish_non_exhaustive()
    }
}

impl Path {
    /// The kernels of a tier for a key of valid length.
    ///
    /// The two halves of an XTS key may be equal, as dm-crypt allows outside FIPS mode. A refusal
    /// would make volumes unreadable that the kernel opens.
    fn tiered(tiered: Tiered, key: &[u8], tier: Tier) -> Self {
        let aes_key_len_bytes = tiered.aes_key_len_bytes(key.len());
        Self::Tiered {
            schedule: Schedule::new(tiered, key, tier),
            kernels: match tiered {
                Tiered::Xts => xts::kernels(tier, aes_key_len_bytes),
                Tiered::Cbc | Tiered::CbcEssivSha256 => cbc::kernels(tier, aes_key_len_bytes),
            },
        }
    }
}
