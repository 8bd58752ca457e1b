//! The table of file systems and their drivers.
//!
//! A driver is a program that shows a file system by FUSE. It gets the file of the plaintext and
//! the directory, and must stay in the foreground.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::file_system::FileSystem;
use crate::{Error, Volume};

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

/// Command of the program `blockyard` that is the driver of FAT.
pub const FAT_DRIVER: &str = "fat-driver";

const EXT: DriverProgram = DriverProgram {
    name: "fuse2fs",
    package: "fuse2fs",
    // The files belong to users of another system, often to root.
    of_user: &["fakeroot"],
    ..FOREGROUND
};
const SQUASHFS: DriverProgram =
    DriverProgram { name: "squashfuse", package: "squashfuse", ..FOREGROUND };
const EROFS: DriverProgram =
    DriverProgram { name: "erofsfuse", package: "erofsfuse", ..FOREGROUND };
const NTFS: DriverProgram = DriverProgram {
    name: "ntfs-3g",
    package: "ntfs-3g",
    words: &[],
    options: &["no_detach"],
    takes_owner: true,
    ..FOREGROUND
};
const XFS: DriverProgram =
    DriverProgram { name: "lklfuse", package: "lklfuse", options: &["type=xfs"], ..FOREGROUND };
const BTRFS: DriverProgram = DriverProgram { options: &["type=btrfs"], ..XFS };
const APFS: DriverProgram = DriverProgram { name: "apfs-fuse", package: "apfs-fuse", ..FOREGROUND };
const FAT: DriverProgram = DriverProgram {
    name: "blockyard",
    package: "blockyard",
    words: &[FAT_DRIVER],
    takes_owner: true,
    ..FOREGROUND
};
const ISO9660: DriverProgram = DriverProgram { name: "fuseiso", package: "fuseiso", ..FOREGROUND };

/// The driver of a file system, or the reason why there is none. `docs/mount.md` has the same list
/// for people.
pub(super) fn driver(system: FileSystem) -> Result<&'static DriverProgram, &'static str> {
    match system {
        FileSystem::Ext => Ok(&EXT),
        FileSystem::Squashfs => Ok(&SQUASHFS),
        FileSystem::Erofs => Ok(&EROFS),
        FileSystem::Ntfs => Ok(&NTFS),
        FileSystem::Xfs => Ok(&XFS),
        FileSystem::Btrfs => Ok(&BTRFS),
        FileSystem::Apfs => Ok(&APFS),
        FileSystem::Fat => Ok(&FAT),
        FileSystem::Iso9660 => Ok(&ISO9660),
        FileSystem::ExFat => {
            Err("the driver exfat-fuse refuses every disk that is no block device")
        }
    }
}

/// The driver of the volume's file system, and its path.
pub(super) fn find(
    system: FileSystem,
    volume: &Volume,
) -> Result<(&'static DriverProgram, PathBuf), Error> {
    let program = driver(system).map_err(|problem| {
        let problem = format!(
            "the volume has {}, which no program can show: {problem}; `as_file` shows the \
             plaintext as one file",
            system.name()
        );
        Error::contents(volume, problem)
    })?;
    // This program itself, if it is the one.
    let own =
        std::env::current_exe().ok().filter(|own| own.file_name() == Some(program.name.as_ref()));
    // An ordinary user's path often lacks the folders of system programs.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut programs = own.into_iter().chain(folders.map(|folder| folder.join(program.name)));
    let found = programs.find(|program| {
        let status = program.metadata();
        status.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    });
    let found = found.ok_or_else(|| {
        let problem = format!(
            "the volume has {}, and its driver {} is missing; it is in the package {}",
            system.name(),
            program.name,
            program.package
        );
        Error::contents(volume, problem)
    })?;
    Ok((program, found))
}

/// Whether the driver runs as root for an ordinary user, and so may read the file of the plaintext
/// only if others may.
pub(super) fn runs_as_root(program: &Path) -> bool {
    let set_uid = program.metadata().is_ok_and(|it| it.mode() & 0o4000 != 0 && it.uid() == 0);
    set_uid && !geteuid().is_root()
}
