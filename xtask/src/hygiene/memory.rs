//! Search of another process's memory: `/proc/PID/smaps` for the mappings, `/proc/PID/mem` for
//! their content.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Bytes per read; reads overlap, so that a needle is never split.
const STEP_BYTES: usize = 4 << 20;

/// An unwritten page.
const ZEROS: [u8; 4096] = [0; 4096];

/// Bytes to search.
pub(crate) struct Needle {
    pub(crate) what: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Needle {
    pub(crate) fn new(what: &'static str, bytes: &[u8]) -> Needle {
        Needle { what, bytes: bytes.to_vec() }
    }
}

/// A place of a needle.
pub(crate) struct Hit {
    pub(crate) what: &'static str,
    address: u64,
    mapping: String,
    flags: String,
}

impl Hit {
    /// Whether the mapping is locked (`lo`), so that it never reaches swap, and left out of core
    /// dumps (`dd`).
    pub(crate) fn is_guarded(&self) -> bool {
        let has = |flag| self.flags.split_whitespace().any(|word| word == flag);
        has("lo") && has("dd")
    }
}

/// The first few hits, for an error.
pub(crate) fn list(hits: &[Hit]) -> String {
    let shown = hits.iter().take(4).map(|hit| {
        format!("{} at {:#x} in {} ({})", hit.what, hit.address, hit.mapping, hit.flags)
    });
    shown.collect::<Vec<_>>().join("; ")
}

struct Mapping {
    start: u64,
    end: u64,
    name: String,
    flags: String,
}

fn mappings(pid: u32) -> Result<Vec<Mapping>> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps"))
        .with_context(|| format!("/proc/{pid}/smaps"))?;
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) =
                (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            let name = words.nth(4).unwrap_or("anonymous memory").to_owned();
            all.push(Mapping { start, end, name, flags: String::new() });
        } else if first == "VmFlags:"
            && let Some(mapping) = all.last_mut()
        {
            mapping.flags = words.collect::<Vec<_>>().join(" ");
        }
    }
    Ok(all)
}

/// Searches all readable memory except mapped volumes, which are files.
pub(crate) fn scan(pid: u32, needles: &[Needle]) -> Result<Vec<Hit>> {
    let memory = File::open(format!("/proc/{pid}/mem")).context("the process's memory")?;
    let overlap = needles.iter().map(|needle| needle.bytes.len()).max().unwrap_or(1);
    let mut hits = Vec::new();
    let mut buffer = vec![0; STEP_BYTES + overlap];
    for mapping in mappings(pid)? {
        if mapping.name.starts_with("[v") || mapping.name.ends_with(".img") {
            continue;
        }
        let mut at = mapping.start;
        while at < mapping.end {
            let left = usize::try_from(mapping.end - at)?;
            let part = &mut buffer[..left.min(STEP_BYTES + overlap)];
            // Guard pages cannot be read, and hold nothing.
            if memory.read_exact_at(part, at).is_ok() {
                hits.extend(search(part, needles).into_iter().map(|(what, offset)| Hit {
                    what,
                    address: at + offset as u64,
                    mapping: mapping.name.clone(),
                    flags: mapping.flags.clone(),
                }));
            }
            at += STEP_BYTES as u64;
        }
    }
    Ok(hits)
}

/// Finds all places of all needles in one pass, because there may be thousands of needles.
pub(crate) fn search(bytes: &[u8], needles: &[Needle]) -> Vec<(&'static str, usize)> {
    let mut beginning: [Vec<&Needle>; 256] = std::array::from_fn(|_| Vec::new());
    for needle in needles {
        beginning[usize::from(needle.bytes[0])].push(needle);
    }
    let longest = needles.iter().map(|needle| needle.bytes.len()).max().unwrap_or(0);
    let mut found = Vec::new();
    for start in (0..bytes.len()).step_by(ZEROS.len()) {
        let page = &bytes[start..bytes.len().min(start + ZEROS.len())];
        // Most pages are zeroes: a needle can begin only at their end.
        let is_zeros = page == &ZEROS[..page.len()];
        let skipped = if is_zeros { page.len().saturating_sub(longest) } else { 0 };
        for at in start + skipped..start + page.len() {
            for needle in &beginning[usize::from(bytes[at])] {
                if bytes[at..].starts_with(&needle.bytes) {
                    found.push((needle.what, at));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_finds_every_place_and_no_other() {
        let needles = [Needle::new("key", b"abc"), Needle::new("text", b"cd")];
        let found = search(b"ababcdab.abc", &needles);
        assert_eq!(found, [("key", 2), ("text", 4), ("key", 9)]);
    }

    #[test]
    fn needle_that_begins_in_zeros_is_found() {
        let needles = [Needle::new("key", b"\0\0ab"), Needle::new("text", b"cd")];
        let mut bytes = vec![0; 3 * ZEROS.len()];
        bytes[2 * ZEROS.len()..][..4].copy_from_slice(b"abcd");
        let place = 2 * ZEROS.len();
        assert_eq!(search(&bytes, &needles), [("key", place - 2), ("text", place + 2)]);
    }
}
