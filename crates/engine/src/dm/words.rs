//! Words of a table line: numbers, ranges of devices, announced lists. Every target's parser uses
//! them, so that the same mistake has the same error.

use alloc::format;
use alloc::string::String;
use core::fmt;

use super::DeviceArea;
use crate::bio::Sector;

/// Hex digits in succession that may be a key: 64 bits. The shortest key of a cipher has 32 digits,
/// and a mistyped one is in two runs. The longest run in a UUID has 12.
const KEY_DIGITS_MIN: usize = 16;

/// Parses a number; `what` names it in the error.
///
/// # Errors
/// When the word is not a number below 2^64.
pub fn number(word: &str, what: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("{what} `{}` is not a number", shown(word)))
}

/// Parses a range of `len` sectors on a device.
///
/// # Errors
/// When the start is not a number, or the range ends after 2^64 bytes.
pub fn device_area(device: &str, start: &str, len: u64) -> Result<DeviceArea<String>, String> {
    let start = number(start, "start sector on the device")?;
    if start.checked_add(len).is_none_or(|end| end > u64::MAX >> 9) {
        return Err(format!("{len} sectors from {start} on would end after 2^64 bytes"));
    }
    Ok(DeviceArea { dev: device.into(), start: Sector(start) })
}

/// Parses a sector size in bytes; `what` names it in the error.
///
/// # Errors
/// When it is none of the sizes that the block layer knows.
pub fn sector_size(word: &str, what: &str) -> Result<u32, String> {
    match number(word, what)? {
        size @ (512 | 1024 | 2048 | 4096) => Ok(size as u32),
        size => Err(format!("{what} {size} is none of 512, 1024, 2048 and 4096")),
    }
}

/// Takes the words of an optional list `[<#words> <word>...]` at the end of a line; `what` names
/// the words in the errors.
///
/// # Errors
/// When the announced number is not the number of words.
pub fn announced<'a, 'w>(words: &'a [&'w str], what: &str) -> Result<&'a [&'w str], String> {
    let [count, words @ ..] = words else {
        return Ok(&[]);
    };
    if number(count, &format!("number of {what}"))? != words.len() as u64 {
        return Err(format!("it announces {count} {what}, but has {}", words.len()));
    }
    Ok(words)
}

/// Writes such a list; nothing if there are no words.
///
/// # Errors
/// Errors of `out`.
pub fn write_announced(words: &[String], out: &mut dyn fmt::Write) -> fmt::Result {
    if words.is_empty() {
        return Ok(());
    }
    write!(out, " {}", words.len())?;
    words.iter().try_for_each(|word| write!(out, " {word}"))
}

/// Checks that a target without arguments has none.
///
/// # Errors
/// When there is an argument.
pub fn none(args: &[&str]) -> Result<(), String> {
    match args {
        [] => Ok(()),
        _ => Err("this target takes no arguments".into()),
    }
}

/// Untrusted text for an error: short, without control characters, and never a key
/// ([`may_be_key`]).
#[must_use]
pub fn shown(text: &str) -> String {
    if may_be_key(text) {
        return "(hidden, it may be a key)".into();
    }
    text.chars().take(32).flat_map(char::escape_default).collect()
}

/// Whether a word may be key material in a wrong place: it has 16 or more hex digits in
/// succession, or the colons of a key in the kernel's keyring, `:<size>:<type>:<description>`. A
/// path may have as many colons.
#[must_use]
pub fn may_be_key(text: &str) -> bool {
    let mut runs = text.split(|c: char| !c.is_ascii_hexdigit());
    let is_path = text.contains('/') && !text.starts_with(':');
    let is_in_keyring = text.matches(':').count() >= 3 && !is_path;
    is_in_keyring || runs.any(|run| run.len() >= KEY_DIGITS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_may_be_keys_are_not_shown() {
        for key in ["0123456789abcdef", "zz00112233445566FFx", ":32:logon:a/b", "x::32:user:a"] {
            assert!(may_be_key(key) && !shown(key).contains(key), "{key}");
        }
        let uuid = "/dev/disk/by-uuid/0f7c2a9e-1b7d-4c2e-9a55-30f1c2d3e4f5";
        for word in
            ["0123456789abcde", "aes-xts-plain64", "/a:b:c:d", "capi:xts(aes)-plain64", uuid]
        {
            assert!(!may_be_key(word), "{word}");
        }
        assert_eq!(shown("a\nb"), "a\\nb");
    }
}
