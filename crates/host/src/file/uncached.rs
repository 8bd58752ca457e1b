//! Headers of block devices, read and written past the page cache.
//!
//! A disk and each partition of it have separate page caches, and so do a loop device and its file.
//! A cached header of one would stay as it was when another program changes it through the other,
//! and cryptsetup itself uses `O_DIRECT`. The descriptor needs `O_DIRECT`; places and lengths are
//! free, because pieces are rounded to the device's logical blocks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Logical block where the system does not report one.
const UNIT_BYTES: u64 = 4096;
/// Longest piece. Chosen: a LUKS2 header of the default size is read at once.
const PIECE_BYTES: usize = 1 << 20;
/// Flag with which the device is opened.
pub const OPEN_FLAG: i32 = libc::O_DIRECT;
/// Alignment of memory that every device takes.
const ALIGNMENT_BYTES: usize = 4096;

/// Fills `buf` from a place of the device.
///
/// # Errors
/// The device ends before, or it fails.
pub fn read_exact_at(device: &File, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
    let mut blocks = Blocks::of(device, buf.len());
    let mut at = offset_bytes;
    for piece in buf.chunks_mut(PIECE_BYTES) {
        piece.copy_from_slice(blocks.read(device, at, piece.len())?);
        at += piece.len() as u64;
    }
    Ok(())
}

/// Writes to a place of the device. Blocks that are written in part keep their other bytes.
///
/// # Errors
/// The device ends before, or it fails.
pub fn write_all_at(device: &File, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
    let mut blocks = Blocks::of(device, bytes.len());
    let mut at = offset_bytes;
    for piece in bytes.chunks(PIECE_BYTES) {
        let is_whole = blocks.fits(at) && blocks.fits(piece.len() as u64);
        if !is_whole {
            blocks.read(device, at, piece.len())?;
        }
        blocks.span(at, piece.len()).copy_from_slice(piece);
        blocks.write(device, at, piece.len())?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Aligned memory for the blocks around a piece.
struct Blocks {
    memory: Vec<u8>,
    start: usize,
    unit_bytes: u64,
}

impl Blocks {
    fn of(device: &File, len: usize) -> Self {
        let unit_bytes = rustix::fs::ioctl_blksszget(device).map_or(UNIT_BYTES, u64::from);
        let memory = vec![0; len.min(PIECE_BYTES) + 2 * unit_bytes as usize + ALIGNMENT_BYTES];
        let start = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
        Self { memory, start, unit_bytes }
    }

    fn fits(&self, bytes: u64) -> bool {
        bytes.is_multiple_of(self.unit_bytes)
    }

    /// The blocks around a piece: their place, and the memory for them.
    fn around(&mut self, at: u64, len: usize) -> (u64, &mut [u8]) {
        let first = at / self.unit_bytes * self.unit_bytes;
        let end = (at + len as u64).next_multiple_of(self.unit_bytes);
        (first, &mut self.memory[self.start..][..(end - first) as usize])
    }

    /// The piece in the memory of its blocks.
    fn span(&mut self, at: u64, len: usize) -> &mut [u8] {
        let (first, blocks) = self.around(at, len);
        &mut blocks[(at - first) as usize..][..len]
    }

    fn read(&mut self, device: &File, at: u64, len: usize) -> io::Result<&mut [u8]> {
        let (first, blocks) = self.around(at, len);
        device.read_exact_at(blocks, first)?;
        Ok(self.span(at, len))
    }

    fn write(&mut self, device: &File, at: u64, len: usize) -> io::Result<()> {
        let (first, blocks) = self.around(at, len);
        device.write_all_at(blocks, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_place_and_length_is_read_and_written_and_its_neighbours_stay() {
        // A file has no logical block, so the blocks have 4096 bytes.
        let file = tempfile::tempfile().unwrap();
        let mut expected: Vec<u8> = (0..3 * PIECE_BYTES).map(|at| (at % 251) as u8).collect();
        file.write_all_at(&expected, 0).unwrap();
        for (offset, len) in
            [(0, 1), (592, 4096), (4095, 2), (4096, 8192), (1000, PIECE_BYTES + 7), (8192, 0)]
        {
            let bytes = vec![0xa5; len];
            write_all_at(&file, &bytes, offset as u64).unwrap();
            expected[offset..][..len].copy_from_slice(&bytes);
            let mut around = vec![0; len + 600];
            read_exact_at(&file, &mut around, offset as u64).unwrap();
            assert!(around == expected[offset..][..len + 600], "{offset}, {len}");
        }
        let mut all = vec![0; expected.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == expected);
        assert!(read_exact_at(&file, &mut [0; 2], expected.len() as u64 - 1).is_err());
    }
}
