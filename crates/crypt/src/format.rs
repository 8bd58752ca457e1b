//! Makes a LUKS2 volume: a header with one keyslot. All earlier headers are wiped.
//!
//! ```text
//!   0         16 KiB      32 KiB                                 16 MiB
//!   | primary | secondary | keyslot 0 | random ...                | data (not touched)
//! ```
//!
//! The layout and the JSON are those of cryptsetup 2.6, so that cryptsetup and compatible programs
//! open the result.
//!
//! Each step of writing ends with a sync. So a power cut leaves the old volume, none, or the new
//! one, and never a header without its keyslots:
//!
//! 1. zeros over the start of each old header copy;
//! 2. zeros over the remains of earlier volumes, zeros and random bytes over the whole header area,
//!    the key material;
//! 3. the two header copies, one after the other.

pub(crate) mod previous;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::cipher::{CipherSpec, SectorCipher};
use crate::error::Error;
use crate::hash::HashAlgorithm;
use crate::header_write::{Step, Write, write_steps};
use crate::kdf::{Argon2Variant, Kdf, cost};
use crate::key_material::is_null_cipher;
use crate::luks::Header;
use crate::luks2::{
    self, AreaCipher, BINARY_LEN_BYTES, Binary, HDR_LENS_BYTES, KEYSLOTS_LEN_MAX_BYTES,
    LABEL_LEN_BYTES, Metadata,
};
use crate::secret::SecretBytes;
use crate::source::HeaderDevice;
use crate::uuid_field::UuidField;

/// Default start of the data; cryptsetup's default.
pub const DATA_OFFSET_BYTES: u64 = 16 << 20;

/// Cost of one passphrase attempt on the new keyslot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pbkdf {
    /// A given KDF and cost.
    Fixed(Kdf),
    /// Argon2 with a measured cost; see [`cost::Argon2Bounds::for_machine`].
    Argon2 {
        /// i or id.
        variant: Argon2Variant,
        /// The target time and the limits.
        bounds: cost::Argon2Bounds,
    },
    /// PBKDF2 with a measured cost.
    Pbkdf2 {
        /// The hash in HMAC.
        hash: HashAlgorithm,
        /// Target time in milliseconds.
        target_ms: u64,
    },
}

/// Options of the new volume.
// 14 fields: one for each part of a header that a caller may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// Cipher of the data.
    pub cipher: String,
    /// Length of the volume key.
    pub key_size_bits: u32,
    /// Encryption sector size.
    pub sector_size_bytes: u32,
    /// Cost of the keyslot.
    pub pbkdf: Pbkdf,
    /// Hash of the split and of the digest.
    pub hash: HashAlgorithm,
    /// PBKDF2 iterations of the digest; `None` measures about 125 ms.
    pub digest_iterations: Option<u32>,
    /// Label; empty for none.
    pub label: String,
    /// Subsystem; empty for none.
    pub subsystem: String,
    /// UUID; random when `None`.
    pub uuid: Option<String>,
    /// Bytes of each header copy.
    pub metadata_len_bytes: u64,
    /// Bytes of the keyslots area; `None`: all space before the data.
    pub keyslots_len_bytes: Option<u64>,
    /// Start of the data; `None`: 16 MiB, or 0 with a detached header.
    pub data_offset_bytes: Option<u64>,
    /// With a detached header: the data device.
    pub detached: Option<Detached>,
    /// The volume key; random when `None`.
    pub volume_key: Option<SecretBytes>,
}

/// A data device that is separate from the header's device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detached {
    /// Its length, if known.
    pub data_device_len_bytes: Option<u64>,
}

impl FormatOptions {
    /// Defaults: aes-xts-plain64 with a 512-bit key and 4096-byte sectors.
    #[must_use]
    pub fn new(pbkdf: Pbkdf) -> Self {
        Self {
            cipher: "aes-xts-plain64".to_owned(),
            key_size_bits: 512,
            sector_size_bytes: 4096,
            pbkdf,
            hash: HashAlgorithm::Sha256,
            digest_iterations: None,
            label: String::new(),
            subsystem: String::new(),
            uuid: None,
            metadata_len_bytes: HDR_LENS_BYTES[0],
            keyslots_len_bytes: None,
            data_offset_bytes: None,
            detached: None,
            volume_key: None,
        }
    }
}

/// A new volume.
#[derive(Clone, Debug)]
pub struct Formatted {
    /// Its header.
    pub header: Header,
    /// Its key.
    pub volume_key: SecretBytes,
}

/// Layout of header, keyslots and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    keyslots_start_bytes: u64,
    keyslots_len_bytes: u64,
    data_offset_bytes: u64,
}

/// Makes `device` a LUKS2 volume with `passphrase` in keyslot 0. Overwrites all space before the
/// data, and the headers and keyslots of earlier volumes wherever they lie. The data is untouched.
///
/// # Errors
/// When an option is wrong, the device is too small, memory is short, or writing fails.
pub fn format(
    device: &mut dyn HeaderDevice,
    passphrase: &SecretBytes,
    options: &FormatOptions,
) -> Result<Formatted, Error> {
    check_cipher(options)?;
    let layout = layout(options)?;
    check_room(options, &layout, device.len_bytes())?;
    let binary = binary(options)?;
    let volume_key = match &options.volume_key {
        Some(key) => key.clone(),
        None => random_secret(options.key_size_bits as usize / 8)?,
    };
    let area = AreaCipher::for_data(&options.cipher, options.key_size_bits);
    let kdf = options.pbkdf.choose(area.key_len_bytes())?;
    let key_len_bytes = volume_key.len();
    let start = layout.keyslots_start_bytes;
    let keyslot = luks2::keyslot_json(key_len_bytes, &area, start, options.hash, &kdf)?;
    let hash = options.hash;
    let iterations = options.digest_iterations;
    let digest = luks2::digest_json(&volume_key, hash, iterations, &["0"], &["0"])?;
    let document = json!({
        "keyslots": { "0": keyslot },
        "tokens": {},
        "segments": { "0": segment_json(options, &layout) },
        "digests": { "0": digest },
        "config": {
            "json_size": (options.metadata_len_bytes - BINARY_LEN_BYTES).to_string(),
            "keyslots_size": layout.keyslots_len_bytes.to_string(),
        },
    });
    let json_area = luks2::json_area(&document, options.metadata_len_bytes)?;
    // The parser's rules ensure that the new header can be read.
    let metadata = Metadata::parse(&json_area, options.metadata_len_bytes)
        .map_err(|error| Error::header(error.error.path, error.error.problem))?;

    let keyslots_end = layout.keyslots_start_bytes + layout.keyslots_len_bytes;
    let zero_end = if options.detached.is_some() { keyslots_end } else { layout.data_offset_bytes };
    let keyslot = metadata.keyslots.get(&0).expect("made above");
    let areas = vec![
        Write::Zeros(0..zero_end),
        Write::Random(layout.keyslots_start_bytes..keyslots_end),
        luks2::keyslot_material(0, keyslot, passphrase, &volume_key)?,
    ];
    let mut steps = previous::wiped(&&*device, device.len_bytes()).to_vec();
    steps.push(Step::new("the keyslots area", areas));
    steps.extend(luks2::header_steps(&binary, &json_area)?);
    write_steps(device, &steps)?;
    let header = Header::Luks2(luks2::Header::from_parts(binary, metadata));
    Ok(Formatted { header, volume_key })
}

/// A new random key.
pub(crate) fn random_secret(len_bytes: usize) -> Result<SecretBytes, Error> {
    let mut secret = SecretBytes::zeroed(len_bytes);
    getrandom::fill(secret.as_mut_slice())?;
    Ok(secret)
}

fn check_cipher(options: &FormatOptions) -> Result<(), Error> {
    if is_null_cipher(&options.cipher) {
        return Err(Error::field("cipher", "the null cipher encrypts nothing; refused"));
    }
    let cipher = CipherSpec::parse(&options.cipher)
        .map_err(|error| Error::field("cipher", error.to_string()))?;
    let bits = options.key_size_bits;
    if !bits.is_multiple_of(8) || bits == 0 || bits > 8192 {
        return Err(Error::field(
            "key_size_bits",
            format!("{bits} is not a multiple of 8 to 8192"),
        ));
    }
    let probe = SecretBytes::zeroed(bits as usize / 8);
    SectorCipher::new(&cipher, probe.as_slice(), options.sector_size_bytes, false).map_err(
        |error| {
            Error::field(
                "cipher",
                format!("with this `key_size_bits` and `sector_size_bytes`: {error}"),
            )
        },
    )?;
    match &options.volume_key {
        Some(key) if key.len() != probe.len() => Err(Error::field(
            "volume_key",
            format!("it has {} bytes, a key of {bits} bits has {}", key.len(), probe.len()),
        )),
        _ => Ok(()),
    }
}

/// Bytes of a header, copies and keyslots; a header file must be this long.
///
/// # Errors
/// When the options contradict each other.
pub fn header_len_bytes(options: &FormatOptions) -> Result<u64, Error> {
    let layout = layout(options)?;
    Ok(layout.keyslots_start_bytes + layout.keyslots_len_bytes)
}

fn layout(options: &FormatOptions) -> Result<Layout, Error> {
    if !HDR_LENS_BYTES.contains(&options.metadata_len_bytes) {
        return Err(Error::field(
            "metadata_len_bytes",
            format!(
                "{} bytes; it must be a power of two from 16 KiB to 4 MiB",
                options.metadata_len_bytes
            ),
        ));
    }
    let keyslots_start_bytes = 2 * options.metadata_len_bytes;
    let data_offset_bytes = data_offset(options, keyslots_start_bytes)?;
    // Even a detached header keeps its areas below the data offset, unless that is 0.
    let areas_end = if data_offset_bytes == 0 { u64::MAX } else { data_offset_bytes };
    let room = areas_end.checked_sub(keyslots_start_bytes).ok_or_else(|| {
        let problem = format!("the header copies alone take {keyslots_start_bytes} bytes");
        Error::field("data_offset_bytes", problem)
    })?;
    let room = room.min(KEYSLOTS_LEN_MAX_BYTES);
    let keyslots_len_bytes = match (options.keyslots_len_bytes, data_offset_bytes) {
        (Some(len), _) => len,
        (None, 0) => DATA_OFFSET_BYTES - keyslots_start_bytes,
        (None, _) => room - room % 4096,
    };
    let area_len = luks2::area_len_bytes(options.key_size_bits as usize / 8);
    let aligned = keyslots_len_bytes.is_multiple_of(4096);
    if !aligned || !(area_len..=room).contains(&keyslots_len_bytes) {
        return Err(Error::field(
            "keyslots_len_bytes",
            format!(
                "{keyslots_len_bytes} bytes; it must be a multiple of 4096 from {area_len}, one \
                 keyslot, to {room}, the space before the data"
            ),
        ));
    }
    Ok(Layout { keyslots_start_bytes, keyslots_len_bytes, data_offset_bytes })
}

/// Start of the data: as given, or 0 with a detached header, or the first whole MiB after the
/// keyslots.
fn data_offset(options: &FormatOptions, keyslots_start_bytes: u64) -> Result<u64, Error> {
    let offset = match (options.data_offset_bytes, options.detached) {
        (Some(0), None) => {
            return Err(Error::field(
                "data_offset_bytes",
                "0 is possible only with a detached header",
            ));
        }
        (Some(offset), _) => offset,
        (None, Some(_)) => 0,
        (None, None) => match options.keyslots_len_bytes {
            None => DATA_OFFSET_BYTES,
            Some(len) => keyslots_start_bytes
                .checked_add(len)
                .and_then(|end| end.checked_next_multiple_of(1 << 20))
                .ok_or_else(|| Error::field("keyslots_len_bytes", "over 2^64 bytes"))?,
        },
    };
    let unit = u64::from(options.sector_size_bytes);
    if !offset.is_multiple_of(unit) {
        let problem = format!("byte {offset} is not a multiple of the sector size {unit}");
        return Err(Error::field("data_offset_bytes", problem));
    }
    Ok(offset)
}

/// Checks that header and data fit their devices.
fn check_room(
    options: &FormatOptions,
    layout: &Layout,
    device_len_bytes: u64,
) -> Result<(), Error> {
    let header_end = layout.keyslots_start_bytes + layout.keyslots_len_bytes;
    let data_device_len_bytes = match options.detached {
        None => Some(device_len_bytes),
        Some(detached) => detached.data_device_len_bytes,
    };
    if device_len_bytes < header_end {
        return Err(Error::DataDevice(format!(
            "the header takes {header_end} bytes, but the device or file has {device_len_bytes}; \
             make it larger"
        )));
    }
    let Some(len) = data_device_len_bytes else {
        return Ok(());
    };
    let start = layout.data_offset_bytes;
    let unit = u64::from(options.sector_size_bytes);
    if len < start.saturating_add(unit) {
        return Err(Error::DataDevice(format!(
            "the data starts at byte {start}, but the device or file has {len}; make it larger"
        )));
    }
    // The tail of a file of less than 512 bytes is not part of a block device on it.
    if unit > 512 && !(len - start).is_multiple_of(unit) {
        return Err(Error::field(
            "sector_size_bytes",
            format!(
                "the {} bytes for data are not a multiple of {unit}, and the kernel would not open \
                 the volume; make the device a multiple of {unit}, or choose 512",
                len - start
            ),
        ));
    }
    Ok(())
}

fn binary(options: &FormatOptions) -> Result<Binary, Error> {
    let uuid = match &options.uuid {
        None => Uuid::new_v4(),
        Some(text) => Uuid::parse_str(text)
            .map_err(|error| Error::field("uuid", format!("\"{text}\": {error}")))?,
    };
    Ok(Binary {
        hdr_len_bytes: options.metadata_len_bytes,
        seqid: 1,
        label: label_field("label", &options.label)?,
        checksum: HashAlgorithm::Sha256,
        salt: [0; 64],
        uuid: UuidField::of(&uuid.to_string()),
        subsystem: label_field("subsystem", &options.subsystem)?,
    })
}

/// A label, padded with NULs.
pub(crate) fn label_field(
    option: &'static str,
    text: &str,
) -> Result<[u8; LABEL_LEN_BYTES], Error> {
    let mut field = [0u8; LABEL_LEN_BYTES];
    if text.len() >= LABEL_LEN_BYTES || text.contains('\0') {
        let problem = format!("at most {} bytes without NUL", LABEL_LEN_BYTES - 1);
        return Err(Error::field(option, problem));
    }
    field[..text.len()].copy_from_slice(text.as_bytes());
    Ok(field)
}

impl Pbkdf {
    /// The function and its cost for a key of `key_len_bytes`; measured unless it is fixed.
    pub(crate) fn choose(&self, key_len_bytes: usize) -> Result<Kdf, Error> {
        let mut measure = |kdf: &Kdf| cost::measure(kdf, key_len_bytes);
        let kdf = match *self {
            Self::Fixed(kdf) => kdf,
            Self::Argon2 { variant, bounds } => cost::argon2(variant, bounds, &mut measure)?,
            Self::Pbkdf2 { hash, target_ms } => cost::pbkdf2(hash, target_ms, &mut measure)?,
        };
        cost::check_minimum(&kdf).map_err(|problem| Error::field("pbkdf", problem))?;
        Ok(kdf)
    }
}

fn segment_json(options: &FormatOptions, layout: &Layout) -> Value {
    json!({
        "type": "crypt",
        "offset": layout.data_offset_bytes.to_string(),
        "size": "dynamic",
        "iv_tweak": "0",
        "encryption": options.cipher,
        "sector_size": options.sector_size_bytes,
    })
}

#[cfg(test)]
mod tests;
