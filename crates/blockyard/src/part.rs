//! The part of a plaintext that holds a file system: all of it, or a partition.

use std::ops::Range;
use std::path::PathBuf;

use blockyard_crypt::partition::Table;
use blockyard_crypt::source::{HeaderSource, SourceError};

use crate::file_system::FileSystem;
use crate::{Error, Volume};

/// A part of the plaintext, for looking at its start.
pub(crate) struct Part<'a> {
    volume: &'a Volume,
    pub(crate) range: Range<u64>,
}

impl<'a> Part<'a> {
    /// The partition with this number, UUID or name; without one, the whole plaintext.
    pub(crate) fn find(volume: &'a Volume, partition: Option<&str>) -> Result<Self, Error> {
        let whole = Self { volume, range: 0..volume.len() };
        let Some(wanted) = partition else { return Ok(whole) };
        let wrong = |problem: String| {
            Error::contents(volume, format!("`inner_partition` {wanted:?}: {problem}"))
        };
        let table = Table::read(&whole).map_err(|error| wrong(error.to_string()))?;
        let Some(table) = table else {
            return Err(wrong("the plaintext has no partition table".into()));
        };
        let range = match table.find(wanted) {
            Ok(found) => found.bytes.clone(),
            Err(blockyard_crypt::Error::Field { problem, .. }) => return Err(wrong(problem)),
            Err(error) => return Err(wrong(error.to_string())),
        };
        Ok(Self { volume, range })
    }

    /// The file system in it.
    pub(crate) fn file_system(&self) -> Result<FileSystem, Error> {
        FileSystem::detect(self).ok_or_else(|| self.unknown())
    }

    /// No known file system: says what else is there.
    fn unknown(&self) -> Error {
        let table = Table::read(self).ok().flatten();
        let Some(table) = table.filter(|table| !table.partitions.is_empty()) else {
            let problem = "the plaintext has no known file system; `blockyard mount --as-file` \
                           shows it as one file, in which `mkfs` can make one";
            return Error::contents(self.volume, problem);
        };
        let numbers: Vec<_> = table.partitions.iter().map(|one| one.number.to_string()).collect();
        let problem = format!(
            "the plaintext is a disk with partitions: {}; choose one with `inner_partition`",
            numbers.join(", ")
        );
        Error::contents(self.volume, problem)
    }
}

impl HeaderSource for Part<'_> {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        Ok(self.volume.read_exact_at(buf, self.range.start + offset_bytes)?)
    }

    fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Path of the first file or device of a volume, for errors.
pub(crate) fn name_of(volume: &Volume) -> PathBuf {
    volume.backings().into_iter().next().map_or_else(|| "volume".into(), |first| first.path)
}
