//! ISO 9660, with the names of Rock Ridge or Joliet, by the crate `hadris-iso`.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use hadris_iso::directory::DirectoryRef;
use hadris_iso::file::EntryType;
use hadris_iso::read::{DirEntry, IsoImage, RootDir, RripDateTime};

use super::source::Source;
use super::{Damaged, Entry, Kind, LINK_MAX_BYTES, Time, Tree, too_many};
use crate::fat::{Disk, days_of};

/// Unit of places.
const SECTOR_BYTES: u64 = 2048;
/// Bits of a mode with the kind of the file.
const KIND_BITS: u32 = 0o170_000;

/// An open file system.
pub(super) struct IsoTree {
    image: IsoImage<Disk>,
    disk: Disk,
    root: RootDir,
    is_joliet: bool,
}

/// An open file: its parts on the disk.
struct IsoFile<'a> {
    disk: &'a Disk,
    parts: Vec<(u64, u64)>,
}

/// A file or folder; the root has no record.
enum Found {
    Root,
    Record(Box<DirEntry>),
}

impl IsoTree {
    pub(super) fn open(source: Source) -> io::Result<Self> {
        let disk = Disk::new(Box::new(source));
        let image = IsoImage::open(disk.clone()).map_err(failed)?;
        let is_joliet = |root: &RootDir| matches!(root.entry_type(), EntryType::Joliet { .. });
        let roots = image.root_dirs();
        // Rock Ridge has permissions and links, and is in the tree of the plain names.
        let plain = roots.iter().copied().find(|root| !is_joliet(root));
        let rock_ridge = plain.filter(|_| image.supports_rrip());
        let root = rock_ridge.or_else(|| roots.iter().copied().find(is_joliet)).or(plain);
        let root =
            root.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it has no root directory"))?;
        let is_joliet = is_joliet(&root);
        Ok(Self { image, disk, root, is_joliet })
    }

    fn find(&self, path: &Path) -> io::Result<Found> {
        let mut found = Found::Root;
        for name in path.iter().skip(1) {
            let folder = self.image.open_dir(self.folder(&found)?);
            let mut next = None;
            for record in folder.entries() {
                let record = record.map_err(failed)?;
                if !record.is_special() && OsString::from(self.name(&record)) == name {
                    next = Some(record);
                    break;
                }
            }
            found = Found::Record(Box::new(next.ok_or(ErrorKind::NotFound)?));
        }
        Ok(found)
    }

    fn folder(&self, found: &Found) -> io::Result<DirectoryRef> {
        match found {
            Found::Root => Ok(self.root.dir_ref()),
            Found::Record(record) => record.as_dir_ref(&self.image).map_err(failed),
        }
    }

    fn name(&self, record: &DirEntry) -> String {
        let long = record.rrip.as_ref().and_then(|found| found.alternate_name.clone());
        if let Some(long) = long {
            return long;
        }
        let text = if self.is_joliet {
            let (units, _) = record.name().as_chunks::<2>();
            let units: Vec<u16> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            String::from_utf16_lossy(&units)
        } else {
            String::from_utf8_lossy(record.name()).into_owned()
        };
        // `NAME.EXT;1`, or `NAME.;1`.
        let text = text.split(';').next().unwrap_or_default();
        text.strip_suffix('.').unwrap_or(text).to_owned()
    }

    fn entry_of(&self, record: &DirEntry) -> Entry {
        let rrip = record.rrip.as_ref();
        let attributes = rrip.and_then(|found| found.posix_attributes);
        let mode = attributes.map(|found| found.file_mode.read());
        let kind = match mode.map(|mode| mode & KIND_BITS) {
            _ if record.is_directory() => Kind::Directory,
            _ if rrip.is_some_and(|found| found.symlink_target.is_some()) => Kind::Link,
            Some(0o060_000) => Kind::BlockDevice,
            Some(0o020_000) => Kind::CharacterDevice,
            Some(0o010_000) => Kind::Fifo,
            Some(0o140_000) => Kind::Socket,
            _ => Kind::File,
        };
        let link = rrip.and_then(|found| found.symlink_target.as_ref());
        let times = rrip.and_then(|found| found.timestamps.as_ref());
        Entry {
            name: self.name(record).into(),
            kind,
            len: link.map_or_else(|| record.total_size(), |target| target.len() as u64),
            mode: mode.map(|mode| mode & 0o7777),
            owner: attributes.map(|found| (found.file_uid.read(), found.file_gid.read())),
            modified: times.and_then(|times| times.modify.as_ref()).map(time),
            accessed: times.and_then(|times| times.access.as_ref()).map(time),
        }
    }
}

impl Tree for IsoTree {
    fn entry(&mut self, path: &Path) -> io::Result<Entry> {
        Ok(match self.find(path)? {
            Found::Root => Entry::root(),
            Found::Record(record) => self.entry_of(&record),
        })
    }

    fn entries(&mut self, path: &Path, max: u64) -> io::Result<Vec<Result<Entry, Damaged>>> {
        let folder = self.folder(&self.find(path)?)?;
        let mut entries = Vec::new();
        for record in self.image.open_dir(folder).entries() {
            let record = record.map_err(failed)?;
            if record.is_special() {
                continue;
            }
            if entries.len() as u64 == max {
                return Err(too_many(max));
            }
            entries.push(Ok(self.entry_of(&record)));
        }
        Ok(entries)
    }

    fn target(&mut self, path: &Path) -> io::Result<PathBuf> {
        let Found::Record(record) = self.find(path)? else {
            return Err(ErrorKind::InvalidInput.into());
        };
        let target = record.rrip.as_ref().and_then(|found| found.symlink_target.clone());
        let target = target.filter(|target| target.len() as u64 <= LINK_MAX_BYTES);
        target.map(PathBuf::from).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    fn open(&mut self, path: &Path) -> io::Result<Box<dyn Read + '_>> {
        let Found::Record(record) = self.find(path)? else {
            return Err(ErrorKind::IsADirectory.into());
        };
        let parts = record.extents().map(|extent| {
            let start = (extent.sector.0 as u64).saturating_mul(SECTOR_BYTES);
            (start, start.saturating_add(extent.length.into()))
        });
        // The first part is read first.
        let mut parts: Vec<_> = parts.collect();
        parts.reverse();
        Ok(Box::new(IsoFile { disk: &self.disk, parts }))
    }
}

impl Read for IsoFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some((start, end)) = self.parts.last_mut() else { return Ok(0) };
            let len = buffer.len().min(usize::try_from(*end - *start).unwrap_or(usize::MAX));
            if len == 0 && !buffer.is_empty() {
                self.parts.pop();
                continue;
            }
            self.disk.read_exact_at(&mut buffer[..len], *start)?;
            *start += len as u64;
            return Ok(len);
        }
    }
}

fn time(time: &RripDateTime) -> Time {
    let month = i64::from(time.month).clamp(1, 12);
    let days = days_of(i64::from(time.year), month) + i64::from(time.day).max(1) - 1;
    let seconds = i64::from(time.hour) * 3600 + i64::from(time.minute) * 60;
    // The zone is in quarters of an hour.
    let seconds = seconds + i64::from(time.second) - i64::from(time.gmt_offset) * 900;
    Time { seconds: days * 86_400 + seconds, nanoseconds: 0 }
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}
