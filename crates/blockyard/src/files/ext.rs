//! ext2, ext3 and ext4, by the crate `ext4-view`, which also reads a journal that was not replayed.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ext4_view::{Ext4, Ext4Error, Ext4Read, FileType, Metadata};

use super::source::Source;
use super::{Damaged, Entry, Kind, Time, Tree, last_name, too_many};

/// Start of the superblock.
const SUPERBLOCK: u64 = 1024;
/// Limit of the block size, which that of the kernel's largest page is.
const BLOCK_MAX_BYTES: u64 = 64 << 10;
/// Limit of block groups, whose descriptors are kept in memory: 512 TiB of usual groups.
const GROUPS_MAX: u64 = 4 << 20;

/// In the crate's error for a missing table of a file's blocks, which has the number 0.
const READ_OF_NO_BLOCK: &str = "from block 0 (originally 0)";

/// An open file system.
pub(super) struct ExtTree(Ext4);

/// An open file.
struct ExtFile(ext4_view::File);

impl Ext4Read for Source {
    fn read(
        &mut self,
        start_byte: u64,
        dst: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync + 'static>> {
        Ok(Source::read(self, dst, start_byte)?)
    }
}

impl ExtTree {
    pub(super) fn open(mut source: Source) -> io::Result<Self> {
        check_size(&mut source)?;
        Ok(Self(Ext4::load(Box::new(source)).map_err(failed)?))
    }
}

/// Compares the numbers of the superblock by which memory is allocated with the volume.
fn check_size(source: &mut Source) -> io::Result<()> {
    let mut block = [0; 1024];
    source.read(&mut block, SUPERBLOCK)?;
    let word = |at: usize| {
        u64::from(u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]))
    };
    let wrong = |problem: String| Err(io::Error::new(ErrorKind::InvalidData, problem));
    let block_bytes = 1024_u64.checked_shl(word(0x18) as u32).unwrap_or(0);
    if !(1..=BLOCK_MAX_BYTES).contains(&block_bytes) {
        return wrong(format!("its blocks of {block_bytes} bytes are too large"));
    }
    // The upper half exists with the feature `64bit` only.
    let upper = if word(0x60) & 0x80 == 0 { 0 } else { word(0x150) };
    let blocks = upper << 32 | word(0x04);
    let len = source.len_bytes();
    if blocks > len / block_bytes {
        return wrong(format!(
            "its {blocks} blocks of {block_bytes} bytes are more than the {len} bytes of the volume"
        ));
    }
    if blocks / word(0x20).max(1) > GROUPS_MAX {
        return wrong(format!("its block groups of {} blocks are too small", word(0x20)));
    }
    Ok(())
}

impl Tree for ExtTree {
    fn entry(&mut self, path: &Path) -> io::Result<Entry> {
        let metadata = self.0.symlink_metadata(path.as_os_str().as_bytes()).map_err(failed)?;
        Ok(entry(last_name(path), &metadata))
    }

    fn entries(&mut self, path: &Path, max: u64) -> io::Result<Vec<Result<Entry, Damaged>>> {
        let mut entries = Vec::new();
        for found in self.0.read_dir(path.as_os_str().as_bytes()).map_err(failed)? {
            let found = found.map_err(failed)?;
            let name = found.file_name();
            let name: &[u8] = name.as_ref();
            if name == b"." || name == b".." {
                continue;
            }
            if entries.len() as u64 == max {
                return Err(too_many(max));
            }
            let name = OsString::from_vec(name.to_vec());
            entries.push(match found.metadata() {
                Ok(metadata) => Ok(entry(name, &metadata)),
                Err(error) => Err(Damaged { name, error: failed(error) }),
            });
        }
        Ok(entries)
    }

    fn target(&mut self, path: &Path) -> io::Result<PathBuf> {
        let target = self.0.read_link(path.as_os_str().as_bytes()).map_err(failed)?;
        let bytes: &[u8] = target.as_ref();
        Ok(OsString::from_vec(bytes.to_vec()).into())
    }

    fn open(&mut self, path: &Path) -> io::Result<Box<dyn Read + '_>> {
        let file = self.0.open(path.as_os_str().as_bytes()).map_err(failed)?;
        Ok(Box::new(ExtFile(file)))
    }
}

impl Read for ExtFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_bytes(buffer).map_err(|error| {
            let error = failed(error);
            // A missing table of blocks in ext2 and ext3 is a hole of all of them.
            if error.to_string().contains(READ_OF_NO_BLOCK) {
                let problem = "the file has a large hole, which the reader of ext2 and ext3 does \
                               not know; `blockyard mount` shows the file";
                return io::Error::new(ErrorKind::Unsupported, problem);
            }
            error
        })
    }
}

fn entry(name: OsString, metadata: &Metadata) -> Entry {
    let time = |time: ext4_view::Timestamp| {
        Some(Time { seconds: time.seconds(), nanoseconds: time.nanoseconds() })
    };
    Entry {
        name,
        kind: kind(metadata.file_type()),
        len: metadata.len(),
        mode: Some(u32::from(metadata.mode())),
        owner: Some((metadata.uid(), metadata.gid())),
        modified: time(metadata.modified()),
        accessed: time(metadata.accessed()),
    }
}

fn kind(kind: FileType) -> Kind {
    if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        Kind::Link
    } else if kind.is_block_dev() {
        Kind::BlockDevice
    } else if kind.is_char_dev() {
        Kind::CharacterDevice
    } else if kind.is_fifo() {
        Kind::Fifo
    } else if kind.is_socket() {
        Kind::Socket
    } else {
        Kind::File
    }
}

fn failed(error: Ext4Error) -> io::Error {
    match error {
        Ext4Error::NotFound => ErrorKind::NotFound.into(),
        Ext4Error::Io(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::new(ErrorKind::InvalidData, error.to_string()),
    }
}
