//! A LUKS2 header as text and JSON. No salts, no digests, no token contents.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value, json};

use crate::cipher::CipherSpec;

use super::header::shown_label;
use super::metadata::{KdfSpec, Keyslot, Priority, Segment};
use super::{Digest, Header};

impl Header {
    /// The label, with non-printable characters escaped.
    fn label(&self) -> String {
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

    /// The header as JSON.
    #[must_use]
    pub fn info(&self) -> Value {
        let config = &self.metadata.config;
        let keyslots: Map<String, Value> = self
            .metadata
            .keyslots
            .iter()
            .map(|(number, keyslot)| {
                (number.to_string(), keyslot_json(keyslot, self.is_unbound(*number)))
            })
            .collect();
        json!({
            "type": "luks2",
            "uuid": self.binary.uuid,
            "label": self.label(),
            "subsystem": self.subsystem(),
            "seqid": self.binary.seqid,
            "metadata_area_bytes": self.binary.hdr_len_bytes,
            "keyslots_area_bytes": config.keyslots_len_bytes,
            "flags": config.flags,
            "requirements": config.mandatory,
            "segments": map_json(&self.metadata.segments, segment_json),
            "keyslots": keyslots,
            "tokens": map_json(&self.metadata.tokens, |token| {
                json!({ "type": token.kind, "keyslots": token.keyslots })
            }),
            "digests": map_json(&self.metadata.digests, digest_json),
        })
    }
}

fn map_json<T>(
    map: &std::collections::BTreeMap<u32, T>,
    value: impl Fn(&T) -> Value,
) -> Map<String, Value> {
    map.iter().map(|(number, entry)| (number.to_string(), value(entry))).collect()
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

fn keyslot_json(keyslot: &Keyslot, unbound: bool) -> Value {
    let mut value = json!({
        "type": keyslot.kind,
        "unbound": unbound,
        "priority": priority_name(keyslot.priority),
        "key_size_bits": u64::from(keyslot.key_len_bytes) * 8,
        "problem": problem(keyslot),
        "area": {
            "type": keyslot.area.kind,
            "offset_bytes": keyslot.area.offset_bytes,
            "len_bytes": keyslot.area.len_bytes,
        },
    });
    if let Ok(body) = &keyslot.body {
        value["kdf"] = match &body.kdf {
            KdfSpec::Pbkdf2 { hash, iterations } => {
                json!({ "type": "pbkdf2", "hash": hash, "iterations": iterations })
            }
            KdfSpec::Argon2 { kind, time, memory_kib, lanes } => {
                json!({ "type": kind, "time": time, "memory_kib": memory_kib, "cpus": lanes })
            }
            KdfSpec::Unknown { kind } => json!({ "type": kind }),
        };
        value["af"] = json!({ "hash": body.af_hash, "stripes": crate::af::STRIPES });
        value["area"]["cipher"] = json!(body.encryption);
        value["area"]["cipher_table_based"] =
            json!(CipherSpec::text_is_table_based(&body.encryption));
        value["area"]["key_size_bits"] = json!(body.area_key_len_bytes * 8);
    }
    value
}

fn segment_json(segment: &Segment) -> Value {
    let mut value = json!({
        "type": segment.kind,
        "offset_bytes": segment.offset_bytes,
        "len_bytes": segment.len_bytes,
        "flags": segment.flags,
    });
    if let Some(crypt) = &segment.crypt {
        value["cipher"] = json!(crypt.encryption);
        value["cipher_table_based"] = json!(CipherSpec::text_is_table_based(&crypt.encryption));
        value["sector_size_bytes"] = json!(crypt.sector_size_bytes);
        value["iv_tweak"] = json!(crypt.iv_tweak);
        value["integrity"] = json!(crypt.integrity);
    }
    value
}

fn digest_json(digest: &Digest) -> Value {
    let mut value = json!({
        "type": digest.kind,
        "keyslots": digest.keyslots,
        "segments": digest.segments,
    });
    match &digest.body {
        Ok(pbkdf2) => {
            value["hash"] = json!(pbkdf2.hash);
            value["iterations"] = json!(pbkdf2.iterations);
        }
        Err(problem) => value["problem"] = json!(problem),
    }
    value
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
        writeln!(f, "UUID:          {}", or_none(&self.binary.uuid))?;
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
