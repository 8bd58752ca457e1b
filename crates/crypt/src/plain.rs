//! Plain dm-crypt: no header; the caller gives all parameters.
//!
//! cryptsetup's semantics (`lib/crypt_plain.c` and `--type plain` of `cryptsetup open`): a
//! passphrase is hashed to the key, and a key file is the key. A wrong passphrase cannot be
//! detected.

use crate::cipher::CipherSpec;
use crate::error::Error;
use crate::extent::Extent;
use crate::hash::HashAlgorithm;
use crate::params::{CryptFlags, CryptParams};
use crate::secret::SecretBytes;
use crate::stack::with_wiped_stack;

/// Name for no hash.
const NO_HASH: &str = "plain";
/// cryptsetup's limit.
const KEY_SIZE_BITS_MAX: u32 = 8192;

/// Parameters of a plain volume. [`Default`] is that of cryptsetup 2.6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainOptions {
    /// Cipher in a table line's form.
    pub cipher: String,
    /// Length of the key.
    pub key_size_bits: u32,
    /// Hash of a passphrase: `HASH`, `HASH:BYTES` (the rest of the key is zero), or `plain` or
    /// `None` for no hashing. A key file is never hashed.
    pub hash: Option<String>,
    /// Start of the data on the device.
    pub offset_sectors: u64,
    /// Addend of the sector number for the IV.
    pub skip_sectors: u64,
    /// Length of the volume; `None`: to the end of the device.
    pub size_sectors: Option<u64>,
    /// Encryption sector size.
    pub sector_size_bytes: u32,
    /// Whether the IV counts encryption sectors.
    pub iv_large_sectors: bool,
    /// Pass TRIM down.
    pub allow_discards: bool,
}

impl Default for PlainOptions {
    fn default() -> Self {
        Self {
            cipher: "aes-cbc-essiv:sha256".to_owned(),
            key_size_bits: 256,
            hash: Some("ripemd160".to_owned()),
            offset_sectors: 0,
            skip_sectors: 0,
            size_sectors: None,
            sector_size_bytes: 512,
            iv_large_sectors: false,
            allow_discards: false,
        }
    }
}

/// Key source of a plain volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlainKey {
    /// A passphrase, which is hashed to the key.
    Passphrase(SecretBytes),
    /// The key itself; surplus bytes are ignored.
    KeyFile(SecretBytes),
}

/// Cipher and place of a plain volume's data on a device of `device_len_bytes`.
///
/// # Errors
/// When an option is wrong or not supported, the key file is too short, or the device too small.
pub fn open(
    options: &PlainOptions,
    key: &PlainKey,
    device_len_bytes: u64,
) -> Result<CryptParams, Error> {
    let sector_size = options.sector_size_bytes;
    if !matches!(sector_size, 512 | 1024 | 2048 | 4096) {
        let problem = format!("{sector_size} is not 512, 1024, 2048 or 4096");
        return Err(Error::field("sector_size_bytes", problem));
    }
    let sectors_per_unit = u64::from(sector_size / 512);
    if !options.skip_sectors.is_multiple_of(sectors_per_unit) {
        return Err(Error::field(
            "skip_sectors",
            format!("{} is not a multiple of the sector size {sector_size}", options.skip_sectors),
        ));
    }
    CipherSpec::parse(&options.cipher)
        .map_err(|error| Error::field("cipher", error.to_string()))?;
    let key = derive_key(options, key)?;
    let len_sectors = extent(options)?.len_sectors(device_len_bytes)?;
    let params = CryptParams {
        cipher: options.cipher.clone(),
        key,
        iv_offset_sectors: options.skip_sectors,
        data_offset_sectors: options.offset_sectors,
        len_sectors: Some(len_sectors),
        sector_size_bytes: sector_size,
        iv_large_sectors: options.iv_large_sectors,
        flags: CryptFlags { allow_discards: options.allow_discards, ..CryptFlags::default() },
    };
    params.check_key().map_err(|problem| Error::field("key_size_bits", problem))?;
    Ok(params)
}

fn extent(options: &PlainOptions) -> Result<Extent, Error> {
    let bytes = |option, sectors: u64| {
        sectors
            .checked_mul(512)
            .ok_or_else(|| Error::field(option, format!("{sectors} sectors are over 2^64 bytes")))
    };
    let len_bytes = match options.size_sectors {
        None => None,
        Some(sectors) if !sectors.is_multiple_of(u64::from(options.sector_size_bytes / 512)) => {
            return Err(Error::field(
                "size_sectors",
                format!(
                    "{sectors} sectors of 512 bytes are not a multiple of the sector size {}",
                    options.sector_size_bytes
                ),
            ));
        }
        Some(sectors) => Some(bytes("size_sectors", sectors)?),
    };
    Ok(Extent {
        offset_bytes: bytes("offset_sectors", options.offset_sectors)?,
        len_bytes,
        sector_size_bytes: options.sector_size_bytes,
    })
}

fn derive_key(options: &PlainOptions, key: &PlainKey) -> Result<SecretBytes, Error> {
    let bits = options.key_size_bits;
    if bits == 0 || !bits.is_multiple_of(8) || bits > KEY_SIZE_BITS_MAX {
        let problem = format!("{bits} is not a multiple of 8 from 8 to {KEY_SIZE_BITS_MAX}");
        return Err(Error::field("key_size_bits", problem));
    }
    let mut derived = SecretBytes::zeroed(bits as usize / 8);
    match key {
        PlainKey::KeyFile(bytes) => {
            let wanted = derived.len();
            let start = bytes.as_slice().get(..wanted).ok_or_else(|| {
                Error::field(
                    "key",
                    format!(
                        "it has {} bytes and a key of {bits} bits needs {wanted}; choose another \
                         `key_size_bits` or key file",
                        bytes.len()
                    ),
                )
            })?;
            derived.as_mut_slice().copy_from_slice(start);
        }
        PlainKey::Passphrase(passphrase) => {
            let hash = options.hash.as_deref().unwrap_or(NO_HASH);
            hash_passphrase(hash, passphrase.as_slice(), derived.as_mut_slice())?;
        }
    }
    Ok(derived)
}

/// Fills the zeroed `key` from a passphrase.
fn hash_passphrase(hash: &str, passphrase: &[u8], key: &mut [u8]) -> Result<(), Error> {
    // Without a length, "plain" takes all bytes there are and leaves the rest zero.
    if hash == NO_HASH {
        let len = passphrase.len().min(key.len());
        key[..len].copy_from_slice(&passphrase[..len]);
        return Ok(());
    }
    let (name, hashed_len) = match hash.split_once(':') {
        None => (hash, key.len()),
        Some((name, len)) => {
            let len = len.parse().ok().filter(|len| *len <= key.len()).ok_or_else(|| {
                let problem = format!("\"{len}\" is not a length from 0 to {}", key.len());
                Error::field("hash", problem)
            })?;
            (name, len)
        }
    };
    let hashed = &mut key[..hashed_len];
    if name == NO_HASH {
        let start = passphrase.get(..hashed_len).ok_or_else(|| {
            let problem = format!("the passphrase is shorter than {hashed_len} bytes");
            Error::field("hash", problem)
        })?;
        hashed.copy_from_slice(start);
        return Ok(());
    }
    let algorithm =
        HashAlgorithm::parse(name).map_err(|error| Error::field("hash", error.to_string()))?;
    with_wiped_stack(|| hash_rounds(algorithm, passphrase, hashed));
    Ok(())
}

/// hashalot's rule for long keys: round n hashes n letters A and the passphrase.
fn hash_rounds(algorithm: HashAlgorithm, passphrase: &[u8], key: &mut [u8]) {
    let prefix = vec![b'A'; key.len()];
    for (round, piece) in key.chunks_mut(algorithm.digest_len_bytes()).enumerate() {
        algorithm.digest(&[&prefix[..round], passphrase], piece);
    }
}

#[cfg(test)]
mod tests;
