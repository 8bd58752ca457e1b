//! The place of a volume: permissions, the file system around a file, the queue of a device.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{Fact, FileSystem, Finding, Secret};

/// A smaller queue in the kernel leaves a scheduler no choice. Ours.
const NR_REQUESTS_MIN: u64 = 32;
/// The kernel's default.
const NR_REQUESTS_ADVISED: u64 = 128;
/// Our own longest request; a shorter limit splits it.
const MAX_SECTORS_KIB_MIN: u64 = 512;
/// The kernel's default.
const MAX_SECTORS_KIB_ADVISED: u64 = 1280;

/// At least the block of any file system.
const HOLE_BYTES: u64 = 64 << 10;

/// Relevant file systems (`linux/magic.h`), by number.
const FILE_SYSTEMS: [(i64, FileSystem); 7] = [
    (0x9123_683e, FileSystem::Btrfs),
    (0x794c_7630, FileSystem::Overlay),
    (0x0102_1994, FileSystem::Tmpfs),
    (0x6969, FileSystem::Network("NFS")),
    (0xff53_4d42, FileSystem::Network("CIFS")),
    (0xfe53_4d42, FileSystem::Network("SMB")),
    (0x6573_5546, FileSystem::Network("FUSE")),
];

/// All findings of a file or block device, with `/sys` under `root`; `trims` is true if TRIM may
/// reach it.
pub(super) fn findings(root: &Path, path: &Path, trims: bool) -> Vec<Finding> {
    let Ok(metadata) = path.metadata() else { return Vec::new() };
    if metadata.file_type().is_block_device() {
        let major = rustix::fs::major(metadata.rdev());
        let minor = rustix::fs::minor(metadata.rdev());
        let facts = queue(&root.join(format!("sys/dev/block/{major}:{minor}")), trims);
        return facts.into_iter().map(|fact| Finding::at(path, fact)).collect();
    }
    let mut findings: Vec<Finding> =
        permissions(path, &metadata, Secret::Volume).into_iter().collect();
    if trims && makes_no_holes(path) {
        findings.push(Finding::at(path, Fact::NoHoles));
    }
    if let Ok(fs) = rustix::fs::statfs(path) {
        let free_bytes = fs.f_bavail.saturating_mul(u64::try_from(fs.f_bsize).unwrap_or(0));
        let known = FILE_SYSTEMS.iter().find(|(number, _)| *number == fs.f_type);
        let around = Around { file_system: known.map(|one| one.1), free_bytes };
        let facts = around.facts(metadata.len(), metadata.blocks() * 512);
        findings.extend(facts.into_iter().map(|fact| Finding::at(path, fact)));
    }
    findings
}

/// Others may read a file that holds secrets, or protects them.
pub(super) fn permissions(path: &Path, metadata: &Metadata, secret: Secret) -> Option<Finding> {
    let open = metadata.mode() & 0o044;
    let by_all = open & 0o004 != 0;
    (open != 0).then(|| Finding::at(path, Fact::Readable { secret, by_all }))
}

/// TRIM makes holes in a file, which some file systems cannot do: tried with a nameless file beside
/// it.
fn makes_no_holes(path: &Path) -> bool {
    let try_one = || {
        let folder = path.canonicalize().ok()?.parent()?.to_owned();
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).ok()?;
        rustix::fs::ftruncate(&file, HOLE_BYTES).ok()?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Some(rustix::fs::fallocate(&file, punch, 0, HOLE_BYTES))
    };
    try_one() == Some(Err(Errno::OPNOTSUPP))
}

/// The file system of a file.
struct Around {
    /// `None`: one without peculiarities.
    file_system: Option<FileSystem>,
    free_bytes: u64,
}

impl Around {
    fn facts(&self, len_bytes: u64, taken_bytes: u64) -> Vec<Fact> {
        let mut facts: Vec<Fact> = self.file_system.map(Fact::FileSystem).into_iter().collect();
        if self.file_system == Some(FileSystem::Tmpfs) {
            return facts;
        }
        let free_bytes = self.free_bytes;
        let missing_bytes = len_bytes.saturating_sub(taken_bytes);
        if missing_bytes > free_bytes {
            facts.push(Fact::Sparse { len_bytes, missing_bytes, free_bytes });
        }
        facts.push(Fact::PageCache);
        facts
    }
}

/// The queue of a block device; `node` is its folder in `/sys`.
fn queue(node: &Path, trims: bool) -> Vec<Fact> {
    // A partition has no queue; its disk's is one folder up.
    let folders = [node.join("queue"), node.join("../queue")];
    let Some(folder) = folders.into_iter().find(|folder| folder.is_dir()) else {
        return Vec::new();
    };
    let name = folder.canonicalize().ok();
    let name: Option<PathBuf> = name.and_then(|folder| Some(folder.parent()?.file_name()?.into()));
    let disk = name.map_or_else(|| "DEVICE".into(), |name| name.display().to_string());
    let number = |file: &str| -> Option<u64> {
        std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
    };
    let mut facts = Vec::new();
    if let Some(nr_requests) = number("nr_requests").filter(|number| *number < NR_REQUESTS_MIN) {
        let disk = disk.clone();
        let advised = NR_REQUESTS_ADVISED;
        facts.push(Fact::FewRequests { disk, nr_requests, advised });
    }
    let hardware_kib = number("max_hw_sectors_kb").unwrap_or(0);
    let limit = number("max_sectors_kb").filter(|kib| *kib < MAX_SECTORS_KIB_MIN);
    if let Some(max_kib) = limit.filter(|kib| hardware_kib > *kib) {
        let disk = disk.clone();
        let advised_kib = hardware_kib.min(MAX_SECTORS_KIB_ADVISED);
        facts.push(Fact::ShortRequests { disk, max_kib, advised_kib });
    }
    // A disk may take less than the hardware behind it could.
    if trims && number("discard_max_bytes") == Some(0) {
        facts.push(match number("discard_max_hw_bytes").unwrap_or(0) {
            0 => Fact::TrimUnsupported { disk },
            max_bytes => Fact::TrimDisabled { disk, max_bytes },
        });
    }
    facts
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_that_others_can_read_is_a_finding() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = |mode| {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            let found = permissions(file.path(), &fs::metadata(file.path()).unwrap(), Secret::Key);
            found.map(|one| one.fact)
        };
        assert_eq!(of(0o600), None);
        let readable = |by_all| Some(Fact::Readable { secret: Secret::Key, by_all });
        assert_eq!(of(0o640), readable(false));
        assert_eq!(of(0o644), readable(true));
    }

    #[test]
    fn file_system_and_its_room_are_judged() {
        let of =
            |file_system, free_bytes| Around { file_system, free_bytes }.facts(1 << 30, 1 << 29);
        assert_eq!(of(None, 1 << 40), [Fact::PageCache]);
        let sparse = Fact::Sparse { len_bytes: 1 << 30, missing_bytes: 1 << 29, free_bytes: 1 };
        assert_eq!(of(None, 1), [sparse, Fact::PageCache]);
        let btrfs = FileSystem::Btrfs;
        let tmpfs = FileSystem::Tmpfs;
        assert_eq!(of(Some(btrfs), 1 << 40), [Fact::FileSystem(btrfs), Fact::PageCache]);
        assert_eq!(of(Some(tmpfs), 0), [Fact::FileSystem(tmpfs)]);
    }

    #[test]
    fn queue_of_a_partition_is_that_of_its_disk() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sdx");
        fs::create_dir_all(folder.join("queue")).unwrap();
        fs::create_dir_all(folder.join("sdx1")).unwrap();
        for (file, text) in
            [("nr_requests", "4\n"), ("max_sectors_kb", "128\n"), ("max_hw_sectors_kb", "4096\n")]
        {
            fs::write(folder.join("queue").join(file), text).unwrap();
        }
        let disk = || "sdx".to_owned();
        let wanted = [
            Fact::FewRequests { disk: disk(), nr_requests: 4, advised: 128 },
            Fact::ShortRequests { disk: disk(), max_kib: 128, advised_kib: 1280 },
        ];
        assert_eq!(queue(&folder.join("sdx1"), true), wanted);
        fs::write(folder.join("queue/discard_max_bytes"), "0\n").unwrap();
        assert_eq!(queue(&folder, false), wanted, "no TRIM comes to it");
        let blocked = |hardware_bytes: &str| {
            fs::write(folder.join("queue/discard_max_hw_bytes"), hardware_bytes).unwrap();
            queue(&folder, true).pop().unwrap()
        };
        assert_eq!(blocked("0\n"), Fact::TrimUnsupported { disk: disk() });
        assert_eq!(blocked("512\n"), Fact::TrimDisabled { disk: disk(), max_bytes: 512 });
        fs::write(folder.join("queue/discard_max_bytes"), "512\n").unwrap();
        fs::write(folder.join("queue/nr_requests"), "256\n").unwrap();
        fs::write(folder.join("queue/max_hw_sectors_kb"), "128\n").unwrap();
        assert_eq!(queue(&folder, true), []);
    }
}
