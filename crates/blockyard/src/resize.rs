//! The size of a volume.
//!
//! A LUKS volume ends with its file or device, unless its header fixes a size. A volume that is
//! open keeps its size until it is told to look again ([`Volume::resize`], [`Control::resize`]).
//!
//! ```
//! use blockyard::resize::Sizing;
//! # use blockyard::{Key, format::FormatOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("home.img");
//! # let options = FormatOptions {
//! #     size_bytes: Some(20 << 20), pbkdf_iterations: Some(4), pbkdf_memory_kib: Some(32),
//! #     ..FormatOptions::default()
//! # };
//! # options.format(&image, &Key::passphrase("pass"))?;
//! let sizing = Sizing::of(&image);
//! assert_eq!(sizing.sizes()?.fixed_bytes, None, "it ends with its file");
//! sizing.set(Some(1 << 20), &sizing.sizes()?)?;
//! assert_eq!(sizing.sizes()?.fixed_bytes, Some(1 << 20));
//! # Ok(())
//! # }
//! ```
//!
//! [`Volume::resize`]: crate::Volume::resize
//! [`Control::resize`]: crate::Control::resize

use std::path::{Path, PathBuf};

use blockyard_crypt::keys;
use blockyard_crypt::luks::Header;
use blockyard_crypt::partition;
use blockyard_crypt::source::HeaderSource;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::sandbox::hinders_reading;
use blockyard_host::volume as host;
use serde::{Deserialize, Serialize};

use crate::error::contained;
use crate::header::changed_meanwhile;
use blockyard_host::log::{Event, Value};
use blockyard_host::remote::is_remote;

use crate::header_file::HeaderFile;
use crate::{Error, Place};

/// The sizes of a served volume before and after it has followed its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// Size until now, which open connections keep.
    pub from_bytes: u64,
    /// Size for new connections.
    pub to_bytes: u64,
}

/// Reports that an export has grown.
pub(crate) fn say_resized(event: Event<'_>, export: &str, resized: &Resized) {
    let Resized { from_bytes, to_bytes } = *resized;
    event
        .fields(&[("bytes", Value::Number(to_bytes))])
        .say(format_args!("export {export:?} has {to_bytes} bytes now, and had {from_bytes}"));
}

/// The sizes of a LUKS volume that its header and its file permit. Values are equal if the whole
/// headers are.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Size that the header fixes; `None`: the volume ends with its file or device.
    pub fixed_bytes: Option<u64>,
    /// Size up to the end of the file or device.
    pub room_bytes: u64,
    header: Box<Header>,
}

impl Sizes {
    /// The size of the volume.
    #[must_use]
    pub fn present_bytes(&self) -> u64 {
        self.fixed_bytes.unwrap_or(self.room_bytes)
    }
}

/// The size of a LUKS volume, by its header.
#[derive(Clone, Debug)]
pub struct Sizing {
    path: PathBuf,
    place: Place,
    header: Option<PathBuf>,
}

impl Sizing {
    /// Of an image or block device.
    #[must_use]
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), place: Place::Whole, header: None }
    }

    /// The volume is in this part of the file or device.
    #[must_use]
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// The header is in this file.
    #[must_use]
    pub fn header(mut self, header: Option<PathBuf>) -> Self {
        self.header = header;
        self
    }

    /// Reads the sizes.
    ///
    /// # Errors
    /// A file cannot be opened, there is no intact header, or the data has no room.
    pub fn sizes(&self) -> Result<Sizes, Error> {
        contained(|| {
            // One after the other: an NBD server may have one client at a time.
            let device_len_bytes = HeaderFile::to_read(&self.path, &self.place)?.len_bytes();
            self.sizes_of(self.read_header()?, device_len_bytes)
        })
    }

    fn sizes_of(&self, header: Header, device_len_bytes: u64) -> Result<Sizes, Error> {
        let failed = |error| Error::crypt(self.header_path(), error);
        let fixed_bytes = header.fixed_len_bytes().map_err(failed)?;
        let room_bytes = header.room_bytes(device_len_bytes).map_err(failed)?;
        Ok(Sizes { fixed_bytes, room_bytes, header: Box::new(header) })
    }

    /// Fixes the size of a LUKS2 volume, in bytes, or lets it end with its file or device. Data
    /// behind the new end is no longer part of the volume; it is not erased. A volume that is in
    /// use does not become smaller. `shown`: the sizes that the change was decided on.
    ///
    /// # Errors
    /// The volume is not LUKS2, the file or device is too short, the size is no multiple of the
    /// sector size, the volume would shrink and is in use, its header or its sizes were changed
    /// meanwhile, or the header is locked or cannot be written.
    pub fn set(&self, len_bytes: Option<u64>, shown: &Sizes) -> Result<(), Error> {
        contained(|| {
            let to_bytes = len_bytes.unwrap_or(shown.room_bytes);
            if to_bytes > shown.room_bytes {
                return Err(Error::options(
                    &self.path,
                    format!(
                        "has room for a volume of {} bytes, and {to_bytes} are wanted; extend the \
                         file or device first",
                        shown.room_bytes
                    ),
                ));
            }
            // An export has no lock.
            let shrinks = to_bytes < shown.present_bytes() && !is_remote(&self.path);
            let open = || self.place.of(DeviceFile::open(&self.path, Access::ReadWrite, false)?);
            let claim = shrinks.then(open).transpose()?;
            let mut file = HeaderFile::to_write(self.header_path(), &self.header_place())?;
            // Where the lock of the header is one with the claim, no other open file can take it.
            let _lock = match claim.as_ref().filter(|_| self.header.is_none()) {
                Some(device) => device.lock_header()?,
                None => file.lock_to_write()?,
            };
            let failed = |error| Error::crypt(self.header_path(), error);
            let (header, _) = partition::read_header(&file).map_err(failed)?;
            if self.sizes_of(header, self.data_len_bytes(&file)?)? != *shown {
                return Err(failed(changed_meanwhile()));
            }
            keys::set_data_len(&mut file, len_bytes).map_err(failed)
        })
    }

    /// Length of the file or device of the data, with the file of the header open.
    fn data_len_bytes(&self, header: &HeaderFile) -> Result<u64, Error> {
        match self.header {
            None => Ok(header.len_bytes()),
            Some(_) => Ok(HeaderFile::to_read(&self.path, &self.place)?.len_bytes()),
        }
    }

    fn header_path(&self) -> &Path {
        self.header.as_deref().unwrap_or(&self.path)
    }

    fn header_place(&self) -> Place {
        if self.header.is_some() { Place::Whole } else { self.place.clone() }
    }

    fn read_header(&self) -> Result<Header, Error> {
        let source = HeaderFile::to_read(self.header_path(), &self.header_place())?;
        let _lock = source.lock_to_read()?;
        let (header, _) = partition::read_header(&source)
            .map_err(|error| Error::crypt(self.header_path(), error))?;
        if header.data_offset_bytes() == 0 && self.header.is_none() {
            let problem = "the header is detached: its data starts at byte 0 of another device; \
                           give that device as the volume and this file as `header`";
            let problem = blockyard_crypt::Error::DataDevice(problem.to_owned());
            return Err(Error::crypt(&self.path, problem));
        }
        Ok(header)
    }
}

/// The origin of the size of an open volume.
pub(crate) enum SizeFrom {
    /// A LUKS header, which is read again, and the data's file.
    Header {
        /// The files.
        sizing: Sizing,
        /// Start of the data's part of its file when the volume was opened.
        part_start_bytes: u64,
        /// The header at the start of the volume.
        before: Box<Header>,
    },
    /// The end of its file or device.
    End {
        /// File or device.
        path: PathBuf,
        /// Part of it.
        place: Place,
        /// Start of the part when the volume was opened.
        part_start_bytes: u64,
        /// Start of the data in the part.
        start_bytes: u64,
    },
    /// Something that stays; the reason why the volume cannot follow.
    Fixed(&'static str),
}

impl SizeFrom {
    /// The files that [`SizeFrom::follow`] opens.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Header { sizing, .. } => {
                sizing.header.iter().chain([&sizing.path]).map(PathBuf::as_path).collect()
            }
            Self::End { path, .. } => vec![path],
            Self::Fixed(_) => Vec::new(),
        }
    }

    /// Extends an open volume to the size that its header and its file have now.
    pub(crate) fn follow(&self, volume: &host::Volume) -> Result<Resized, Error> {
        let (file, len_bytes) = match self {
            Self::Fixed(reason) => return Err(Error::options(Path::new("volume"), *reason)),
            Self::Header { sizing, part_start_bytes, before } => {
                let file = same_part(&sizing.path, &sizing.place, *part_start_bytes, volume)?;
                let header = sizing.read_header().map_err(|error| {
                    let path = sizing.header_path();
                    if hinders_reading(path) { other_header(path) } else { error }
                })?;
                let is_same = header.uuid() == before.uuid()
                    && header.data_offset_bytes() == before.data_offset_bytes();
                if !is_same {
                    return Err(other_header(sizing.header_path()));
                }
                let len_bytes = header
                    .data_len_bytes(file.len_bytes())
                    .map_err(|error| Error::crypt(sizing.header_path(), error))?;
                (file, len_bytes)
            }
            Self::End { path, place, part_start_bytes, start_bytes } => {
                let file = same_part(path, place, *part_start_bytes, volume)?;
                let room_bytes = file.len_bytes().saturating_sub(*start_bytes);
                (file, room_bytes - room_bytes % u64::from(volume.sector_size_bytes()))
            }
        };
        let end_bytes = file.start_bytes() + file.len_bytes();
        let host::Resized { from_bytes, to_bytes } = volume.grow(len_bytes, end_bytes)?;
        Ok(Resized { from_bytes, to_bytes })
    }
}

fn other_header(path: &Path) -> Error {
    Error::options(path, "the header is of another volume now; start the server again")
}

/// The file of a volume by its name, limited to the present end of the volume's part of it.
fn same_part(
    path: &Path,
    place: &Place,
    start_bytes: u64,
    volume: &host::Volume,
) -> Result<HeaderFile, Error> {
    let replaced =
        || Error::options(path, "another file has this name now; start the server again");
    // The sandbox permits the file that had the name.
    let file = HeaderFile::to_read(path, place)
        .map_err(|error| if hinders_reading(path) { replaced() } else { error })?;
    // An export or an image is known by its name alone.
    let is_local = !is_remote(path);
    if is_local && volume.file_ids().iter().all(|id| Some(*id) != file.id()) {
        return Err(replaced());
    }
    if file.start_bytes() != start_bytes {
        let problem = format!(
            "the partition starts at byte {} now, and the volume was opened at byte \
             {start_bytes}; start the server again",
            file.start_bytes()
        );
        return Err(Error::options(path, problem));
    }
    Ok(file)
}
