//! Verification of written data: `verify`. The block layout is fio's, so that each program can
//! verify the other's writes.
//!
//! ```text
//!   0  magic 0xacca (2)   2  kind (2)   4  length of the chunk (4)   8  seed (8)   16  offset (8)
//!   24 seconds (4)  28 nanoseconds (4)  32 clone (2)  34 number (2)  36 CRC-32C of the 36 before
//!   40 checksum of the rest                  then noise, or the pattern
//! ```
//! Numbers are little-endian. Each chunk of `verify_interval` has such a header; `verify_offset` is
//! its place in the chunk. The layout is taken from blocks of fio 3.33. Two of fio's checksums
//! differ from their names (it keeps the last block of SHA-2, not the digest): here `sha256` and
//! `sha512` are digests, which fio does not accept.

mod pattern;
mod sums;

use std::fmt;

use blockyard_engine::time::Nanos;

pub use pattern::Pattern;
pub use sums::Sum;

use crate::random::Random;

const MAGIC: u16 = 0xacca;
/// Length of the header up to the checksum.
pub(super) const HEADER_BYTES: usize = 40;
/// Length of the part that the header's own checksum covers.
const SUMMED_BYTES: usize = 36;

/// `verify` and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verify {
    /// `verify`: the method; `None`: no verification.
    pub sum: Option<Sum>,
    /// `do_verify`: written data is read back.
    pub reads_again: bool,
    /// `verify_only`: nothing is written; the ranges of the writes are read.
    pub only: bool,
    /// `verify_fatal`: the first mismatch ends the job.
    pub is_fatal: bool,
    /// `verify_pattern`: content instead of noise.
    pub pattern: Option<Pattern>,
    /// `verify_interval`: length of a chunk; `None`: the whole request.
    pub interval_bytes: Option<u64>,
    /// `verify_offset`: offset of the header in its chunk.
    pub offset_bytes: u64,
    /// `verify_backlog`: number of writes after which they are read back.
    pub backlog: Option<u64>,
}

impl Default for Verify {
    fn default() -> Self {
        Self {
            sum: None,
            reads_again: true,
            only: false,
            is_fatal: false,
            pattern: None,
            interval_bytes: None,
            offset_bytes: 0,
            backlog: None,
        }
    }
}

/// Identity of a request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) offset_bytes: u64,
    /// Number among the clone's writes; `None`: any.
    pub(super) number: Option<u64>,
}

/// A chunk that failed verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset on the volume.
    pub offset_bytes: u64,
    /// The field that differs.
    pub what: &'static str,
    /// The expected value.
    pub expected: String,
    /// The value read.
    pub found: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset_bytes, what, expected, found } = self;
        write!(f, "verify: at offset {offset_bytes}: {what} is {found}, expected {expected}")
    }
}

impl Verify {
    /// Length of a request's chunks.
    fn chunk(&self, len: usize) -> usize {
        let interval = self.interval_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        interval.unwrap_or(len).clamp(1, len.max(1))
    }

    /// Fills the buffer of a write.
    pub(super) fn fill(&self, stamp: Stamp, clone: u32, now: Nanos, bytes: &mut [u8]) {
        let Some(sum) = self.sum else { return };
        let number = stamp.number.unwrap_or(0);
        let mut random = Random::new(stamp.offset_bytes ^ number.rotate_left(32), clone.into());
        let seed = random.below(u64::MAX);
        match &self.pattern {
            Some(pattern) => pattern.fill(stamp.offset_bytes, bytes),
            None => noise(seed, bytes),
        }
        if !sum.has_header() {
            return;
        }
        let chunk = self.chunk(bytes.len());
        for (index, chunk) in bytes.chunks_mut(chunk).enumerate() {
            let offset = stamp.offset_bytes + index as u64 * self.interval_bytes.unwrap_or(0);
            let behind = HEADER_BYTES + sum.len();
            if chunk.len() < behind {
                continue;
            }
            let digest = sum.of(&chunk[behind..]);
            let mut header = Vec::with_capacity(behind);
            header.extend(MAGIC.to_le_bytes());
            header.extend(sum.kind().to_le_bytes());
            header.extend((chunk.len() as u32).to_le_bytes());
            header.extend(seed.to_le_bytes());
            header.extend(offset.to_le_bytes());
            header.extend(((now.0 / 1_000_000_000) as u32).to_le_bytes());
            header.extend(((now.0 % 1_000_000_000) as u32).to_le_bytes());
            // fio counts clones from 1.
            header.extend((clone as u16).wrapping_add(1).to_le_bytes());
            header.extend((number as u16).to_le_bytes());
            let own = sums::crc32c(&header);
            header.extend(own.to_le_bytes());
            header.extend(digest);
            chunk[..behind].copy_from_slice(&header);
            self.swap(chunk, behind);
        }
    }

    /// Swaps the header with the bytes at `verify_offset`.
    fn swap(&self, chunk: &mut [u8], len: usize) {
        let at = usize::try_from(self.offset_bytes).unwrap_or(usize::MAX);
        if at >= len && at.checked_add(len).is_some_and(|end| end <= chunk.len()) {
            let (front, back) = chunk.split_at_mut(at);
            front[..len].swap_with_slice(&mut back[..len]);
        }
    }

    /// Verifies the bytes of a read.
    pub(super) fn check(&self, stamp: Stamp, bytes: &[u8]) -> Result<(), Mismatch> {
        let Some(sum) = self.sum else { return Ok(()) };
        if let Some(pattern) = self.pattern.as_ref().filter(|_| sum == Sum::Pattern) {
            return pattern.check(stamp.offset_bytes, bytes);
        }
        if !sum.has_header() {
            return Ok(());
        }
        let chunk = self.chunk(bytes.len());
        for (index, chunk) in bytes.chunks(chunk).enumerate() {
            let offset = stamp.offset_bytes + index as u64 * self.interval_bytes.unwrap_or(0);
            if chunk.len() >= HEADER_BYTES + sum.len() {
                self.check_chunk(sum, Stamp { offset_bytes: offset, ..stamp }, chunk)?;
            }
        }
        Ok(())
    }

    fn check_chunk(&self, sum: Sum, stamp: Stamp, chunk: &[u8]) -> Result<(), Mismatch> {
        let behind = HEADER_BYTES + sum.len();
        let swapped = (self.offset_bytes > 0).then(|| {
            let mut copy = chunk.to_vec();
            self.swap(&mut copy, behind);
            copy
        });
        let chunk = swapped.as_deref().unwrap_or(chunk);
        let number = |at: usize, len: usize| {
            let bytes = chunk[at..at + len].iter().rev();
            bytes.fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let own = u64::from(sums::crc32c(&chunk[..SUMMED_BYTES]));
        let wanted = stamp.number.map_or(number(34, 2), |number| number & 0xffff);
        for (what, found, expected) in [
            ("the header's magic number", number(0, 2), MAGIC.into()),
            ("the header's checksum", number(SUMMED_BYTES, 4), own),
            ("the kind of checksum", number(2, 2), sum.kind().into()),
            ("the length", number(4, 4), chunk.len() as u64),
            ("the offset in the header", number(16, 8), stamp.offset_bytes),
            ("the number of the write", number(34, 2), wanted),
        ] {
            if found != expected {
                return Err(Mismatch {
                    offset_bytes: stamp.offset_bytes,
                    what,
                    expected: format!("{expected:#x}"),
                    found: format!("{found:#x}"),
                });
            }
        }
        let found = &chunk[HEADER_BYTES..behind];
        let expected = sum.of(&chunk[behind..]);
        if found == expected {
            return Ok(());
        }
        // The header has the written checksum; the data has the other.
        Err(Mismatch {
            offset_bytes: stamp.offset_bytes,
            what: "the checksum of the data",
            expected: hex(found),
            found: hex(&expected),
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("0x"), |text, byte| text + &format!("{byte:02x}"))
}

/// Incompressible noise (xorshift).
fn noise(seed: u64, bytes: &mut [u8]) {
    let mut noise = seed | 1;
    for word in bytes.chunks_mut(8) {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        word.copy_from_slice(&noise.to_le_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(sum: Sum) -> Verify {
        Verify { sum: Some(sum), ..Verify::default() }
    }

    const STAMP: Stamp = Stamp { offset_bytes: 8192, number: Some(3) };

    #[test]
    fn filled_block_is_accepted_and_any_changed_byte_is_not() {
        let pattern = Some(Pattern::parse("0xaabbcc%o").unwrap());
        for sum in Sum::ALL {
            for (interval_bytes, offset_bytes) in [(None, 0), (Some(1024), 0), (Some(1024), 512)] {
                let verify = Verify {
                    interval_bytes,
                    offset_bytes,
                    pattern: pattern.clone().filter(|_| sum == Sum::Pattern),
                    ..verify(sum)
                };
                let mut bytes = vec![0; 4096];
                verify.fill(STAMP, 0, Nanos(5), &mut bytes);
                assert_eq!(verify.check(STAMP, &bytes), Ok(()), "{sum:?}");
                let elsewhere = Stamp { offset_bytes: 4096, ..STAMP };
                let is_looked_at = sum != Sum::Null;
                assert_eq!(verify.check(elsewhere, &bytes).is_err(), is_looked_at, "{sum:?}");
                if !matches!(sum, Sum::Meta | Sum::Null) {
                    bytes[4000] ^= 1;
                    assert!(verify.check(STAMP, &bytes).is_err(), "{sum:?}");
                }
            }
        }
    }

    #[test]
    fn mismatch_names_place_and_both_values() {
        let verify = Verify { interval_bytes: Some(512), ..verify(Sum::Crc32c) };
        let mut bytes = vec![0; 2048];
        verify.fill(STAMP, 0, Nanos(5), &mut bytes);
        let number = Stamp { number: Some(4), ..STAMP };
        let error = verify.check(number, &bytes).unwrap_err().to_string();
        let wanted = "verify: at offset 8192: the number of the write is 0x3, expected 0x4";
        assert_eq!(error, wanted);
        bytes[1030] = 0xff;
        let error = verify.check(STAMP, &bytes).unwrap_err();
        assert_eq!((error.offset_bytes, error.what), (8192 + 1024, "the header's checksum"));
    }

    /// The header of a block of 4 KiB that fio 3.33 has written at offset 4096.
    #[test]
    fn header_of_fio_is_read() {
        let head = [
            0xca, 0xac, 5, 0, 0, 0x10, 0, 0, 0, 0xe8, 0x3e, 0x63, 0x9b, 0x10, 0xf9, 0x23, 0, 0x10,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xba, 0xff, 0xb9, 6, 1, 0, 1, 0, 0x8b, 0xb7, 0x7f, 0x7c,
            0x12, 0x3a, 0xdb, 0xff,
        ];
        let mut block = vec![0; 4096];
        block[..head.len()].copy_from_slice(&head);
        let stamp = Stamp { offset_bytes: 4096, number: Some(1) };
        let error = verify(Sum::Crc32c).check(stamp, &block).unwrap_err();
        assert_eq!(
            (error.what, error.expected.as_str()),
            ("the checksum of the data", "0x123adbff")
        );
    }
}
