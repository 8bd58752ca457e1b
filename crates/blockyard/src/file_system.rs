//! The file systems that a plaintext may hold, by their marks.

use blockyard_crypt::source::HeaderSource;

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// ext2, ext3 or ext4.
    Ext,
    Squashfs,
    Erofs,
    Ntfs,
    Xfs,
    Btrfs,
    Apfs,
    ExFat,
    /// FAT12, FAT16 or FAT32.
    Fat,
    Iso9660,
}

/// Bytes at a place identify a file system.
struct Mark(u64, &'static [u8], FileSystem);

/// All marks. An ISO image may start with the marks of others, which boot from it.
const MARKS: &[Mark] = &[
    Mark(32_769, b"CD001", FileSystem::Iso9660),
    Mark(1080, b"\x53\xef", FileSystem::Ext),
    Mark(0, b"hsqs", FileSystem::Squashfs),
    Mark(1024, b"\xe2\xe1\xf5\xe0", FileSystem::Erofs),
    Mark(3, b"NTFS    ", FileSystem::Ntfs),
    Mark(0, b"XFSB", FileSystem::Xfs),
    Mark(65_600, b"_BHRfS_M", FileSystem::Btrfs),
    Mark(32, b"NXSB", FileSystem::Apfs),
    Mark(3, b"EXFAT   ", FileSystem::ExFat),
    Mark(54, b"FAT12   ", FileSystem::Fat),
    Mark(54, b"FAT16   ", FileSystem::Fat),
    Mark(82, b"FAT32   ", FileSystem::Fat),
];

impl FileSystem {
    /// The file system at the start of a source.
    pub(crate) fn detect(source: &dyn HeaderSource) -> Option<Self> {
        let has = |Mark(offset, bytes, _): &&Mark| {
            let mut found = vec![0; bytes.len()];
            source.read_at(*offset, &mut found).is_ok() && found == *bytes
        };
        MARKS.iter().find(has).map(|Mark(_, _, system)| *system)
    }

    /// Name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext => "ext2, ext3 or ext4",
            Self::Squashfs => "squashfs",
            Self::Erofs => "erofs",
            Self::Ntfs => "NTFS",
            Self::Xfs => "XFS",
            Self::Btrfs => "btrfs",
            Self::Apfs => "APFS",
            Self::ExFat => "exFAT",
            Self::Fat => "FAT",
            Self::Iso9660 => "ISO 9660",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_detected_by_their_marks_and_a_short_disk_has_none() {
        let mut disk = vec![0; 1 << 17];
        assert_eq!(FileSystem::detect(&disk.as_slice()), None);
        disk[65_600..65_608].copy_from_slice(b"_BHRfS_M");
        assert_eq!(FileSystem::detect(&disk.as_slice()), Some(FileSystem::Btrfs));
        disk[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(FileSystem::detect(&disk.as_slice()), Some(FileSystem::Ext));
        assert_eq!(FileSystem::detect(&&disk[..1081]), None);
    }
}
