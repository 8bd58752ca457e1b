//! The file of a dirty bitmap.
//!
//! ```text
//!     0  magic "BLKDIRTY", version (u32), state (u32): 0 clean, 1 in use
//!    16  size of the volume in bytes (u64)
//!    24  granularity in bytes (u32), length of the identity (u32)
//!    32  identity of the volume, at most 256 bytes, then zeroes
//!   288  SHA-256 of this header, with zeroes in this place, and of all bits of a clean file
//!   320  SHA-256 of the state of the volume's files at the end of the last session; zeroes in use
//!   352  zeroes
//!   512  one bit for each block of the volume, the first in the lowest bit of the first byte
//! ```
//! All numbers are little-endian. The bits fill whole words of 64. The header is one sector, so
//! that a power cut leaves the old one or the new one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::Error;
use crate::canary::{Canary, is_planted};
use crate::file::{FileId, lock_output};

/// Length of the header.
pub const HEADER_BYTES: usize = 512;
/// Longest identity.
pub(super) const IDENTITY_MAX_BYTES: usize = 256;
/// Limit of the blocks: 128 MiB of memory for the bits.
pub(super) const BLOCKS_MAX: u64 = 1 << 30;
/// Valid granularities, powers of two.
pub const GRANULARITY_MIN_BYTES: u32 = 4 << 10;
/// See [`GRANULARITY_MIN_BYTES`].
pub const GRANULARITY_MAX_BYTES: u32 = 64 << 20;

const MAGIC: [u8; 8] = *b"BLKDIRTY";
const VERSION: u32 = 1;
const CLEAN: u32 = 0;
const IN_USE: u32 = 1;
const IDENTITY_AT: usize = 32;
const DIGEST_AT: usize = IDENTITY_AT + IDENTITY_MAX_BYTES;
const DIGEST_BYTES: usize = 32;
const CONTENT_AT: usize = DIGEST_AT + DIGEST_BYTES;
/// Words of one read or write.
const PIECE_WORDS: usize = 8 << 10;

/// The header of a file, without its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// No session has the file, and the last one has ended in order.
    pub is_clean: bool,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Length of a block.
    pub granularity_bytes: u32,
    /// Identity of the volume; may be empty.
    pub identity: Vec<u8>,
    /// State of the volume's image files at the end of the last session: a digest of their numbers,
    /// sizes and times of the last write; zeroes without such a file.
    pub content: [u8; DIGEST_BYTES],
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// The bytes are no header, or one that this version does not read.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        if bytes[..8] != MAGIC {
            return Err("this is no dirty bitmap; name another file".into());
        }
        match number(8) {
            VERSION => {}
            version => {
                return Err(format!(
                    "the dirty bitmap has version {version}, and this program reads version \
                     {VERSION}"
                ));
            }
        }
        let state = number(12);
        let size_bytes = u64::from(number(20)) << 32 | u64::from(number(16));
        let granularity_bytes = number(24);
        let identity_len = number(28) as usize;
        let is_valid = matches!(state, CLEAN | IN_USE)
            && size_bytes <= i64::MAX as u64
            && is_granularity(granularity_bytes)
            && size_bytes.div_ceil(granularity_bytes.into()) <= BLOCKS_MAX
            && identity_len <= IDENTITY_MAX_BYTES;
        if !is_valid {
            return Err("the header of the dirty bitmap is damaged; remove the file, and the \
                        whole volume counts as dirty"
                .into());
        }
        let identity = bytes[IDENTITY_AT..IDENTITY_AT + identity_len].to_vec();
        let mut content = [0; DIGEST_BYTES];
        content.copy_from_slice(&bytes[CONTENT_AT..CONTENT_AT + DIGEST_BYTES]);
        Ok(Self { is_clean: state == CLEAN, size_bytes, granularity_bytes, identity, content })
    }

    /// The header with zeroes in place of its digest.
    fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(if self.is_clean { CLEAN } else { IN_USE }).to_le_bytes());
        put(16, &self.size_bytes.to_le_bytes());
        put(24, &self.granularity_bytes.to_le_bytes());
        put(28, &(self.identity.len() as u32).to_le_bytes());
        put(IDENTITY_AT, &self.identity);
        put(CONTENT_AT, &self.content);
        bytes
    }

    pub(super) fn words(&self) -> usize {
        words(self.size_bytes, self.granularity_bytes)
    }
}

pub(super) fn is_granularity(bytes: u32) -> bool {
    bytes.is_power_of_two() && (GRANULARITY_MIN_BYTES..=GRANULARITY_MAX_BYTES).contains(&bytes)
}

/// Number of words with the bits of a volume.
pub(super) fn words(size_bytes: u64, granularity_bytes: u32) -> usize {
    size_bytes.div_ceil(granularity_bytes.into()).div_ceil(64) as usize
}

/// State of the image files of a volume: their numbers, sizes and times of the last write. It
/// changes when another program writes into one, or puts another file in its place. Zeroes without
/// such a file.
pub(super) fn content_state(files: &[File]) -> io::Result<[u8; DIGEST_BYTES]> {
    let mut state = Sha256::new();
    for file in files {
        let metadata = file.metadata()?;
        let [s, ns] = [metadata.mtime(), metadata.mtime_nsec()].map(i64::cast_unsigned);
        for number in [metadata.ino(), metadata.len(), s, ns] {
            state.update(number.to_le_bytes());
        }
    }
    Ok(if files.is_empty() { [0; DIGEST_BYTES] } else { state.finalize().into() })
}

/// State of the bits in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The file is new.
    Nothing,
    /// The bits are those of the last session.
    Bits,
    /// The last session has not ended in order.
    InUse,
    /// The image was changed since.
    Changed,
    /// The file is damaged.
    Damaged,
}

/// An open and locked file.
#[derive(Debug)]
pub(super) struct BitmapFile {
    path: PathBuf,
    file: File,
    len_bytes: u64,
}

impl BitmapFile {
    /// Opens a file, or makes it. No other program may use it until it is closed.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // A FIFO must not wait for its other end.
        options.custom_flags(libc::O_NONBLOCK);
        let failed = |error| Error::io(path, "open the dirty bitmap", error);
        let file = options.open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::volume(path, "a dirty bitmap needs a regular file"));
        }
        // A regular file has nothing under it.
        if lock_output(&file, path).is_none() {
            return Err(Error::InUse { path: path.display().to_string() });
        }
        Ok(Self { path: path.to_owned(), file, len_bytes: metadata.len() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn id(&self) -> io::Result<FileId> {
        Ok(FileId::of(&self.file.metadata()?))
    }

    /// Reads the header; `None` if the file is empty.
    pub(super) fn header(&self) -> Result<Option<Header>, Error> {
        if self.len_bytes == 0 {
            return Ok(None);
        }
        let bytes = self.raw_header()?;
        Header::parse(&bytes).map(Some).map_err(|problem| Error::volume(&self.path, problem))
    }

    fn raw_header(&self) -> Result<[u8; HEADER_BYTES], Error> {
        let mut bytes = [0; HEADER_BYTES];
        // A shorter file has another magic, or is damaged.
        let present = usize::try_from(self.len_bytes).unwrap_or(HEADER_BYTES).min(HEADER_BYTES);
        let read = self.file.read_exact_at(&mut bytes[..present], 0);
        read.map_err(|error| Error::io(&self.path, "read the dirty bitmap", error))?;
        Ok(bytes)
    }

    /// Reads the bits of a clean file into `bits`, as many as fit.
    pub(super) fn read_bits(
        &self,
        header: &Header,
        content: &[u8; DIGEST_BYTES],
        bits: &[AtomicU64],
    ) -> Result<Found, Error> {
        let mut raw = self.raw_header()?;
        let digest = raw[DIGEST_AT..DIGEST_AT + DIGEST_BYTES].to_vec();
        raw[DIGEST_AT..DIGEST_AT + DIGEST_BYTES].fill(0);
        let mut hashed = Sha256::new_with_prefix(raw);
        if !header.is_clean {
            let is_whole = hashed.finalize()[..] == digest;
            return Ok(if is_whole { Found::InUse } else { Found::Damaged });
        }
        let count = header.words();
        if self.len_bytes != HEADER_BYTES as u64 + 8 * count as u64 {
            return Ok(Found::Damaged);
        }
        let mut piece = vec![0; 8 * PIECE_WORDS.min(count)];
        for first in (0..count).step_by(PIECE_WORDS) {
            let piece = &mut piece[..8 * PIECE_WORDS.min(count - first)];
            let read = self.file.read_exact_at(piece, HEADER_BYTES as u64 + 8 * first as u64);
            read.map_err(|error| Error::io(&self.path, "read the dirty bitmap", error))?;
            hashed.update(&*piece);
            let (words, _) = piece.as_chunks::<8>();
            let room = bits.get(first..).unwrap_or_default();
            for (bits, word) in room.iter().zip(words) {
                bits.store(u64::from_le_bytes(*word), Ordering::Relaxed);
            }
        }
        if hashed.finalize()[..] != digest {
            return Ok(Found::Damaged);
        }
        Ok(if header.content == *content { Found::Bits } else { Found::Changed })
    }

    /// Marks the file as in use, on stable storage, and gives it its length for [`Self::end`].
    pub(super) fn begin(&self, header: &Header) -> io::Result<()> {
        let header = Header { is_clean: false, content: [0; DIGEST_BYTES], ..header.clone() };
        self.put_header(&header, Sha256::new_with_prefix(header.bytes()))?;
        if !is_planted(Canary::BitmapMark) {
            self.file.sync_all()?;
        }
        self.file.set_len(HEADER_BYTES as u64 + 8 * header.words() as u64)
    }

    /// Writes the bits, then marks the file as clean. Both are on stable storage at the end.
    pub(super) fn end(&self, header: &Header, content: &[File], bits: &[u64]) -> io::Result<()> {
        let content = content_state(content)?;
        let header = Header { is_clean: true, content, ..header.clone() };
        let mut hashed = Sha256::new_with_prefix(header.bytes());
        let mut at = HEADER_BYTES as u64;
        for words in bits.chunks(PIECE_WORDS) {
            let piece: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.file.write_all_at(&piece, at)?;
            hashed.update(&piece);
            at += piece.len() as u64;
        }
        self.file.sync_all()?;
        self.put_header(&header, hashed)?;
        self.file.sync_all()
    }

    fn put_header(&self, header: &Header, hashed: Sha256) -> io::Result<()> {
        let mut bytes = header.bytes();
        bytes[DIGEST_AT..DIGEST_AT + DIGEST_BYTES].copy_from_slice(&hashed.finalize());
        self.file.write_all_at(&bytes, 0)
    }
}
