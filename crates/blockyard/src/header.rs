//! LUKS headers: reads, repairs, backs up, restores and destroys them, and sets the fields that
//! need no key. Reads BitLocker headers and partition tables too.
//!
//! ```
//! use blockyard::format::FormatOptions;
//! use blockyard::header::{self, Writer};
//! use blockyard::{HeaderCopy, Key, Place};
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
//! let (_, notices) = header::read(&image, &Place::Whole, None)?;
//! assert_eq!(notices.len(), 1, "the primary copy is damaged");
//! assert_eq!(Writer::open(&image, &Place::Whole)?.repair()?, [HeaderCopy::Primary]);
//! # Ok(())
//! # }
//! ```

use std::path::{Path, PathBuf};

use blockyard_crypt::convert;
use blockyard_crypt::keys;
use blockyard_crypt::luks::{self, HEADER_LEN_MAX_BYTES, Header, Notice};
use blockyard_crypt::partition;
use blockyard_crypt::source::HeaderSource;
use blockyard_host::file::{Access, DeviceFile, HeaderLock};
use blockyard_host::remote::is_remote;

use crate::error::contained;
use crate::header_file::HeaderFile;
use crate::output::{InUse, Output};
use crate::{BitlkHeader, Error, HeaderCopy, PartitionTable, Place};

pub use crate::found::{Found, Report};
pub use blockyard_crypt::backup::{Backup, Difference};
pub use blockyard_crypt::keys::{FLAGS, Wiped};

/// Reads the header of a LUKS volume or a detached header, and reports repairable damage. With
/// `copy`, reads only this copy of a LUKS2 header, which may be outdated.
///
/// The call needs no passphrase. It does not lock the volume: another program may serve it
/// meanwhile. The lock of the header prevents writes to it during the call.
///
/// # Errors
/// [`Error::Place`] if the file cannot be opened, [`Error::Crypt`] without an intact header.
pub fn read(
    path: &Path,
    place: &Place,
    copy: Option<HeaderCopy>,
) -> Result<(Header, Vec<Notice>), Error> {
    contained(|| {
        let source = HeaderFile::to_read(path, place)?;
        let _lock = source.lock_to_read()?;
        match copy {
            None => partition::read_header(&source),
            Some(copy) => Header::read_copy(&source, copy).map(|header| (header, Vec::new())),
        }
        .map_err(|error| Error::crypt(path, error))
    })
}

/// Reads the header of a BitLocker volume. The call needs no passphrase, and does not lock the
/// volume.
///
/// # Errors
/// [`Error::Place`] if the file cannot be opened, [`Error::Crypt`] without an intact header.
pub fn read_bitlk(path: &Path, place: &Place) -> Result<BitlkHeader, Error> {
    contained(|| {
        let source = HeaderFile::to_read(path, place)?;
        BitlkHeader::read(&source).map_err(|error| Error::crypt(path, error))
    })
}

/// Reads the partition table of a disk; `None` without one. The call does not lock the disk.
///
/// # Errors
/// [`Error::Place`] if the file cannot be opened, [`Error::Crypt`] if the table is damaged.
pub fn partitions(path: &Path) -> Result<Option<PartitionTable>, Error> {
    contained(|| {
        let file = HeaderFile::to_read(path, &Place::Whole)?;
        PartitionTable::read(&file).map_err(|error| Error::crypt(path, error))
    })
}

/// Reads a header with its keyslots, for [`Writer::restore`] or cryptsetup's `luksHeaderRestore`.
///
/// # Errors
/// [`Error::Place`] if the file cannot be opened, [`Error::Crypt`] without an intact header.
pub fn backup(path: &Path, place: &Place) -> Result<Backup, Error> {
    contained(|| {
        let source = HeaderFile::to_read(path, place)?;
        let _lock = source.lock_to_read()?;
        Backup::of(&source).map_err(|error| Error::crypt(path, error))
    })
}

/// Writes a backup into a private file (mode 0600), and makes it durable. A file that is replaced
/// keeps its content until the backup is complete. `volume`: all files of the volume, also its
/// detached header.
///
/// # Errors
/// The file exists and `replace` is false, it belongs to the volume, or it cannot be written.
pub fn write_backup<'a>(
    backup: &Backup,
    volume: impl IntoIterator<Item = &'a Path>,
    output: &Path,
    replace: bool,
) -> Result<(), Error> {
    let in_use = InUse::of_paths(volume);
    Ok(Output::private(output, replace).write(&in_use, backup.bytes())?)
}

/// Reads the file of a backup, of at most 136 MiB, the longest header.
///
/// # Errors
/// [`Error::File`] if it cannot be read, [`Error::Crypt`] if it is no backup or is truncated.
pub fn read_backup(path: &Path) -> Result<Backup, Error> {
    contained(|| {
        let file = HeaderFile::to_read(path, &Place::Whole)?;
        // A longer file is a whole volume, of which only the header counts.
        let len = HEADER_LEN_MAX_BYTES.min(file.len_bytes());
        let mut bytes = vec![0; usize::try_from(len).expect("at most 136 MiB")];
        file.read_at(0, &mut bytes)
            .map_err(|error| Error::file(path, std::io::Error::other(error)))?;
        Backup::from_bytes(bytes).map_err(|error| Error::crypt(path, error))
    })
}

/// The warning for a person who is about to change a header, if this program cannot take all of its
/// locks: they are taken for a moment. [`Writer`] and [`format`](crate::format) have their own.
#[must_use]
pub fn lock_warning(path: &Path, place: &Place) -> Option<String> {
    if is_remote(path) {
        return None;
    }
    HeaderFile::to_write(path, place).ok()?.lock_warning()
}

/// Changes a header whose volume may be served meanwhile. The call holds the header's lock.
fn changed(
    path: &Path,
    place: &Place,
    change: impl FnOnce(&mut HeaderFile) -> Result<(), blockyard_crypt::Error>,
) -> Result<(), Error> {
    contained(|| {
        let mut file = HeaderFile::to_write(path, place)?;
        let _lock = file.lock_to_write()?;
        change(&mut file).map_err(|error| Error::crypt(path, error))
    })
}

/// Sets the label and the subsystem of a LUKS2 volume, at most 47 bytes each; `None` leaves one as
/// it is.
///
/// # Errors
/// The volume is not LUKS2, a text is too long, or the header is locked or cannot be written.
pub fn set_labels(
    path: &Path,
    place: &Place,
    label: Option<&str>,
    subsystem: Option<&str>,
) -> Result<(), Error> {
    changed(path, place, |file| keys::set_labels(file, label, subsystem))
}

/// Sets the UUID of a volume.
///
/// # Errors
/// The text is no UUID, or the header is locked or cannot be written.
pub fn set_uuid(path: &Path, place: &Place, uuid: &str) -> Result<(), Error> {
    changed(path, place, |file| keys::set_uuid(file, uuid))
}

/// Sets the persistent flags of a LUKS2 volume, names of [`FLAGS`], in place of the present ones.
/// The next program that opens the volume observes them.
///
/// # Errors
/// The volume is not LUKS2, a flag is unknown, or the header is locked or cannot be written.
pub fn set_flags(path: &Path, place: &Place, flags: &[&str]) -> Result<(), Error> {
    changed(path, place, |file| keys::set_flags(file, flags))
}

/// Destroys all keyslots. The data is lost, unless there is a backup of the header or of the volume
/// key. On flash the old keyslots may survive in spare blocks that no program can overwrite.
/// `shown`: the header that the loss was decided on; another one is not erased.
///
/// # Errors
/// There is no intact header, it was changed meanwhile, or it is locked or cannot be written.
pub fn erase(path: &Path, place: &Place, shown: &Header) -> Result<(), Error> {
    changed(path, place, |file| {
        let (present, _) = partition::read_header(&*file)?;
        if present != *shown {
            return Err(changed_meanwhile());
        }
        keys::erase(file)
    })
}

/// The header, or the disk without one, is not what a person was asked about.
pub(crate) fn changed_meanwhile() -> blockyard_crypt::Error {
    blockyard_crypt::Error::Changed("before the confirmation".to_owned())
}

/// Version of LUKS, for [`Writer::convert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// LUKS1.
    Luks1,
    /// LUKS2.
    Luks2,
}

/// The header of a volume that is not in use, for operations on all of it. Volume and header are
/// locked until the value is dropped, so a program does not keep it while a person is asked
/// ([`Writer::released`]).
#[derive(Debug)]
pub struct Writer {
    device: DeviceFile,
    place: Place,
    lock: HeaderLock,
}

/// A header that a person is asked about, without its locks.
#[derive(Debug)]
pub struct Released {
    path: PathBuf,
    place: Place,
    seen: Seen,
}

/// A header with its damage, or the reason why there is none.
type Seen = Result<(Header, Vec<Notice>), String>;

impl Released {
    /// Locks the header again.
    ///
    /// # Errors
    /// The file cannot be opened or is in use, or its header was changed meanwhile; also if it had
    /// none, and the disk has another content now.
    pub fn reopened(self) -> Result<Writer, Error> {
        let writer = Writer::open(&self.path, &self.place)?;
        if writer.seen() == self.seen {
            Ok(writer)
        } else {
            Err(writer.failed(changed_meanwhile()))
        }
    }
}

impl Writer {
    /// Opens and locks an image, a block device or a detached header.
    ///
    /// # Errors
    /// The file cannot be opened or is in use.
    pub fn open(path: &Path, place: &Place) -> Result<Self, Error> {
        contained(|| {
            let device = place.of(DeviceFile::open(path, Access::ReadWrite, false)?)?;
            let lock = device.lock_header()?;
            Ok(Self { device, place: place.clone(), lock })
        })
    }

    /// Gives the locks back until [`Released::reopened`].
    #[must_use]
    pub fn released(self) -> Released {
        let path = self.device.path().to_owned();
        let seen = self.seen();
        Released { path, place: self.place, seen }
    }

    fn seen(&self) -> Seen {
        self.inspect().map_err(|error| error.to_string())
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
        contained(|| partition::read_header(&self.device).map_err(|error| self.failed(error)))
    }

    /// Rewrites the damaged copies of a LUKS2 header, and returns them.
    ///
    /// # Errors
    /// No copy is intact, the disk has another use now, or the device cannot be written.
    pub fn repair(mut self) -> Result<Vec<HeaderCopy>, Error> {
        contained(|| luks::repair(&mut self.device).map_err(|error| self.failed(error)))
    }

    /// The differences between a backup and the present header: the losses of a restore.
    ///
    /// # Errors
    /// The backup cannot be restored here; see [`Writer::restore`].
    pub fn compare(&self, backup: &Backup) -> Result<Vec<Difference>, Error> {
        contained(|| backup.compare(&self.device).map_err(|error| self.failed(error)))
    }

    /// Replaces the header by a backup.
    ///
    /// # Errors
    /// The device is too short or cannot be written, the data starts elsewhere than in the backup,
    /// or the backup has a requirement that this program does not meet.
    pub fn restore(mut self, backup: &Backup) -> Result<(), Error> {
        contained(|| backup.restore(&mut self.device).map_err(|error| self.failed(error)))
    }

    /// Converts the header to LUKS2 or LUKS1. The data, the volume key and the passphrases stay.
    ///
    /// # Errors
    /// The volume has this version already, LUKS1 lacks something that the volume uses, the header
    /// is damaged or has no room, or the device cannot be written.
    pub fn convert(mut self, version: Version) -> Result<(), Error> {
        contained(|| {
            match version {
                Version::Luks1 => convert::to_luks1(&mut self.device),
                Version::Luks2 => convert::to_luks2(&mut self.device),
            }
            .map_err(|error| self.failed(error))
        })
    }

    /// Destroys the header with its keyslots, whatever is left of it. The data is lost, unless
    /// there is a backup of the header: nothing is written where data may be.
    ///
    /// # Errors
    /// There is no header at all, the disk has another use now, or the device cannot be written.
    pub fn wipe(mut self) -> Result<Wiped, Error> {
        contained(|| keys::wipe(&mut self.device).map_err(|error| self.failed(error)))
    }

    fn failed(&self, error: blockyard_crypt::Error) -> Error {
        Error::crypt(self.device.path(), error)
    }
}
