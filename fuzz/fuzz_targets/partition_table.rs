//! Partition tables. The input is the start of a disk of zeros. The mark of a boot record and the
//! checksums of a GPT are put right. The disk is twice as long as the longest input: the checksums
//! of longer entries of zeros would take most of the time.
#![no_main]

use blockyard_crypt::partition::Table;
use libfuzzer_sys::fuzz_target;

const LEN_BYTES: usize = 128 << 10;

fuzz_target!(|input: &[u8]| {
    let mut disk = vec![0; LEN_BYTES];
    let len = input.len().min(LEN_BYTES / 2);
    disk[..len].copy_from_slice(&input[..len]);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    for sector in [512, 4096] {
        put_right(&mut disk, sector);
    }
    if let Ok(Some(table)) = Table::read(&disk) {
        let _ = table.to_string();
        let _ = table.info();
        for partition in &table.partitions {
            if let Ok(found) = table.find(&partition.number.to_string()) {
                assert!(found.bytes.start < found.bytes.end);
                assert!(found.bytes.end <= LEN_BYTES as u64);
            }
        }
    }
});

/// Sets both checksums of the GPT header in sector 1.
fn put_right(disk: &mut [u8], sector: usize) {
    if disk[sector..sector + 8] != *b"EFI PART" {
        return;
    }
    let number =
        |at: usize| u32::from_le_bytes(disk[at..at + 4].try_into().expect("four bytes")) as usize;
    let entries_at = number(sector + 72).wrapping_mul(sector);
    let entries_len = number(sector + 80).wrapping_mul(number(sector + 84));
    if let Some(entries) = disk.get(entries_at..entries_at.saturating_add(entries_len)) {
        let sum = crc32(entries);
        disk[sector + 88..sector + 92].copy_from_slice(&sum.to_le_bytes());
    }
    disk[sector + 12..sector + 16].copy_from_slice(&92_u32.to_le_bytes());
    disk[sector + 16..sector + 20].fill(0);
    let sum = crc32(&disk[sector..sector + 92]);
    disk[sector + 16..sector + 20].copy_from_slice(&sum.to_le_bytes());
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

/// The register after each byte: eight times as fast as bit by bit.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bits = 0;
        while bits < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
            bits += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
