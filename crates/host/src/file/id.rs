//! Which file or block device a name leads to: what two names of one thing have in common.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// The identity of a file or block device, whatever name or link leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    is_block_device: bool,
    /// Of a block device its own number, of anything else that of its file system.
    device: u64,
    /// Of a block device 0: its nodes may lie in several file systems.
    inode: u64,
}

impl FileId {
    /// Of what `stat` or `fstat` has described.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        match metadata.file_type().is_block_device() {
            true => Self { is_block_device: true, device: metadata.rdev(), inode: 0 },
            false => Self { is_block_device: false, device: metadata.dev(), inode: metadata.ino() },
        }
    }
}
