//! A file or device with a header, opened without the lock of a volume: the header of a volume that
//! is served can be read and changed.
//!
//! The header's own lock is cryptsetup's: shared to read, exclusive to write, and none while a key
//! is derived (`host/file/header_lock.rs`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use blockyard_crypt::source::{HeaderSink, HeaderSource, SourceError};
use blockyard_host::file::{FileId, HeaderLock};

use crate::{Error, Place};

/// An open header.
#[derive(Debug)]
pub(crate) struct HeaderFile {
    file: File,
    path: PathBuf,
    /// The part of the file that headers see, in bytes.
    part: Range<u64>,
}

impl HeaderFile {
    /// Opens it for reading.
    pub(crate) fn to_read(path: &Path, place: &Place) -> Result<Self, Error> {
        Self::opened(path, OpenOptions::new().read(true))
            .map_err(|error| {
                Error::place(&path.display(), format!("cannot be inspected: {error}"))
            })?
            .limited(place)
    }

    /// Opens it for writing too.
    pub(crate) fn to_write(path: &Path, place: &Place) -> Result<Self, Error> {
        Self::opened(path, OpenOptions::new().read(true).write(true))
            .map_err(|error| {
                Error::place(&path.display(), format!("its header cannot be changed: {error}"))
            })?
            .limited(place)
    }

    fn opened(path: &Path, options: &OpenOptions) -> io::Result<Self> {
        // Inspected before it is opened: opening a FIFO would wait for a writer.
        let file_type = fs::metadata(path)?.file_type();
        if file_type.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !file_type.is_file() && !file_type.is_block_device() {
            return Err(io::Error::other("neither a regular file nor a block device"));
        }
        let mut file = options.open(path)?;
        let len_bytes = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, path: path.to_owned(), part: 0..len_bytes })
    }

    fn limited(mut self, place: &Place) -> Result<Self, Error> {
        self.part = place.range(&self).map_err(|error| Error::crypt(&self.path, error))?;
        Ok(self)
    }

    /// Identity of the file or device; `None` if the system does not tell.
    pub(crate) fn id(&self) -> Option<FileId> {
        self.file.metadata().ok().map(|metadata| FileId::of(&metadata))
    }

    /// Position in the file of a range of the part.
    fn place_of(&self, offset_bytes: u64, len: usize) -> Result<u64, SourceError> {
        let len_bytes = len as u64;
        let device_len_bytes = self.len_bytes();
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > device_len_bytes) {
            return Err(SourceError::BehindEnd { offset_bytes, len_bytes, device_len_bytes });
        }
        Ok(self.part.start + offset_bytes)
    }

    /// Takes the lock that keeps other programs from writing.
    pub(crate) fn lock_to_read(&self) -> Result<HeaderLock, Error> {
        Ok(HeaderLock::to_read(&self.file, &self.path)?)
    }

    /// Takes the lock for writing.
    pub(crate) fn lock_to_write(&self) -> Result<HeaderLock, Error> {
        Ok(HeaderLock::to_write(&self.file, &self.path)?)
    }
}

impl HeaderSource for HeaderFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let place = self.place_of(offset_bytes, buf.len())?;
        Ok(self.file.read_exact_at(buf, place)?)
    }

    fn len_bytes(&self) -> u64 {
        self.part.end - self.part.start
    }
}

impl HeaderSink for HeaderFile {
    fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), SourceError> {
        let place = self.place_of(offset_bytes, bytes.len())?;
        Ok(self.file.write_all_at(bytes, place)?)
    }

    fn sync(&mut self) -> Result<(), SourceError> {
        Ok(self.file.sync_data()?)
    }
}
