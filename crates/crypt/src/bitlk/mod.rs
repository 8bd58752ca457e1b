//! BitLocker volumes of Windows 7 and later, and BitLocker To Go.
//!
//! ```text
//!   boot.rs: boot sector -> metadata.rs: first intact copy -> Header
//!   user_key.rs: passphrase, recovery key or startup key
//!     -> protector.rs: master key -> encrypted.rs: hash of the metadata, volume key
//!     -> regions.rs: parts of the volume
//! ```
//!
//! Facts from libbde's "BitLocker Drive Encryption (BDE) format", and cryptsetup's
//! `lib/bitlk/bitlk.c`. The metadata is authenticated: the master key decrypts its hash.
//!
//! Refused are volumes of Windows Vista, volumes that are being encrypted or decrypted, and
//! protectors that need a TPM or a smart card.

mod boot;
mod datum;
mod encrypted;
mod info;
mod metadata;
mod protector;
mod regions;
mod user_key;

use subtle::ConstantTimeEq;

use crate::error::Error;
use crate::kdf::KdfLimits;
use crate::params::VolumePart;
use crate::secret::SecretBytes;
use crate::source::HeaderSource;

use boot::{BootSector, Layout};
use metadata::{Metadata, State};
use protector::{Protector, ProtectorKind};
use user_key::{STRETCH_MS, UserKey, Words};

pub use info::{HeaderInfo, ProtectorInfo};

/// Type and method of the hash in a validation: a key, of AES-CCM.
const HASH_VALUE: u16 = datum::value::KEY;
const HASH_METHOD: u16 = 0x2005;

/// The ciphers of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cipher {
    Elephant128,
    Elephant256,
    Cbc128,
    Cbc256,
    Xts128,
    Xts256,
}

impl Cipher {
    fn of(method: u16) -> Option<Self> {
        Some(match method {
            0x8000 => Self::Elephant128,
            0x8001 => Self::Elephant256,
            0x8002 => Self::Cbc128,
            0x8003 => Self::Cbc256,
            0x8004 => Self::Xts128,
            0x8005 => Self::Xts256,
            _ => return None,
        })
    }

    /// The cipher as a table line has it.
    fn text(self) -> &'static str {
        match self {
            Self::Elephant128 | Self::Elephant256 => "aes-cbc-elephant",
            Self::Cbc128 | Self::Cbc256 => "aes-cbc-eboiv",
            Self::Xts128 | Self::Xts256 => "aes-xts-plain64",
        }
    }

    /// Length of the volume key: two keys for XTS, and for the diffuser.
    fn key_bits(self) -> u32 {
        match self {
            Self::Cbc128 => 128,
            Self::Cbc256 | Self::Elephant128 | Self::Xts128 => 256,
            Self::Elephant256 | Self::Xts256 => 512,
        }
    }

    /// The volume key in a stored key. Both keys of the diffuser have places of 256 bits.
    fn volume_key(self, stored: &SecretBytes) -> Option<SecretBytes> {
        let bytes = stored.as_slice();
        if self != Self::Elephant128 {
            return (bytes.len() == self.key_bits() as usize / 8).then(|| stored.clone());
        }
        if bytes.len() != 64 {
            return None;
        }
        let mut key = SecretBytes::zeroed(32);
        key.as_mut_slice()[..16].copy_from_slice(&bytes[..16]);
        key.as_mut_slice()[16..].copy_from_slice(&bytes[32..48]);
        Some(key)
    }
}

/// A checked header.
#[derive(Clone, Debug)]
pub struct Header {
    boot: BootSector,
    metadata: Metadata,
    cipher: Cipher,
    notices: Vec<String>,
}

/// The key of a volume.
#[derive(Clone, Debug)]
pub struct Unlocked {
    header: Header,
    key: SecretBytes,
}

impl Header {
    /// Reads the header of a volume, from the first intact copy of its metadata.
    ///
    /// # Errors
    /// [`Error::NotBitlk`] without one, [`Error::Unsupported`] for one of Windows Vista or with an
    /// unknown cipher, [`Error::Header`] if it is damaged.
    pub fn read(source: &dyn HeaderSource) -> Result<Self, Error> {
        let boot = BootSector::read(source)?;
        let (metadata, mut notices) = metadata::read(source, boot.metadata_offsets_bytes)?;
        let cipher = Cipher::of(metadata.method).ok_or_else(|| {
            let what = format!("the cipher 0x{:04x} is not known", metadata.method);
            Error::unsupported("BitLocker metadata", what)
        })?;
        let volume_len = metadata.volume_len_bytes;
        let device_len = source.len_bytes();
        if volume_len != device_len {
            notices.push(format!(
                "the volume has {volume_len} bytes by its metadata, and the device or file has \
                 {device_len}"
            ));
        }
        Ok(Self { boot, metadata, cipher, notices })
    }

    /// Damage and peculiarities that leave the volume usable.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Whether the volume opens without a secret: its protection is suspended.
    #[must_use]
    pub fn has_clear_key(&self) -> bool {
        self.metadata.protectors.iter().any(|one| one.kind == ProtectorKind::ClearKey)
    }

    fn state_name(&self) -> String {
        match self.boot.layout {
            Layout::Normal => self.metadata.state.name().into(),
            Layout::EncryptOnWrite => "encrypted on write".into(),
            Layout::Unknown(uuid) => format!("unknown layout {uuid}"),
        }
    }

    /// Refuses volumes that are not completely encrypted.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the state of the encryption.
    pub fn check_state(&self) -> Result<(), Error> {
        if self.boot.layout == Layout::Normal && self.metadata.state.is_encrypted() {
            return Ok(());
        }
        let State { current, next } = self.metadata.state;
        Err(Error::unsupported(
            "BitLocker metadata",
            format!(
                "the state of the volume is `{}` ({current}, next {next}), and only completely \
                 encrypted volumes are opened; let Windows finish its work first",
                self.state_name()
            ),
        ))
    }

    /// Opens a clear key if there is one, or else the protectors that `secret` may open: a
    /// passphrase, a recovery key, or the bytes of a startup key file.
    ///
    /// # Errors
    /// The errors of [`Header::check_state`]; [`Error::NoBitlk`] if nothing opens;
    /// [`Error::Header`] if the metadata is not what Windows wrote.
    pub fn unlock(&self, secret: &SecretBytes, limits: &KdfLimits) -> Result<Unlocked, Error> {
        self.check_state()?;
        let mut attempt =
            Attempt { left_ms: limits.seconds_max.saturating_mul(1000), untried: vec![] };
        let clear = self.metadata.protectors.iter().find_map(|one| {
            let key = SecretBytes::copy_of(one.clear_key.as_ref()?);
            one.master_key
                .as_ref()
                .filter(|_| one.kind == ProtectorKind::ClearKey)?
                .decrypt_key(&key)
        });
        let master_key = match clear {
            Some(key) => key,
            None => {
                let secret = UserKey::parse(secret).map_err(|problem| {
                    Error::field("key", format!("the startup key file is damaged: {problem}"))
                })?;
                let opened =
                    self.metadata.protectors.iter().find_map(|one| attempt.open(one, &secret));
                opened.ok_or(Error::NoBitlk { untried: attempt.untried })?
            }
        };
        self.authenticate(&master_key)?;
        let stored = self.metadata.volume_key.decrypt_key(&master_key);
        let key = stored.and_then(|stored| self.cipher.volume_key(&stored));
        let problem = "the volume key is damaged, or has not the length that its cipher needs";
        let key = key.ok_or_else(|| Error::header("BitLocker metadata", problem))?;
        Ok(Unlocked { header: self.clone(), key })
    }

    /// Compares the metadata with its hash, which only Windows could write.
    fn authenticate(&self, master_key: &SecretBytes) -> Result<(), Error> {
        let plain = self.metadata.validation.decrypt(master_key);
        let is_right = plain.is_some_and(|plain| {
            let bytes = plain.as_slice();
            bytes.len() == 44
                && le16(bytes, 2) == datum::entry::PROPERTY
                && le16(bytes, 4) == HASH_VALUE
                && le16(bytes, 8) == HASH_METHOD
                && bool::from(bytes[12..].ct_eq(&self.metadata.sha256))
        });
        let problem = "its hash, encrypted with the master key, is wrong: it is damaged, or was \
                       changed by another program than Windows";
        if is_right { Ok(()) } else { Err(Error::header("BitLocker metadata", problem)) }
    }
}

impl Unlocked {
    /// The parts of the volume on a device of `device_len_bytes`, in their order without gaps.
    ///
    /// # Errors
    /// Metadata overlaps, or the device is too small.
    pub fn parts(&self, device_len_bytes: u64) -> Result<Vec<VolumePart>, Error> {
        regions::parts(&self.header, &self.key, device_len_bytes)
    }
}

/// The tries of one secret.
struct Attempt {
    /// Time left for stretching.
    left_ms: u64,
    untried: Vec<String>,
}

impl Attempt {
    /// The master key in a protector.
    fn open(&mut self, protector: &Protector, secret: &UserKey) -> Option<SecretBytes> {
        match self.key(protector, secret) {
            Ok(key) => protector.master_key.as_ref()?.decrypt_key(&key?),
            Err(problem) => {
                let uuid = protector.uuid;
                let kind = protector.kind.name();
                self.untried.push(format!("{kind} {uuid}: {problem}"));
                None
            }
        }
    }

    /// The key of a protector from a secret; `None` if the secret is for other protectors.
    fn key(
        &mut self,
        protector: &Protector,
        secret: &UserKey,
    ) -> Result<Option<SecretBytes>, String> {
        let stretch = |this: &mut Self, first: &SecretBytes| {
            let salt = protector.salt.as_ref().ok_or("it has no salt")?;
            this.left_ms =
                this.left_ms.checked_sub(STRETCH_MS).ok_or("the time limit is used up")?;
            Ok(Some(user_key::stretched(first, salt)))
        };
        match (protector.kind, secret) {
            (ProtectorKind::StartupKey, UserKey::StartupKey { protector: wanted, key }) => {
                Ok((*wanted == protector.uuid).then(|| key.clone()))
            }
            (ProtectorKind::Passphrase, UserKey::Words(Words { passphrase: Some(first), .. })) => {
                stretch(self, first)
            }
            (
                ProtectorKind::RecoveryKey,
                UserKey::Words(Words { recovery_key: Some(first), .. }),
            ) => first.as_ref().map_err(Clone::clone).and_then(|first| stretch(self, first)),
            (kind, _) if !kind.is_supported() => Err("only Windows can open it".into()),
            _ => Ok(None),
        }
    }
}

fn le16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(*bytes[offset..].first_chunk().expect("the field is in the structure"))
}

fn le32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*bytes[offset..].first_chunk().expect("the field is in the structure"))
}

fn le64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(*bytes[offset..].first_chunk().expect("the field is in the structure"))
}
