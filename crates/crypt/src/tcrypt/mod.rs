//! TrueCrypt and VeraCrypt volumes.
//!
//! ```text
//!   passphrase, keyfiles -> keyfiles.rs -> kdf.rs: each KDF on its own core
//!     -> ciphers.rs: each cipher and cascade -> header.rs: magic and checksums -> CryptParams
//! outer volume, passphrase of the hidden one -> hidden.rs: sectors that no write may touch
//! ```
//!
//! Nothing in a volume names its KDF, its cipher, or the format itself: a header is random bytes
//! until the right passphrase, KDF and cipher decrypt it. All of them are tried, within the limits
//! of a derivation. Facts from VeraCrypt's documentation ("VeraCrypt Volume Format Specification",
//! "Header Key Derivation", "Keyfiles") and cryptsetup's `lib/tcrypt/tcrypt.c`.
//!
//! Ciphers in XTS and LRW mode are supported. CBC, of volumes of TrueCrypt before 4.1 (2005), the
//! cipher Kuznyechik and the hash Streebog are not.

mod ciphers;
mod header;
mod hidden;
mod kdf;
mod keyfiles;

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::Error;
use crate::extent::Extent;
use crate::kdf::KdfLimits;
use crate::params::{CryptFlags, CryptParams};
use crate::secret::SecretBytes;
use crate::source::HeaderSource;
use crate::stack::with_wiped_stack;

pub use header::Header;
pub use hidden::{HiddenKey, HiddenSectors, hidden_sectors};

use ciphers::Chain;
use kdf::{Candidate, HEADER_KEY_LEN_BYTES};

/// Length of a header, with its salt.
const HEADER_LEN_BYTES: usize = 512;
const SALT_LEN_BYTES: usize = 64;
/// Length of its encrypted part.
pub const PLAIN_LEN_BYTES: usize = HEADER_LEN_BYTES - SALT_LEN_BYTES;

/// The volume that a passphrase is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeKind {
    /// The usual, or the outer volume.
    #[default]
    Normal,
    /// The hidden volume inside.
    Hidden,
    /// An encrypted system disk or system partition; its header is in the disk's first track.
    System,
}

/// Options of unlocking.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The volume that the passphrase is for.
    pub kind: VolumeKind,
    /// Uses the backup of the header, at the end of the volume.
    pub backup: bool,
    /// VeraCrypt's personal iterations multiplier.
    pub pim: Option<u32>,
    /// Contents of the keyfiles; the first MiB of each counts.
    pub keyfiles: Vec<SecretBytes>,
    /// Limits of each derivation.
    pub limits: KdfLimits,
}

/// An opened header.
#[derive(Clone, Debug)]
pub struct Unlocked {
    /// Its fields.
    pub header: Header,
    kind: VolumeKind,
    key: SecretBytes,
    /// Place of the header that opened.
    offset_bytes: u64,
}

/// Opens a volume: tries all KDFs and ciphers, on all cores.
///
/// # Errors
/// [`Error::Field`] for wrong options, [`Error::NoTcrypt`] if nothing opens, [`Error::Header`] if
/// the fields of the opened header are wrong.
pub fn unlock(
    source: &dyn HeaderSource,
    passphrase: &SecretBytes,
    options: &Options,
) -> Result<Unlocked, Error> {
    let offsets = options.header_offsets(source.len_bytes())?;
    let password = keyfiles::password(passphrase.as_slice(), &options.keyfiles)?;
    let mut untried = Vec::new();
    let candidates = options.candidates(password.len(), &mut untried)?;
    for offset in offsets {
        let mut bytes = [0; HEADER_LEN_BYTES];
        let what = || "the header of the TrueCrypt or VeraCrypt volume".to_owned();
        source.read_at(offset, &mut bytes).map_err(|error| Error::Read { what: what(), error })?;
        if let Some((header, key)) = try_all(&bytes, &password, &candidates, options.limits) {
            header.check()?;
            return Ok(Unlocked { header, kind: options.kind, key, offset_bytes: offset });
        }
    }
    Err(Error::NoTcrypt { untried })
}

impl Options {
    /// Possible places of the header. The hidden volume's was in another place before version 4
    /// of the format.
    fn header_offsets(&self, len_bytes: u64) -> Result<Vec<u64>, Error> {
        let from_end = |back: u64| len_bytes.checked_sub(back);
        let places = match (self.kind, self.backup) {
            (VolumeKind::Normal, false) => vec![Some(0)],
            (VolumeKind::Normal, true) => vec![from_end(131_072)],
            (VolumeKind::Hidden, false) => vec![Some(65_536), from_end(1536)],
            (VolumeKind::Hidden, true) => vec![from_end(65_536)],
            (VolumeKind::System, false) => vec![Some(31_744)],
            (VolumeKind::System, true) => {
                let problem = "a system volume has no second header; its backup is on its rescue \
                               disk";
                return Err(Error::field("backup", problem));
            }
        };
        let fits = |place: &u64| place.saturating_add(HEADER_LEN_BYTES as u64) <= len_bytes;
        let places: Vec<u64> = places.into_iter().flatten().filter(fits).collect();
        if places.is_empty() {
            return Err(Error::DataDevice(format!(
                "it ends at byte {len_bytes}, before the place of this header"
            )));
        }
        Ok(places)
    }

    /// The KDFs that may run; the names and reasons of the others.
    fn candidates(
        &self,
        password_len: usize,
        untried: &mut Vec<String>,
    ) -> Result<Vec<Candidate>, Error> {
        let is_system = self.kind == VolumeKind::System;
        let mut candidates = kdf::candidates(self.pim, is_system, password_len)?;
        candidates.retain(|one| match one.kdf.check(HEADER_KEY_LEN_BYTES, &self.limits) {
            Ok(()) => true,
            Err(error) => {
                untried.push(format!("{}: {error}", one.name()));
                false
            }
        });
        Ok(candidates)
    }
}

/// Tries the KDFs in parallel, each on a thread that ends with this call. Returns the header of the
/// first one that opens.
fn try_all(
    bytes: &[u8; HEADER_LEN_BYTES],
    password: &SecretBytes,
    candidates: &[Candidate],
    limits: KdfLimits,
) -> Option<(Header, SecretBytes)> {
    let next = AtomicUsize::new(0);
    let is_found = AtomicBool::new(false);
    let found = Mutex::new(None);
    let work = || {
        while !is_found.load(Ordering::Relaxed) {
            let Some(candidate) = candidates.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let opened = with_wiped_stack(|| try_one(bytes, password, candidate, limits));
            if let Some(opened) = opened {
                is_found.store(true, Ordering::Relaxed);
                *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
            }
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 1..cpus.min(candidates.len()) {
            // A thread that cannot start leaves its work to the others.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn try_one(
    bytes: &[u8; HEADER_LEN_BYTES],
    password: &SecretBytes,
    candidate: &Candidate,
    limits: KdfLimits,
) -> Option<(Header, SecretBytes)> {
    let (salt, encrypted) = bytes.split_at(SALT_LEN_BYTES);
    let mut key = SecretBytes::zeroed(HEADER_KEY_LEN_BYTES);
    // A KDF without memory opens nothing; another one may.
    candidate.kdf.derive(password.as_slice(), salt, key.as_mut_slice(), &limits).ok()?;
    ciphers::all().find_map(|chain| {
        // Blocks of both modes are independent, so the sector's missing end does not matter.
        let mut sector = SecretBytes::zeroed(HEADER_LEN_BYTES);
        sector.as_mut_slice()[..encrypted.len()].copy_from_slice(encrypted);
        chain.cipher(&chain.key(key.as_slice())).decrypt_in_place(sector.as_mut_slice(), 0);
        opened(sector.as_slice(), candidate, &chain)
    })
}

/// Fields and volume key of a header that this cipher has decrypted; `None` if it is the wrong one.
fn opened(plain: &[u8], candidate: &Candidate, chain: &Chain) -> Option<(Header, SecretBytes)> {
    let header = Header::parse(plain, candidate, chain)?;
    Some((header, chain.key(&plain[header::KEYS])))
}

impl Unlocked {
    /// The volume with this decrypted header in its usual place, as [`unlock`] returns it; `None`
    /// if magic or checksums are wrong. `cipher` counts the ciphers and cascades.
    ///
    /// Fuzzing begins here: the derivations before this step take most of a second.
    ///
    /// # Errors
    /// [`Error::Header`] if its fields are wrong.
    pub fn of_decrypted(
        plain: &[u8; PLAIN_LEN_BYTES],
        kind: VolumeKind,
        cipher: u8,
    ) -> Result<Option<Self>, Error> {
        let cipher = usize::from(cipher) % ciphers::all().count();
        let chain = ciphers::all().nth(cipher).expect("it is less than their number");
        let opens = |candidate: Candidate| opened(plain, &candidate, &chain);
        let candidates = kdf::candidates(None, kind == VolumeKind::System, 0)?;
        let Some((header, key)) = candidates.into_iter().find_map(opens) else {
            return Ok(None);
        };
        header.check()?;
        let offsets = Options { kind, ..Options::default() }.header_offsets(u64::MAX)?;
        Ok(Some(Self { header, kind, key, offset_bytes: offsets[0] }))
    }

    /// Cipher and place of the data on a device of `device_len_bytes`.
    ///
    /// # Errors
    /// When the device is too small.
    pub fn crypt_params(&self, device_len_bytes: u64) -> Result<CryptParams, Error> {
        let (offset_bytes, len_bytes) = self.header.place(self.kind, device_len_bytes)?;
        let extent = Extent { offset_bytes, len_bytes, sector_size_bytes: 512 };
        let len_sectors = extent.len_sectors(device_len_bytes)?;
        let data_offset_sectors = offset_bytes / 512;
        let counts_from_disk = self.header.cipher.ends_with("xts-plain64");
        let params = CryptParams {
            cipher: self.header.cipher.clone(),
            key: self.key.clone(),
            iv_offset_sectors: if counts_from_disk { data_offset_sectors } else { 0 },
            data_offset_sectors,
            len_sectors: Some(len_sectors),
            sector_size_bytes: 512,
            iv_large_sectors: false,
            flags: CryptFlags::default(),
        };
        params.check_key().map_err(|problem| Error::header("header", problem))?;
        Ok(params)
    }
}
