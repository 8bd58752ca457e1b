//! The text of a dm table, as `dmsetup table --showkeys` prints it.
//!
//! ```text
//! <start> <len> linear <dev> <start>
//! <start> <len> zero
//! <start> <len> error
//! <start> <len> ram
//! <start> <len> null [<#opt> <opt>...]
//! <start> <len> loop <file> <start>
//! <start> <len> striped <#devs> <chunk> [<dev> <start>]...
//! <start> <len> delay <dev> <start> <ms> [<dev> <start> <ms> [<dev> <start> <ms>]]
//! <start> <len> flakey <dev> <start> <up s> <down s> [<#words> <feature>...]
//! <start> <len> log-writes <dev> <log dev>
//! <start> <len> multipath <#features> [<feature>...] 0 <#groups> <initial group> <group>...
//! <start> <len> crypt <cipher> <key> <iv_offset> <dev> <start> [<#opt> <opt>...]
//! ```
//! Lines of several devices begin with the device's name, as `dmsetup table` without a name prints
//! them. A device may be `/dev/mapper/<name>` of an earlier one. The last device is the one that
//! the table maps:
//!
//! ```text
//! memory: 0 2048 ram
//! secret: 0 2048 crypt aes-xts-plain64 <key> 0 /dev/mapper/memory 0
//! ```
//! Sectors are 512 bytes. Source: `Documentation/admin-guide/device-mapper/`, `crypt_ctr` of
//! `drivers/md/dm-crypt.c`. `#` comments are allowed. Keys in the kernel's keyring (`:64:logon:…`)
//! cannot be read, so they are refused. [`MappedDevice::write`] is the inverse.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use blockyard_crypt::params::{CryptFlags, CryptParams};
use blockyard_crypt::secret::SecretBytes;

use super::delay::DelaySpec;
use super::flakey::FlakeySpec;
use super::multipath::line::MultipathSpec;
use super::null::NullOptions;
use super::striped::StripedSpec;
use super::{Leg, delay, flakey, log_writes, multipath, null, striped};
use crate::bio::Sector;

mod text;

pub use text::Keys;

/// Greatest number of lines of a table.
pub const LINES_MAX: usize = 256;

/// Greatest number of a key's digits. The longest keys are those of lmk: 65 of 32 bytes, 4160
/// digits.
const KEY_DIGITS_MAX: usize = 8192;

/// Folder of the kernel's nodes of mapped devices.
pub const MAPPER_FOLDER: &str = "/dev/mapper/";

/// A mapped device and its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedDevice {
    /// Name; empty in a table of one unnamed device.
    pub name: String,
    /// Its lines, which follow each other from sector zero without gaps.
    pub lines: Vec<Line>,
}

impl MappedDevice {
    /// Length in sectors.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.lines.last().map_or(0, |last| last.start + last.len)
    }

    /// Always false: a device has a line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// A line with device names and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// First sector on the mapped device.
    pub start: u64,
    /// Length in sectors.
    pub len: u64,
    /// The target and its arguments.
    pub target: LineTarget,
}

/// Target and arguments of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineTarget {
    /// `linear`.
    Linear {
        /// Path of the device or file.
        device: String,
        /// Start of the range on the device.
        start: u64,
    },
    /// `zero`.
    Zero,
    /// `error`.
    Error,
    /// `ram`.
    Ram,
    /// `null`.
    Null(NullOptions),
    /// `loop`.
    Loop(Leg<String>),
    /// `striped`.
    Striped(StripedSpec<String>),
    /// `delay`.
    Delay(DelaySpec<String>),
    /// `flakey`.
    Flakey(FlakeySpec<String>),
    /// `log-writes`.
    LogWrites {
        /// Path of the device or file.
        device: String,
        /// Path of the device or file for the log.
        log: String,
    },
    /// `multipath`.
    Multipath(MultipathSpec),
    /// `crypt`.
    Crypt {
        /// Path of the device or file.
        device: String,
        /// All other arguments; `len_sectors` is the line's.
        params: CryptParams,
    },
}

impl LineTarget {
    /// The paths of the line's devices, with repetitions.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        let (few, legs): ([Option<&String>; 3], &[Leg<String>]) = match self {
            Self::Zero | Self::Error | Self::Ram | Self::Null(_) => ([None; 3], &[]),
            Self::Linear { device, .. } | Self::Crypt { device, .. } => {
                ([Some(device), None, None], &[])
            }
            Self::Loop(leg) => ([Some(&leg.dev), None, None], &[]),
            Self::Striped(spec) => ([None; 3], &spec.legs),
            Self::Delay(DelaySpec { read, write, flush }) => {
                ([read, write, flush].map(|delayed| Some(&delayed.leg.dev)), &[])
            }
            Self::Flakey(spec) => ([Some(&spec.leg.dev), None, None], &[]),
            Self::LogWrites { device, log } => ([Some(device), Some(log), None], &[]),
            Self::Multipath(_) => ([None; 3], &[]),
        };
        let multipath = if let Self::Multipath(spec) = self { Some(spec) } else { None };
        let paths = multipath.into_iter().flat_map(MultipathSpec::paths).map(|path| &path.device);
        let legs = legs.iter().map(|leg| &leg.dev);
        few.into_iter().flatten().chain(legs).chain(paths).map(String::as_str)
    }
}

/// An error in a table, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", place(*.line))]
pub struct TableError {
    /// Line number, counted from one; zero: the table as a whole.
    pub line: usize,
    /// The problem as text. Never contains a key.
    pub problem: String,
}

/// The text of a table from bytes.
///
/// # Errors
/// When the bytes are not text.
pub fn text_of(bytes: &SecretBytes) -> Result<&str, TableError> {
    core::str::from_utf8(bytes.as_slice())
        .map_err(|_| TableError { line: 0, problem: "the table is not UTF-8 text".into() })
}

fn place(line: usize) -> String {
    if line == 0 { "table: ".into() } else { format!("table line {line}: ") }
}

/// Parses the tables of one or several devices. The last one is on top; a later device must name
/// each of the others.
///
/// # Errors
/// The first wrong line.
pub fn parse(text: &str) -> Result<Vec<MappedDevice>, TableError> {
    let mut mappings: Vec<MappedDevice> = Vec::new();
    let mut count = 0;
    for (index, text) in text.lines().enumerate() {
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        count += 1;
        let limit = format!("more than {LINES_MAX} lines");
        let added = if count > LINES_MAX { Err(limit) } else { add_line(text, &mut mappings) };
        added.map_err(|problem| TableError { line: index + 1, problem })?;
    }
    let whole = |problem| TableError { line: 0, problem };
    let Some((_, below)) = mappings.split_last() else {
        let problem = "the table is empty; expected lines like `0 2048 linear /path 0`";
        return Err(whole(problem.into()));
    };
    for (at, mapping) in below.iter().enumerate() {
        let is_it = |device: &str| device.strip_prefix(MAPPER_FOLDER) == Some(&mapping.name);
        let mut above = mappings[at + 1..].iter().flat_map(|mapping| &mapping.lines);
        if mapping.name.is_empty() || !above.any(|line| line.target.devices().any(is_it)) {
            return Err(whole(format!(
                "nothing after device `{}` names {MAPPER_FOLDER}{0}, and only the last device is \
                 on top",
                shown(&mapping.name)
            )));
        }
    }
    Ok(mappings)
}

fn add_line(text: &str, mappings: &mut Vec<MappedDevice>) -> Result<(), String> {
    let (name, text) = named(text);
    let line = parse_line(text)?;
    let is_open = |last: &MappedDevice| name.is_none_or(|name| name == last.name);
    if !mappings.last().is_some_and(is_open) {
        let name = name.unwrap_or_default();
        if mappings.iter().any(|mapping| mapping.name == name) {
            return Err(format!(
                "the lines of device `{}` are in two places; put them together",
                shown(name)
            ));
        }
        mappings.push(MappedDevice { name: name.into(), lines: Vec::new() });
    }
    let mapping = mappings.last_mut().expect("there is one now");
    follows(&line, mapping.len())?;
    mapping.lines.push(line);
    Ok(())
}

/// Splits a line into its device name and the rest.
fn named(text: &str) -> (Option<&str>, &str) {
    let (word, rest) = text.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((text, ""));
    match word.strip_suffix(':') {
        Some(name) if !name.is_empty() => (Some(name), rest),
        _ => (None, text),
    }
}

fn follows(line: &Line, end: u64) -> Result<(), String> {
    if line.start != end {
        return Err(format!(
            "it starts at sector {}, but the lines before it end at {end}; lines follow each other \
             without gaps",
            line.start
        ));
    }
    let next = line.start.checked_add(line.len).filter(|next| *next <= u64::MAX >> 9);
    next.map(drop).ok_or_else(|| "start and length together exceed 2^64 bytes".into())
}

fn parse_line(text: &str) -> Result<Line, String> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [start, len, target, args @ ..] = words.as_slice() else {
        return Err("expected `<start> <length> <target> <arguments>`".into());
    };
    let start = number(start, "start sector")?;
    let len = number(len, "length in sectors")?;
    if len == 0 {
        return Err("its length is zero sectors".into());
    }
    let target = match (*target, args) {
        ("linear", [device, start]) => LineTarget::Linear {
            device: (*device).into(),
            start: number(start, "start sector on the device")?,
        },
        ("linear", _) => return Err("linear takes `<device> <start>`".into()),
        ("zero", []) => LineTarget::Zero,
        ("error", []) => LineTarget::Error,
        ("ram", []) => LineTarget::Ram,
        ("zero" | "error" | "ram", _) => return Err("this target takes no arguments".into()),
        ("null", args) => null::parse(args, start, len)?,
        ("loop", [device, start]) => LineTarget::Loop(leg(device, start, len)?),
        ("loop", _) => return Err("loop takes `<file> <start>`".into()),
        ("striped", args) => striped::parse(args, len)?,
        ("delay", args) => delay::parse(args, len)?,
        ("flakey", args) => flakey::parse(args, len)?,
        ("log-writes", args) => log_writes::parse(args)?,
        ("multipath", args) => multipath::line::parse(args)?,
        ("crypt", args) => parse_crypt(args, start, len)?,
        (other, _) => {
            return Err(format!(
                "target `{}` is not supported; there are linear, zero, error, ram, null, loop, \
                 striped, delay, flakey, log-writes, multipath and crypt",
                shown(other)
            ));
        }
    };
    Ok(Line { start, len, target })
}

fn parse_crypt(args: &[&str], start: u64, len: u64) -> Result<LineTarget, String> {
    let [cipher, key, iv_offset, device, offset, options @ ..] = args else {
        return Err("crypt takes `<cipher> <key> <iv_offset> <device> <start> [<#opt> …]`".into());
    };
    let mut params = CryptParams {
        cipher: (*cipher).into(),
        key: parse_key(key)?,
        iv_offset_sectors: number(iv_offset, "IV offset")?,
        data_offset_sectors: number(offset, "start sector on the device")?,
        len_sectors: Some(len),
        sector_size_bytes: 512,
        iv_large_sectors: false,
        flags: CryptFlags::default(),
    };
    parse_options(options, &mut params)?;
    check_alignment(&params, start, len)?;
    Ok(LineTarget::Crypt { device: (*device).into(), params })
}

fn parse_options(options: &[&str], params: &mut CryptParams) -> Result<(), String> {
    let [count, options @ ..] = options else {
        return Ok(());
    };
    if number(count, "number of options")? != options.len() as u64 {
        return Err(format!("it announces {count} options, but has {}", options.len()));
    }
    for option in options {
        let flags = &mut params.flags;
        match option.to_ascii_lowercase().as_str() {
            "allow_discards" => flags.allow_discards = true,
            "same_cpu_crypt" => flags.same_cpu_crypt = true,
            "submit_from_crypt_cpus" => flags.submit_from_crypt_cpus = true,
            "high_priority" => flags.high_priority = true,
            "no_read_workqueue" => flags.no_read_workqueue = true,
            "no_write_workqueue" => flags.no_write_workqueue = true,
            "iv_large_sectors" => params.iv_large_sectors = true,
            other => match other.split_once(':') {
                Some(("sector_size", size)) => {
                    params.sector_size_bytes = sector_size(size, "sector_size")?;
                }
                Some(("integrity" | "integrity_key_size", _)) => {
                    return Err(format!(
                        "option `{option}` is not supported: authenticated encryption needs the \
                         kernel's dm-integrity below it"
                    ));
                }
                _ => return Err(format!("option `{option}` is unknown")),
            },
        }
    }
    Ok(())
}

pub(super) fn sector_size(text: &str, what: &str) -> Result<u32, String> {
    match number(text, what)? {
        size @ (512 | 1024 | 2048 | 4096) => Ok(size as u32),
        size => Err(format!("{what} {size} is none of 512, 1024, 2048 and 4096")),
    }
}

fn check_alignment(params: &CryptParams, start: u64, len: u64) -> Result<(), String> {
    let sectors = u64::from(params.sector_size_bytes >> 9);
    let aligned = [("start", start), ("length", len), ("IV offset", params.iv_offset_sectors)];
    for (what, value) in aligned {
        if !value.is_multiple_of(sectors) {
            return Err(format!(
                "{what} {value} is not a multiple of the sector size ({sectors} sectors)"
            ));
        }
    }
    if params.data_offset_sectors.checked_add(len).is_none_or(|end| end > u64::MAX >> 9) {
        return Err("the ciphertext would end after 2^64 bytes".into());
    }
    Ok(())
}

/// Parses hexadecimal digits, or `-` for an empty key.
///
/// # Errors
/// The problem, without a quotation of the key.
pub fn parse_key(text: &str) -> Result<SecretBytes, String> {
    if text.starts_with(':') {
        return Err(
            "the key is in the kernel's keyring, where it cannot be read; write the table \
                    with the key in hex, or open the LUKS volume itself"
                .into(),
        );
    }
    let text = if text == "-" { "" } else { text };
    if !text.len().is_multiple_of(2) || text.len() > KEY_DIGITS_MAX {
        return Err(format!(
            "the key is not an even number of at most {KEY_DIGITS_MAX} hex digits"
        ));
    }
    let mut key = SecretBytes::zeroed(text.len() / 2);
    for (byte, pair) in key.as_mut_slice().iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err("the key holds something that is not a hex digit".into());
        };
        *byte = (high << 4 | low) as u8;
    }
    Ok(key)
}

/// A range of `len` sectors on a device.
pub(super) fn leg(device: &str, start: &str, len: u64) -> Result<Leg<String>, String> {
    let start = number(start, "start sector on the device")?;
    if start.checked_add(len).is_none_or(|end| end > u64::MAX >> 9) {
        return Err(format!("{len} sectors from {start} on would end after 2^64 bytes"));
    }
    Ok(Leg { dev: device.into(), start: Sector(start) })
}

pub(super) fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{what} `{}` is not a number", shown(text)))
}

/// Untrusted text for an error: short, and without control characters.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(32).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests;
