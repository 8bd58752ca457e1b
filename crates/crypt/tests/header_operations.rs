//! Operations on whole headers: backup, restore, conversion, destruction. They write nothing
//! outside of the header, and refuse what they cannot do completely.

use blockyard_crypt::Error;
use blockyard_crypt::backup::{Backup, Difference};
use blockyard_crypt::convert;
use blockyard_crypt::format::{self, Detached, FormatOptions, Pbkdf};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::Kdf;
use blockyard_crypt::keys::{self, NewKeyslot, Usage, Wiped};
use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::luks1;
use blockyard_crypt::luks2::Token;
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::{HeaderSink, HeaderSource, SourceError};

const KDF: Kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };
const MIB: usize = 1 << 20;
/// Fields of a LUKS1 header.
const PAYLOAD_OFFSET: usize = 104;
const UUID: usize = 168;
const KEYSLOT_7_MATERIAL_OFFSET: usize = 208 + 7 * 48 + 40;

fn passphrase() -> SecretBytes {
    SecretBytes::copy_of(b"a passphrase")
}

fn opens(disk: &[u8]) -> bool {
    let (header, _) = Header::read(&disk).unwrap();
    header.unlock(&disk, &passphrase(), &UnlockOptions::default()).is_ok()
}

fn options(data_mib: u64) -> FormatOptions {
    FormatOptions {
        key_size_bits: 256,
        sector_size_bytes: 512,
        digest_iterations: Some(1000),
        data_offset_bytes: Some(data_mib << 20),
        ..FormatOptions::new(Pbkdf::Fixed(KDF))
    }
}

/// A disk of 20 MiB, with its data from `data_mib` on, full of one byte.
fn luks2(data_mib: u64) -> Vec<u8> {
    let mut disk = vec![7; 20 * MIB];
    format::format(&mut disk, &passphrase(), &options(data_mib)).unwrap();
    disk
}

/// The same of LUKS1, with its data at 2 MiB.
fn luks1() -> Vec<u8> {
    let options = luks1::FormatOptions {
        key_size_bits: 256,
        iterations: Some(1000),
        digest_iterations: Some(1000),
        ..luks1::FormatOptions::default()
    };
    let mut disk = vec![7; 20 * MIB];
    luks1::format(&mut disk, &passphrase(), &options).unwrap();
    disk
}

fn has_all_data(disk: &[u8], data_mib: usize) -> bool {
    disk[data_mib * MIB..].iter().all(|byte| *byte == 7)
}

/// A LUKS1 header alone: the data is on another device.
fn detached_luks1(len: usize) -> Vec<u8> {
    let mut disk = luks1();
    disk[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].fill(0);
    disk.resize(len, 7);
    disk
}

#[test]
fn conversion_to_luks2_keeps_what_lies_behind_the_keyslots() {
    let mut disk = luks1();
    let end = 1_052_672;
    disk[end..end + 512].fill(5);
    convert::to_luks2(&mut disk).unwrap();
    assert!(disk[end..end + 512].iter().all(|byte| *byte == 5));
    assert!(opens(&disk) && has_all_data(&disk, 2));

    let mut detached = detached_luks1(64 * MIB);
    convert::to_luks2(&mut detached).unwrap();
    assert!(has_all_data(&detached, 3));
    assert!(opens(&detached));
}

#[test]
fn conversion_to_luks2_overwrites_the_keyslots_that_were_free_or_moved() {
    let mut disk = luks1();
    let (header, _) = Header::read(&disk).unwrap();
    let unlocked = header.unlock(&disk, &passphrase(), &UnlockOptions::default()).unwrap();
    let options = NewKeyslot {
        pbkdf: Pbkdf::Fixed(KDF),
        hash: HashAlgorithm::Sha256,
        area: None,
        priority: None,
        usage: Usage::Data,
    };
    let new = SecretBytes::copy_of(b"another");
    let new = keys::prepare(&header, &unlocked.volume_key, &new, &options).unwrap();
    keys::add(&mut disk, &new, Some(7)).unwrap();
    let old = disk.clone();
    convert::to_luks2(&mut disk).unwrap();
    // The rest of keyslot 0, which made room for the copies of LUKS2; and keyslot 3.
    for sector in [0x8000, 4096 + 3 * 131_072] {
        assert_ne!(disk[sector..sector + 512], old[sector..sector + 512], "byte {sector}");
    }
    let last = 4096 + 7 * 131_072;
    assert_eq!(disk[last..last + 128_000], old[last..last + 128_000], "it is in use");
}

#[test]
fn header_with_a_luksmeta_block_is_not_converted() {
    let mut disk = luks1();
    let end = 1_052_672;
    disk[end..end + 8].copy_from_slice(b"LUKSMETA");
    let before = disk.clone();
    let error = convert::to_luks2(&mut disk).unwrap_err().to_string();
    assert!(error.contains("luksmeta nuke"), "{error}");
    assert!(disk == before);
}

#[test]
fn header_that_luks1_would_not_fit_into_is_not_converted() {
    let options = FormatOptions {
        keyslots_len_bytes: Some(768 << 10),
        data_offset_bytes: None,
        detached: Some(Detached::default()),
        ..options(0)
    };
    let mut header = vec![0; 800 << 10];
    format::format(&mut header, &passphrase(), &options).unwrap();
    let before = header.clone();
    let error = convert::to_luks1(&mut header).unwrap_err().to_string();
    assert!(error.contains("make it larger"), "{error}");
    assert!(header == before);
    header.resize(2 * MIB, 0);
    convert::to_luks1(&mut header).unwrap();
    assert!(opens(&header));
}

#[test]
fn backup_whose_data_starts_elsewhere_is_not_restored() {
    let backup = Backup::of(&luks2(16)).unwrap();
    for mut disk in [luks2(2), luks1()] {
        let before = disk.clone();
        for refused in [backup.compare(&disk).map(drop), backup.restore(&mut disk)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("2097152") && error.contains("16777216"), "{error}");
        }
        assert!(disk == before);
    }
}

#[test]
fn restore_over_a_damaged_header_keeps_the_data_behind_it() {
    for (disk, damage) in [(luks2(2), vec![4096, 16384 + 4096]), (luks1(), vec![76, 108])] {
        let backup = Backup::of(&disk).unwrap();
        let mut damaged = disk.clone();
        for at in damage {
            damaged[at] ^= 0x55;
        }
        assert!(Header::read(&damaged).is_err());
        let lost = backup.compare(&damaged).unwrap();
        assert!(matches!(lost[..], [Difference::NoHeader { .. }]), "{lost:?}");
        backup.restore(&mut damaged).unwrap();
        assert!(has_all_data(&damaged, 2), "the data starts at 2 MiB");
        assert!(damaged == disk);
    }
}

#[test]
fn restore_ends_with_the_keyslots_if_the_data_starts_within_the_last_page_of_the_backup() {
    let mut disk = luks1();
    // Keyslot 7 ends in the middle of a page, and the data starts there.
    let end = 4096 + 7 * 131_072 + 128_000;
    assert_ne!(end % 4096, 0);
    let sectors = u32::try_from(end / 512).unwrap().to_be_bytes();
    disk[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&sectors);
    let backup = Backup::of(&disk).unwrap();
    disk[end..].fill(9);
    backup.restore(&mut disk).unwrap();
    assert!(disk[end..].iter().all(|byte| *byte == 9));
}

#[test]
fn backup_has_no_data_behind_the_last_keyslot() {
    let mut disk = luks1();
    let end = 4096 + 7 * 131_072 + 128_000;
    disk[end..].fill(9);
    let backup = Backup::of(&disk).unwrap();
    assert_eq!(backup.bytes().len(), end.next_multiple_of(4096));
    assert!(backup.bytes()[end..].iter().all(|byte| *byte == 0));
}

#[test]
fn restore_reports_another_volume_key() {
    let backup = Backup::of(&luks2(2)).unwrap();
    let lost = backup.compare(&luks2(2)).unwrap();
    assert!(lost.contains(&Difference::VolumeKey), "{lost:?}");
}

#[test]
fn old_copy_of_a_disk_with_another_use_is_not_wiped() {
    let mut disk = luks2(2);
    disk[..16384].fill(0);
    disk[512..520].copy_from_slice(b"LABELONE");
    disk[536..544].copy_from_slice(b"LVM2 001");
    let before = disk.clone();
    let error = keys::wipe(&mut disk).unwrap_err();
    assert!(matches!(error, Error::Reused(_)), "{error}");
    assert!(disk == before);
    // Without the other use it is the rest of a damaged volume.
    disk[512..544].fill(0);
    keys::wipe(&mut disk).unwrap();
    assert!(Header::read(&disk).is_err());
}

#[test]
fn wipe_of_a_header_with_a_damaged_copy_keeps_the_data_behind_it() {
    for copy_bytes in [4096 + 100, 16384 + 4096 + 100] {
        let mut disk = luks2(2);
        disk[copy_bytes] ^= 1;
        assert_eq!(keys::wipe(&mut disk).unwrap(), Wiped::HeaderAndKeyslots);
        assert!(has_all_data(&disk, 2));
        assert!(disk[..32768].iter().all(|byte| *byte == 0));
        assert!(matches!(Header::read(&disk), Err(Error::NotLuks)));
    }
}

#[test]
fn wipe_of_a_damaged_header_keeps_the_data_behind_it() {
    let mut both = luks2(2);
    both[4096 + 100] ^= 1;
    both[16384 + 4096 + 100] ^= 1;
    let mut garbled_hash = luks1();
    garbled_hash[72..74].copy_from_slice(b"??");
    for (mut disk, wiped) in [(both, Wiped::HeaderOnly), (garbled_hash, Wiped::HeaderAndKeyslots)] {
        assert_eq!(keys::wipe(&mut disk).unwrap(), wiped);
        assert!(has_all_data(&disk, 2));
        assert!(matches!(Header::read(&disk), Err(Error::NotLuks)));
    }
}

#[test]
fn header_whose_text_is_not_understood_is_not_called_damaged() {
    // A byte of Latin-1 in a token, which json-c and so cryptsetup accept.
    let token = br#"{"type":"x","keyslots":[],"a":"caf?"}"#;
    let mut disk = luks2(2);
    let parsed = Token::parse(token).unwrap();
    keys::import_token(&mut disk, &parsed, None, None, false).unwrap();
    let at = disk.windows(6).position(|bytes| bytes == b"\"caf?\"").unwrap() + 4;
    for start in [0, 16384] {
        disk[start + at] = 0xe9;
        let mut whole = disk[start..start + 16384].to_vec();
        whole[448..512].fill(0);
        let mut digest = [0; 32];
        HashAlgorithm::Sha256.digest(&[&whole], &mut digest);
        disk[start + 448..start + 480].copy_from_slice(&digest);
    }
    let error = Header::read(&disk).unwrap_err().to_string();
    assert!(error.contains("its checksum is right") && error.contains("not damaged"), "{error}");
    assert!(!error.contains("restore"), "{error}");
}

/// A disk of 2 TiB of which only the start has content.
struct Sparse(Vec<u8>);

impl HeaderSource for Sparse {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        buf.fill(0);
        let start = usize::try_from(offset_bytes).unwrap().min(self.0.len());
        let len = buf.len().min(self.0.len() - start);
        buf[..len].copy_from_slice(&self.0[start..start + len]);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        2 << 40
    }
}

impl HeaderSink for Sparse {
    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), SourceError> {
        panic!("a header of 2 TiB is not converted")
    }

    fn sync(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

#[test]
fn header_of_two_tebibytes_is_neither_copied_nor_converted() {
    let mut disk = detached_luks1(2 * MIB);
    let field = KEYSLOT_7_MATERIAL_OFFSET;
    disk[field..field + 4].copy_from_slice(&0xf000_0000_u32.to_be_bytes());
    let mut disk = Sparse(disk);
    Header::read(&disk).unwrap();
    for refused in [Backup::of(&disk).map(drop), convert::to_luks2(&mut disk)] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("copied and converted"), "{error}");
    }
}

#[test]
fn uuid_that_fills_its_field_is_kept_when_the_header_is_written() {
    let mut disk = luks1();
    disk[UUID..UUID + 40].fill(b'u');
    let (header, _) = Header::read(&disk).unwrap();
    assert_eq!(header.uuid(), "u".repeat(40));
    convert::to_luks2(&mut disk).unwrap();
    assert_eq!(Header::read(&disk).unwrap().0.uuid(), "u".repeat(40));
    keys::set_labels(&mut disk, Some("a"), None).unwrap();
    assert_eq!(Header::read(&disk).unwrap().0.uuid(), "u".repeat(40));
    keys::set_uuid(&mut disk, "6ba7b810-9dad-11d1-80b4-00c04fd430c8").unwrap();
}
