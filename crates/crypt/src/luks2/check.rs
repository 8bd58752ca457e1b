//! Rules between the parts of LUKS2 metadata: references, areas, segments, sizes.
//!
//! The rules are the specification's and cryptsetup's, and no others: a header that cryptsetup
//! opens passes. They ensure that a keyslot area lies clear of the header copies, the data and
//! other areas, and that no sum of untrusted numbers wraps around.

use super::metadata::{BINARY_LEN_BYTES, KEYSLOTS_LEN_MAX_BYTES, Metadata};
use super::tree::TreeError;

/// Checks all rules that concern several fields.
pub(crate) fn check(metadata: &Metadata, hdr_len_bytes: u64) -> Result<(), TreeError> {
    check_references(metadata)?;
    check_segments(metadata)?;
    check_config(metadata, hdr_len_bytes)?;
    check_areas(metadata, hdr_len_bytes)
}

/// Digests and tokens refer to existing objects, every crypt segment has a digest, and every
/// keyslot of type `luks2` has exactly one.
fn check_references(metadata: &Metadata) -> Result<(), TreeError> {
    for (number, token) in &metadata.tokens {
        let missing = token.keyslots.iter().find(|slot| !metadata.keyslots.contains_key(slot));
        if let Some(slot) = missing {
            return Err(missing_error(format!("tokens.{number}.keyslots"), "keyslot", *slot));
        }
    }
    for (number, digest) in &metadata.digests {
        let missing = digest.keyslots.iter().find(|slot| !metadata.keyslots.contains_key(slot));
        if let Some(slot) = missing {
            return Err(missing_error(format!("digests.{number}.keyslots"), "keyslot", *slot));
        }
        let missing = digest.segments.iter().find(|n| !metadata.segments.contains_key(n));
        if let Some(segment) = missing {
            return Err(missing_error(format!("digests.{number}.segments"), "segment", *segment));
        }
    }
    for (number, keyslot) in &metadata.keyslots {
        let digests = metadata.digests.values().filter(|digest| digest.keyslots.contains(number));
        let problem = match digests.count() {
            0 => "no digest belongs to it, so its key could not be verified",
            1 => continue,
            _ => "several digests belong to it, so its key is ambiguous",
        };
        if keyslot.kind == "luks2" {
            return Err(TreeError::new(format!("keyslots.{number}"), problem));
        }
    }
    for (number, segment) in &metadata.segments {
        let has_digest = metadata.digests.values().any(|digest| digest.segments.contains(number));
        if segment.crypt.is_some() && !has_digest {
            return Err(TreeError::new(
                format!("segments.{number}"),
                "no digest belongs to it, so its key could not be verified",
            ));
        }
    }
    Ok(())
}

fn missing_error(path: String, what: &str, number: u32) -> TreeError {
    TreeError::new(path, format!("there is no {what} {number}"))
}

/// Segments are numbered without gaps, backups come last, and the others do not overlap.
fn check_segments(metadata: &Metadata) -> Result<(), TreeError> {
    let segments = &metadata.segments;
    if segments.is_empty() {
        return Err(TreeError::new("segments", "there is no segment"));
    }
    for (expected, number) in (0u32..).zip(segments.keys()) {
        if expected != *number {
            return Err(TreeError::new("segments", format!("segment {expected} is missing")));
        }
    }
    let regular_count = segments.values().take_while(|segment| !segment.is_backup()).count();
    if regular_count == 0 {
        return Err(TreeError::new("segments", "there are only backups of segments"));
    }
    if let Some((number, _)) =
        segments.iter().skip(regular_count).find(|(_, segment)| !segment.is_backup())
    {
        return Err(TreeError::new(
            format!("segments.{number}"),
            "it stands behind a backup of a segment",
        ));
    }
    // (start, end, number); a dynamic segment has the greatest end.
    let mut extents = Vec::new();
    for (number, segment) in segments.iter().take(regular_count) {
        let end = match segment.len_bytes {
            None if *number as usize + 1 != regular_count => {
                return Err(TreeError::new(
                    format!("segments.{number}"),
                    "only the last segment may be \"dynamic\"",
                ));
            }
            None => u64::MAX,
            // Longer than any device; opening the volume detects that.
            Some(len) => segment.offset_bytes.saturating_add(len),
        };
        extents.push((segment.offset_bytes, end, *number));
    }
    match overlap(&mut extents) {
        Some((a, b)) => Err(TreeError::new("segments", format!("{a} and {b} overlap"))),
        None => Ok(()),
    }
}

/// The sizes in `config` agree with the binary header and with the start of the data.
fn check_config(metadata: &Metadata, hdr_len_bytes: u64) -> Result<(), TreeError> {
    let config = &metadata.config;
    if config.json_len_bytes.checked_add(BINARY_LEN_BYTES) != Some(hdr_len_bytes) {
        return Err(TreeError::new(
            "config.json_size",
            format!(
                "it is {}, but a header of {hdr_len_bytes} bytes has a JSON area of {}",
                config.json_len_bytes,
                hdr_len_bytes - BINARY_LEN_BYTES
            ),
        ));
    }
    let keyslots_len = config.keyslots_len_bytes;
    if !keyslots_len.is_multiple_of(4096) || keyslots_len > KEYSLOTS_LEN_MAX_BYTES {
        return Err(TreeError::new(
            "config.keyslots_size",
            format!("{keyslots_len} is not a multiple of 4096 up to {KEYSLOTS_LEN_MAX_BYTES}"),
        ));
    }
    let data_start = metadata.segments.values().map(|segment| segment.offset_bytes).min();
    // 0: a detached header.
    let data_start = data_start.filter(|start| *start != 0);
    if data_start.is_some_and(|start| start < 2 * hdr_len_bytes + keyslots_len) {
        return Err(TreeError::new(
            "config.keyslots_size",
            format!("headers and {keyslots_len} bytes of keyslots reach into the data"),
        ));
    }
    Ok(())
}

/// Keyslot areas lie between the header copies and the end of the keyslots area, without overlaps.
fn check_areas(metadata: &Metadata, hdr_len_bytes: u64) -> Result<(), TreeError> {
    let areas_start = 2 * hdr_len_bytes;
    let areas_end = areas_start + metadata.config.keyslots_len_bytes;
    let mut extents = Vec::new();
    for (number, keyslot) in &metadata.keyslots {
        let error = |problem: String| TreeError::new(format!("keyslots.{number}.area"), problem);
        let start = keyslot.area.offset_bytes;
        let len = keyslot.area.len_bytes;
        let end = start.checked_add(len).ok_or_else(|| {
            error("its offset and size add up to more than 2^64 bytes".to_owned())
        })?;
        if len == 0 {
            return Err(error("it is empty".to_owned()));
        }
        if start < areas_start || end > areas_end {
            return Err(error(format!(
                "bytes {start} to {end} are not inside the keyslots area, {areas_start} to \
                 {areas_end}"
            )));
        }
        extents.push((start, end, *number));
    }
    match overlap(&mut extents) {
        Some((a, b)) => {
            Err(TreeError::new("keyslots", format!("the areas of keyslots {a} and {b} overlap")))
        }
        None => Ok(()),
    }
}

/// Finds two overlapping extents (start, end, number). Sorts the extents.
fn overlap(extents: &mut [(u64, u64, u32)]) -> Option<(u32, u32)> {
    extents.sort_unstable();
    extents
        .windows(2)
        .find(|pair| pair[0].1 > pair[1].0)
        .map(|pair| (pair[0].2.min(pair[1].2), pair[0].2.max(pair[1].2)))
}
