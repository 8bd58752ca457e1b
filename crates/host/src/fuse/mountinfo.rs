//! The list of mounts of this process: proc(5), `mountinfo`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::fusermount::plain_name;
use crate::broker::MountedPlace;

/// Start of the source of our mounts.
pub const SOURCE: &str = "blockyard:";

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of its device.
    pub device: String,
    /// Mount point.
    pub point: PathBuf,
    /// Type of the file system.
    pub kind: String,
    /// Source of the file system.
    pub source: String,
}

impl Mount {
    /// Whether it shows a plaintext as a file of this name.
    #[must_use]
    pub fn has_file(&self, name: &str) -> bool {
        self.kind.starts_with("fuse") && self.source == format!("{SOURCE}{}", plain_name(name))
    }

    /// Whether both show one file system. The kernel gives the device number of a file system that
    /// has gone to the next one.
    #[must_use]
    pub fn shows_the_same(&self, other: &Self) -> bool {
        (&self.device, &self.kind, &self.source) == (&other.device, &other.kind, &other.source)
    }

    /// Its place, by which the broker knows it.
    pub(super) fn place(&self) -> MountedPlace {
        MountedPlace { device: self.device.clone(), point: self.point.clone() }
    }

    /// Whether Blockyard has mounted it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.kind.starts_with("fuse") && self.source.starts_with(SOURCE)
    }
}

/// The open list.
#[derive(Debug)]
pub struct Mounts(File);

impl Mounts {
    /// Opens the list.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/thread-self/mountinfo").map(Self)
    }

    /// All mounts, in the order of mounting. A later change makes the list pollable: see
    /// [`Mounts::changed`].
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<Mount>> {
        let mut text = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut text)?;
        Ok(text.split(|byte| *byte == b'\n').filter_map(parsed).collect())
    }

    /// The topmost mount at this path, which must be canonical.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn at(&mut self, path: &Path) -> io::Result<Option<Mount>> {
        Ok(self.read()?.into_iter().rfind(|mount| mount.point == path))
    }

    /// Descriptor with POLLPRI after a change of the list.
    #[must_use]
    pub fn changed(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `36 35 0:45 / /mnt rw,noatime shared:1 - fuse.blockyard source rw`
fn parsed(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = text(words.nth(2)?);
    let point = PathBuf::from(OsString::from_vec(unescaped(words.nth(1)?)));
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let kind = text(words.next()?);
    Some(Mount { device, point, kind, source: text(words.next()?) })
}

fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(&unescaped(word)).into_owned()
}

/// Replaces `\040` by its byte: space, tab, newline and backslash are in octal.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_with_spaces_and_optional_fields_is_read() {
        let line = b"36 35 0:45 / /mnt/my\\040disk rw,nosuid shared:1 master:2 - \
                     fuse.blockyard blockyard:a rw";
        let mount = parsed(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt/my disk"));
        assert_eq!((mount.device.as_str(), mount.source.as_str()), ("0:45", "blockyard:a"));
        assert!(mount.is_ours());
        assert_eq!(parsed(b"36 35 0:45"), None);
    }

    #[test]
    fn next_file_system_with_the_device_number_is_another() {
        let mount = |point: &str, source: &str| Mount {
            device: "0:45".into(),
            point: point.into(),
            kind: "fuse.ext4".into(),
            source: source.into(),
        };
        let ours = mount("/a", "/run/user/7/blockyard/volume-Ab12/volume/home");
        assert!(ours.shows_the_same(&mount("/b", "/run/user/7/blockyard/volume-Ab12/volume/home")));
        assert!(
            !ours.shows_the_same(&mount("/a", "/run/user/7/blockyard/volume-Cd34/volume/home"))
        );
    }
}
