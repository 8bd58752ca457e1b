//! Tables made here, byte for byte, and hostile ones.

use super::*;
use crate::crc32::crc32;

const MIB: u64 = 1 << 20;

/// A disk of zeros with a table of its own.
struct Disk {
    bytes: Vec<u8>,
    sector: u64,
}

const LINUX: [u8; 16] = [
    0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4,
];

impl Disk {
    fn new(len_bytes: u64, sector: u64) -> Self {
        Self { bytes: vec![0; usize::try_from(len_bytes).unwrap()], sector }
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let offset = usize::try_from(offset).unwrap();
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// An entry of an MBR in the record of this sector.
    fn entry(&mut self, record: u64, index: u64, kind: u8, start: u32, len: u32) {
        let at = record * self.sector;
        self.put(at + 446 + 16 * index + 4, &[kind]);
        self.put(at + 446 + 16 * index + 8, &start.to_le_bytes());
        self.put(at + 446 + 16 * index + 12, &len.to_le_bytes());
        self.put(at + 510, &MARK);
    }

    /// Both copies of a GPT with these partitions: number, first and last sector, name.
    fn gpt(&mut self, partitions: &[(u32, u64, u64, &str)]) {
        self.entry(0, 0, 0xee, 1, u32::MAX);
        let mut entries = vec![0; 128 * 128];
        for (number, first, last, name) in partitions {
            let entry = &mut entries[128 * (*number as usize - 1)..][..128];
            entry[..16].copy_from_slice(&LINUX);
            entry[16..32].fill(u8::try_from(*number).unwrap());
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
            for (unit, at) in name.encode_utf16().zip((56..).step_by(2)) {
                entry[at..at + 2].copy_from_slice(&unit.to_le_bytes());
            }
        }
        self.copies(&entries, 128, 128);
    }

    fn copies(&mut self, entries: &[u8], count: u32, entry_len: u32) {
        let last = self.bytes.len() as u64 / self.sector - 1;
        let table_sectors = (entries.len() as u64).div_ceil(self.sector);
        for (mine, entries_at) in [(1, 2), (last, last - table_sectors)] {
            let mut header = vec![0; 92];
            header[..8].copy_from_slice(b"EFI PART");
            header[8..12].copy_from_slice(&0x1_0000_u32.to_le_bytes());
            header[12..16].copy_from_slice(&92_u32.to_le_bytes());
            header[24..32].copy_from_slice(&mine.to_le_bytes());
            header[40..48].copy_from_slice(&(2 + table_sectors).to_le_bytes());
            header[48..56].copy_from_slice(&(last - table_sectors - 1).to_le_bytes());
            header[56..72].fill(0xdd);
            header[72..80].copy_from_slice(&entries_at.to_le_bytes());
            header[80..84].copy_from_slice(&count.to_le_bytes());
            header[84..88].copy_from_slice(&entry_len.to_le_bytes());
            header[88..92].copy_from_slice(&crc32(entries).to_le_bytes());
            let sum = crc32(&header);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            self.put(mine * self.sector, &header);
            self.put(entries_at * self.sector, entries);
        }
    }

    fn table(&self) -> Table {
        Table::read(&self.bytes).unwrap().unwrap()
    }
}

const MARK: [u8; 2] = [0x55, 0xaa];

#[test]
fn gpt_is_read_in_both_sector_sizes() {
    for sector in [512, 4096] {
        let mut disk = Disk::new(8 * MIB, sector);
        disk.gpt(&[
            (1, MIB / sector, 2 * MIB / sector - 1, "boot"),
            (7, 2 * MIB / sector, 3 * MIB / sector - 1, "dätä"),
        ]);
        disk.put(2 * MIB, b"_not_luks");
        disk.put(2 * MIB + 3, b"-FVE-FS-");
        let table = disk.table();
        assert_eq!((table.scheme, u64::from(table.sector_size_bytes)), (Scheme::Gpt, sector));
        assert_eq!(table.uuid, "dddddddd-dddd-dddd-dddd-dddddddddddd");
        let [boot, data] = table.partitions.as_slice() else { panic!("{table:?}") };
        assert_eq!((boot.number, boot.bytes.clone()), (1, MIB..2 * MIB));
        assert_eq!((data.number, data.bytes.clone()), (7, 2 * MIB..3 * MIB));
        assert_eq!((boot.kind.as_str(), data.name.as_str()), ("Linux data", "dätä"));
        assert_eq!(data.content.to_string(), "a BitLocker volume");
        assert_eq!(table.find("7").unwrap(), data);
        assert_eq!(table.find("dätä").unwrap(), data);
        assert_eq!(table.find("07070707-0707-0707-0707-070707070707").unwrap(), data);
        let none = table.find("2").unwrap_err().to_string();
        assert!(none.contains("\"2\"") && none.contains("partitions 1 and 7"), "{none}");
    }
}

#[test]
fn name_of_two_partitions_is_refused() {
    let mut disk = Disk::new(8 * MIB, 512);
    disk.gpt(&[(1, 2048, 4095, "data"), (2, 4096, 6143, "data")]);
    let several = disk.table().find("data").unwrap_err().to_string();
    assert!(several.contains("partitions 1 and 2; use a number"), "{several}");
}

#[test]
fn damaged_gpt_is_read_from_its_backup_with_a_notice() {
    let mut whole = Disk::new(8 * MIB, 512);
    whole.gpt(&[(3, 2048, 4095, "")]);
    for (place, byte) in [(512, b'x'), (512 + 30, 1), (1024, 0)] {
        let mut disk = Disk { bytes: whole.bytes.clone(), sector: 512 };
        disk.put(place, &[byte]);
        if place == 1024 {
            disk.put(1024 + 2 * 128, &[0xaa]);
        }
        let table = disk.table();
        assert_eq!(table.partitions, whole.table().partitions);
        assert!(table.notices[0].contains("primary GPT is damaged"), "{:?}", table.notices);
        disk.put(8 * MIB - 512 + 30, &[1]);
        let error = Table::read(&disk.bytes).unwrap_err().to_string();
        assert!(error.contains("GPT"), "{error}");
    }
    assert!(whole.table().notices.is_empty());
}

#[test]
fn gpt_that_an_mbr_does_not_protect_is_left_over() {
    let mut disk = Disk::new(8 * MIB, 512);
    disk.gpt(&[(1, 2048, 4095, "")]);
    disk.entry(0, 0, 0x83, 4096, 2048);
    let table = disk.table();
    assert_eq!((table.scheme, table.partitions[0].bytes.start), (Scheme::Mbr, 2 * MIB));
}

#[test]
fn gpt_at_the_end_of_a_disk_with_another_use_is_left_over() {
    let mut disk = Disk::new(8 * MIB, 512);
    disk.gpt(&[(1, 2048, 4095, "")]);
    disk.put(0, &[0; 2048]);
    assert_eq!(disk.table().partitions.len(), 1, "the backup counts on an empty disk");
    for (at, bytes) in [(0, &b"LUKS\xba\xbe\0\x01"[..]), (536, b"LVM2 001")] {
        let mut used = Disk { bytes: disk.bytes.clone(), sector: 512 };
        used.put(at, bytes);
        assert!(Table::read(&used.bytes).unwrap().is_none(), "{at}");
    }
}

#[test]
fn hybrid_mbr_leaves_the_gpt_in_use() {
    let mut disk = Disk::new(8 * MIB, 512);
    disk.gpt(&[(1, 2048, 4095, "")]);
    disk.entry(0, 1, 0x0c, 4096, 2048);
    let table = disk.table();
    assert_eq!((table.scheme, table.partitions.len()), (Scheme::Gpt, 1));
    assert!(table.notices[0].contains("hybrid"), "{:?}", table.notices);
}

#[test]
fn mbr_with_logical_partitions_is_read() {
    let mut disk = Disk::new(16 * MIB, 512);
    disk.put(440, &0x1234_abcd_u32.to_le_bytes());
    disk.entry(0, 0, 0x83, 2048, 2048);
    disk.entry(0, 1, 0x0f, 8192, 16384);
    disk.entry(8192, 0, 0xe8, 2048, 1024);
    disk.entry(8192, 1, 0x05, 4096, 4096);
    disk.entry(8192 + 4096, 0, 0x82, 63, 100);
    let table = disk.table();
    let found: Vec<_> =
        table.partitions.iter().map(|it| (it.number, it.bytes.start / 512)).collect();
    assert_eq!(found, [(1, 2048), (5, 8192 + 2048), (6, 8192 + 4096 + 63)]);
    assert_eq!(table.partitions[1].uuid, "1234abcd-05");
    assert_eq!(table.partitions[1].kind, "Linux LUKS");
    assert!(table.notices.is_empty());
}

#[test]
fn mbr_of_a_disk_with_large_sectors_is_known_by_its_contents() {
    let mut disk = Disk::new(16 * MIB, 512);
    disk.entry(0, 0, 0x83, 256, 1024);
    disk.put(MIB + 3, b"-FVE-FS-");
    let table = disk.table();
    assert_eq!((table.sector_size_bytes, table.partitions[0].bytes.clone()), (4096, MIB..5 * MIB));
    disk.put(256 * 512 + 3, b"-FVE-FS-");
    assert_eq!(disk.table().sector_size_bytes, 512, "both fit");
}

#[test]
fn chain_of_logical_partitions_that_goes_back_is_cut() {
    for target in [0, 1] {
        let mut disk = Disk::new(16 * MIB, 512);
        disk.entry(0, 1, 0x05, 8192, 16384);
        disk.entry(8192, 0, 0x83, 2048, 1024);
        disk.entry(8192, 1, 0x05, 4096, 4096);
        disk.entry(8192 + 4096, 0, 0x83, 100, 100);
        disk.entry(8192 + 4096, 1, 0x05, 4096 * target, 4096);
        let table = disk.table();
        assert_eq!(table.partitions.len(), 2);
        assert!(table.notices[0].contains("cut"), "{:?}", table.notices);
    }
}

#[test]
fn chain_is_limited_and_does_not_leave_the_disk() {
    let mut disk = Disk::new(16 * MIB, 512);
    disk.entry(0, 1, 0x05, 1, u32::MAX);
    for record in 0..400 {
        disk.entry(1 + record, 0, 0x83, 1, 1);
        disk.entry(1 + record, 1, 0x05, u32::try_from(record).unwrap() + 1, 1);
    }
    let table = disk.table();
    assert_eq!(table.partitions.len(), 252);
    assert!(table.notices[0].contains("more than 252"), "{:?}", table.notices);
    disk.entry(3, 1, 0x05, u32::MAX, 1);
    assert!(disk.table().notices[0].contains("leaves"));
}

#[test]
fn partitions_that_overlap_or_leave_the_disk_cannot_be_opened() {
    let mut disk = Disk::new(8 * MIB, 512);
    disk.gpt(&[
        (1, 2048, 4095, ""),
        (2, 4000, 6000, ""),
        (3, 8000, 7000, ""),
        (4, 1, 1, ""),
        (5, 9000, u64::MAX, ""),
        (6, u64::MAX, u64::MAX, ""),
        (7, 10_000, 10_000, ""),
    ]);
    let table = disk.table();
    for (number, problem) in [
        ("1", "overlaps partition 2"),
        ("2", "overlaps partition 1"),
        ("3", "starts at sector 8000 and ends at sector 7000"),
        ("4", "outside of the usable sectors"),
        ("5", "outside of the usable sectors"),
        ("6", "outside of the usable sectors"),
    ] {
        let error = table.find(number).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains("`start_bytes`"), "{error}");
    }
    assert_eq!(table.find("7").unwrap().bytes, 10_000 * 512..10_001 * 512);
    let cut = Table::read(&&disk.bytes[..5_000_000]).unwrap().unwrap();
    assert!(cut.find("7").unwrap_err().to_string().contains("disk is truncated"));
}

#[test]
fn long_tables_are_refused() {
    for (count, entry_len) in [(0, 128), (1, 64), (1, 192), (u32::MAX, u32::MAX), (32769, 128)] {
        let mut disk = Disk::new(8 * MIB, 512);
        disk.entry(0, 0, 0xee, 1, 1);
        disk.copies(&[0; 1024], count, entry_len);
        let error = Table::read(&disk.bytes).unwrap_err().to_string();
        assert!(error.contains("entries"), "{error}");
    }
    let mut disk = Disk::new(8 * MIB, 512);
    disk.entry(0, 0, 0xee, 1, 1);
    disk.copies(&[1; 257 * 128], 257, 128);
    let error = Table::read(&disk.bytes).unwrap_err().to_string();
    assert!(error.contains("more than 256"), "{error}");
}

#[test]
fn disks_without_a_table_have_none() {
    let mut fat = Disk::new(MIB, 512);
    fat.entry(0, 0, 0x83, 1, 1);
    fat.put(82, b"FAT32   ");
    for bytes in [vec![], vec![0; 511], vec![0; 4096], vec![0xff; 8192], fat.bytes] {
        assert_eq!(Table::read(&bytes).unwrap(), None);
    }
}

#[test]
fn part_ends_where_its_range_or_the_disk_does() {
    let disk: Vec<u8> = (0..100).collect();
    let mut buf = [0; 4];
    let part = Part::new(&disk, 10..20);
    part.read_at(6, &mut buf).unwrap();
    assert_eq!((part.len_bytes(), buf), (10, [16, 17, 18, 19]));
    assert!(part.read_at(7, &mut buf).is_err());
    assert!(part.read_at(u64::MAX, &mut buf).is_err());
    assert_eq!(Part::new(&disk, 90..200).len_bytes(), 10);
    assert_eq!(Part::new(&disk, 190..200).len_bytes(), 0);
}
