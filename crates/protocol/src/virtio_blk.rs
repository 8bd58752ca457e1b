//! Requests and the configuration of a virtio block device. A sector has always 512 bytes here.

use super::virtio_queue::{Chain, ChainFault};

/// Length of a request's header.
pub const HEADER_BYTES: usize = 16;
/// Length of the range of a discard or of zeroes.
pub const SEGMENT_BYTES: usize = 16;
/// Length of the name that [`Command::Name`] returns.
pub const NAME_BYTES: usize = 20;
/// Length of the known part of the configuration; zeroes follow.
pub const CONFIG_BYTES: usize = 60;
/// Offset of the byte that a driver may write: whether the cache is a write-back cache.
pub const CONFIG_WRITEBACK_AT: usize = 32;

const SECTOR_BYTES: u64 = 512;
/// Data segments of a request, as QEMU's own device has: 256 descriptors with header and status.
const SEGMENTS_MAX: u32 = 254;
/// Longest discard: 2 GiB.
const DISCARD_MAX_SECTORS: u32 = 1 << 22;
/// Longest range of zeroes: 128 MiB. They are encrypted and written, which takes time.
const ZEROES_MAX_SECTORS: u32 = 1 << 18;
/// Preferred length of a request: 1 MiB.
const OPTIMAL_IO_BYTES: u32 = 1 << 20;
/// Physical blocks of the page cache, and of most disks.
const PHYSICAL_BLOCK_BYTES: u32 = 4096;

/// Numbers of feature bits.
mod bit {
    pub(super) const SEG_MAX: u32 = 2;
    pub(super) const RO: u32 = 5;
    pub(super) const BLK_SIZE: u32 = 6;
    pub(super) const FLUSH: u32 = 9;
    pub(super) const TOPOLOGY: u32 = 10;
    pub(super) const CONFIG_WCE: u32 = 11;
    pub(super) const MQ: u32 = 12;
    pub(super) const DISCARD: u32 = 13;
    pub(super) const WRITE_ZEROES: u32 = 14;
}

/// Feature: the driver flushes, so that writes need not be stable at their end.
pub const FEATURE_FLUSH: u64 = 1 << bit::FLUSH;
/// Feature: the driver may switch write-back caching off and on.
pub const FEATURE_CONFIG_WRITEBACK: u64 = 1 << bit::CONFIG_WCE;

/// Result of a request, as the driver reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed, or a range that the disk does not have.
    IoError = 1,
    /// A request that the device does not know or does not offer.
    Unsupported = 2,
}

/// A checked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read a range into the writable buffers.
    Read(Range),
    /// Write a range from the readable buffers behind the header.
    Write(Range),
    /// Make completed writes stable.
    Flush,
    /// Put the name of the disk into the first bytes of the writable buffers, this many.
    Name(usize),
    /// Drop a range, which is a hint.
    Discard(Range),
    /// Write zeroes to a range.
    WriteZeroes(Range),
}

/// A range of the disk, within its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset_bytes: u64,
    /// Length, never zero.
    pub len_bytes: u64,
}

/// The header of a request. Further bytes of the request are needed only for some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: u32,
    sector: u64,
}

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

impl Header {
    /// Decodes a header.
    #[must_use]
    pub fn of(bytes: [u8; HEADER_BYTES]) -> Self {
        let word = u128::from_le_bytes(bytes);
        Self { kind: word as u32, sector: (word >> 64) as u64 }
    }

    /// Whether the range follows in a segment.
    #[must_use]
    pub fn has_segment(&self) -> bool {
        matches!(self.kind, DISCARD | WRITE_ZEROES)
    }
}

/// A block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Length, a multiple of 512.
    pub size_bytes: u64,
    /// Unit of requests: a power of two from 512 on.
    pub block_bytes: u32,
    /// Number of queues.
    pub queues: u16,
    /// Writes are refused.
    pub read_only: bool,
    /// Discards are passed down.
    pub can_discard: bool,
}

impl Disk {
    /// Feature bits of the device type.
    #[must_use]
    pub fn features(&self) -> u64 {
        let also = |condition: bool, bit: u32| u64::from(condition) << bit;
        let always = [bit::SEG_MAX, bit::BLK_SIZE, bit::FLUSH, bit::TOPOLOGY, bit::MQ];
        always.iter().fold(0, |all, bit| all | 1 << bit)
            | also(self.read_only, bit::RO)
            | also(self.discards(), bit::DISCARD)
            | also(!self.read_only, bit::WRITE_ZEROES)
            | also(!self.read_only, bit::CONFIG_WCE)
    }

    fn discards(&self) -> bool {
        self.can_discard && !self.read_only
    }

    /// The configuration, as the driver reads it.
    #[must_use]
    pub fn config(&self) -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        let block_sectors = self.block_bytes / SECTOR_BYTES as u32;
        put(0, &(self.size_bytes / SECTOR_BYTES).to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &self.block_bytes.to_le_bytes());
        // Logical blocks in a physical one, as an exponent.
        put(24, &[(PHYSICAL_BLOCK_BYTES / self.block_bytes).max(1).ilog2() as u8]);
        put(26, &1u16.to_le_bytes());
        put(28, &(OPTIMAL_IO_BYTES / self.block_bytes).to_le_bytes());
        put(CONFIG_WRITEBACK_AT, &[1]);
        put(34, &self.queues.to_le_bytes());
        if self.discards() {
            put(36, &DISCARD_MAX_SECTORS.to_le_bytes());
            put(40, &1u32.to_le_bytes());
            put(44, &block_sectors.to_le_bytes());
        }
        if !self.read_only {
            put(48, &ZEROES_MAX_SECTORS.to_le_bytes());
            put(52, &1u32.to_le_bytes());
            // Encrypted zeroes are data: nothing is unmapped.
            put(56, &[0]);
        }
        config
    }

    /// Checks a request: its header, its segment if it has one, and the lengths of its buffers.
    ///
    /// # Errors
    /// The status of a request that cannot be done.
    pub fn check(
        &self,
        header: Header,
        segment: Option<[u8; SEGMENT_BYTES]>,
        lengths: Lengths,
    ) -> Result<Command, Status> {
        let Lengths { readable_bytes, writable_bytes } = lengths;
        let writes = |command| if self.read_only { Err(Status::IoError) } else { Ok(command) };
        match header.kind {
            IN => Ok(Command::Read(self.range(header.sector, writable_bytes)?)),
            OUT => writes(Command::Write(self.range(header.sector, readable_bytes)?)),
            FLUSH => Ok(Command::Flush),
            GET_ID => Ok(Command::Name(writable_bytes.min(NAME_BYTES as u64) as usize)),
            DISCARD | WRITE_ZEROES => {
                let segment = segment.filter(|_| readable_bytes == SEGMENT_BYTES as u64);
                writes(self.segment(header.kind, segment.ok_or(Status::IoError)?)?)
            }
            _ => Err(Status::Unsupported),
        }
    }

    fn segment(&self, kind: u32, segment: [u8; SEGMENT_BYTES]) -> Result<Command, Status> {
        const UNMAP: u32 = 1;
        let word = u128::from_le_bytes(segment);
        let sector = word as u64;
        let sectors = (word >> 64) as u32;
        let flags = (word >> 96) as u32;
        let is_discard = kind == DISCARD;
        let known = if is_discard { 0 } else { UNMAP };
        if flags & !known != 0 || is_discard && !self.discards() {
            return Err(Status::Unsupported);
        }
        let max = if is_discard { DISCARD_MAX_SECTORS } else { ZEROES_MAX_SECTORS };
        if sectors > max {
            return Err(Status::IoError);
        }
        let range = self.range(sector, u64::from(sectors) * SECTOR_BYTES)?;
        Ok(if is_discard { Command::Discard(range) } else { Command::WriteZeroes(range) })
    }

    fn range(&self, sector: u64, len_bytes: u64) -> Result<Range, Status> {
        let range = sector.checked_mul(SECTOR_BYTES).filter(|offset_bytes| {
            let end = offset_bytes.checked_add(len_bytes);
            let is_whole = (offset_bytes | len_bytes).is_multiple_of(self.block_bytes.into());
            len_bytes > 0 && is_whole && end.is_some_and(|end| end <= self.size_bytes)
        });
        range.map(|offset_bytes| Range { offset_bytes, len_bytes }).ok_or(Status::IoError)
    }
}

/// Lengths of the data of a request: without its header, and without its status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes that the device may read.
    pub readable_bytes: u64,
    /// Bytes that the device may write.
    pub writable_bytes: u64,
}

impl Lengths {
    /// The lengths of a chain, however it is cut.
    ///
    /// # Errors
    /// There is no room for the header or the status.
    pub fn of(chain: &Chain) -> Result<Self, ChainFault> {
        let readable_bytes = chain.readable_bytes().checked_sub(HEADER_BYTES as u64);
        let writable_bytes = chain.writable_bytes().checked_sub(1);
        Ok(Self {
            readable_bytes: readable_bytes.ok_or(ChainFault::NoHeader)?,
            writable_bytes: writable_bytes.ok_or(ChainFault::NoStatus)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk() -> Disk {
        Disk { size_bytes: MIB, block_bytes: 4096, queues: 4, read_only: false, can_discard: true }
    }

    fn header(kind: u32, sector: u64) -> Header {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        Header::of(bytes)
    }

    fn lengths(readable_bytes: u64, writable_bytes: u64) -> Lengths {
        Lengths { readable_bytes, writable_bytes }
    }

    fn segment(sector: u64, sectors: u32, flags: u32) -> Option<[u8; SEGMENT_BYTES]> {
        let word = u128::from(sector) | u128::from(sectors) << 64 | u128::from(flags) << 96;
        Some(word.to_le_bytes())
    }

    #[test]
    fn requests_within_the_disk_are_taken() {
        let check = |kind, sector, lengths| disk().check(header(kind, sector), None, lengths);
        let range = |offset_bytes, len_bytes| Range { offset_bytes, len_bytes };
        assert_eq!(check(IN, 8, lengths(9, 8192)), Ok(Command::Read(range(4096, 8192))));
        assert_eq!(check(OUT, 0, lengths(MIB, 0)), Ok(Command::Write(range(0, MIB))));
        assert_eq!(check(FLUSH, u64::MAX, lengths(0, 0)), Ok(Command::Flush));
        assert_eq!(check(GET_ID, 0, lengths(0, 40)), Ok(Command::Name(20)));
        assert_eq!(check(GET_ID, 0, lengths(0, 3)), Ok(Command::Name(3)));
    }

    #[test]
    fn ranges_outside_of_the_disk_and_parts_of_blocks_are_errors() {
        let cases =
            [(0, 0), (0, 512), (1, 4096), (256 * 8, 4096), (255 * 8, 8192), (0, MIB + 4096)];
        for (sector, len_bytes) in cases.into_iter().chain([(1 << 55, 4096), (u64::MAX, 4096)]) {
            for (kind, lengths) in [(IN, lengths(0, len_bytes)), (OUT, lengths(len_bytes, 0))] {
                let checked = disk().check(header(kind, sector), None, lengths);
                assert_eq!(checked, Err(Status::IoError), "{sector} {len_bytes}");
            }
        }
        let huge = lengths(0, 1024 << 32);
        assert_eq!(disk().check(header(IN, 0), None, huge), Err(Status::IoError));
    }

    #[test]
    fn segments_are_checked_with_their_flags_and_limits() {
        let check = |disk: Disk, kind, segment| {
            disk.check(header(kind, 0), segment, lengths(SEGMENT_BYTES as u64, 0))
        };
        let range = Range { offset_bytes: 4096, len_bytes: 4096 };
        assert_eq!(check(disk(), DISCARD, segment(8, 8, 0)), Ok(Command::Discard(range)));
        for flags in [0, 1] {
            let zeroes = check(disk(), WRITE_ZEROES, segment(8, 8, flags));
            assert_eq!(zeroes, Ok(Command::WriteZeroes(range)));
        }
        assert_eq!(check(disk(), DISCARD, segment(8, 8, 1)), Err(Status::Unsupported));
        assert_eq!(check(disk(), WRITE_ZEROES, segment(8, 8, 2)), Err(Status::Unsupported));
        assert_eq!(check(disk(), WRITE_ZEROES, segment(8, 0, 0)), Err(Status::IoError));
        assert_eq!(check(disk(), WRITE_ZEROES, segment(8, 1 << 19, 0)), Err(Status::IoError));
        assert_eq!(check(disk(), DISCARD, segment(u64::MAX, 8, 0)), Err(Status::IoError));
        let keeps = Disk { can_discard: false, ..disk() };
        assert_eq!(check(keeps, DISCARD, segment(8, 8, 0)), Err(Status::Unsupported));
        let two = disk().check(header(DISCARD, 0), segment(0, 8, 0), lengths(32, 0));
        assert_eq!(two, Err(Status::IoError));
    }

    #[test]
    fn read_only_disk_refuses_changes_and_does_not_offer_them() {
        let disk = Disk { read_only: true, ..disk() };
        for (kind, data) in [(OUT, 4096), (DISCARD, 16), (WRITE_ZEROES, 16)] {
            let checked = disk.check(header(kind, 0), segment(0, 8, 0), lengths(data, 0));
            assert!(checked.is_err(), "{kind}");
        }
        assert!(disk.check(header(IN, 0), None, lengths(0, 4096)).is_ok());
        assert_eq!(disk.features() & (1 << bit::RO), 1 << bit::RO);
        assert_eq!(disk.features() & (3 << bit::DISCARD | FEATURE_CONFIG_WRITEBACK), 0);
        assert_eq!(disk.config()[36..60], [0; 24]);
    }

    #[test]
    fn unknown_requests_are_unsupported() {
        for kind in [2, 3, 5, 9, 10, 12, 14, 16, 0x8000_0000, u32::MAX] {
            let checked = disk().check(header(kind, 0), None, lengths(4096, 4096));
            assert_eq!(checked, Err(Status::Unsupported), "{kind}");
        }
    }

    #[test]
    fn configuration_is_laid_out_as_the_standard_says() {
        let config = disk().config();
        let u32_at = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
        assert_eq!(config[..8], (MIB / 512).to_le_bytes());
        assert_eq!((u32_at(8), u32_at(12), u32_at(20)), (0, 254, 4096));
        assert_eq!((config[24], config[25], config[26], config[27]), (0, 0, 1, 0));
        assert_eq!((u32_at(28), config[32], config[34]), (256, 1, 4));
        assert_eq!((u32_at(36), u32_at(40), u32_at(44)), (1 << 22, 1, 8));
        assert_eq!((u32_at(48), u32_at(52), config[56]), (1 << 18, 1, 0));
        let small = Disk { block_bytes: 512, ..disk() }.config();
        assert_eq!(small[24], 3, "eight logical blocks in a physical one");
    }

    #[test]
    fn status_is_the_last_writable_byte_and_the_header_the_first_readable_ones() {
        let span = |len_bytes| crate::virtio_queue::Span { addr: 0, len_bytes };
        let chain = |readable: &[u32], writable: &[u32]| Chain {
            readable: readable.iter().map(|len| span(*len)).collect(),
            writable: writable.iter().map(|len| span(*len)).collect(),
        };
        assert_eq!(Lengths::of(&chain(&[1, 15, 4096], &[1])), Ok(lengths(4096, 0)));
        assert_eq!(Lengths::of(&chain(&[16], &[512, 1])), Ok(lengths(0, 512)));
        assert_eq!(Lengths::of(&chain(&[15], &[1])), Err(ChainFault::NoHeader));
        assert_eq!(Lengths::of(&chain(&[16], &[])), Err(ChainFault::NoStatus));
        assert_eq!(Lengths::of(&chain(&[16], &[0])), Err(ChainFault::NoStatus));
    }
}
