//! LUKS2: two header copies with JSON metadata, up to 32 keyslots, tokens.
//!
//! | file | story |
//! |---|---|
//! | `header.rs` | the binary header and its two copies on disk |
//! | `tree.rs`, `metadata.rs`, `check.rs` | JSON with limits, as types, with its rules |
//! | `keyslot.rs`, `digest.rs` | from a passphrase to a verified volume key |
//! | `new_keyslot.rs`, `edit.rs` | new keyslots; plans of changed headers |
//! | `token.rs` | tokens: what they say, and which of them may open the volume |
//! | `token/jwe.rs`, `token/tang.rs` | clevis: encrypted passphrases, and keys of tang servers |
//! | `info.rs` | facts of a header, as types and as text |
//! | `repair.rs` | one copy from the other |
//!
//! Sources: the LUKS2 On-Disk Format Specification 1.1 and, where it is open, cryptsetup 2.6.

mod check;
mod convert;
mod digest;
mod edit;
mod header;
mod info;
mod keyslot;
mod metadata;
mod new_keyslot;
mod repair;
mod token;
mod tree;

pub(crate) use convert::new_copies;
pub(crate) use digest::compute as compute_digest;
pub(crate) use edit::{Prepared, prepare};
pub use header::Copy;
pub(crate) use header::{
    Binary, HDR_LENS_BYTES, LABEL_LEN_BYTES, damaged_copies_end, erased_copies, find_previous,
};
pub use info::{
    AreaEncryption, AreaInfo, DigestBody, DigestInfo, Info, KeyslotInfo, SegmentEncryption,
    SegmentInfo, TokenInfo,
};
pub(crate) use keyslot::{area_len_bytes, material as keyslot_material};
pub use metadata::Priority;
pub(crate) use metadata::{BINARY_LEN_BYTES, KEYSLOTS_LEN_MAX_BYTES, Metadata, SALT_LEN_BYTES};
pub use new_keyslot::AreaCipher;
pub(crate) use new_keyslot::{digest_json, keyslot_json};
pub(crate) use repair::repair;
pub use token::{
    Jwe, PcrBank, PrimaryKey, TangExchange, Token, TokenChoice, TokenKind, Tpm2Token, UsableToken,
};

use header::{Copies, Intact};
use metadata::{CryptSegment, Digest, Segment};

use crate::cipher::CipherSpec;
use crate::error::Error;
use crate::extent::Extent;
use crate::header_write::{Step, Write};
use crate::luks::{Notice, UnlockOptions, Unlocked};
use crate::params::CryptParams;
use crate::secret::SecretBytes;
use crate::source::HeaderSource;
use crate::unlock_attempt::{Attempt, Problem};

/// A LUKS2 header: its newest intact copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    binary: Binary,
    metadata: Metadata,
    /// The copy that is damaged, outdated or different.
    bad: Option<BadCopy>,
}

/// A copy that a change rewrites before it writes anything else. Without that, a power cut could
/// leave no intact copy, or only an outdated one that names overwritten areas.
#[derive(Clone, Debug, PartialEq)]
struct BadCopy {
    copy: Copy,
    /// The JSON area of the good copy, byte for byte.
    json_area: Vec<u8>,
}

impl Header {
    /// Reads both copies and takes the newest intact one.
    ///
    /// # Errors
    /// When no copy is intact.
    pub fn read(source: &dyn HeaderSource) -> Result<(Self, Vec<Notice>), Error> {
        let (Intact { copy, binary, json_area, metadata }, notices) =
            Copies::read(source)?.newest()?;
        let bad = (!notices.is_empty()).then(|| BadCopy { copy: copy.other(), json_area });
        let header = Self { binary, metadata, bad };
        header.check_room(source)?;
        Ok((header, notices))
    }

    /// Reads one copy, even if it is outdated or another format stands at the start.
    ///
    /// # Errors
    /// When this copy is missing or damaged.
    pub fn read_copy(source: &dyn HeaderSource, copy: Copy) -> Result<Self, Error> {
        let Intact { binary, metadata, .. } = Copies::read(source)?.only(copy)?;
        let header = Self { binary, metadata, bad: None };
        header.check_room(source)?;
        Ok(header)
    }

    /// Checks that both copies and the keyslots area lie on the device.
    fn check_room(&self, source: &dyn HeaderSource) -> Result<(), Error> {
        let end = self.metadata.end_bytes();
        let device_len = source.len_bytes();
        if device_len < end {
            return Err(Error::header(
                "LUKS2 header",
                format!(
                    "with its keyslots it ends at byte {end}, but the device or file at byte \
                     {device_len}; it is truncated"
                ),
            ));
        }
        Ok(())
    }

    pub(crate) fn from_parts(binary: Binary, metadata: Metadata) -> Self {
        Self { binary, metadata, bad: None }
    }

    /// The steps that make the bad copy equal to the good one, if there is one: with the good one's
    /// sequence id, as cryptsetup does when it reads a header. Every change begins with them.
    fn steps_of_repair(&self) -> Result<Vec<Step>, Error> {
        let Some(BadCopy { copy, json_area }) = &self.bad else { return Ok(Vec::new()) };
        let mut binary = self.binary.clone();
        getrandom::fill(&mut binary.salt)?;
        Ok(copy_steps(*copy, &binary, json_area).to_vec())
    }

    /// UUID of the volume, up to the first byte that is not printable ASCII.
    #[must_use]
    pub fn uuid(&self) -> &str {
        self.binary.uuid.text()
    }

    /// Sequence id: the number of header updates.
    #[must_use]
    pub fn seqid(&self) -> u64 {
        self.binary.seqid
    }

    /// The data segment with its number, if the volume can be served.
    fn data_segment(&self) -> Result<(u32, &Segment, &CryptSegment), Error> {
        if let Some(requirement) = self.metadata.config.unmet_requirement() {
            return Err(Error::Requirement(requirement));
        }
        let segments = &self.metadata.segments;
        if segments.len() > 1 {
            return Err(Error::unsupported(
                "segments",
                format!("{} data segments; volumes with one are supported", segments.len()),
            ));
        }
        let (number, segment) = segments.first_key_value().expect("checked: there is a segment");
        let place = format!("segments.{number}");
        let Some(crypt) = &segment.crypt else {
            let what = format!("a segment of type \"{}\" is not supported", segment.kind);
            return Err(Error::unsupported(place, what));
        };
        if let Some(integrity) = &crypt.integrity {
            let what = format!("integrity protection \"{integrity}\" is not supported yet");
            return Err(Error::unsupported(place, what));
        }
        if let Some(problem) = crypt.problem() {
            return Err(Error::unsupported(place, problem));
        }
        CipherSpec::parse(&crypt.encryption)
            .map_err(|error| Error::unsupported(place, error.to_string()))?;
        Ok((*number, segment, crypt))
    }

    /// Tries the keyslots of the data segment by priority, or the given one, with `passphrase`.
    ///
    /// # Errors
    /// When the volume needs an unsupported feature, a limit forbids it, or no keyslot opens.
    pub fn unlock(
        &self,
        source: &dyn HeaderSource,
        passphrase: &SecretBytes,
        options: &UnlockOptions,
    ) -> Result<Unlocked, Error> {
        let (segment, ..) = self.data_segment()?;
        let mut attempt = Attempt::new(options.limits);
        if let Some(number) = options.keyslot {
            return match self.try_named(source, number, segment, passphrase, &mut attempt) {
                Ok(Some(volume_key)) => Ok(Unlocked { keyslot: number, volume_key }),
                Ok(None) => {
                    attempt.wrong();
                    Err(attempt.failed())
                }
                Err(problem) => Err(Error::Keyslot(problem.of(number))),
            };
        }
        for priority in [Priority::Prefer, Priority::Normal] {
            for (number, keyslot) in &self.metadata.keyslots {
                if keyslot.priority != priority {
                    continue;
                }
                let Some(digest) = self.metadata.digest_of(*number, segment) else {
                    continue;
                };
                match self.try_keyslot(source, *number, digest, passphrase, &mut attempt) {
                    Ok(Some(volume_key)) => {
                        return Ok(Unlocked { keyslot: *number, volume_key });
                    }
                    Ok(None) => attempt.wrong(),
                    Err(problem) => attempt.skip(*number, problem),
                }
            }
        }
        for (number, keyslot) in &self.metadata.keyslots {
            if keyslot.priority == Priority::Ignore
                && self.metadata.digest_of(*number, segment).is_some()
            {
                let ignored = "its priority is \"ignore\"; name it with `keyslot` to try it";
                attempt
                    .skip(*number, keyslot::problem(keyslot).unwrap_or_else(|| ignored.to_owned()));
            }
        }
        Err(attempt.failed())
    }

    fn try_named(
        &self,
        source: &dyn HeaderSource,
        number: u32,
        segment: u32,
        passphrase: &SecretBytes,
        attempt: &mut Attempt,
    ) -> Result<Option<SecretBytes>, Problem> {
        if !self.metadata.keyslots.contains_key(&number) {
            return Err("it is not in use".into());
        }
        let digest = self.metadata.digest_of(number, segment).ok_or(
            "it is unbound: it holds a key, but not the key of this volume; choose another with \
             `keyslot`, or none",
        )?;
        self.try_keyslot(source, number, digest, passphrase, attempt)
    }

    /// The volume key, `None` for a wrong passphrase, or the reason why the keyslot cannot be
    /// tried.
    fn try_keyslot(
        &self,
        source: &dyn HeaderSource,
        number: u32,
        (digest_number, digest): (u32, &Digest),
        passphrase: &SecretBytes,
        attempt: &mut Attempt,
    ) -> Result<Option<SecretBytes>, Problem> {
        let digest_error = |problem: String| format!("digest {digest_number}: {problem}");
        let keyslot = &self.metadata.keyslots[&number];
        let key_len_bytes = self.metadata.key_len_bytes(digest).unwrap_or(keyslot.key_len_bytes);
        // Before the KDF runs: the digest must be able to verify a key.
        let digest = digest.body.as_ref().map_err(|problem| digest_error(problem.clone()))?;
        let admit = |kdf| attempt.admit(&kdf, digest.digest.len());
        digest.kdf().and_then(admit).map_err(digest_error)?;
        let candidate = keyslot::open(source, number, keyslot, passphrase, attempt)?;
        let verified =
            digest.verifies(&candidate, key_len_bytes, attempt.limits()).map_err(digest_error)?;
        Ok(verified.then_some(candidate))
    }

    /// Place of the data.
    pub(crate) fn extent(&self) -> Result<Extent, Error> {
        let (_, segment, crypt) = self.data_segment()?;
        Ok(Extent {
            offset_bytes: segment.offset_bytes,
            len_bytes: segment.len_bytes,
            sector_size_bytes: crypt.sector_size_bytes,
        })
    }

    /// Cipher and place of the data; see [`crate::luks::Header::crypt_params`].
    ///
    /// # Errors
    /// When the volume needs an unsupported feature, or the device is too small.
    pub fn crypt_params(
        &self,
        volume_key: &SecretBytes,
        device_len_bytes: u64,
        detached: bool,
    ) -> Result<CryptParams, Error> {
        let (number, segment, crypt) = self.data_segment()?;
        if segment.offset_bytes == 0 && !detached {
            return Err(Error::DataDevice(
                "the header is detached: its data starts at byte 0 of another device; give \
                 that device as the volume and this file as `header`"
                    .to_owned(),
            ));
        }
        let extent = self.extent()?;
        let params = CryptParams {
            cipher: crypt.encryption.clone(),
            key: volume_key.clone(),
            iv_offset_sectors: crypt.iv_tweak,
            data_offset_sectors: segment.offset_bytes / 512,
            len_sectors: Some(extent.len_sectors(device_len_bytes)?),
            sector_size_bytes: crypt.sector_size_bytes,
            iv_large_sectors: false,
            flags: self.metadata.config.crypt_flags(),
        };
        params
            .check_key()
            .map_err(|problem| Error::unsupported(format!("segments.{number}"), problem))?;
        Ok(params)
    }
}

/// The steps that write one copy.
pub(crate) fn copy_steps(copy: Copy, binary: &Binary, json_area: &[u8]) -> [Step; 2] {
    let bytes = [&binary.to_bytes(copy, json_area)[..], json_area].concat();
    let name = copy.to_string();
    let offset_bytes = copy.offset_bytes(binary.hdr_len_bytes);
    sealed_last(&name, offset_bytes, &bytes)
}

/// The steps that write a copy: first all of it with an invalid checksum, then its checksum. So a
/// power cut leaves this copy old, recognisably broken, or new. The last step changes only the
/// first sector.
pub(crate) fn sealed_last(name: &str, offset_bytes: u64, copy: &[u8]) -> [Step; 2] {
    let what = format!("the {name} LUKS2 header");
    let sealed = copy[..BINARY_LEN_BYTES as usize].to_vec();
    let mut open = copy.to_vec();
    header::clear_checksum(&mut open);
    [
        Step::new(&*what, vec![Write::Bytes(offset_bytes, open)]),
        Step::new(what, vec![Write::Bytes(offset_bytes, sealed)]),
    ]
}

/// The JSON text, padded with NULs to the end of the area of a header of `hdr_len_bytes`.
pub(crate) fn json_area(
    document: &serde_json::Value,
    hdr_len_bytes: u64,
) -> Result<Vec<u8>, Error> {
    let len = usize::try_from(hdr_len_bytes - BINARY_LEN_BYTES).expect("at most 4 MiB");
    let mut area = document.to_string().into_bytes();
    if area.len() >= len {
        let needed = area.len() + 1;
        let problem = format!("the JSON needs {needed} bytes and its area has {len}; it is full");
        return Err(Error::header("LUKS2 header", problem));
    }
    area.resize(len, 0);
    Ok(area)
}

/// The steps that write both copies, the primary one first, each with its own salt.
pub(crate) fn header_steps(binary: &Binary, json_area: &[u8]) -> Result<Vec<Step>, Error> {
    let mut steps = Vec::new();
    for copy in [Copy::Primary, Copy::Secondary] {
        let mut binary = binary.clone();
        getrandom::fill(&mut binary.salt)?;
        steps.extend(copy_steps(copy, &binary, json_area));
    }
    Ok(steps)
}

#[cfg(test)]
mod tests;
