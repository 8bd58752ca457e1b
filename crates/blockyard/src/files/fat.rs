//! FAT.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::source::Source;
use super::{Damaged, Entry, Kind, Time, Tree, too_many};
use crate::fat::{Disk, Fat, FileEntry, moment};

/// An open file system.
pub(super) struct FatTree(Fat);

/// An open file.
struct FatFile<'a> {
    fat: &'a Fat,
    chain: Vec<u32>,
    at: u64,
    len: u64,
}

impl FatTree {
    pub(super) fn open(source: Source) -> io::Result<Self> {
        Ok(Self(Fat::open(Disk::new(Box::new(source)))?))
    }

    /// The entry at a path; the root has none.
    fn find(&self, path: &Path) -> io::Result<Option<FileEntry>> {
        let mut entry = None;
        for name in path.iter().skip(1) {
            // Names of FAT are UTF-16.
            let name = name.to_str().ok_or(ErrorKind::NotFound)?;
            entry = Some(self.0.find(entry.as_ref(), name)?);
        }
        Ok(entry)
    }
}

impl Tree for FatTree {
    fn entry(&mut self, path: &Path) -> io::Result<Entry> {
        Ok(self.find(path)?.map_or_else(Entry::root, |found| entry(&found)))
    }

    fn entries(&mut self, path: &Path, max: u64) -> io::Result<Vec<Result<Entry, Damaged>>> {
        let folder = self.find(path)?;
        let entries = self.0.entries(folder.as_ref())?;
        if entries.len() as u64 > max {
            return Err(too_many(max));
        }
        Ok(entries.iter().map(|found| Ok(entry(found))).collect())
    }

    fn target(&mut self, _: &Path) -> io::Result<PathBuf> {
        Err(ErrorKind::InvalidInput.into())
    }

    fn open(&mut self, path: &Path) -> io::Result<Box<dyn Read + '_>> {
        let entry = self.find(path)?.ok_or(ErrorKind::IsADirectory)?;
        let chain = self.0.chain(&entry)?;
        Ok(Box::new(FatFile { fat: &self.0, chain, at: 0, len: entry.len() }))
    }
}

impl Read for FatFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(usize::try_from(self.len - self.at).unwrap_or(usize::MAX));
        self.fat.read(&self.chain, &mut buffer[..len], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

fn entry(found: &FileEntry) -> Entry {
    let time = |moment| Some(Time { seconds: moment, nanoseconds: 0 });
    let mut accessed = found.modified();
    accessed.date = found.accessed_date();
    accessed.time = 0;
    Entry {
        name: found.name().into_owned().into(),
        kind: if found.is_directory() { Kind::Directory } else { Kind::File },
        len: found.len(),
        mode: None,
        owner: None,
        modified: time(moment(found.modified())),
        accessed: time(moment(accessed)),
    }
}
