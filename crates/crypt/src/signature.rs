//! Signatures of other formats at the start of a disk that may have been a LUKS volume.
//!
//! Offsets and bytes are those of `libblkid` (util-linux, `libblkid/src/superblocks` and
//! `partitions`), for formats with a mark in the first 256 KiB. A mark of two bytes counts only
//! with further valid fields around it, because a damaged LUKS header is random or zero there.

use std::fmt;
use std::ops::Range;

use crate::luks1::MAGIC;
use crate::source::HeaderSource;

/// End of the last mark in the table, which is that of ZFS.
const START_LEN_BYTES: usize = 256 << 10;
/// Size of the pieces in which the start is read if one read fails: a bad sector must not hide the
/// rest.
const PIECE_LEN_BYTES: usize = 4096;

/// The label of a LUKS2 header, which may contain the mark of another format.
const LABEL: Range<usize> = 24..72;

/// Format of a disk, recognised by its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name with its article: "an LVM2 physical volume".
    pub name: &'static str,
    /// Offset of the mark.
    pub offset_bytes: u64,
    /// For an image of a virtual disk: the name of its format for `qemu-nbd`.
    pub image_format: Option<&'static str>,
}

impl Signature {
    fn new(name: &'static str, offset_bytes: usize) -> Self {
        Self { name, offset_bytes: offset_bytes as u64, image_format: None }
    }

    /// Whether it is a BitLocker volume ([`crate::bitlk`]).
    #[must_use]
    pub fn is_bitlocker(self) -> bool {
        self.name == BITLOCKER
    }

    /// Whether it is a GPT.
    pub(crate) fn is_partition_table(self) -> bool {
        self.name == GPT
    }

    /// Whether the first sector is the boot sector of a file system or a BitLocker volume, which
    /// has code where an MBR has its entries.
    pub(crate) fn is_boot_sector(self) -> bool {
        self.offset_bytes < 510
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (its signature is at byte {})", self.name, self.offset_bytes)?;
        match self.image_format {
            Some(format) => write!(
                f,
                "; to open the disk in it, run `qemu-nbd --format={format} --persistent \
                 --socket=/tmp/disk.sock IMAGE`, and name the volume \
                 nbd+unix:///?socket=/tmp/disk.sock"
            ),
            None if self.name == RBD_CLONE => f.write_str(
                "; blocks of its parent have another key; copy them into the clone with `rbd \
                 flatten POOL/IMAGE --encryption-passphrase-file CLONE \
                 --encryption-passphrase-file PARENT`",
            ),
            None => Ok(()),
        }
    }
}

/// A mark: these bytes at each of these offsets.
struct Mark {
    name: &'static str,
    offsets_bytes: &'static [usize],
    bytes: &'static [u8],
}

const fn mark(name: &'static str, offsets_bytes: &'static [usize], bytes: &'static [u8]) -> Mark {
    Mark { name, offsets_bytes, bytes }
}

const GPT: &str = "a GPT partition table";
/// Its second mark is the GUID of BitLocker To Go, whose boot sector is otherwise that of FAT.
const BITLOCKER: &str = "a BitLocker volume";
const FAT: &str = "a FAT file system";
const SWAP: &str = "swap space";
/// The end of the first page, for pages of 4, 8, 16, 32 and 64 KiB.
const SWAP_OFFSETS_BYTES: &[usize] = &[4086, 8182, 16_374, 32_758, 65_526];
/// The label may stand in any of the first four sectors.
const LVM_OFFSETS_BYTES: &[usize] = &[24, 536, 1048, 1560];

/// A LUKS header with another magic: blocks that the clone has not written come from the parent,
/// which has another key or none (Ceph, `librbd/crypto/luks/Magic.cc`).
const RBD_CLONE: &str = "an encrypted clone of librbd";

/// Formats with long marks. The order matters only where one format contains another's mark.
const MARKS: &[Mark] = &[
    mark(GPT, &[512, 4096], b"EFI PART"),
    mark(BITLOCKER, &[3], b"-FVE-FS-"),
    mark(BITLOCKER, &[424], b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01"),
    mark("an NTFS file system", &[3], b"NTFS    "),
    mark("an exFAT file system", &[3], b"EXFAT   "),
    mark("a ReFS file system", &[3], b"ReFS\0\0\0\0"),
    mark(FAT, &[54], b"FAT12   "),
    mark(FAT, &[54], b"FAT16   "),
    mark(FAT, &[54], b"FAT     "),
    mark(FAT, &[54], b"MSDOS"),
    mark(FAT, &[82], b"FAT32   "),
    mark(FAT, &[82], b"MSWIN"),
    mark("an LVM2 physical volume", LVM_OFFSETS_BYTES, b"LVM2 001"),
    mark("a member of an md RAID", &[0, 4096], b"\xfc\x4e\x2b\xa9"),
    mark("an XFS file system", &[0], b"XFSB"),
    mark("a Btrfs file system", &[0x1_0040], b"_BHRfS_M"),
    mark("a bcachefs file system", &[4120], b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    mark("a bcache device", &[4120], b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    mark("an F2FS file system", &[1024], b"\x10\x20\xf5\xf2"),
    mark("an EROFS file system", &[1024], b"\xe2\xe1\xf5\xe0"),
    mark("a Squashfs file system", &[0], b"hsqs"),
    mark("a JFS file system", &[0x8000], b"JFS1"),
    mark("a ReiserFS file system", &[0x1_0034, 0x2034], b"ReIsEr"),
    mark("an APFS container", &[32], b"NXSB"),
    mark("an ISO 9660 file system", &[0x8001], b"CD001"),
    mark("a UDF file system", &[0x8001], b"BEA01"),
    mark(SWAP, SWAP_OFFSETS_BYTES, b"SWAPSPACE2"),
    mark(SWAP, SWAP_OFFSETS_BYTES, b"SWAP-SPACE"),
    mark("a hibernated system", SWAP_OFFSETS_BYTES, b"S1SUSPEND\0"),
    mark("a dm-integrity device", &[0], b"integrt\0"),
    mark("a dm-verity hash device", &[0], b"verity\0\0"),
    mark("a device-mapper snapshot store", &[0], b"SnAp"),
    mark("a VDO volume", &[0], b"dmvdo001"),
    mark("a Stratis pool", &[516], b"!Stra0tis\x86\xff\x02^\x41rh"),
    mark("a Ceph BlueStore device", &[0], b"bluestore block device"),
    mark(RBD_CLONE, &[0], b"RBDL\xba\xbe"),
];

/// Length of the footer of some images, the last sector of the file.
const FOOTER_LEN_BYTES: u64 = 512;

/// An image of a virtual disk: its name, its format for `qemu-nbd`, its mark. The formats are those
/// of QEMU's block drivers.
struct Image {
    name: &'static str,
    format: &'static str,
    offset_bytes: usize,
    bytes: &'static [u8],
}

const fn image(
    name: &'static str,
    format: &'static str,
    offset_bytes: usize,
    bytes: &'static [u8],
) -> Image {
    Image { name, format, offset_bytes, bytes }
}

const IMAGES: &[Image] = &[
    image("a QCOW2 image", "qcow2", 0, b"QFI\xfb\0\0\0\x02"),
    image("a QCOW2 image", "qcow2", 0, b"QFI\xfb\0\0\0\x03"),
    image("a QCOW image", "qcow", 0, b"QFI\xfb\0\0\0\x01"),
    image("a QED image", "qed", 0, b"QED\0"),
    image("a VMDK image", "vmdk", 0, b"KDMV"),
    image("a VMDK image", "vmdk", 0, b"COWD"),
    image("the descriptor of a VMDK image", "vmdk", 0, b"# Disk DescriptorFile"),
    image("a VDI image", "vdi", 64, b"\x7f\x10\xda\xbe"),
    image("a VHDX image", "vhdx", 0, b"vhdxfile"),
    image("a VHD image", "vpc", 0, b"conectix"),
    image("a Parallels image", "parallels", 0, b"WithoutFreeSpace"),
    image("a Parallels image", "parallels", 0, b"WithouFreSpacExt"),
];

/// Images whose mark starts the last sector; the disk's own bytes stand at the start.
const FOOTERS: &[Image] = &[
    image("a VHD image", "vpc", 0, b"conectix"),
    image("an Apple disk image (dmg)", "dmg", 0, b"koly"),
];

/// The first signature found at the start of `source`; LUKS is not among them. Unreadable data
/// counts as zeros.
#[must_use]
pub fn probe(source: &dyn HeaderSource) -> Option<Signature> {
    let mut start = start_of(source);
    if start.starts_with(&MAGIC)
        && let Some(label) = start.get_mut(LABEL)
    {
        label.fill(0);
    }
    let image = IMAGES.iter().find(|image| {
        start.get(image.offset_bytes..).is_some_and(|rest| rest.starts_with(image.bytes))
    });
    if let Some(image) = image {
        return Some(image.at(image.offset_bytes as u64));
    }
    if let Some(found) = footer(source) {
        return Some(found);
    }
    let marked = MARKS.iter().find_map(|mark| {
        let is_at = |offset: &&usize| {
            start.get(**offset..).is_some_and(|rest| rest.starts_with(mark.bytes))
        };
        let offset = mark.offsets_bytes.iter().find(is_at)?;
        Some(Signature::new(mark.name, *offset))
    });
    marked
        .or_else(|| ext(&start))
        .or_else(|| hfs(&start))
        .or_else(|| zfs(&start))
        .or_else(|| boot(&start))
}

impl Image {
    fn at(&self, offset_bytes: u64) -> Signature {
        Signature { name: self.name, offset_bytes, image_format: Some(self.format) }
    }
}

/// The image whose footer is the last sector.
fn footer(source: &dyn HeaderSource) -> Option<Signature> {
    let offset = source.len_bytes().checked_sub(FOOTER_LEN_BYTES)?;
    let mut mark = [0; 8];
    source.read_at(offset, &mut mark).ok()?;
    let image = FOOTERS.iter().find(|image| mark.starts_with(image.bytes))?;
    Some(image.at(offset))
}

/// The first 256 KiB, or less of a shorter source.
fn start_of(source: &dyn HeaderSource) -> Vec<u8> {
    let len =
        usize::try_from(source.len_bytes()).map_or(START_LEN_BYTES, |len| len.min(START_LEN_BYTES));
    let mut start = vec![0; len];
    if source.read_at(0, &mut start).is_err() {
        for (index, piece) in start.chunks_mut(PIECE_LEN_BYTES).enumerate() {
            if source.read_at((index * PIECE_LEN_BYTES) as u64, piece).is_err() {
                piece.fill(0);
            }
        }
    }
    start
}

/// Little-endian number of 32 bits.
fn le32(start: &[u8], offset: usize) -> Option<u32> {
    let bytes = start.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// ext2, ext3 and ext4 (`fs/ext4/ext4.h`, `struct ext4_super_block`): a mark of two bytes, and
/// valid numbers of inodes, block size and revision.
fn ext(start: &[u8]) -> Option<Signature> {
    const SUPERBLOCK: usize = 1024;
    const MARK: usize = SUPERBLOCK + 0x38;
    let marked = start.get(MARK..MARK + 2)? == b"\x53\xef";
    let inodes = le32(start, SUPERBLOCK)?;
    let block_size_log = le32(start, SUPERBLOCK + 0x18)?;
    let revision = le32(start, SUPERBLOCK + 0x4c)?;
    (marked && inodes > 0 && block_size_log <= 6 && revision <= 1)
        .then(|| Signature::new("an ext2, ext3 or ext4 file system", MARK))
}

/// HFS+ and HFSX (Apple's Technical Note 1150): a mark of two bytes and its version, 4 or 5.
fn hfs(start: &[u8]) -> Option<Signature> {
    let mark = start.get(1024..1028)?;
    matches!(mark, b"H+\0\x04" | b"HX\0\x05").then(|| Signature::new("an HFS+ file system", 1024))
}

/// ZFS (`include/sys/uberblock_impl.h`): an uberblock in the ring of the first label, in either
/// byte order.
fn zfs(start: &[u8]) -> Option<Signature> {
    const RING: usize = 128 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let uberblock = |offset: &usize| {
        let bytes = start.get(*offset..).and_then(|rest| rest.first_chunk::<8>());
        bytes.is_some_and(|bytes| {
            u64::from_le_bytes(*bytes) == MAGIC || u64::from_be_bytes(*bytes) == MAGIC
        })
    };
    let offset = (RING..START_LEN_BYTES).step_by(1024).find(uberblock)?;
    Some(Signature::new("a member of a ZFS pool", offset))
}

/// A boot sector: a mark of two bytes, with MBR partitions or the usual initial jump.
fn boot(start: &[u8]) -> Option<Signature> {
    const MARK: usize = 510;
    const ENTRIES: usize = 446;
    if start.get(MARK..MARK + 2)? != b"\x55\xaa" {
        return None;
    }
    let found = |name| Some(Signature::new(name, MARK));
    let (entries, _) = start[ENTRIES..MARK].as_chunks::<16>();
    let status_fits = entries.iter().all(|entry| matches!(entry[0], 0 | 0x80));
    // A type, and a length in sectors.
    let is_used = |entry: &[u8; 16]| entry[4] != 0 && entry[12..16] != [0; 4];
    if status_fits && entries.iter().any(is_used) {
        return found("an MBR partition table");
    }
    if matches!(start[0], 0xe9 | 0xeb) { found("a boot sector") } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceError;

    const DISK_LEN: usize = 512 << 10;

    fn named(disk: &[u8]) -> Option<&'static str> {
        probe(&disk).map(|signature| signature.name)
    }

    #[test]
    fn every_mark_of_the_table_is_found_where_it_stands() {
        for mark in MARKS {
            for offset in mark.offsets_bytes {
                let mut disk = vec![0; DISK_LEN];
                disk[*offset..offset + mark.bytes.len()].copy_from_slice(mark.bytes);
                let found = Signature::new(mark.name, *offset);
                assert_eq!(probe(&disk), Some(found));
                assert_eq!(named(&disk[..offset + mark.bytes.len() - 1]), None, "cut off");
            }
        }
    }

    #[test]
    fn image_of_a_virtual_disk_is_named_with_the_line_that_opens_it() {
        for image in IMAGES {
            let mut disk = vec![0; DISK_LEN];
            disk[image.offset_bytes..][..image.bytes.len()].copy_from_slice(image.bytes);
            let found = probe(&disk).unwrap();
            assert_eq!((found.name, found.image_format), (image.name, Some(image.format)));
            let text = found.to_string();
            assert!(text.contains(&format!("qemu-nbd --format={} ", image.format)), "{text}");
        }
        for image in FOOTERS {
            let mut disk = vec![0; DISK_LEN];
            disk[DISK_LEN - 512..][..image.bytes.len()].copy_from_slice(image.bytes);
            (disk[446 + 4], disk[446 + 12]) = (0x83, 1);
            disk[510..512].copy_from_slice(b"\x55\xaa");
            assert_eq!(named(&disk), Some(image.name), "the disk's MBR stands before it");
        }
    }

    #[test]
    fn short_marks_count_only_with_what_belongs_to_them() {
        let mut ext = vec![0; DISK_LEN];
        ext[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(named(&ext), None, "no inodes");
        ext[1024] = 16;
        assert_eq!(named(&ext), Some("an ext2, ext3 or ext4 file system"));
        ext[1024 + 0x4c] = 9;
        assert_eq!(named(&ext), None, "a revision that does not exist");

        let mut mbr = vec![0; DISK_LEN];
        mbr[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(named(&mbr), None, "neither partitions nor code");
        (mbr[446 + 4], mbr[446 + 12]) = (0x83, 1);
        assert_eq!(named(&mbr), Some("an MBR partition table"));
        mbr[446 + 16] = 0x7f;
        assert_eq!(named(&mbr), None, "the second partition's status is none");
        mbr[0] = 0xeb;
        assert_eq!(named(&mbr), Some("a boot sector"));
    }

    #[test]
    fn uberblock_of_either_byte_order_is_zfs() {
        for magic in [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()] {
            let mut disk = vec![0; DISK_LEN];
            disk[(131 << 10)..(131 << 10) + 8].copy_from_slice(&magic);
            assert_eq!(named(&disk), Some("a member of a ZFS pool"));
        }
    }

    #[test]
    fn encrypted_clone_of_librbd_is_named_with_its_remedy() {
        let mut disk = vec![0; DISK_LEN];
        disk[..8].copy_from_slice(b"RBDL\xba\xbe\0\x02");
        let found = probe(&disk).unwrap().to_string();
        assert!(found.contains("encrypted clone") && found.contains("rbd flatten"), "{found}");
    }

    #[test]
    fn disks_of_zeros_ones_or_luks_have_no_signature() {
        for disk in [vec![], vec![0; 511], vec![0; DISK_LEN], vec![0xff; DISK_LEN]] {
            assert_eq!(named(&disk), None);
        }
        assert_eq!(named(b"LUKS\xba\xbe\0\x02"), None);
    }

    #[test]
    fn label_of_a_damaged_luks_header_is_no_signature() {
        let mut disk = vec![0; DISK_LEN];
        disk[24..32].copy_from_slice(b"LVM2 001");
        assert_eq!(named(&disk), Some("an LVM2 physical volume"));
        disk[..6].copy_from_slice(&MAGIC);
        assert_eq!(named(&disk), None);
        (disk[446 + 4], disk[446 + 12]) = (0x83, 1);
        disk[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(named(&disk), Some("an MBR partition table"), "fdisk leaves the magic");
        assert_eq!(named(&MAGIC), None);
    }

    /// A disk whose first 4 KiB cannot be read.
    struct BadSector(Vec<u8>);

    impl HeaderSource for BadSector {
        fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
            if offset_bytes < 4096 {
                return Err(std::io::Error::other("bad sector").into());
            }
            self.0.read_at(offset_bytes, buf)
        }

        fn len_bytes(&self) -> u64 {
            self.0.len_bytes()
        }
    }

    #[test]
    fn signature_behind_a_bad_sector_is_found() {
        let mut disk = vec![0; DISK_LEN];
        disk[0x1_0040..0x1_0048].copy_from_slice(b"_BHRfS_M");
        assert_eq!(
            probe(&BadSector(disk)).map(|signature| signature.name),
            Some("a Btrfs file system")
        );
    }
}
