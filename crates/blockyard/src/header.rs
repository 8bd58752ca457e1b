//! LUKS headers, without their keys: reads them, and repairs a damaged copy.
//!
//! ```
//! use blockyard::format::FormatOptions;
//! use blockyard::header::{self, Repair};
//! use blockyard::{HeaderCopy, Key};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("home.img");
//! # let options = FormatOptions {
//! #     size_bytes: Some(20 << 20), pbkdf_iterations: Some(4), pbkdf_memory_kib: Some(32),
//! #     ..FormatOptions::default()
//! # };
//! # options.format(&image, &Key::passphrase("pass"))?;
//! # use std::os::unix::fs::FileExt;
//! # std::fs::File::options().write(true).open(&image)?.write_all_at(&[0; 512], 0)?;
//! let (_, notices) = header::read(&image, None)?;
//! assert_eq!(notices.len(), 1, "the primary copy is damaged");
//! assert_eq!(Repair::open(&image)?.run()?, [HeaderCopy::Primary]);
//! # Ok(())
//! # }
//! ```

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use blockyard_crypt::luks::{self, Header, Notice};
use blockyard_crypt::source::{HeaderSource, SourceError};
use blockyard_host::file::{Access, DeviceFile, HeaderLock};

use crate::error::contained;
use crate::{Error, HeaderCopy};

/// Reads the header of a LUKS volume or a detached header, and reports repairable damage. With
/// `copy`, reads only this copy of a LUKS2 header, which may be outdated.
///
/// The call needs no passphrase. It does not lock the volume: another program may serve it
/// meanwhile. The lock of the header prevents writes to it during the call.
///
/// # Errors
/// [`Error::Place`] if the file cannot be opened, [`Error::Crypt`] without an intact header.
pub fn read(path: &Path, copy: Option<HeaderCopy>) -> Result<(Header, Vec<Notice>), Error> {
    contained(|| {
        let source = HeaderFile::open(path)?;
        match copy {
            None => Header::read(&source),
            Some(copy) => Header::read_copy(&source, copy).map(|header| (header, Vec::new())),
        }
        .map_err(|error| Error::crypt(path, error))
    })
}

/// The repair of a LUKS2 header: the bad copy is rewritten from the intact one. The device is
/// locked until the value is dropped.
#[derive(Debug)]
pub struct Repair {
    device: DeviceFile,
    lock: HeaderLock,
}

impl Repair {
    /// Opens and locks an image, a block device or a detached header.
    ///
    /// # Errors
    /// The file cannot be opened or is in use.
    pub fn open(path: &Path) -> Result<Self, Error> {
        contained(|| {
            let device = DeviceFile::open(path, Access::ReadWrite, false)?;
            let lock = device.lock_header()?;
            Ok(Self { device, lock })
        })
    }

    /// The reason if the header is not locked against other programs.
    #[must_use]
    pub fn lock_warning(&self) -> Option<&str> {
        self.lock.warning()
    }

    /// The header and its damage. A LUKS2 header without damage needs no repair; a LUKS1 header has
    /// no second copy.
    ///
    /// # Errors
    /// [`Error::Crypt`] if no copy is intact.
    pub fn inspect(&self) -> Result<(Header, Vec<Notice>), Error> {
        contained(|| Header::read(&self.device).map_err(|error| self.failed(error)))
    }

    /// Rewrites the damaged copies, and returns them.
    ///
    /// # Errors
    /// No copy is intact, the disk has another use now, or the device cannot be written.
    pub fn run(mut self) -> Result<Vec<HeaderCopy>, Error> {
        contained(|| luks::repair(&mut self.device).map_err(|error| self.failed(error)))
    }

    fn failed(&self, error: blockyard_crypt::Error) -> Error {
        Error::crypt(self.device.path(), error)
    }
}

/// A file that is read without the lock of a volume, so that the header of a served volume can be
/// read.
struct HeaderFile {
    file: File,
    len_bytes: u64,
    _lock: HeaderLock,
}

impl HeaderFile {
    fn open(path: &Path) -> Result<Self, Error> {
        let (file, len_bytes) = Self::opened(path).map_err(|error| {
            Error::place(&path.display(), format!("cannot be inspected: {error}"))
        })?;
        let lock = HeaderLock::to_read(&file, path)?;
        Ok(Self { file, len_bytes, _lock: lock })
    }

    fn opened(path: &Path) -> io::Result<(File, u64)> {
        // Inspected before it is opened: opening a FIFO would wait for a writer.
        let file_type = fs::metadata(path)?.file_type();
        if file_type.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !file_type.is_file() && !file_type.is_block_device() {
            return Err(io::Error::other("neither a regular file nor a block device"));
        }
        let mut file = File::open(path)?;
        let len_bytes = file.seek(SeekFrom::End(0))?;
        Ok((file, len_bytes))
    }
}

impl HeaderSource for HeaderFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let len_bytes = buf.len() as u64;
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > self.len_bytes) {
            let device_len_bytes = self.len_bytes;
            return Err(SourceError::BehindEnd { offset_bytes, len_bytes, device_len_bytes });
        }
        Ok(self.file.read_exact_at(buf, offset_bytes)?)
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}
