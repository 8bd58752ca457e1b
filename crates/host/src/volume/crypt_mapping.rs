//! A crypt volume as an equivalent dm table.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::params::{CryptParams, VolumePart};
use blockyard_crypt::source::HeaderSource;
use blockyard_engine::bio::Sector;
use blockyard_engine::dm::DeviceArea;
use blockyard_engine::dm::line::{Line, MAPPER_FOLDER, MappedDevice};
use blockyard_engine::dm::zero::{ZERO, ZeroSpec};

use crate::Error;
use crate::file::DeviceFile;
use crate::protect::{PROTECT, ProtectArguments};
use crate::remote;
use crate::table::{CRYPT, CryptArguments};

/// Longest name that is taken from a file.
const NAME_LEN: usize = 64;

/// The parts of a volume, and its sectors that are never written.
#[derive(Clone, Debug, Default)]
pub struct Composition {
    /// The parts, without gaps.
    pub parts: Vec<VolumePart>,
    /// Sectors of the volume that are never written: those of a hidden volume.
    pub protected: Vec<Range<u64>>,
}

/// The dm table for the parts of `file`. It contains the key.
///
/// # Errors
/// The file is too short, or its name cannot be in a table.
pub fn crypt_mapping(
    file: &DeviceFile,
    composition: &Composition,
) -> Result<Vec<MappedDevice>, Error> {
    with_protection(file, &device_word(file.path())?, composition)
}

/// The table for display, with any file name.
pub(super) fn crypt_devices(
    file: &DeviceFile,
    composition: &Composition,
) -> Result<Vec<MappedDevice>, Error> {
    with_protection(file, &file.path().display().to_string(), composition)
}

/// The device of the parts, and the one that protects its sectors, if there are any.
pub(super) fn with_protection(
    file: &DeviceFile,
    device: &str,
    composition: &Composition,
) -> Result<Vec<MappedDevice>, Error> {
    let mut outer = of_parts(file, device, &composition.parts)?;
    if composition.protected.is_empty() {
        return Ok(vec![outer]);
    }
    let name = plain_name(file.path());
    outer.name = format!("{name}-outer");
    let area = DeviceArea { dev: format!("{MAPPER_FOLDER}{}", outer.name), start: Sector(0) };
    let protected = composition.protected.clone();
    let volume = Some(file.path().display().to_string());
    let arguments = Arc::new(ProtectArguments { area, protected, volume });
    let line = Line { start: 0, len: outer.len(), target: &PROTECT, arguments };
    Ok(vec![outer, MappedDevice { name, lines: vec![line] }])
}

/// The name of a file as that of a mapped device.
fn plain_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let plain = name.chars().take(NAME_LEN).map(|c| if is_plain(c) { c } else { '_' });
    let plain: String = plain.collect();
    if plain.is_empty() { "outer".into() } else { plain }
}

fn of_parts(file: &DeviceFile, device: &str, parts: &[VolumePart]) -> Result<MappedDevice, Error> {
    let mut start = 0;
    let mut lines = Vec::new();
    for part in parts {
        let line = match part {
            VolumePart::Zeros { len_sectors: len } => {
                Line { start, len: *len, target: &ZERO, arguments: Arc::new(ZeroSpec) }
            }
            VolumePart::Crypt(params) => {
                let len = crypt_len(file, params)?;
                let mut params = CryptParams { len_sectors: Some(len), ..params.clone() };
                params.data_offset_sectors += file.start_bytes() >> 9;
                let arguments = Arc::new(CryptArguments { device: device.to_owned(), params });
                Line { start, len, target: &CRYPT, arguments }
            }
        };
        start += line.len;
        lines.push(line);
    }
    Ok(MappedDevice { name: String::new(), lines })
}

/// A path as a word of a table, independent of the current folder.
fn device_word(path: &Path) -> Result<String, Error> {
    let refused = |problem: &str| {
        let remedy = "a table cannot hold it; make a symbolic link with a plain name, and use that";
        Error::volume(path, format!("its name {problem}: {remedy}"))
    };
    let absolute = match path.to_str() {
        Some(_) if remote::is_remote(path) => path.to_owned(),
        _ => std::path::absolute(path).map_err(|error| Error::io(path, "look at it", error))?,
    };
    let word = absolute.to_str().ok_or_else(|| refused("is not UTF-8"))?;
    match word.chars().find(|&c| c.is_whitespace() || c.is_control() || c == '#') {
        Some(c) => Err(refused(&format!("holds {c:?}"))),
        None => Ok(word.to_owned()),
    }
}

/// Length of the mapping in sectors, checked against the file.
fn crypt_len(file: &DeviceFile, params: &CryptParams) -> Result<u64, Error> {
    let sectors = u64::from(params.sector_size_bytes >> 9);
    let device = file.len_bytes() >> 9;
    let room = device.saturating_sub(params.data_offset_sectors);
    let len = params.len_sectors.unwrap_or(room / sectors * sectors);
    if len == 0 || len > room {
        let wanted = params.len_sectors.map_or("some".into(), |len| len.to_string());
        return Err(Error::volume(
            file.path(),
            format!(
                "is too short: {wanted} sectors of data are wanted from sector {} on, but it ends \
                 at sector {device}; was it truncated, or is the data on another device?",
                params.data_offset_sectors
            ),
        ));
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_mapped_device_is_one_word() {
        for (path, name) in
            [("/a/secret.hc", "secret.hc"), ("/my disk#1", "my_disk_1"), ("/", "outer")]
        {
            assert_eq!(plain_name(Path::new(path)), name);
        }
    }

    #[test]
    fn names_that_a_table_would_read_otherwise_are_refused() {
        assert_eq!(device_word(Path::new("/dev/sdb1")).unwrap(), "/dev/sdb1");
        for name in ["/my disk", "/disk#1", "/a\nb", "/a\u{a0}b"] {
            let problem = device_word(Path::new(name)).unwrap_err().to_string();
            assert!(problem.contains("symbolic link"), "{problem}");
        }
    }
}
