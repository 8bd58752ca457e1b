//! A file, device or NBD export with a header, opened without the lock of a volume: the header of a
//! volume that is served can be read and changed.
//!
//! The header's own lock is cryptsetup's: shared to read, exclusive to write, and none while a key
//! is derived (`host/file/header_lock.rs`). An export has no lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use blockyard_crypt::source::{HeaderSink, HeaderSource, SourceError};
use blockyard_host::file::{Access, DeviceFile, FileId, HeaderLock, uncached};
use blockyard_host::remote::is_remote;

use crate::{Error, Place};

/// An open header.
#[derive(Debug)]
pub(crate) struct HeaderFile {
    storage: Storage,
    path: PathBuf,
    /// The part of the file that headers see, in bytes.
    part: Range<u64>,
}

#[derive(Debug)]
enum Storage {
    Local(File),
    /// A block device, open with `O_DIRECT`.
    Device(File),
    /// An export of an NBD server. It has one connection, because a server may have one client.
    Remote(Box<DeviceFile>),
}

impl HeaderFile {
    /// Opens it for reading.
    pub(crate) fn to_read(path: &Path, place: &Place) -> Result<Self, Error> {
        if is_remote(path) {
            return Self::remote(path, Access::ReadOnly)?.limited(place);
        }
        Self::opened(path, OpenOptions::new().read(true))
            .map_err(|error| Error::place(&path.display(), format!("cannot open: {error}")))?
            .limited(place)
    }

    /// Opens it for writing too.
    pub(crate) fn to_write(path: &Path, place: &Place) -> Result<Self, Error> {
        if is_remote(path) {
            return Self::remote(path, Access::ReadWrite)?.limited(place);
        }
        Self::opened(path, OpenOptions::new().read(true).write(true))
            .map_err(|error| {
                Error::place(&path.display(), format!("its header cannot be changed: {error}"))
            })?
            .limited(place)
    }

    fn remote(path: &Path, access: Access) -> Result<Self, Error> {
        let export = DeviceFile::open(path, access, false)?;
        let part = 0..export.len_bytes();
        Ok(Self { storage: Storage::Remote(Box::new(export)), path: path.to_owned(), part })
    }

    fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<Self> {
        // Inspected before it is opened: opening a FIFO would wait for a writer.
        let file_type = fs::metadata(path)?.file_type();
        if file_type.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !file_type.is_file() && !file_type.is_block_device() {
            return Err(io::Error::other("neither a regular file nor a block device"));
        }
        let is_device = file_type.is_block_device();
        if is_device {
            options.custom_flags(uncached::OPEN_FLAG);
        }
        let mut file = options.open(path)?;
        let len_bytes = file.seek(SeekFrom::End(0))?;
        let storage = if is_device { Storage::Device(file) } else { Storage::Local(file) };
        Ok(Self { storage, path: path.to_owned(), part: 0..len_bytes })
    }

    fn limited(mut self, place: &Place) -> Result<Self, Error> {
        self.part = place.range(&self).map_err(|error| Error::crypt(&self.path, error))?;
        Ok(self)
    }

    /// Identity of the file or device; `None` for an export.
    pub(crate) fn id(&self) -> Option<FileId> {
        self.local()?.metadata().ok().map(|metadata| FileId::of(&metadata))
    }

    /// The file or device; `None` for an export.
    fn local(&self) -> Option<&File> {
        match &self.storage {
            Storage::Local(file) | Storage::Device(file) => Some(file),
            Storage::Remote(_) => None,
        }
    }

    /// Start of the part in the file.
    pub(crate) fn start_bytes(&self) -> u64 {
        self.part.start
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
        Ok(match &self.storage {
            Storage::Local(file) | Storage::Device(file) => {
                HeaderLock::to_read(file, &self.path, self.part.start)?
            }
            Storage::Remote(export) => export.lock_header_to_read()?,
        })
    }

    /// The reason why a writer cannot take all locks of a header on this machine.
    pub(crate) fn lock_warning(&self) -> Option<String> {
        match &self.storage {
            Storage::Local(file) | Storage::Device(file) => {
                HeaderLock::warning_for(file, self.part.start)
            }
            Storage::Remote(_) => None,
        }
    }

    /// Takes the lock for writing.
    pub(crate) fn lock_to_write(&self) -> Result<HeaderLock, Error> {
        Ok(match &self.storage {
            Storage::Local(file) | Storage::Device(file) => {
                HeaderLock::to_write(file, &self.path, self.part.start)?
            }
            Storage::Remote(export) => export.lock_header()?,
        })
    }
}

impl HeaderSource for HeaderFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let place = self.place_of(offset_bytes, buf.len())?;
        match &self.storage {
            Storage::Local(file) => Ok(file.read_exact_at(buf, place)?),
            Storage::Device(device) => Ok(uncached::read_exact_at(device, buf, place)?),
            Storage::Remote(export) => export.read_at(place, buf),
        }
    }

    fn len_bytes(&self) -> u64 {
        self.part.end - self.part.start
    }
}

impl HeaderSink for HeaderFile {
    fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), SourceError> {
        let place = self.place_of(offset_bytes, bytes.len())?;
        match &mut self.storage {
            Storage::Local(file) => Ok(file.write_all_at(bytes, place)?),
            Storage::Device(device) => Ok(uncached::write_all_at(device, bytes, place)?),
            Storage::Remote(export) => export.write_at(place, bytes),
        }
    }

    fn sync(&mut self) -> Result<(), SourceError> {
        match &mut self.storage {
            Storage::Local(file) | Storage::Device(file) => Ok(file.sync_data()?),
            Storage::Remote(export) => export.sync(),
        }
    }
}
