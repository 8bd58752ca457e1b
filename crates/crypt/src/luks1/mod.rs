//! LUKS1: the header of the LUKS On-Disk Format Specification 1.2.
//!
//! ```text
//!   0            592      1024/4096        keyslot k                      payload_offset
//!   | header     | pad    | key material 0 | key material 1 .. 7 | pad    | data ...
//! ```
//!
//! All numbers are big-endian. There are always eight keyslots. Each holds the whole volume key,
//! split into 4000 stripes and encrypted with the volume's own cipher. There is no checksum and no
//! second copy: a damaged field is found only if it violates a rule checked here.

mod convert;
mod edit;
mod format;
mod info;

pub(crate) use convert::Parts;
pub(crate) use edit::{Prepared, prepare};
pub(crate) use format::push_text;
pub use format::{FormatOptions, format};
pub use info::{AreaInfo, DigestInfo, Info, KeyslotInfo};

use std::ops::Range;

use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use crate::af;
use crate::cipher::CipherSpec;
use crate::error::Error;
use crate::extent::Extent;
use crate::format::previous::UNKNOWN_LEN_BYTES;
use crate::hash::HashAlgorithm;
use crate::kdf::{Kdf, KdfLimits};
use crate::key_material::{Area, is_null_cipher};
use crate::luks::{UnlockOptions, Unlocked};
use crate::params::{CryptFlags, CryptParams};
use crate::secret::SecretBytes;
use crate::source::HeaderSource;
use crate::unlock_attempt::{Attempt, Problem, kdf_problem};
use crate::uuid_field::UuidField;

/// Magic of both LUKS versions.
pub(crate) const MAGIC: [u8; 6] = *b"LUKS\xba\xbe";
/// Keyslots of every LUKS1 header.
pub const KEYSLOT_COUNT: usize = 8;
/// Length of the header without its padding.
const HEADER_LEN_BYTES: usize = 592;
/// Length of the header with its padding.
pub(crate) const PADDED_LEN_BYTES: u64 = 1024;
/// Place of the field `payload-offset`.
const PAYLOAD_OFFSET_AT: usize = 104;
const KEYSLOT_ACTIVE: u32 = 0x00AC_71F3;
const KEYSLOT_INACTIVE: u32 = 0x0000_DEAD;
const SALT_LEN_BYTES: usize = 32;
const DIGEST_LEN_BYTES: usize = 20;
/// Greatest key length. No cipher has longer keys; the field could ask for 4 GiB.
pub(crate) const KEY_LEN_MAX_BYTES: u32 = 1024;

/// A LUKS1 header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    cipher_name: String,
    cipher_mode: String,
    hash: HashAlgorithm,
    payload_offset_sectors: u32,
    key_len_bytes: u32,
    digest: [u8; DIGEST_LEN_BYTES],
    digest_salt: [u8; SALT_LEN_BYTES],
    digest_iterations: u32,
    uuid: UuidField,
    keyslots: [Keyslot; KEYSLOT_COUNT],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keyslot {
    state: u32,
    iterations: u32,
    salt: [u8; SALT_LEN_BYTES],
    material_offset_sectors: u32,
    stripes: u32,
}

/// Parser of the header's fields, from front to back.
struct Fields<'a> {
    rest: &'a [u8],
}

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) =
            self.rest.split_first_chunk().expect("the header's length is the sum of its fields");
        self.rest = rest;
        *field
    }

    fn be32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    /// Text up to the first NUL.
    fn text<const N: usize>(&mut self, name: &str) -> Result<String, Error> {
        text(&self.bytes::<N>()).ok_or_else(|| {
            Error::header(format!("LUKS1 header, {name}"), "it is not printable ASCII text")
        })
    }
}

/// The text in a NUL-padded field; `None` unless it is printable ASCII.
pub(crate) fn text(field: &[u8]) -> Option<String> {
    let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let text = std::str::from_utf8(&field[..len]).ok()?;
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte)).then(|| text.to_owned())
}

impl Header {
    /// Whether a LUKS1 header starts at byte 0, and not another version.
    ///
    /// # Errors
    /// When the source is long enough but cannot be read.
    pub(crate) fn is_at(source: &dyn HeaderSource) -> Result<bool, Error> {
        if source.len_bytes() < 8 {
            return Ok(false);
        }
        let mut start = [0u8; 8];
        source
            .read_at(0, &mut start)
            .map_err(|error| Error::Read { what: "the start of the header".to_owned(), error })?;
        Ok(start[..6] == MAGIC && start[6..] == 1u16.to_be_bytes())
    }

    /// Adds the ranges of a LUKS1 header at the start of `source`, even if its fields are invalid.
    pub(crate) fn find_previous(source: &dyn HeaderSource, previous: &mut Vec<Range<u64>>) {
        if !Self::is_at(source).unwrap_or(true) {
            return;
        }
        previous.push(0..PADDED_LEN_BYTES);
        let mut bytes = [0u8; HEADER_LEN_BYTES];
        let header = source.read_at(0, &mut bytes).ok().and_then(|()| Self::parse(&bytes).ok());
        match header.filter(|header| header.key_len_bytes <= KEY_LEN_MAX_BYTES) {
            Some(header) => previous.extend(header.keyslots.iter().map(|keyslot| {
                let start = u64::from(keyslot.material_offset_sectors) * 512;
                start..start + header.material_len_sectors() * 512
            })),
            None => previous.push(0..UNKNOWN_LEN_BYTES),
        }
    }

    /// The data's start that a damaged LUKS1 header names, if that is plausible: behind the header,
    /// and not behind the longest header of a default volume.
    pub(crate) fn data_start_of_damaged(source: &dyn HeaderSource) -> Option<u64> {
        let mut bytes = [0u8; HEADER_LEN_BYTES];
        if !Self::is_at(source).ok()? || source.read_at(0, &mut bytes).is_err() {
            return None;
        }
        let field = bytes[PAYLOAD_OFFSET_AT..][..4].try_into().expect("4 bytes");
        let start_bytes = u64::from(u32::from_be_bytes(field)) * 512;
        (PADDED_LEN_BYTES + 1..=UNKNOWN_LEN_BYTES).contains(&start_bytes).then_some(start_bytes)
    }

    /// Reads and checks the header at the start of `source`.
    ///
    /// # Errors
    /// When it cannot be read or violates the format.
    pub fn read(source: &dyn HeaderSource) -> Result<Self, Error> {
        let mut bytes = [0u8; HEADER_LEN_BYTES];
        source
            .read_at(0, &mut bytes)
            .map_err(|error| Error::Read { what: "the LUKS1 header".to_owned(), error })?;
        let header = Self::parse(&bytes)?;
        header.check()?;
        let end = header.keyslots_end_bytes();
        let device_len = source.len_bytes();
        if device_len < end {
            return Err(Error::header(
                "LUKS1 header",
                format!(
                    "with its keyslots it ends at byte {end}, but the device or file at byte \
                     {device_len}; it is truncated"
                ),
            ));
        }
        Ok(header)
    }

    fn parse(bytes: &[u8; HEADER_LEN_BYTES]) -> Result<Self, Error> {
        let mut fields = Fields { rest: bytes };
        let magic = fields.bytes::<6>();
        let version = fields.bytes::<2>();
        if magic != MAGIC || version != 1u16.to_be_bytes() {
            return Err(Error::NotLuks);
        }
        let cipher_name = fields.text::<32>("cipher name")?;
        let cipher_mode = fields.text::<32>("cipher mode")?;
        let hash = fields.text::<32>("hash")?;
        let hash = HashAlgorithm::parse(&hash)
            .map_err(|error| Error::unsupported("LUKS1 header, hash", error.to_string()))?;
        Ok(Self {
            cipher_name,
            cipher_mode,
            hash,
            payload_offset_sectors: fields.be32(),
            key_len_bytes: fields.be32(),
            digest: fields.bytes(),
            digest_salt: fields.bytes(),
            digest_iterations: fields.be32(),
            uuid: UuidField(fields.bytes()),
            keyslots: std::array::from_fn(|_| Keyslot {
                state: fields.be32(),
                iterations: fields.be32(),
                salt: fields.bytes(),
                material_offset_sectors: fields.be32(),
                stripes: fields.be32(),
            }),
        })
    }

    fn check(&self) -> Result<(), Error> {
        if self.key_len_bytes == 0 || self.key_len_bytes > KEY_LEN_MAX_BYTES {
            return Err(Error::header(
                "LUKS1 header, key bytes",
                format!("{} is not in 1 to {KEY_LEN_MAX_BYTES}", self.key_len_bytes),
            ));
        }
        if self.hash.digest_len_bytes() < DIGEST_LEN_BYTES {
            return Err(Error::header(
                "LUKS1 header, hash",
                format!("{} is shorter than the header's digest of 20 bytes", self.hash),
            ));
        }
        for (number, keyslot) in self.keyslots.iter().enumerate() {
            self.check_keyslot(keyslot).map_err(|problem| {
                Error::header(format!("LUKS1 header, keyslot {number}"), problem)
            })?;
        }
        let mut areas: Vec<(u64, usize)> = self
            .keyslots
            .iter()
            .enumerate()
            .map(|(number, keyslot)| (u64::from(keyslot.material_offset_sectors), number))
            .collect();
        areas.sort_unstable();
        for pair in areas.windows(2) {
            if pair[0].0 + self.material_len_sectors() > pair[1].0 {
                return Err(Error::header(
                    "LUKS1 header",
                    format!("the areas of keyslots {} and {} overlap", pair[0].1, pair[1].1),
                ));
            }
        }
        Ok(())
    }

    fn check_keyslot(&self, keyslot: &Keyslot) -> Result<(), String> {
        if keyslot.stripes != af::STRIPES {
            return Err(format!("it has {} stripes, must have {}", keyslot.stripes, af::STRIPES));
        }
        let start = u64::from(keyslot.material_offset_sectors);
        if start * 512 < HEADER_LEN_BYTES as u64 {
            return Err(format!("its area starts at sector {start}, inside the header"));
        }
        let payload = u64::from(self.payload_offset_sectors);
        // A detached header may have 0.
        if payload != 0 && start + self.material_len_sectors() > payload {
            return Err(format!(
                "its area at sector {start} reaches into the data, which starts at {payload}"
            ));
        }
        Ok(())
    }

    fn material_len_sectors(&self) -> u64 {
        af::material_len_bytes(self.key_len_bytes as usize) as u64 / 512
    }

    /// End of the last keyslot's area.
    pub(crate) fn keyslots_end_bytes(&self) -> u64 {
        let starts = self.keyslots.iter().map(|keyslot| keyslot.material_offset_sectors);
        let last = starts.max().expect("there are eight");
        (u64::from(last) + self.material_len_sectors()) * 512
    }

    /// The cipher in a table line's form.
    fn cipher(&self) -> String {
        format!("{}-{}", self.cipher_name, self.cipher_mode)
    }

    fn cipher_spec(&self) -> Result<CipherSpec, Error> {
        let cipher = self.cipher();
        // The keyslots use the volume's cipher: with the null cipher the key would be readable.
        if is_null_cipher(&cipher) {
            return Err(Error::unsupported(
                "LUKS1 header",
                format!("cipher \"{cipher}\" encrypts nothing, not even the keyslots; refused"),
            ));
        }
        CipherSpec::parse(&cipher)
            .map_err(|error| Error::unsupported("LUKS1 header, cipher", error.to_string()))
    }

    fn place(number: u32) -> String {
        format!("keyslot {number}")
    }

    fn keyslot_kdf(&self, keyslot: &Keyslot) -> Kdf {
        Kdf::Pbkdf2 { hash: self.hash, iterations: keyslot.iterations }
    }

    /// Tries the active keyslots, or the given one, with `passphrase`.
    ///
    /// # Errors
    /// When the cipher is not supported, a limit forbids it, or no keyslot opens.
    pub fn unlock(
        &self,
        source: &dyn HeaderSource,
        passphrase: &SecretBytes,
        options: &UnlockOptions,
    ) -> Result<Unlocked, Error> {
        let cipher = self.cipher_spec()?;
        let mut attempt = Attempt::new(options.limits);
        for number in 0..KEYSLOT_COUNT as u32 {
            let keyslot = &self.keyslots[number as usize];
            if options.keyslot.is_none() && keyslot.state == KEYSLOT_INACTIVE {
                continue;
            }
            if options.keyslot.is_some_and(|named| named != number) {
                continue;
            }
            match self.open_keyslot(source, number, &cipher, passphrase, &mut attempt) {
                Ok(Some(volume_key)) => return Ok(Unlocked { keyslot: number, volume_key }),
                Ok(None) => attempt.wrong(),
                Err(problem) if options.keyslot.is_some() => {
                    return Err(Error::Keyslot(problem.of(number)));
                }
                Err(problem) => attempt.skip(number, problem),
            }
        }
        if let Some(keyslot) = options.keyslot.filter(|named| *named >= KEYSLOT_COUNT as u32) {
            return Err(Error::Keyslot(Problem::from("LUKS1 has keyslots 0 to 7").of(keyslot)));
        }
        Err(attempt.failed())
    }

    /// The volume key, `None` for a wrong passphrase, or the reason why the keyslot cannot be
    /// tried.
    fn open_keyslot(
        &self,
        source: &dyn HeaderSource,
        number: u32,
        cipher: &CipherSpec,
        passphrase: &SecretBytes,
        attempt: &mut Attempt,
    ) -> Result<Option<SecretBytes>, Problem> {
        let keyslot = &self.keyslots[number as usize];
        match keyslot.state {
            KEYSLOT_ACTIVE => {}
            KEYSLOT_INACTIVE => return Err("it is not in use".into()),
            other => {
                return Err(
                    format!("its state {other:#010x} is neither active nor inactive").into()
                );
            }
        }
        let key_len_bytes = self.key_len_bytes as usize;
        let kdf = self.keyslot_kdf(keyslot);
        attempt
            .admit(&self.digest_kdf(), DIGEST_LEN_BYTES)
            .map_err(|problem| format!("the header's digest cannot be checked: {problem}"))?;
        attempt.admit(&kdf, key_len_bytes)?;
        let mut area_key = SecretBytes::zeroed(key_len_bytes);
        kdf.derive(passphrase.as_slice(), &keyslot.salt, area_key.as_mut_slice(), attempt.limits())
            .map_err(|error| kdf_problem(&error))?;
        let place = Self::place(number);
        let area = Area {
            place: &place,
            offset_bytes: u64::from(keyslot.material_offset_sectors) * 512,
            cipher: cipher.clone(),
            af_hash: self.hash,
            key_len_bytes,
        };
        let candidate = area.read(source, &area_key).map_err(|error| error.to_string())?;
        let verified = self.verifies(&candidate, attempt.limits())?;
        Ok(verified.then_some(candidate))
    }

    fn digest_kdf(&self) -> Kdf {
        Kdf::Pbkdf2 { hash: self.hash, iterations: self.digest_iterations }
    }

    /// Whether `volume_key` matches the header's digest, in constant time.
    ///
    /// A key of another length than the header's is refused first. HMAC pads keys with zeros, so a
    /// key that ends in zeros has the same digest as the key without them.
    fn verifies(&self, volume_key: &SecretBytes, limits: &KdfLimits) -> Result<bool, String> {
        let len = volume_key.len();
        let expected = self.key_len_bytes as usize;
        if len != expected {
            return Err(format!("the header's digest is of a key of {expected} bytes, not {len}"));
        }
        let mut digest = [0u8; DIGEST_LEN_BYTES];
        self.digest_kdf()
            .derive(volume_key.as_slice(), &self.digest_salt, &mut digest, limits)
            .map_err(|error| format!("the header's digest cannot be checked: {error}"))?;
        let equal = digest.ct_eq(&self.digest).into();
        digest.zeroize();
        Ok(equal)
    }

    /// Place of the data.
    pub(crate) fn extent(&self) -> Extent {
        Extent {
            offset_bytes: u64::from(self.payload_offset_sectors) * 512,
            len_bytes: None,
            sector_size_bytes: 512,
        }
    }

    /// Cipher and place of the data; see [`crate::luks::Header::crypt_params`].
    ///
    /// # Errors
    /// When the cipher is not supported or the device is too small.
    pub fn crypt_params(
        &self,
        volume_key: &SecretBytes,
        device_len_bytes: u64,
        detached: bool,
    ) -> Result<CryptParams, Error> {
        self.cipher_spec()?;
        if self.payload_offset_sectors == 0 && !detached {
            return Err(Error::DataDevice(
                "the header is detached: its data starts at sector 0 of another device; \
                 give that device as the volume and this file as `header`"
                    .to_owned(),
            ));
        }
        let params = CryptParams {
            cipher: self.cipher(),
            key: volume_key.clone(),
            iv_offset_sectors: 0,
            data_offset_sectors: u64::from(self.payload_offset_sectors),
            len_sectors: Some(self.extent().len_sectors(device_len_bytes)?),
            sector_size_bytes: 512,
            iv_large_sectors: false,
            flags: CryptFlags::default(),
        };
        params
            .check_key()
            .map_err(|problem| Error::unsupported("LUKS1 header, cipher", problem))?;
        Ok(params)
    }
}

#[cfg(test)]
mod tests;
