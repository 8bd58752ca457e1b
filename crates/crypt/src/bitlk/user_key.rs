//! The secrets of users: passphrases, recovery keys and startup key files.
//!
//! ```text
//!   passphrase, UTF-16 -> SHA-256 twice --+
//!   recovery key, 16 bytes -> SHA-256 ----+-> 2^20 times SHA-256 with the salt -> key
//!   startup key file ----------------------------------------------------------> key
//! ```

use uuid::Uuid;

use super::datum::{self, entry, value};
use super::encrypted::WRAPPING_KEY_LEN_BYTES;
use super::le32;
use super::protector::SALT_LEN_BYTES;
use crate::hash::HashAlgorithm;
use crate::secret::SecretBytes;
use crate::stack::with_wiped_stack;

/// Rounds of the stretching.
const ROUNDS: u64 = 1 << 20;
/// Estimated time of one stretching on a slow core, at the rate of PBKDF2 with SHA-256.
pub(super) const STRETCH_MS: u64 = 400;
/// Groups of a recovery key.
const GROUPS: usize = 8;
const GROUP_LEN: usize = 6;
/// Each group is a number of 16 bits times this.
const GROUP_FACTOR: u32 = 11;
/// Length of a startup key file's header.
const FILE_HEADER_LEN_BYTES: usize = 48;
/// Length of an external key's fields before its entries.
const EXTERNAL_FIELDS_LEN_BYTES: usize = 24;

/// A secret as the user gives it.
pub(super) enum UserKey {
    StartupKey { protector: Uuid, key: SecretBytes },
    Words(Words),
}

/// A passphrase that may be a recovery key.
pub(super) struct Words {
    /// The first hash of the passphrase; `None` if it is not UTF-8.
    pub(super) passphrase: Option<SecretBytes>,
    /// The first hash of the recovery key; `None` if it has another form.
    pub(super) recovery_key: Option<Result<SecretBytes, String>>,
}

impl UserKey {
    /// The secret in `bytes`.
    ///
    /// # Errors
    /// The problem of a startup key file.
    pub(super) fn parse(bytes: &SecretBytes) -> Result<Self, String> {
        match startup_key(bytes.as_slice())? {
            Some((protector, key)) => Ok(Self::StartupKey { protector, key }),
            None => Ok(Self::Words(with_wiped_stack(|| Words {
                passphrase: hashed_passphrase(bytes.as_slice()),
                recovery_key: hashed_recovery_key(bytes.as_slice()),
            }))),
        }
    }
}

fn sha256(bytes: &[u8]) -> SecretBytes {
    let mut hash = SecretBytes::zeroed(32);
    HashAlgorithm::Sha256.digest(&[bytes], hash.as_mut_slice());
    hash
}

fn hashed_passphrase(bytes: &[u8]) -> Option<SecretBytes> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut utf16 = SecretBytes::zeroed(text.encode_utf16().count() * 2);
    for (place, unit) in utf16.as_mut_slice().chunks_exact_mut(2).zip(text.encode_utf16()) {
        place.copy_from_slice(&unit.to_le_bytes());
    }
    Some(sha256(sha256(utf16.as_slice()).as_slice()))
}

/// Eight groups of six digits, with hyphens between them. A newline at the end does not count.
fn hashed_recovery_key(bytes: &[u8]) -> Option<Result<SecretBytes, String>> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let is_group = |group: &[u8]| group.len() == GROUP_LEN && group.iter().all(u8::is_ascii_digit);
    let groups = || bytes.split(|byte| *byte == b'-');
    if groups().count() != GROUPS || !groups().all(is_group) {
        return None;
    }
    let mut key = SecretBytes::zeroed(2 * GROUPS);
    for (index, (place, group)) in key.as_mut_slice().chunks_exact_mut(2).zip(groups()).enumerate()
    {
        let number = group.iter().fold(0, |sum, digit| 10 * sum + u32::from(digit - b'0'));
        let part = u16::try_from(number / GROUP_FACTOR);
        let Some(part) = part.ok().filter(|_| number % GROUP_FACTOR == 0) else {
            let problem = "of the recovery key is mistyped: no recovery key has it";
            return Some(Err(format!("group {} {problem}", index + 1)));
        };
        place.copy_from_slice(&part.to_le_bytes());
    }
    Some(Ok(sha256(key.as_slice())))
}

/// The key of a startup key file, and the protector that it opens; `None` if it is no such file.
fn startup_key(bytes: &[u8]) -> Result<Option<(Uuid, SecretBytes)>, String> {
    // Length, version, and length of the header.
    let is_file = bytes.len() > FILE_HEADER_LEN_BYTES
        && usize::try_from(le32(bytes, 0)) == Ok(bytes.len())
        && le32(bytes, 4) == 1
        && le32(bytes, 8) as usize == FILE_HEADER_LEN_BYTES;
    if !is_file {
        return Ok(None);
    }
    let protector = Uuid::from_bytes_le(*bytes[16..].first_chunk().expect("it has a header"));
    let entries = datum::parse(&bytes[FILE_HEADER_LEN_BYTES..])?;
    let external = entries
        .iter()
        .find(|one| (one.entry, one.value) == (entry::STARTUP_KEY, value::EXTERNAL_KEY))
        .and_then(|one| one.data.get(EXTERNAL_FIELDS_LEN_BYTES..))
        .ok_or("it has no external key")?;
    let properties = datum::parse(external)?;
    let key =
        properties.iter().find(|one| one.value == value::KEY).and_then(|one| one.data.get(4..));
    match key {
        Some(key) if key.len() == WRAPPING_KEY_LEN_BYTES => {
            Ok(Some((protector, SecretBytes::copy_of(key))))
        }
        _ => Err(format!("it has no key of {WRAPPING_KEY_LEN_BYTES} bytes")),
    }
}

/// The key from the first hash of a passphrase or recovery key. A round hashes the last hash, the
/// first hash, the salt and the round's number, of 64 bits.
pub(super) fn stretched(first: &SecretBytes, salt: &[u8; SALT_LEN_BYTES]) -> SecretBytes {
    with_wiped_stack(|| {
        let mut last = SecretBytes::zeroed(32);
        let mut input = SecretBytes::zeroed(88);
        input.as_mut_slice()[32..64].copy_from_slice(first.as_slice());
        input.as_mut_slice()[64..80].copy_from_slice(salt);
        for round in 0..ROUNDS {
            let bytes = input.as_mut_slice();
            bytes[..32].copy_from_slice(last.as_slice());
            bytes[80..].copy_from_slice(&round.to_le_bytes());
            HashAlgorithm::Sha256.digest(&[bytes], last.as_mut_slice());
        }
        last
    })
}
