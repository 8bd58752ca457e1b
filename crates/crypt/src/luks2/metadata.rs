//! LUKS2's JSON metadata as types: LUKS2 On-Disk Format Specification 1.1, section 3.
//!
//! [`Metadata::parse`] is strict where the format is defined and lenient where it is open: unknown
//! fields, tokens and flags are preserved in [`Metadata::document`]. An unsupported feature (a
//! keyslot's KDF, a hash) is no error here, because the volume may open without it. A keyslot or
//! digest with invalid values is unusable and holds the reason ([`Keyslot::body`],
//! [`Digest::body`]). Only a missing field or a wrong type is an error of the whole header, as in
//! cryptsetup.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value;

use super::tree::{Node, TreeError, decimal, plain_number};
use crate::af;
use crate::error::Requirement;
use crate::params::CryptFlags;

/// Length of every salt.
pub(crate) const SALT_LEN_BYTES: usize = 32;
/// Shortest and longest digest of a volume key.
const DIGEST_LEN_BYTES: std::ops::RangeInclusive<usize> = 20..=64;
/// Length of the longest volume key and area key; no cipher has a longer one.
const KEY_LEN_MAX_BYTES: u32 = 1024;
/// Largest keyslots area.
pub(crate) const KEYSLOTS_LEN_MAX_BYTES: u64 = 128 << 20;
/// Length of the binary header before the JSON area.
pub(crate) const BINARY_LEN_BYTES: u64 = 4096;

/// The whole metadata.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metadata {
    pub(crate) keyslots: BTreeMap<u32, Keyslot>,
    pub(crate) tokens: BTreeMap<u32, Token>,
    pub(crate) segments: BTreeMap<u32, Segment>,
    pub(crate) digests: BTreeMap<u32, Digest>,
    pub(crate) config: Config,
    /// The whole document, with unknown fields.
    pub(crate) document: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Keyslot {
    /// `luks2`, `reencrypt`, or something newer.
    pub(crate) kind: String,
    /// Length of the keyslot's key.
    pub(crate) key_len_bytes: u32,
    pub(crate) priority: Priority,
    pub(crate) area: Area,
    /// Fields of a keyslot of type `luks2`, or the reason why it is unusable.
    pub(crate) body: Result<KeyslotBody, String>,
}

/// Order in which keyslots are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Used only if the caller names it.
    Ignore,
    /// After the preferred ones.
    Normal,
    /// Tried first.
    Prefer,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Area {
    pub(crate) kind: String,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyslotBody {
    pub(crate) kdf: KdfSpec,
    /// Empty for an unknown KDF.
    pub(crate) salt: Vec<u8>,
    pub(crate) af_hash: String,
    /// Cipher of the area.
    pub(crate) encryption: String,
    /// Length of the area's key.
    pub(crate) area_key_len_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KdfSpec {
    Pbkdf2 { hash: String, iterations: u32 },
    Argon2 { kind: String, time: u32, memory_kib: u32, lanes: u32 },
    Unknown { kind: String },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) kind: String,
    pub(crate) keyslots: BTreeSet<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) kind: String,
    pub(crate) offset_bytes: u64,
    /// `None`: "dynamic", to the end of the device.
    pub(crate) len_bytes: Option<u64>,
    pub(crate) flags: Vec<String>,
    /// Fields of a segment of type `crypt`.
    pub(crate) crypt: Option<CryptSegment>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CryptSegment {
    pub(crate) encryption: String,
    pub(crate) sector_size_bytes: u32,
    /// Addend of the sector number, in 512-byte sectors.
    pub(crate) iv_tweak: u64,
    /// Type of the integrity protection, if any.
    pub(crate) integrity: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Digest {
    pub(crate) kind: String,
    pub(crate) keyslots: BTreeSet<u32>,
    pub(crate) segments: BTreeSet<u32>,
    /// Fields of a digest of type `pbkdf2`, or the reason why it is unusable.
    pub(crate) body: Result<Pbkdf2Digest, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pbkdf2Digest {
    pub(crate) hash: String,
    pub(crate) iterations: u32,
    pub(crate) salt: Vec<u8>,
    pub(crate) digest: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) json_len_bytes: u64,
    pub(crate) keyslots_len_bytes: u64,
    pub(crate) flags: Vec<String>,
    pub(crate) mandatory: Vec<String>,
}

impl Area {
    /// Its bytes; the sum was checked with the header.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.len_bytes
    }
}

impl Keyslot {
    /// A keyslot of JSON that this program made.
    pub(crate) fn of_json(value: &Value) -> Result<Self, TreeError> {
        keyslot(&Node::root(value))
    }
}

impl Segment {
    /// Whether the segment is only a record for a reencryption.
    pub(crate) fn is_backup(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("backup-"))
    }
}

impl CryptSegment {
    /// The reason why the segment cannot be mapped. A header may contain it, as in cryptsetup,
    /// which leaves the check to the kernel.
    pub(crate) fn problem(&self) -> Option<String> {
        let size = self.sector_size_bytes;
        let tweak = self.iv_tweak;
        if !matches!(size, 512 | 1024 | 2048 | 4096) {
            return Some(format!("its sector size is {size}, and not 512, 1024, 2048 or 4096"));
        }
        (!tweak.is_multiple_of(u64::from(size / 512))).then(|| {
            format!(
                "its IV tweak {tweak} is not a multiple of the sector size {size}, counted in \
                 512-byte sectors"
            )
        })
    }
}

impl Config {
    /// The first mandatory requirement; this program meets none that exists today.
    pub(crate) fn unmet_requirement(&self) -> Option<Requirement> {
        self.mandatory.first().map(|name| {
            let reencryption = name == "offline-reencrypt"
                || name.strip_prefix("online-reencrypt").is_some_and(|version| {
                    version.is_empty() || version.strip_prefix("-v").and_then(decimal).is_some()
                });
            if reencryption {
                Requirement::Reencryption(name.clone())
            } else {
                Requirement::Unknown(name.clone())
            }
        })
    }

    /// The persistent flags of dm-crypt. Unknown flags are ignored, as in cryptsetup.
    pub(crate) fn crypt_flags(&self) -> CryptFlags {
        let mut flags = CryptFlags::default();
        for flag in &self.flags {
            match flag.as_str() {
                "allow-discards" => flags.allow_discards = true,
                "same-cpu-crypt" => flags.same_cpu_crypt = true,
                "submit-from-crypt-cpus" => flags.submit_from_crypt_cpus = true,
                // cryptsetup writes this one flag with an underscore.
                "high_priority" | "high-priority" => flags.high_priority = true,
                "no-read-workqueue" => flags.no_read_workqueue = true,
                "no-write-workqueue" => flags.no_write_workqueue = true,
                _ => {}
            }
        }
        flags
    }
}

impl Metadata {
    /// Parses the JSON area of a header of `hdr_len_bytes`.
    pub(crate) fn parse(area: &[u8], hdr_len_bytes: u64) -> Result<Self, MetadataError> {
        let document = super::tree::parse(area).map_err(MetadataError::from)?;
        let root = Node::root(&document);
        // Requirements first: they may explain a violation of a rule below.
        let mandatory = mandatory(&root)?;
        let understood = Self::understand(&root, mandatory.clone());
        let result = understood.and_then(|metadata| {
            super::check::check(&metadata, hdr_len_bytes)?;
            Ok(metadata)
        });
        match result {
            Ok(metadata) => Ok(Self { document, ..metadata }),
            Err(error) => Err(MetadataError { error, mandatory }),
        }
    }

    fn understand(root: &Node<'_>, mandatory: Vec<String>) -> Result<Self, TreeError> {
        let keyslots = entries(root, "keyslots", keyslot)?;
        let tokens = entries(root, "tokens", token)?;
        let segments = entries(root, "segments", segment)?;
        let digests = entries(root, "digests", digest)?;
        let config = config(&root.get("config")?, mandatory)?;
        Ok(Self { keyslots, tokens, segments, digests, config, document: Value::Null })
    }

    /// End of both copies and of the keyslots area.
    pub(crate) fn end_bytes(&self) -> u64 {
        2 * (BINARY_LEN_BYTES + self.config.json_len_bytes) + self.config.keyslots_len_bytes
    }

    /// The digest that links a keyslot to a segment, if the keyslot holds the segment's key. As in
    /// cryptsetup, the first digest that lists the segment counts.
    pub(crate) fn digest_of(&self, keyslot: u32, segment: u32) -> Option<(u32, &Digest)> {
        let (number, digest) =
            self.digests.iter().find(|(_, digest)| digest.segments.contains(&segment))?;
        digest.keyslots.contains(&keyslot).then_some((*number, digest))
    }

    /// Length of the key that a digest verifies: the length in its first usable keyslot, as in
    /// cryptsetup. All its keyslots hold the same key.
    pub(crate) fn key_len_bytes(&self, digest: &Digest) -> Option<u32> {
        let keyslots = digest.keyslots.iter().filter_map(|number| self.keyslots.get(number));
        keyslots.filter(|keyslot| keyslot.body.is_ok()).map(|keyslot| keyslot.key_len_bytes).next()
    }
}

/// Invalid metadata, with its requirements, which may be the reason.
#[derive(Clone, Debug)]
pub(crate) struct MetadataError {
    pub(crate) error: TreeError,
    pub(crate) mandatory: Vec<String>,
}

impl From<TreeError> for MetadataError {
    fn from(error: TreeError) -> Self {
        Self { error, mandatory: Vec::new() }
    }
}

impl MetadataError {
    /// The requirement that explains the error, if there is one.
    pub(crate) fn requirement(&self) -> Option<Requirement> {
        let config = Config {
            json_len_bytes: 0,
            keyslots_len_bytes: 0,
            flags: Vec::new(),
            mandatory: self.mandatory.clone(),
        };
        config.unmet_requirement()
    }
}

fn entries<T>(
    root: &Node<'_>,
    section: &str,
    understand: impl Fn(&Node<'_>) -> Result<T, TreeError>,
) -> Result<BTreeMap<u32, T>, TreeError> {
    let mut map = BTreeMap::new();
    for (key, node) in root.get(section)?.numbered()? {
        match plain_number(key) {
            Some(number) => map.insert(number, understand(&node)?),
            // cryptsetup skips such a token as well.
            None if section == "tokens" => continue,
            None => return Err(node.error("its key is not the plain form of a 32-bit number")),
        };
    }
    Ok(map)
}

fn mandatory(root: &Node<'_>) -> Result<Vec<String>, TreeError> {
    let requirements = match root.find("config")? {
        Some(config) => config.find("requirements")?,
        None => None,
    };
    match requirements {
        Some(requirements) => requirements.find("mandatory")?.map_or(Ok(Vec::new()), |m| m.names()),
        None => Ok(Vec::new()),
    }
}

fn keyslot(node: &Node<'_>) -> Result<Keyslot, TreeError> {
    let form = TreeError::of_form;
    let kind = node.get("type")?.name()?.to_owned();
    let key_len_bytes = node.get("key_size")?.u32().map_err(form)?;
    let area_node = node.get("area")?;
    let area = Area {
        kind: area_node.get("type")?.name()?.to_owned(),
        // cryptsetup reads and writes areas in whole sectors.
        offset_bytes: area_node.get("offset")?.u64_text().map_err(form)? & !511,
        len_bytes: area_node.get("size")?.u64_text().map_err(form)?,
    };
    let understood = || -> Result<(Priority, KeyslotBody), TreeError> {
        let body = keyslot_body(node, &area_node)?;
        check_key_len(&node.get("key_size")?)?;
        check_area_len(&area_node, &area, key_len_bytes)?;
        Ok((priority(node)?, body))
    };
    let (priority, body) = match kind.as_str() {
        "luks2" => match understood() {
            Ok((priority, body)) => (priority, Ok(body)),
            Err(error) if error.breaks_form => return Err(error),
            Err(error) => (Priority::Ignore, Err(within(node, &error))),
        },
        _ => (priority(node)?, Err(format!("its type \"{kind}\" holds no key of the volume"))),
    };
    Ok(Keyslot { kind, key_len_bytes, priority, area, body })
}

/// The error text relative to `node`.
fn within(node: &Node<'_>, error: &TreeError) -> String {
    let path = error.path.strip_prefix(node.path()).unwrap_or(&error.path);
    format!("{}: {}", path.trim_start_matches('.'), error.problem)
}

fn priority(node: &Node<'_>) -> Result<Priority, TreeError> {
    let Some(priority) = node.find("priority")? else {
        return Ok(Priority::Normal);
    };
    match priority.u32()? {
        0 => Ok(Priority::Ignore),
        1 => Ok(Priority::Normal),
        2 => Ok(Priority::Prefer),
        other => Err(priority.error(format!("{other} is not 0, 1 or 2"))),
    }
}

fn check_key_len(node: &Node<'_>) -> Result<u32, TreeError> {
    match node.u32()? {
        len @ 1..=KEY_LEN_MAX_BYTES => Ok(len),
        other => Err(node.error(format!("{other} is not in 1 to {KEY_LEN_MAX_BYTES}"))),
    }
}

fn check_area_len(node: &Node<'_>, area: &Area, key_len_bytes: u32) -> Result<(), TreeError> {
    let needed = af::material_len_bytes(key_len_bytes as usize) as u64;
    if area.len_bytes < needed {
        return Err(node.error(format!(
            "its size is {} bytes; the split of a key of {key_len_bytes} bytes needs {needed}",
            area.len_bytes
        )));
    }
    Ok(())
}

fn keyslot_body(node: &Node<'_>, area: &Node<'_>) -> Result<KeyslotBody, TreeError> {
    let (kdf, salt) = kdf(&node.get("kdf")?)?;
    let af = node.get("af")?;
    let af_kind = af.get("type")?;
    if af_kind.name()? != "luks1" {
        return Err(af_kind.error(format!("\"{}\" is not luks1", af_kind.name()?)).of_form());
    }
    let stripes = af.get("stripes")?;
    if stripes.u32()? != af::STRIPES {
        return Err(stripes.error(format!("it is {}, must be {}", stripes.u32()?, af::STRIPES)));
    }
    let area_kind = area.get("type")?;
    if area_kind.name()? != "raw" {
        return Err(area_kind.error(format!("\"{}\" is not raw", area_kind.name()?)).of_form());
    }
    Ok(KeyslotBody {
        kdf,
        salt,
        af_hash: af.get("hash")?.name()?.to_owned(),
        encryption: area.get("encryption")?.name()?.to_owned(),
        area_key_len_bytes: check_key_len(&area.get("key_size")?)?,
    })
}

fn kdf(node: &Node<'_>) -> Result<(KdfSpec, Vec<u8>), TreeError> {
    let kind = node.get("type")?.name()?.to_owned();
    let spec = match kind.as_str() {
        "pbkdf2" => KdfSpec::Pbkdf2 {
            hash: node.get("hash")?.name()?.to_owned(),
            iterations: node.get("iterations")?.u32()?,
        },
        "argon2i" | "argon2id" => KdfSpec::Argon2 {
            time: node.get("time")?.u32()?,
            memory_kib: node.get("memory")?.u32()?,
            lanes: node.get("cpus")?.u32()?,
            kind,
        },
        _ => return Ok((KdfSpec::Unknown { kind }, Vec::new())),
    };
    Ok((spec, salt(&node.get("salt")?)?))
}

fn salt(node: &Node<'_>) -> Result<Vec<u8>, TreeError> {
    let salt = node.base64()?;
    if salt.len() != SALT_LEN_BYTES {
        return Err(node.error(format!("it has {} bytes, must have {SALT_LEN_BYTES}", salt.len())));
    }
    Ok(salt)
}

fn token(node: &Node<'_>) -> Result<Token, TreeError> {
    Ok(Token {
        kind: node.get("type")?.name()?.to_owned(),
        keyslots: references(&node.get("keyslots")?)?,
    })
}

/// An array of numbers as strings.
fn references(node: &Node<'_>) -> Result<BTreeSet<u32>, TreeError> {
    let number = |element: &Node<'_>| {
        plain_number(element.text()?).ok_or_else(|| element.error("it is not a number"))
    };
    node.array()?.iter().map(number).collect()
}

fn segment(node: &Node<'_>) -> Result<Segment, TreeError> {
    let kind = node.get("type")?.name()?.to_owned();
    let size = node.get("size")?;
    let len_bytes = match size.text()? {
        "dynamic" => None,
        _ => Some(size.u64_text()?),
    };
    let offset = node.get("offset")?;
    let offset_bytes = offset.u64_text()?;
    if !offset_bytes.is_multiple_of(512) {
        return Err(offset.error(format!("{offset_bytes} is not a multiple of 512")));
    }
    if len_bytes.is_some_and(|len| len == 0 || !len.is_multiple_of(512)) {
        return Err(size.error("it is not \"dynamic\" or a positive multiple of 512"));
    }
    let flags = node.find("flags")?.map_or(Ok(Vec::new()), |flags| flags.names())?;
    let crypt = if kind == "crypt" { Some(crypt_segment(node)?) } else { None };
    if let (Some(crypt), Some(len)) = (&crypt, len_bytes)
        && !len.is_multiple_of(u64::from(crypt.sector_size_bytes))
    {
        return Err(size.error(format!(
            "{len} is not a multiple of the sector size {}",
            crypt.sector_size_bytes
        )));
    }
    Ok(Segment { kind, offset_bytes, len_bytes, flags, crypt })
}

fn crypt_segment(node: &Node<'_>) -> Result<CryptSegment, TreeError> {
    let sector_size = node.get("sector_size")?;
    let sector_size_bytes = sector_size.u32()?;
    if sector_size_bytes == 0 {
        return Err(sector_size.error("it is 0"));
    }
    let iv_tweak = node.get("iv_tweak")?.u64_text()?;
    let integrity = match node.find("integrity")? {
        Some(integrity) => Some(integrity.get("type")?.name()?.to_owned()),
        None => None,
    };
    let encryption = node.get("encryption")?.name()?.to_owned();
    Ok(CryptSegment { encryption, sector_size_bytes, iv_tweak, integrity })
}

fn digest(node: &Node<'_>) -> Result<Digest, TreeError> {
    let kind = node.get("type")?.name()?.to_owned();
    let body = match kind.as_str() {
        "pbkdf2" => pbkdf2_digest(node).map_err(|error| within(node, &error)),
        _ => Err(format!("its type \"{kind}\" is not known")),
    };
    Ok(Digest {
        kind,
        keyslots: references(&node.get("keyslots")?)?,
        segments: references(&node.get("segments")?)?,
        body,
    })
}

fn pbkdf2_digest(node: &Node<'_>) -> Result<Pbkdf2Digest, TreeError> {
    let value = node.get("digest")?;
    let digest = value.base64()?;
    if !DIGEST_LEN_BYTES.contains(&digest.len()) {
        return Err(value.error(format!("it has {} bytes, must have 20 to 64", digest.len())));
    }
    Ok(Pbkdf2Digest {
        hash: node.get("hash")?.name()?.to_owned(),
        iterations: node.get("iterations")?.u32()?,
        salt: salt(&node.get("salt")?)?,
        digest,
    })
}

fn config(node: &Node<'_>, mandatory: Vec<String>) -> Result<Config, TreeError> {
    Ok(Config {
        json_len_bytes: node.get("json_size")?.u64_text()?,
        keyslots_len_bytes: node.get("keyslots_size")?.u64_text()?,
        flags: node.find("flags")?.map_or(Ok(Vec::new()), |flags| flags.names())?,
        mandatory,
    })
}
