//! Places of a FAT file system on its disk, which the crate `hadris-fat` keeps to itself.

use std::io;

use hadris_fat::FatType;

use super::Disk;

/// Bytes that are counted at once.
const TABLE_PIECE_BYTES: usize = 64 << 10;
/// Bit of the boot sector's state: the file system is mounted.
const IN_USE: u8 = 1;

/// Places, from the boot sector that the crate has checked.
#[derive(Debug)]
pub(super) struct Layout {
    kind: FatType,
    /// Start of the first table.
    table: u64,
    /// Start of cluster 2.
    data: u64,
    pub(super) cluster_bytes: u64,
    pub(super) clusters: u64,
}

impl Layout {
    pub(super) fn read(disk: &Disk, kind: FatType, max_cluster: u32) -> io::Result<Self> {
        let mut boot = [0; 64];
        disk.read_exact_at(&mut boot, 0)?;
        let word = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
        let sector = word(11);
        let long_table = u32::from_le_bytes([boot[36], boot[37], boot[38], boot[39]]);
        let table_sectors = if word(22) == 0 { u64::from(long_table) } else { word(22) };
        let root_sectors = (word(17) * 32).div_ceil(sector.max(1));
        let table = word(14) * sector;
        Ok(Self {
            kind,
            table,
            data: table + (u64::from(boot[16]) * table_sectors + root_sectors) * sector,
            cluster_bytes: u64::from(boot[13]) * sector,
            clusters: u64::from(max_cluster.saturating_sub(1)),
        })
    }

    /// Place of a cluster, which is at least 2.
    pub(super) fn place(&self, cluster: u32) -> u64 {
        self.data + u64::from(cluster.saturating_sub(2)) * self.cluster_bytes
    }

    /// Counts the zero entries of the table.
    pub(super) fn free_clusters(&self, disk: &Disk) -> io::Result<u64> {
        // Clusters have numbers from 2 on; an even count of them keeps pairs of 12 bits together.
        let end = self.clusters + 2;
        let bits = match self.kind {
            FatType::Fat12 => 12,
            FatType::Fat16 => 16,
            FatType::Fat32 => 32,
        };
        let len = (end * bits).div_ceil(8);
        let mut free = 0;
        let mut number = 0;
        // Three bytes are two entries of 12 bits.
        let piece = TABLE_PIECE_BYTES / 12 * 12;
        let mut at = 0;
        while at < len {
            let mut bytes = vec![0; piece.min((len - at) as usize)];
            disk.read_exact_at(&mut bytes, self.table + at)?;
            at += bytes.len() as u64;
            let entries = bytes.len() as u64 * 8 / bits;
            let is_free = |entry: u64| match self.kind {
                FatType::Fat12 => {
                    let byte = (entry / 2 * 3 + entry % 2) as usize;
                    let pair = u16::from_le_bytes([bytes[byte], bytes[byte + 1]]);
                    if entry.is_multiple_of(2) { pair & 0xfff == 0 } else { pair >> 4 == 0 }
                }
                FatType::Fat16 => bytes[entry as usize * 2..][..2] == [0; 2],
                // The upper four bits are reserved.
                FatType::Fat32 => {
                    let entry = &bytes[entry as usize * 4..][..4];
                    entry[..3] == [0; 3] && entry[3] & 15 == 0
                }
            };
            let wanted = |entry: &u64| (2..end).contains(&(number + entry));
            free += (0..entries).filter(wanted).filter(|entry| is_free(*entry)).count() as u64;
            number += entries;
        }
        Ok(free)
    }

    pub(super) fn is_marked_in_use(&self, disk: &Disk) -> io::Result<bool> {
        let mut state = [0];
        disk.read_exact_at(&mut state, self.state())?;
        Ok(state[0] & IN_USE != 0)
    }

    pub(super) fn mark_in_use(&self, disk: &Disk, in_use: bool) -> io::Result<()> {
        let mut state = [0];
        disk.read_exact_at(&mut state, self.state())?;
        state[0] = if in_use { state[0] | IN_USE } else { state[0] & !IN_USE };
        disk.write_all_at(&state, self.state())
    }

    /// Place of the state in the boot sector.
    fn state(&self) -> u64 {
        match self.kind {
            FatType::Fat12 | FatType::Fat16 => 37,
            FatType::Fat32 => 65,
        }
    }
}
