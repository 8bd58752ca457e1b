//! A file in which zeros become holes.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// Smallest run of zeros that becomes a hole: a page, the block of nearly every file system.
const HOLE_MIN_BYTES: usize = 4096;

/// A writer into a new, empty file that leaves out zeros, so that they become holes. A copy of a
/// mostly empty disk is mostly hole.
///
/// ```
/// use blockyard::{SparseFile, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let image = tempfile::NamedTempFile::new()?;
/// # image.as_file().set_len(1 << 20)?;
/// # let file = tempfile::tempfile()?;
/// let volume = Volume::options().raw().open(image.path())?;
/// let mut sparse = SparseFile::new(&file);
/// volume.copy_out(&mut sparse, &mut |_| ())?;
/// sparse.end()?;
/// assert_eq!(file.metadata()?.len(), volume.len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SparseFile<'a> {
    file: &'a File,
    at_bytes: u64,
}

impl<'a> SparseFile<'a> {
    /// A writer from the start of a file, which must be empty.
    #[must_use]
    pub fn new(file: &'a File) -> Self {
        Self { file, at_bytes: 0 }
    }

    /// Gives the file its length: it may end with a hole.
    ///
    /// # Errors
    /// The system's error.
    pub fn end(self) -> io::Result<()> {
        self.file.set_len(self.at_bytes)
    }
}

impl Write for SparseFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut left = bytes;
        while !left.is_empty() {
            let zeros = run_len(left, true);
            self.at_bytes += zeros as u64;
            left = &left[zeros..];
            let (data, rest) = left.split_at(run_len(left, false));
            self.file.write_all_at(data, self.at_bytes)?;
            self.at_bytes += data.len() as u64;
            left = rest;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Length of the run of blocks at the start that are all zeros, or all not zeros.
fn run_len(bytes: &[u8], zeros: bool) -> usize {
    let blocks = bytes.chunks(HOLE_MIN_BYTES);
    blocks.take_while(|block| is_zero(block) == zeros).map(<[u8]>::len).sum()
}

pub(crate) fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn sparse_file_reads_back_what_was_written_and_keeps_the_holes() {
        let mut bytes = vec![0u8; 1 << 20];
        bytes[300_000..300_010].fill(7);
        bytes[0] = 1;
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sparse = SparseFile::new(file.as_file());
        // Pieces end inside blocks: block borders count from the start of the piece.
        for piece in bytes.chunks(100_001) {
            sparse.write_all(piece).unwrap();
        }
        sparse.end().unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
        let allocated_bytes = file.as_file().metadata().unwrap().blocks() * 512;
        assert!(allocated_bytes < 128 << 10, "{allocated_bytes} bytes are allocated");
    }

    #[test]
    fn run_lengths_end_where_the_other_kind_begins() {
        let mut bytes = vec![0u8; 3 * HOLE_MIN_BYTES + 5];
        assert_eq!(run_len(&bytes, true), bytes.len());
        bytes[HOLE_MIN_BYTES] = 1;
        assert_eq!(run_len(&bytes, true), HOLE_MIN_BYTES);
        assert_eq!(run_len(&bytes[HOLE_MIN_BYTES..], false), HOLE_MIN_BYTES);
        bytes[3 * HOLE_MIN_BYTES + 4] = 1;
        assert_eq!(run_len(&bytes[2 * HOLE_MIN_BYTES..], true), HOLE_MIN_BYTES);
    }
}
