//! The table of file systems and their drivers.
//!
//! A driver is a program that shows a file system by FUSE. It gets the file of the plaintext and
//! the directory, and must stay in the foreground.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use blockyard_crypt::source::HeaderSource;
use rustix::process::geteuid;

use crate::Error;

/// A file system, its marks and its driver.
#[derive(Debug)]
pub(super) struct FileSystem {
    /// Name for people.
    pub(super) name: &'static str,
    /// Each mark identifies it.
    marks: &'static [Mark],
    pub(super) driver: Result<DriverProgram, &'static str>,
}

/// Bytes at a place.
#[derive(Debug)]
struct Mark(u64, &'static [u8]);

/// A program and its words.
#[derive(Debug)]
pub(super) struct DriverProgram {
    pub(super) name: &'static str,
    package: &'static str,
    /// Words in front of the options, the file and the directory.
    pub(super) words: &'static [&'static str],
    /// Mount options in any case.
    pub(super) options: &'static [&'static str],
    /// Mount options of an ordinary user.
    pub(super) of_user: &'static [&'static str],
    /// It takes `uid=`, `gid=` and `umask=`.
    pub(super) takes_owner: bool,
}

const FOREGROUND: DriverProgram = DriverProgram {
    name: "",
    package: "",
    words: &["-f"],
    options: &[],
    of_user: &[],
    takes_owner: false,
};

/// All of them. `docs/mount.md` has the same list for people.
pub(super) const FILE_SYSTEMS: &[FileSystem] = &[
    FileSystem {
        name: "ext2, ext3 or ext4",
        marks: &[Mark(1080, b"\x53\xef")],
        driver: Ok(DriverProgram {
            name: "fuse2fs",
            package: "fuse2fs",
            // The files belong to users of another system, often to root.
            of_user: &["fakeroot"],
            ..FOREGROUND
        }),
    },
    FileSystem {
        name: "squashfs",
        marks: &[Mark(0, b"hsqs")],
        driver: Ok(DriverProgram { name: "squashfuse", package: "squashfuse", ..FOREGROUND }),
    },
    FileSystem {
        name: "erofs",
        marks: &[Mark(1024, b"\xe2\xe1\xf5\xe0")],
        driver: Ok(DriverProgram { name: "erofsfuse", package: "erofsfuse", ..FOREGROUND }),
    },
    FileSystem {
        name: "NTFS",
        marks: &[Mark(3, b"NTFS    ")],
        driver: Ok(DriverProgram {
            name: "ntfs-3g",
            package: "ntfs-3g",
            words: &[],
            options: &["no_detach"],
            takes_owner: true,
            ..FOREGROUND
        }),
    },
    FileSystem {
        name: "XFS",
        marks: &[Mark(0, b"XFSB")],
        driver: Ok(DriverProgram {
            name: "lklfuse",
            package: "lklfuse",
            options: &["type=xfs"],
            ..FOREGROUND
        }),
    },
    FileSystem {
        name: "btrfs",
        marks: &[Mark(65_600, b"_BHRfS_M")],
        driver: Ok(DriverProgram {
            name: "lklfuse",
            package: "lklfuse",
            options: &["type=btrfs"],
            ..FOREGROUND
        }),
    },
    FileSystem {
        name: "APFS",
        marks: &[Mark(32, b"NXSB")],
        driver: Ok(DriverProgram { name: "apfs-fuse", package: "apfs-fuse", ..FOREGROUND }),
    },
    FileSystem {
        name: "exFAT",
        marks: &[Mark(3, b"EXFAT   ")],
        driver: Err("the driver exfat-fuse refuses every disk that is no block device"),
    },
    FileSystem {
        name: "FAT",
        marks: &[Mark(54, b"FAT12   "), Mark(54, b"FAT16   "), Mark(82, b"FAT32   ")],
        driver: Err("the driver fusefat loses files"),
    },
    FileSystem {
        name: "ISO 9660",
        marks: &[Mark(32_769, b"CD001")],
        driver: Ok(DriverProgram { name: "fuseiso", package: "fuseiso", ..FOREGROUND }),
    },
];

/// The file system at the start of a source.
pub(super) fn detect(source: &dyn HeaderSource) -> Option<&'static FileSystem> {
    let has = |Mark(offset, bytes): &Mark| {
        let mut found = vec![0; bytes.len()];
        source.read_at(*offset, &mut found).is_ok() && found == *bytes
    };
    FILE_SYSTEMS.iter().find(|system| system.marks.iter().any(has))
}

impl FileSystem {
    /// The path of the driver.
    pub(super) fn find_program(&self, target: &Path) -> Result<PathBuf, Error> {
        let driver = self.driver.as_ref().map_err(|problem| {
            let problem = format!(
                "the volume has {}, which no program can show: {problem}; `as_file` shows the \
                 plaintext as one file",
                self.name
            );
            Error::mount(target, problem)
        })?;
        // An ordinary user's path often lacks the folders of system programs.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        let mut programs = folders.map(|folder| folder.join(driver.name));
        let found = programs.find(|program| {
            let status = program.metadata();
            status.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
        });
        found.ok_or_else(|| {
            let problem = format!(
                "the volume has {}, and its driver {} is missing; it is in the package {}",
                self.name, driver.name, driver.package
            );
            Error::mount(target, problem)
        })
    }

    /// Whether the driver runs as root for an ordinary user, and so may read the file of the
    /// plaintext only if others may.
    pub(super) fn runs_as_root(&self, program: &Path) -> bool {
        let set_uid = program.metadata().is_ok_and(|it| it.mode() & 0o4000 != 0 && it.uid() == 0);
        set_uid && !geteuid().is_root()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_detected_by_their_marks_and_a_short_disk_has_none() {
        let mut disk = vec![0; 1 << 17];
        assert!(detect(&disk.as_slice()).is_none());
        disk[65_600..65_608].copy_from_slice(b"_BHRfS_M");
        assert_eq!(detect(&disk.as_slice()).unwrap().name, "btrfs");
        disk[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(detect(&disk.as_slice()).unwrap().name, "ext2, ext3 or ext4");
        assert!(detect(&&disk[..1081]).is_none());
    }
}
