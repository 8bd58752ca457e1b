//! A LUKS2 header as facts and as text. No salts, no digests, no token contents.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::cipher::CipherSpec;
use crate::info::{AfInfo, KdfCost, KdfInfo};

use super::header::shown_label;
use super::metadata::{
    Area, CryptSegment, KdfSpec, Keyslot, KeyslotBody, Priority, Segment, Token,
};
use super::{Digest, Header};

/// Facts of a LUKS2 header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// UUID of the volume.
    pub uuid: String,
    /// Label, with non-printable characters escaped.
    pub label: String,
    /// Subsystem, likewise.
    pub subsystem: String,
    /// Sequence id: the number of the last change.
    pub seqid: u64,
    /// Length of one copy of the header.
    pub metadata_area_bytes: u64,
    /// Length of the area of all keyslots.
    pub keyslots_area_bytes: u64,
    /// Flags of the volume, such as `allow-discards`.
    pub flags: Vec<String>,
    /// Mandatory requirements.
    pub requirements: Vec<String>,
    /// Data segments, by number.
    pub segments: BTreeMap<u32, SegmentInfo>,
    /// Keyslots, by number.
    pub keyslots: BTreeMap<u32, KeyslotInfo>,
    /// Tokens, by number.
    pub tokens: BTreeMap<u32, TokenInfo>,
    /// Digests, by number.
    pub digests: BTreeMap<u32, DigestInfo>,
}

/// Facts of a data segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentInfo {
    /// Its type: `crypt`, or another.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its first byte.
    pub offset_bytes: u64,
    /// Its length; `None`: to the end of the device.
    pub len_bytes: Option<u64>,
    /// Its flags.
    pub flags: Vec<String>,
    /// Encryption of a segment of type `crypt`.
    #[serde(flatten)]
    pub encryption: Option<SegmentEncryption>,
}

/// Encryption of a data segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentEncryption {
    /// Cipher, as in a dm-crypt table.
    pub cipher: String,
    /// Whether the cipher looks up tables by key bytes; `None` for an unknown cipher.
    pub cipher_table_based: Option<bool>,
    /// Sector size.
    pub sector_size_bytes: u32,
    /// Addend of the sector number, in 512-byte sectors.
    pub iv_tweak: u64,
    /// Type of the integrity protection, if any.
    pub integrity: Option<String>,
}

/// Facts of a keyslot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyslotInfo {
    /// Its type: `luks2`, or another.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether its key belongs to no segment.
    pub unbound: bool,
    /// Its priority: `ignore`, `normal` or `prefer`.
    pub priority: &'static str,
    /// Length of its key.
    pub key_size_bits: u64,
    /// The reason why a keyslot of type `luks2` is unusable.
    pub problem: Option<String>,
    /// Place of its key material.
    pub area: AreaInfo,
    /// Its KDF; `None` for a keyslot of another type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kdf: Option<KdfInfo>,
    /// Its anti-forensic splitter, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub af: Option<AfInfo>,
}

/// Place of a keyslot's key material.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AreaInfo {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its first byte.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Encryption of the key material of a keyslot of type `luks2`.
    #[serde(flatten)]
    pub encryption: Option<AreaEncryption>,
}

/// Encryption of a keyslot's key material.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AreaEncryption {
    /// Cipher, as in a dm-crypt table.
    pub cipher: String,
    /// Whether the cipher looks up tables by key bytes; `None` for an unknown cipher.
    pub cipher_table_based: Option<bool>,
    /// Length of the cipher's key.
    pub key_size_bits: u32,
}

/// Facts of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenInfo {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Numbers of its keyslots.
    pub keyslots: BTreeSet<u32>,
}

/// Facts of a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DigestInfo {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Numbers of the keyslots whose key it verifies.
    pub keyslots: BTreeSet<u32>,
    /// Numbers of the segments that the key is for.
    pub segments: BTreeSet<u32>,
    /// Its PBKDF2, or the reason why it is unusable.
    #[serde(flatten)]
    pub body: DigestBody,
}

/// The PBKDF2 of a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum DigestBody {
    /// A digest of type `pbkdf2`.
    Pbkdf2 {
        /// Its hash.
        hash: String,
        /// Number of iterations.
        iterations: u32,
    },
    /// The digest is unusable.
    Unusable {
        /// The reason.
        problem: String,
    },
}

impl Header {
    /// The label, with non-printable characters escaped.
    #[must_use]
    pub fn label(&self) -> String {
        shown_label(&self.binary.label)
    }

    fn subsystem(&self) -> String {
        shown_label(&self.binary.subsystem)
    }

    /// Whether the keyslot belongs to no segment's digest.
    fn is_unbound(&self, keyslot: u32) -> bool {
        !self
            .metadata
            .segments
            .keys()
            .any(|segment| self.metadata.digest_of(keyslot, *segment).is_some())
    }

    /// The facts of the header.
    #[must_use]
    pub fn info(&self) -> Info {
        let binary = &self.binary;
        let metadata = &self.metadata;
        let keyslots = metadata
            .keyslots
            .iter()
            .map(|(number, keyslot)| (*number, KeyslotInfo::of(keyslot, self.is_unbound(*number))));
        Info {
            uuid: binary.uuid.text().to_owned(),
            label: self.label(),
            subsystem: self.subsystem(),
            seqid: binary.seqid,
            metadata_area_bytes: binary.hdr_len_bytes,
            keyslots_area_bytes: metadata.config.keyslots_len_bytes,
            flags: metadata.config.flags.clone(),
            requirements: metadata.config.mandatory.clone(),
            segments: mapped(&metadata.segments, SegmentInfo::of),
            keyslots: keyslots.collect(),
            tokens: mapped(&metadata.tokens, TokenInfo::of),
            digests: mapped(&metadata.digests, DigestInfo::of),
        }
    }
}

fn mapped<T, U>(map: &BTreeMap<u32, T>, value: fn(&T) -> U) -> BTreeMap<u32, U> {
    map.iter().map(|(number, entry)| (*number, value(entry))).collect()
}

fn priority_name(priority: Priority) -> &'static str {
    match priority {
        Priority::Ignore => "ignore",
        Priority::Normal => "normal",
        Priority::Prefer => "prefer",
    }
}

/// The reason why a keyslot of type `luks2` is unusable. Other types never hold a key.
fn problem(keyslot: &Keyslot) -> Option<String> {
    super::keyslot::problem(keyslot).filter(|_| keyslot.kind == "luks2")
}

impl KeyslotInfo {
    fn of(keyslot: &Keyslot, unbound: bool) -> Self {
        let Area { kind, offset_bytes, len_bytes } = &keyslot.area;
        let body = keyslot.body.as_ref().ok();
        Self {
            kind: keyslot.kind.clone(),
            unbound,
            priority: priority_name(keyslot.priority),
            key_size_bits: u64::from(keyslot.key_len_bytes) * 8,
            problem: problem(keyslot),
            area: AreaInfo {
                kind: kind.clone(),
                offset_bytes: *offset_bytes,
                len_bytes: *len_bytes,
                encryption: body.map(AreaEncryption::of),
            },
            kdf: body.map(|body| kdf_info(&body.kdf)),
            af: body.map(|body| AfInfo { hash: body.af_hash.clone(), stripes: crate::af::STRIPES }),
        }
    }
}

impl AreaEncryption {
    fn of(body: &KeyslotBody) -> Self {
        Self {
            cipher: body.encryption.clone(),
            cipher_table_based: CipherSpec::text_is_table_based(&body.encryption),
            key_size_bits: body.area_key_len_bytes * 8,
        }
    }
}

fn kdf_info(kdf: &KdfSpec) -> KdfInfo {
    match kdf.clone() {
        KdfSpec::Pbkdf2 { hash, iterations } => {
            KdfInfo { kind: "pbkdf2".into(), cost: KdfCost::Pbkdf2 { hash, iterations } }
        }
        KdfSpec::Argon2 { kind, time, memory_kib, lanes } => {
            KdfInfo { kind, cost: KdfCost::Argon2 { time, memory_kib, cpus: lanes } }
        }
        KdfSpec::Unknown { kind } => KdfInfo { kind, cost: KdfCost::Unknown {} },
    }
}

impl SegmentInfo {
    fn of(segment: &Segment) -> Self {
        Self {
            kind: segment.kind.clone(),
            offset_bytes: segment.offset_bytes,
            len_bytes: segment.len_bytes,
            flags: segment.flags.clone(),
            encryption: segment.crypt.as_ref().map(SegmentEncryption::of),
        }
    }
}

impl SegmentEncryption {
    fn of(crypt: &CryptSegment) -> Self {
        Self {
            cipher: crypt.encryption.clone(),
            cipher_table_based: CipherSpec::text_is_table_based(&crypt.encryption),
            sector_size_bytes: crypt.sector_size_bytes,
            iv_tweak: crypt.iv_tweak,
            integrity: crypt.integrity.clone(),
        }
    }
}

impl TokenInfo {
    fn of(token: &Token) -> Self {
        Self { kind: token.kind.clone(), keyslots: token.keyslots.clone() }
    }
}

impl DigestInfo {
    fn of(digest: &Digest) -> Self {
        let body = match &digest.body {
            Ok(pbkdf2) => {
                DigestBody::Pbkdf2 { hash: pbkdf2.hash.clone(), iterations: pbkdf2.iterations }
            }
            Err(problem) => DigestBody::Unusable { problem: problem.clone() },
        };
        Self {
            kind: digest.kind.clone(),
            keyslots: digest.keyslots.clone(),
            segments: digest.segments.clone(),
            body,
        }
    }
}

/// The text, or a placeholder if it is empty.
fn or_none(text: &str) -> &str {
    if text.is_empty() { "(none)" } else { text }
}

fn numbers(set: &BTreeSet<u32>) -> String {
    let numbers: Vec<String> = set.iter().map(u32::to_string).collect();
    if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.metadata.config;
        writeln!(f, "LUKS2 volume")?;
        writeln!(f, "UUID:          {}", or_none(self.binary.uuid.text()))?;
        writeln!(f, "Label:         {}", or_none(&self.label()))?;
        writeln!(f, "Subsystem:     {}", or_none(&self.subsystem()))?;
        writeln!(f, "Epoch:         {}", self.binary.seqid)?;
        writeln!(f, "Metadata area: {} bytes", self.binary.hdr_len_bytes)?;
        writeln!(f, "Keyslots area: {} bytes", config.keyslots_len_bytes)?;
        writeln!(f, "Flags:         {}", or_none(&config.flags.join(", ")))?;
        if let Some(requirement) = config.unmet_requirement() {
            writeln!(f, "Requirements:  {requirement}")?;
        }
        writeln!(f, "Data segments:")?;
        for (number, segment) in &self.metadata.segments {
            fmt_segment(f, *number, segment)?;
        }
        writeln!(f, "Keyslots:")?;
        for (number, keyslot) in &self.metadata.keyslots {
            fmt_keyslot(f, *number, keyslot, self.is_unbound(*number))?;
        }
        writeln!(f, "Tokens:")?;
        for (number, token) in &self.metadata.tokens {
            writeln!(f, "  {number}: {}, keyslots {}", token.kind, numbers(&token.keyslots))?;
        }
        writeln!(f, "Digests:")?;
        for (number, digest) in &self.metadata.digests {
            write!(f, "  {number}: {}", digest.kind)?;
            match &digest.body {
                Ok(pbkdf2) => write!(f, "-{}, {} iterations", pbkdf2.hash, pbkdf2.iterations)?,
                Err(problem) => write!(f, ", unusable: {problem}")?,
            }
            writeln!(
                f,
                ", keyslots {}, segments {}",
                numbers(&digest.keyslots),
                numbers(&digest.segments)
            )?;
        }
        Ok(())
    }
}

fn fmt_segment(f: &mut fmt::Formatter<'_>, number: u32, segment: &Segment) -> fmt::Result {
    write!(f, "  {number}: {}, offset {} bytes, ", segment.kind, segment.offset_bytes)?;
    match segment.len_bytes {
        Some(len) => write!(f, "length {len} bytes")?,
        None => write!(f, "length to the end of the device")?,
    }
    if let Some(crypt) = &segment.crypt {
        write!(f, ", {}, sectors of {} bytes", crypt.encryption, crypt.sector_size_bytes)?;
        if CipherSpec::text_is_table_based(&crypt.encryption) == Some(true) {
            write!(f, ", table-based: cache timing may tell of the key")?;
        }
        if crypt.iv_tweak != 0 {
            write!(f, ", IV tweak {}", crypt.iv_tweak)?;
        }
        if let Some(integrity) = &crypt.integrity {
            write!(f, ", integrity {integrity}")?;
        }
    }
    if !segment.flags.is_empty() {
        write!(f, ", flags {}", segment.flags.join(", "))?;
    }
    writeln!(f)
}

fn fmt_keyslot(
    f: &mut fmt::Formatter<'_>,
    number: u32,
    keyslot: &Keyslot,
    unbound: bool,
) -> fmt::Result {
    write!(f, "  {number}: {}{}", keyslot.kind, if unbound { " (unbound)" } else { "" })?;
    write!(f, ", key of {} bits", u64::from(keyslot.key_len_bytes) * 8)?;
    if keyslot.priority != Priority::Normal {
        write!(f, ", priority {}", priority_name(keyslot.priority))?;
    }
    let Ok(body) = &keyslot.body else {
        return match problem(keyslot) {
            Some(problem) => writeln!(f, ", unusable: {problem}"),
            None => writeln!(f),
        };
    };
    match &body.kdf {
        KdfSpec::Pbkdf2 { hash, iterations } => {
            write!(f, ", pbkdf2-{hash} with {iterations} iterations")?;
        }
        KdfSpec::Argon2 { kind, time, memory_kib, lanes } => {
            write!(f, ", {kind} with {time} passes over {memory_kib} KiB by {lanes} threads")?;
        }
        KdfSpec::Unknown { kind } => write!(f, ", {kind}")?,
    }
    write!(f, ", area {} ({} bits)", body.encryption, body.area_key_len_bytes * 8)?;
    if CipherSpec::text_is_table_based(&body.encryption) == Some(true) {
        write!(f, ", table-based")?;
    }
    match problem(keyslot) {
        Some(problem) => writeln!(f, ", unusable: {problem}"),
        None => writeln!(f),
    }
}
