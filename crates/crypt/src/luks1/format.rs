//! Makes a LUKS1 volume, byte for byte like cryptsetup's luksFormat.
//!
//! New volumes should be LUKS2. LUKS1 is for volumes that are shared with programs without LUKS2.

use uuid::Uuid;

use super::{
    DIGEST_LEN_BYTES, Header, KEY_LEN_MAX_BYTES, KEYSLOT_ACTIVE, KEYSLOT_COUNT, KEYSLOT_INACTIVE,
    Keyslot, MAGIC, PADDED_LEN_BYTES,
};
use crate::af;
use crate::cipher::{CipherSpec, SectorCipher};
use crate::error::Error;
use crate::format::previous;
use crate::hash::HashAlgorithm;
use crate::header_write::{Step, Write, write_steps};
use crate::kdf::{Kdf, KdfLimits, cost};
use crate::key_material::{Area, is_null_cipher};
use crate::secret::SecretBytes;
use crate::source::HeaderDevice;
use crate::uuid_field::UuidField;

/// Place of keyslot 6 in the header; 7 follows. Its last part is in the second sector.
const KEYSLOT_6_AT: usize = 208 + 6 * 48;
/// Keyslot areas are aligned to this many sectors.
const ALIGN_SECTORS: u32 = 8;

/// Options of the new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// Cipher of data and keyslots.
    pub cipher: String,
    /// Length of the volume key.
    pub key_size_bits: u32,
    /// Hash of the KDF, the split and the digest.
    pub hash: HashAlgorithm,
    /// PBKDF2 iterations of keyslot 0; `None` measures about 2 s.
    pub iterations: Option<u32>,
    /// PBKDF2 iterations of the digest; `None` measures about 125 ms.
    pub digest_iterations: Option<u32>,
    /// UUID; random when `None`.
    pub uuid: Option<String>,
    /// Start of the data; `None`: after the keyslots, aligned to 1 MiB. 0 makes a detached header,
    /// with the data at the start of another device.
    pub data_offset_bytes: Option<u64>,
}

impl Default for FormatOptions {
    /// Defaults of cryptsetup 2.6.
    fn default() -> Self {
        Self {
            cipher: "aes-xts-plain64".to_owned(),
            key_size_bits: 512,
            hash: HashAlgorithm::Sha256,
            iterations: None,
            digest_iterations: None,
            uuid: None,
            data_offset_bytes: None,
        }
    }
}

/// Writes a LUKS1 header with `passphrase` in keyslot 0. Returns the header and its new random
/// volume key. Overwrites all space before the data.
///
/// # Errors
/// When an option is wrong, the device is too small, or writing fails.
pub fn format(
    device: &mut dyn HeaderDevice,
    passphrase: &SecretBytes,
    options: &FormatOptions,
) -> Result<(Header, SecretBytes), Error> {
    let cipher = check_cipher(options)?;
    let mut header = plan(options)?;
    let end_bytes = header.end_bytes();
    if device.len_bytes() < end_bytes {
        return Err(Error::DataDevice(format!(
            "a LUKS1 header takes {end_bytes} bytes, but the device or file has {}",
            device.len_bytes()
        )));
    }
    let mut volume_key = SecretBytes::zeroed(header.key_len_bytes as usize);
    getrandom::fill(volume_key.as_mut_slice())?;
    getrandom::fill(&mut header.digest_salt)?;
    getrandom::fill(&mut header.keyslots[0].salt)?;
    let limits = KdfLimits::UNLIMITED;
    header.digest_kdf().derive(
        volume_key.as_slice(),
        &header.digest_salt,
        &mut header.digest,
        &limits,
    )?;
    let mut area_key = SecretBytes::zeroed(volume_key.len());
    header.keyslot_kdf(&header.keyslots[0]).derive(
        passphrase.as_slice(),
        &header.keyslots[0].salt,
        area_key.as_mut_slice(),
        &limits,
    )?;
    let area = Area {
        place: "keyslot 0",
        offset_bytes: u64::from(header.keyslots[0].material_offset_sectors) * 512,
        cipher,
        af_hash: header.hash,
        key_len_bytes: volume_key.len(),
    };
    let material = area.write(&area_key, &volume_key)?;
    let mut steps = previous::wiped(&&*device, device.len_bytes()).to_vec();
    steps.push(Step::new("the keyslots", vec![Write::Zeros(0..end_bytes), material]));
    steps.extend(header.steps());
    write_steps(device, &steps)?;
    Ok((header, volume_key))
}

fn check_cipher(options: &FormatOptions) -> Result<CipherSpec, Error> {
    if is_null_cipher(&options.cipher) {
        return Err(Error::field("cipher", "the null cipher encrypts nothing; refused"));
    }
    let cipher = CipherSpec::parse(&options.cipher)
        .map_err(|error| Error::field("cipher", error.to_string()))?;
    let key_len_bytes = options.key_size_bits / 8;
    if !options.key_size_bits.is_multiple_of(8) || key_len_bytes > KEY_LEN_MAX_BYTES {
        return Err(Error::field(
            "key_size_bits",
            format!("{} is not a multiple of 8 up to 8192", options.key_size_bits),
        ));
    }
    let probe = SecretBytes::zeroed(key_len_bytes as usize);
    SectorCipher::new(&cipher, probe.as_slice(), 512, false)
        .map_err(|error| Error::field("key_size_bits", error.to_string()))?;
    Ok(cipher)
}

/// The header with its layout and costs, but without salts and digest.
fn plan(options: &FormatOptions) -> Result<Header, Error> {
    let (cipher_name, cipher_mode) = options
        .cipher
        .split_once('-')
        .ok_or_else(|| Error::field("cipher", "LUKS1 needs cipher-mode-iv"))?;
    if cipher_name.len() > 31 || cipher_mode.len() > 31 {
        return Err(Error::field("cipher", "it does not fit into a LUKS1 header"));
    }
    let key_len_bytes = options.key_size_bits / 8;
    let area_sectors = u32::try_from(af::material_len_bytes(key_len_bytes as usize) / 512)
        .expect("a key of at most 1024 bytes");
    let area_stride = area_sectors.next_multiple_of(ALIGN_SECTORS);
    let keyslots_end = ALIGN_SECTORS + KEYSLOT_COUNT as u32 * area_stride;
    let payload_offset_sectors = match options.data_offset_bytes {
        None => keyslots_end.next_multiple_of(2048),
        Some(0) => 0,
        Some(bytes) => u32::try_from(bytes / 512)
            .ok()
            .filter(|sectors| bytes.is_multiple_of(512) && *sectors >= keyslots_end)
            .ok_or_else(|| {
                Error::field(
                    "data_offset_bytes",
                    format!("it must be 0 or at least {keyslots_end} sectors and fit 32 bits"),
                )
            })?,
    };
    if options.hash.digest_len_bytes() < DIGEST_LEN_BYTES {
        return Err(Error::field("hash", "LUKS1 needs a hash of at least 160 bits"));
    }
    let (iterations, digest_iterations) = iterations(options, key_len_bytes as usize)?;
    let uuid = match &options.uuid {
        None => Uuid::new_v4(),
        Some(text) => Uuid::parse_str(text)
            .map_err(|error| Error::field("uuid", format!("\"{text}\": {error}")))?,
    };
    Ok(Header {
        cipher_name: cipher_name.to_owned(),
        cipher_mode: cipher_mode.to_owned(),
        hash: options.hash,
        payload_offset_sectors,
        key_len_bytes,
        digest: [0; DIGEST_LEN_BYTES],
        digest_salt: [0; 32],
        digest_iterations,
        uuid: UuidField::of(&uuid.to_string()),
        keyslots: std::array::from_fn(|number| Keyslot {
            state: if number == 0 { KEYSLOT_ACTIVE } else { KEYSLOT_INACTIVE },
            iterations: if number == 0 { iterations } else { 0 },
            salt: [0; 32],
            material_offset_sectors: ALIGN_SECTORS + number as u32 * area_stride,
            stripes: af::STRIPES,
        }),
    })
}

/// Iterations of the keyslot and of the digest.
fn iterations(options: &FormatOptions, key_len_bytes: usize) -> Result<(u32, u32), Error> {
    let measured = |target_ms, len| {
        let mut measure = |kdf: &Kdf| cost::measure(kdf, len);
        match cost::pbkdf2(options.hash, target_ms, &mut measure)? {
            Kdf::Pbkdf2 { iterations, .. } => Ok(iterations),
            Kdf::Argon2 { .. } => unreachable!("asked for pbkdf2"),
        }
    };
    let keyslot = options.iterations.map_or_else(|| measured(2000, key_len_bytes), Ok);
    let digest = options.digest_iterations.map_or_else(|| measured(125, DIGEST_LEN_BYTES), Ok);
    let keyslot = keyslot.map_err(Error::Kdf)?;
    let digest = digest.map_err(Error::Kdf)?;
    if keyslot.min(digest) < cost::ITERATIONS_MIN {
        return Err(Error::field(
            "iterations",
            format!("at least {} are needed", cost::ITERATIONS_MIN),
        ));
    }
    Ok((keyslot, digest))
}

impl Header {
    /// Start of the data, or with a detached header the end of the last keyslot.
    fn end_bytes(&self) -> u64 {
        self.keyslots_end_bytes().max(u64::from(self.payload_offset_sectors) * 512)
    }

    /// The steps that write this header over `present`, with a usable keyslot of one of them after
    /// each step; `None` if no order has one. The first sector has keyslots 0 to 5, the second one
    /// keyslots 6 (in part) and 7.
    pub(crate) fn steps_over(&self, present: &Self) -> Option<[Step; 2]> {
        let [second, first] = self.steps();
        let opens_by_first = |header: &Self| {
            header.keyslots[..6].iter().any(|keyslot| keyslot.state == KEYSLOT_ACTIVE)
        };
        let has_same_rest = self.to_bytes()[KEYSLOT_6_AT..] == present.to_bytes()[KEYSLOT_6_AT..];
        if has_same_rest || opens_by_first(present) {
            Some([second, first])
        } else {
            opens_by_first(self).then_some([first, second])
        }
    }

    /// The steps that write the header: its second sector, and then the first, which makes it
    /// valid. The fields of keyslot 6 lie in both; its state is in the first.
    pub(crate) fn steps(&self) -> [Step; 2] {
        let first = self.to_bytes();
        let second = first[512..].to_vec();
        let write =
            |offset, bytes| Step::new("the LUKS1 header", vec![Write::Bytes(offset, bytes)]);
        [write(512, second), write(0, first[..512].to_vec())]
    }

    /// The header as on disk, padded to two sectors.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1024);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&1u16.to_be_bytes());
        push_text(&mut bytes, &self.cipher_name, 32);
        push_text(&mut bytes, &self.cipher_mode, 32);
        push_text(&mut bytes, self.hash.name(), 32);
        bytes.extend_from_slice(&self.payload_offset_sectors.to_be_bytes());
        bytes.extend_from_slice(&self.key_len_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.digest);
        bytes.extend_from_slice(&self.digest_salt);
        bytes.extend_from_slice(&self.digest_iterations.to_be_bytes());
        bytes.extend_from_slice(&self.uuid.0);
        for keyslot in &self.keyslots {
            bytes.extend_from_slice(&keyslot.state.to_be_bytes());
            bytes.extend_from_slice(&keyslot.iterations.to_be_bytes());
            bytes.extend_from_slice(&keyslot.salt);
            bytes.extend_from_slice(&keyslot.material_offset_sectors.to_be_bytes());
            bytes.extend_from_slice(&keyslot.stripes.to_be_bytes());
        }
        bytes.resize(PADDED_LEN_BYTES as usize, 0);
        bytes
    }
}

/// Writes text into a NUL-padded field. The text may fill the field: the headers of others may have
/// texts without a NUL.
pub(crate) fn push_text(bytes: &mut Vec<u8>, text: &str, field_len: usize) {
    assert!(text.len() <= field_len, "checked before");
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len() + field_len - text.len(), 0);
}
