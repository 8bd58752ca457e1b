//! A disk that is not on this machine: an export of an NBD server, or an image of a Ceph cluster.
//!
//! Each has a thread of its device (`device_thread`) when its volume is open, and before that one
//! request at a time for headers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::Error;
use crate::access::Access;
use crate::device_thread::DeviceThread;
use crate::durability::Durability;
use crate::nbd::uri::Uri;
use crate::nbd::{NbdDisk, Unflushed};
use crate::rbd::{Image, RbdName};

/// The text of a remote disk's name; `None` for the path of a file.
#[must_use]
pub fn name_of(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| Uri::is_uri(text) || RbdName::is_rbd(text))
}

/// Whether a path is the name of a remote disk.
#[must_use]
pub fn is_remote(path: &Path) -> bool {
    name_of(path).is_some()
}

/// A disk on a server or a cluster.
#[derive(Clone, Debug)]
pub(crate) enum RemoteDisk {
    Nbd(Arc<NbdDisk>),
    Rbd(Arc<Image>),
}

impl RemoteDisk {
    /// Connects, and opens the disk.
    ///
    /// # Errors
    /// The name is wrong, or the disk cannot be reached or used.
    pub(crate) fn open(name: &str, access: Access) -> Result<Self, Error> {
        Ok(if RbdName::is_rbd(name) {
            Self::Rbd(Arc::new(Image::open(name, access)?))
        } else {
            Self::Nbd(Arc::new(NbdDisk::open(name, access.writes())?))
        })
    }

    /// Like [`RemoteDisk::open`], for a path of a multipath line; the server of an export may be
    /// away.
    ///
    /// # Errors
    /// See [`RemoteDisk::open`].
    pub(crate) fn open_path(name: &str, access: Access) -> Result<Self, Error> {
        Ok(if RbdName::is_rbd(name) {
            let image = Image::open(name, access)?;
            image.set_path();
            Self::Rbd(Arc::new(image))
        } else {
            Self::Nbd(Arc::new(NbdDisk::open_path(name, access.writes())?))
        })
    }

    /// The image of a cluster.
    pub(crate) fn image(&self) -> Option<&Arc<Image>> {
        match self {
            Self::Nbd(_) => None,
            Self::Rbd(image) => Some(image),
        }
    }

    /// Whether another server of the disk may go on in place of this one.
    pub(crate) fn is_gateway(&self) -> bool {
        match self {
            Self::Nbd(_) => false,
            Self::Rbd(image) => image.is_gateway(),
        }
    }

    /// The URI of an export.
    pub(crate) fn uri(&self) -> Option<&Uri> {
        match self {
            Self::Nbd(disk) => Some(disk.uri()),
            Self::Rbd(_) => None,
        }
    }

    /// Start of the present outage of a server; `None` while it is connected. The outage of a
    /// cluster is not known: its library waits.
    pub(crate) fn lost_since(&self) -> Option<SystemTime> {
        match self {
            Self::Nbd(disk) => disk.lost_since(),
            Self::Rbd(_) => None,
        }
    }

    /// Length; the greatest possible one while it is unknown.
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Nbd(disk) => disk.len_bytes(),
            Self::Rbd(image) => image.len_bytes(),
        }
    }

    /// The present length; `Unsupported` for an export, whose length is that of its connection.
    pub(crate) fn present_len_bytes(&self) -> io::Result<u64> {
        match self {
            Self::Nbd(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Rbd(image) => image.present_len_bytes(),
        }
    }

    pub(crate) fn rotational(&self) -> bool {
        match self {
            Self::Nbd(disk) => disk.rotational(),
            Self::Rbd(_) => false,
        }
    }

    /// Whether TRIM is supported; assumed while a server is away.
    pub(crate) fn can_trim(&self) -> bool {
        match self {
            Self::Nbd(disk) => disk.can_trim(),
            Self::Rbd(_) => true,
        }
    }

    /// Sets the used length.
    pub(crate) fn require(&self, len_bytes: u64) {
        if let Self::Nbd(disk) = self {
            disk.require(len_bytes);
        }
    }

    pub(crate) fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Nbd(disk) => disk.read_at(offset_bytes, buf),
            Self::Rbd(image) => image.read_at(offset_bytes, buf),
        }
    }

    pub(crate) fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Nbd(disk) => disk.write_at(offset_bytes, bytes),
            Self::Rbd(image) => image.write_at(offset_bytes, bytes),
        }
    }

    /// Flushes: all writes through this value are on stable storage when this returns.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match self {
            Self::Nbd(disk) => disk.flush(),
            Self::Rbd(image) => image.flush(),
        }
    }

    /// Knowledge of a range, from its start on: lengths, and whether they read as zeroes. May be
    /// empty.
    pub(crate) fn runs_at(&self, offset_bytes: u64, len_bytes: u64) -> Vec<(u64, bool)> {
        match self {
            Self::Nbd(disk) => disk.runs_at(offset_bytes, len_bytes),
            Self::Rbd(image) => image.runs_at(offset_bytes, len_bytes),
        }
    }

    /// Bytes after which an image uses the same objects again; one for other disks.
    pub(crate) fn stripe_period_bytes(&self) -> u64 {
        match self {
            Self::Nbd(_) => 1,
            Self::Rbd(image) => image.stripe_period_bytes(),
        }
    }

    /// Starts the thread of the disk, for the volume with this latch. Paths of one line share the
    /// count of unflushed writes.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub(crate) fn start(
        &self,
        number: usize,
        durability: Arc<Durability>,
        unflushed: Arc<Unflushed>,
    ) -> io::Result<DeviceThread> {
        match self {
            Self::Nbd(disk) => disk.start(number, durability, unflushed),
            Self::Rbd(image) => image.start(number, durability),
        }
    }
}
