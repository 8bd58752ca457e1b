//! Identity of a file or block device, independent of its names.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// The identity of a file or block device, equal for all its names and links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    is_block_device: bool,
    /// Number of the block device, or of the file system's device.
    device: u64,
    /// Inode number; 0 for a block device, whose nodes may be in several file systems.
    inode: u64,
}

impl FileId {
    /// From the result of `stat` or `fstat`.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self { is_block_device: true, device: metadata.rdev(), inode: 0 }
        } else {
            Self { is_block_device: false, device: metadata.dev(), inode: metadata.ino() }
        }
    }

    /// The block device of this number.
    pub(super) fn of_device(number: u64) -> Self {
        Self { is_block_device: true, device: number, inode: 0 }
    }

    /// All of it as bytes, for a digest.
    pub(crate) fn to_bytes(self) -> [u8; 17] {
        let mut bytes = [0; 17];
        bytes[0] = self.is_block_device.into();
        bytes[1..9].copy_from_slice(&self.device.to_ne_bytes());
        bytes[9..].copy_from_slice(&self.inode.to_ne_bytes());
        bytes
    }
}
