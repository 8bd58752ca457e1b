//! Sector ciphers: AES-XTS and AES-CBC over runs of encryption sectors, N sectors a call.
//!
//! ```text
//!            CipherSpec::parse("aes-xts-plain64")      spec.rs
//!                  |  + key, sector size
//!            SectorCipher::new ---- Tier::best()       tier.rs, schedule.rs (the key's only copy)
//!                  |
//!   encrypt / decrypt(src, dst, iv_sector, hints)      job.rs, iv.rs
//!                  |
//!      xts/{vaes512,vaes256,aesni,portable}.rs         one kernel a file, chosen once
//!      cbc/{vaes512,vaes256,aesni,portable}.rs
//! ```
//!
//! A call goes over its bytes once, from source to destination or in place, so that encrypting
//! into a file's pages costs no copy. Nothing is allocated and nothing can fail on the way; what
//! can be wrong is told by [`SectorCipher::new`]. Every tier computes the same bytes.
//!
//! Not here: authenticated modes, ciphers other than AES, IVs that need the plaintext.

#[cfg(target_arch = "x86_64")]
mod aesni;
mod cbc;
mod error;
mod iv;
mod job;
mod portable;
mod schedule;
mod spec;
mod tier;
mod xts;

#[cfg(test)]
mod tests;

use std::fmt;

pub use self::error::CipherError;
use self::iv::IvCounter;
pub use self::job::Hints;
use self::job::{Job, Kernels};
use self::schedule::Schedule;
pub use self::spec::CipherSpec;
use self::spec::{IvMode, Mode};
pub use self::tier::Tier;

/// Sectors are numbered in units of this, whatever the encryption sector size.
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
    /// Round keys, on pages of their own.
    schedule: Box<Schedule>,
    /// The code of this mode, tier and key length.
    kernels: Kernels,
    tier: Tier,
    sector_size_bytes: u32,
    /// `IvCounter::shift` of every call.
    iv_shift: u32,
    /// `IvCounter::mask` of every call.
    iv_mask: u64,
}

impl SectorCipher {
    /// A cipher on the fastest tier of this CPU.
    ///
    /// # Errors
    ///
    /// [`CipherError::BadKeyLength`] or [`CipherError::BadSectorSize`].
    pub fn new(
        spec: &CipherSpec,
        key: &[u8],
        sector_size_bytes: u32,
        iv_large_sectors: bool,
    ) -> Result<Self, CipherError> {
        Self::with_tier(spec, key, sector_size_bytes, iv_large_sectors, Tier::best())
    }

    /// A cipher on a tier by name, to compare and to test.
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
        if !tier.is_available() {
            return Err(CipherError::TierUnavailable { tier });
        }
        let aes_key_len_bytes = aes_key_len(spec, key.len())?;
        let units_per_sector = sector_size_bytes / IV_UNIT_BYTES;
        Ok(Self {
            schedule: Schedule::new(spec, key, aes_key_len_bytes, tier),
            kernels: match spec.mode {
                Mode::Xts => xts::kernels(tier, aes_key_len_bytes),
                Mode::Cbc => cbc::kernels(tier, aes_key_len_bytes),
            },
            tier,
            sector_size_bytes,
            iv_shift: if iv_large_sectors { units_per_sector.trailing_zeros() } else { 0 },
            iv_mask: match spec.iv {
                IvMode::Plain => u64::from(u32::MAX),
                IvMode::Plain64 | IvMode::EssivSha256 => u64::MAX,
            },
        })
    }

    /// The encryption sector size; the length of every call is a multiple of it.
    #[must_use]
    pub fn sector_size_bytes(&self) -> u32 {
        self.sector_size_bytes
    }

    /// The tier this cipher runs on.
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

    /// Encrypts `data` where it lies.
    ///
    /// # Panics
    ///
    /// If the length is not a multiple of the sector size.
    pub fn encrypt_in_place(&self, data: &mut [u8], iv_sector: u64) {
        let bytes = data.as_mut_ptr();
        // SAFETY: the slice is valid for reads and writes; source and destination are the same.
        unsafe { self.encrypt_raw(bytes, bytes, data.len(), iv_sector, Hints::default()) }
    }

    /// Decrypts `data` where it lies.
    ///
    /// # Panics
    ///
    /// If the length is not a multiple of the sector size.
    pub fn decrypt_in_place(&self, data: &mut [u8], iv_sector: u64) {
        let bytes = data.as_mut_ptr();
        // SAFETY: as in `encrypt_in_place`.
        unsafe { self.decrypt_raw(bytes, bytes, data.len(), iv_sector, Hints::default()) }
    }

    /// Encrypts `len_bytes` from `src` to `dst`, with no alignment asked of either.
    ///
    /// # Safety
    ///
    /// `src` must be valid for reads and `dst` for writes of `len_bytes`, and they must be the
    /// same address or not overlap. Either may lie in a shared file mapping: what another process
    /// changes meanwhile changes the bytes that come out and nothing else.
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
        // SAFETY: the caller vouches for the memory; the schedule was made for this tier, whose
        // instructions were found when the cipher was made.
        unsafe { (self.kernels.encrypt)(&raw const *self.schedule, &job) }
    }

    /// Decrypts `len_bytes` from `src` to `dst`, with no alignment asked of either.
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
        let job = self.job(src, dst, len_bytes, iv_sector, hints);
        // SAFETY: as in `encrypt_raw`.
        unsafe { (self.kernels.decrypt)(&raw const *self.schedule, &job) }
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

/// The length of one AES key in a volume key, or why there is none.
///
/// The two halves of an XTS key may be equal, as dm-crypt allows outside FIPS mode: refusing them
/// would lock people out of volumes that the kernel opens.
fn aes_key_len(spec: &CipherSpec, got: usize) -> Result<usize, CipherError> {
    let (allowed, keys): (&'static str, usize) = match spec.mode {
        Mode::Xts => ("32, 48 or 64", 2),
        Mode::Cbc => ("16, 24 or 32", 1),
    };
    match (got / keys, got % keys) {
        (len @ (16 | 24 | 32), 0) => Ok(len),
        _ => Err(CipherError::BadKeyLength { spec: spec.as_str().to_owned(), got, allowed }),
    }
}
