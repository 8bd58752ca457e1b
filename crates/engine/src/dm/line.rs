//! The text of a dm table, as `dmsetup table --showkeys` prints it.
//!
//! ```text
//! <start> <len> <target> <arguments>
//! ```
//! The targets are those of [`registry::TARGETS`] and the world's.
//! Lines of several devices begin with the device's name, as `dmsetup table` without a name prints
//! them. A device may be `/dev/mapper/<name>` of an earlier one. The last device is the one that
//! the table maps:
//!
//! ```text
//! memory: 0 2048 ram
//! slow: 0 2048 delay /dev/mapper/memory 0 5
//! ```
//! Sectors are 512 bytes. Source: `Documentation/admin-guide/device-mapper/`. `#` comments are
//! allowed. [`MappedDevice::write`] is the inverse.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::registry::{self, Arguments, Keys, LineRange, Needs, TARGETS, TargetType};
use super::words::{may_be_key, number, shown};
use crate::bio::Sector;

/// Greatest number of lines of a table.
pub const LINES_MAX: usize = 256;

/// Folder of the kernel's nodes of mapped devices.
pub const MAPPER_FOLDER: &str = "/dev/mapper/";

/// A mapped device and its table.
#[derive(Clone, Debug)]
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

    /// Writes the lines, each with the device's name in front if it has one. A key is hidden as
    /// dmsetup hides it, as one zero per digit, unless requested.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, keys: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        for line in &self.lines {
            if !self.name.is_empty() {
                write!(out, "{}: ", self.name)?;
            }
            line.write(keys, out)?;
            out.write_char('\n')?;
        }
        Ok(())
    }

    /// The lines as `dmsetup status` prints them, without the targets' own status. Crypt has none.
    #[must_use]
    pub fn targets(&self) -> String {
        let of = |line: &Line| {
            let name = if self.name.is_empty() { "" } else { &format!("{}: ", self.name) };
            format!("{name}{} {} {}\n", line.start, line.len, line.target.name)
        };
        self.lines.iter().map(of).collect()
    }

    /// The lines as in [`MappedDevice::write`], with hidden keys.
    #[must_use]
    pub fn without_keys(&self) -> String {
        let mut text = String::new();
        self.write(Keys::Hidden, &mut text).expect("a string never fails");
        text
    }
}

/// A line with device names and keys.
#[derive(Clone, Debug)]
pub struct Line {
    /// First sector on the mapped device.
    pub start: u64,
    /// Length in sectors.
    pub len: u64,
    /// The target.
    pub target: &'static TargetType,
    /// Its arguments.
    pub arguments: Arc<dyn Arguments>,
}

impl Line {
    /// The things that the world opens for the line.
    #[must_use]
    pub fn needs(&self) -> Needs<'_> {
        self.arguments.needs(Sector(self.len))
    }

    /// Writes the line, without a newline.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, keys: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{} {} {}", self.start, self.len, self.target.name)?;
        self.arguments.write(keys, out)
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

fn place(line: usize) -> String {
    if line == 0 { "table: ".into() } else { format!("table line {line}: ") }
}

/// Parses the tables of one or several devices. The last one is on top; a later device must name
/// each of the others. `own` are the world's targets, beside [`TARGETS`].
///
/// # Errors
/// The first wrong line; two targets with one name.
pub fn parse(text: &str, own: &[&'static TargetType]) -> Result<Vec<MappedDevice>, TableError> {
    let whole = |problem| TableError { line: 0, problem };
    registry::check_names(own).map_err(whole)?;
    let mut mappings: Vec<MappedDevice> = Vec::new();
    let mut count = 0;
    for (index, text) in text.lines().enumerate() {
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        count += 1;
        let limit = format!("more than {LINES_MAX} lines");
        let added = if count > LINES_MAX { Err(limit) } else { add_line(text, own, &mut mappings) };
        added.map_err(|problem| TableError { line: index + 1, problem })?;
    }
    let Some((_, below)) = mappings.split_last() else {
        let problem = "the table is empty; expected lines like `0 2048 linear /path 0`";
        return Err(whole(problem.into()));
    };
    for (at, mapping) in below.iter().enumerate() {
        let is_it = |device: &str| device.strip_prefix(MAPPER_FOLDER) == Some(&mapping.name);
        let mut above = mappings[at + 1..].iter().flat_map(|mapping| &mapping.lines);
        if mapping.name.is_empty() || !above.any(|line| line.needs().paths().any(is_it)) {
            return Err(whole(format!(
                "nothing after device `{}` names {MAPPER_FOLDER}{0}, and only the last device is \
                 on top",
                shown(&mapping.name)
            )));
        }
    }
    Ok(mappings)
}

fn add_line(
    text: &str,
    own: &[&'static TargetType],
    mappings: &mut Vec<MappedDevice>,
) -> Result<(), String> {
    let (name, text) = named(text);
    let line = parse_line(text, own)?;
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

fn parse_line(text: &str, own: &[&'static TargetType]) -> Result<Line, String> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [start, len, target, args @ ..] = words.as_slice() else {
        return Err("expected `<start> <length> <target> <arguments>`".into());
    };
    let start = number(start, "start sector")?;
    let len = number(len, "length in sectors")?;
    if len == 0 {
        return Err("its length is zero sectors".into());
    }
    let target = registry::named(target, own).ok_or_else(|| unknown(target, own))?;
    let arguments = (target.parse)(args, LineRange { start, len })?;
    let line = Line { start, len, target, arguments };
    // Later errors name the devices.
    if line.needs().paths().any(|path| may_be_key(path) && !path.contains('/')) {
        return Err(
            "the device's word may be a key; the name of a file like that needs a folder, as \
                    in `./0123456789abcdef`"
                .into(),
        );
    }
    Ok(line)
}

fn unknown(name: &str, own: &[&'static TargetType]) -> String {
    let names: Vec<&str> = TARGETS.iter().chain(own).map(|target| target.name).collect();
    let (last, others) = names.split_last().expect("there are targets");
    format!("target `{}` is not supported; there are {} and {last}", shown(name), others.join(", "))
}

#[cfg(test)]
mod tests;
