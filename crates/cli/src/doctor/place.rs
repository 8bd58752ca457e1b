//! Where a volume lies: permissions, the file system around a file, the queue of a device.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{Finding, Grade, quoted};
use crate::size::human_size;

/// Kernel queues that hold fewer keep a scheduler from choosing. Ours.
const NR_REQUESTS_MIN: u64 = 32;
/// Our own longest request; a shorter limit splits it.
const MAX_SECTORS_KIB_MIN: u64 = 512;

/// As long as any block of a file system.
const HOLE_BYTES: u64 = 64 << 10;

/// File systems that matter (`linux/magic.h`), by their number.
const BTRFS: i64 = 0x9123_683e;
const OVERLAY: i64 = 0x794c_7630;
const TMPFS: i64 = 0x0102_1994;
const NETWORK: [(i64, &str); 4] =
    [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0xfe53_4d42, "SMB"), (0x6573_5546, "FUSE")];

/// All about a file or block device, on the machine whose `/sys` lies under `root`; `trims` if TRIM
/// may come to it.
pub(crate) fn findings(root: &Path, path: &Path, trims: bool) -> Vec<Finding> {
    let Ok(metadata) = std::fs::metadata(path) else { return Vec::new() };
    if metadata.file_type().is_block_device() {
        let (major, minor) =
            (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        return queue(&root.join(format!("sys/dev/block/{major}:{minor}")), path, trims);
    }
    let mut findings: Vec<Finding> = permissions(path, &metadata, "it").into_iter().collect();
    findings.extend(holes(path).filter(|_| trims));
    if let Ok(fs) = rustix::fs::statfs(path) {
        let free_bytes = fs.f_bavail.saturating_mul(u64::try_from(fs.f_bsize).unwrap_or(0));
        let around = Around { kind: fs.f_type, free_bytes };
        findings.extend(around.findings(path, metadata.len(), metadata.blocks() * 512));
    }
    findings
}

/// Others may read a file that has secrets, or what guards them.
pub(crate) fn permissions(path: &Path, metadata: &Metadata, what: &str) -> Option<Finding> {
    let open = metadata.mode() & 0o044;
    (open != 0).then(|| {
        let whom = if open & 0o004 != 0 { "everybody" } else { "its group" };
        Finding::new(
            Grade::Risky,
            path.display().to_string(),
            format!("{whom} on this machine can read {what}, and try passphrases at leisure"),
            format!("chmod go-rwx {}", quoted(path)),
        )
    })
}

/// TRIM makes holes in a file, which not every file system can: tried on a file beside it that has
/// no name and is gone at once.
fn holes(path: &Path) -> Option<Finding> {
    let folder = path.canonicalize().ok()?.parent()?.to_owned();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).ok()?;
    rustix::fs::ftruncate(&file, HOLE_BYTES).ok()?;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = rustix::fs::fallocate(&file, punch, 0, HOLE_BYTES);
    (punched == Err(Errno::OPNOTSUPP)).then(|| {
        Finding::new(
            Grade::Note,
            path.display().to_string(),
            "its file system cannot make holes: what TRIM frees in the volume stays taken",
            format!("cp --sparse=always {} to ext4, xfs or btrfs", quoted(path)),
        )
    })
}

/// The file system that a file is in.
struct Around {
    kind: i64,
    free_bytes: u64,
}

impl Around {
    fn findings(&self, path: &Path, len_bytes: u64, taken_bytes: u64) -> Vec<Finding> {
        let place = path.display().to_string();
        let shell = quoted(path);
        let network = NETWORK.iter().find(|(kind, _)| *kind == self.kind);
        let kind = match self.kind {
            BTRFS => Some((
                Grade::Slow,
                "it lies on btrfs, which writes every change to a new place".to_owned(),
                format!("in an empty folder: chattr +C . && cp {shell} ."),
            )),
            OVERLAY => Some((
                Grade::Slow,
                "it lies in an overlay: the first write copies the whole file".to_owned(),
                "put it into a volume of the container".to_owned(),
            )),
            TMPFS => Some((
                Grade::Risky,
                "it lies in memory (tmpfs): it is gone when the machine stops".to_owned(),
                format!("cp {shell} to a disk"),
            )),
            _ => network.map(|(_, name)| {
                (
                    Grade::Risky,
                    format!(
                        "it lies on {name}: locks and flushes are what the other side makes of them"
                    ),
                    "serve it where the disk is: blockyard serve there, nbd:// here".to_owned(),
                )
            }),
        };
        let mut findings = Vec::new();
        if let Some((grade, seen, mend)) = kind {
            findings.push(Finding::new(grade, &place, seen, mend));
        }
        let missing_bytes = len_bytes.saturating_sub(taken_bytes);
        if self.kind != TMPFS && missing_bytes > self.free_bytes {
            let (missing, free) = (human_size(missing_bytes), human_size(self.free_bytes));
            findings.push(Finding::new(
                Grade::Risky,
                &place,
                format!(
                    "{missing} of it have no room yet, and {free} are free: writes will fail \
                     before the volume is full"
                ),
                format!("make room, then: fallocate --length {len_bytes} {shell}"),
            ));
        }
        if self.kind != TMPFS {
            findings.push(Finding::new(
                Grade::Note,
                &place,
                "its I/O goes through the page cache of this machine: fast where data are read \
                 again, memory and time where they are not",
                format!("blockyard tune {shell} measures both ways"),
            ));
        }
        findings
    }
}

/// The queue of a block device, whose folder in `/sys` this is.
fn queue(node: &Path, path: &Path, trims: bool) -> Vec<Finding> {
    // A partition has no queue; that of its disk lies one folder up.
    let folders = [node.join("queue"), node.join("../queue")];
    let Some(folder) = folders.into_iter().find(|folder| folder.is_dir()) else {
        return Vec::new();
    };
    let name = folder.canonicalize().ok();
    let name: Option<PathBuf> = name.and_then(|folder| Some(folder.parent()?.file_name()?.into()));
    let name = name.map_or_else(|| "DEVICE".into(), |name| name.display().to_string());
    let number = |file: &str| -> Option<u64> {
        std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
    };
    let finding = |file: &str, seen: String, value: u64| {
        let mend = format!("echo {value} > /sys/block/{name}/queue/{file}");
        Finding::new(Grade::Slow, path.display().to_string(), seen, mend)
    };
    let mut findings = Vec::new();
    if let Some(requests) = number("nr_requests").filter(|number| *number < NR_REQUESTS_MIN) {
        let seen = format!("its queue holds only {requests} requests: nothing is left to sort");
        findings.push(finding("nr_requests", seen, 128));
    }
    let hardware_kib = number("max_hw_sectors_kb").unwrap_or(0);
    let limit = number("max_sectors_kb").filter(|kib| *kib < MAX_SECTORS_KIB_MIN);
    if let Some(kib) = limit.filter(|kib| hardware_kib > *kib) {
        let seen = format!("it gets at most {kib} KiB at a time: longer requests are split");
        findings.push(finding("max_sectors_kb", seen, hardware_kib.min(1280)));
    }
    findings.extend(discards(path, &name, &number).filter(|_| trims));
    findings
}

/// Whether TRIM gets through to a device. It may take less than the disk behind it could.
fn discards(path: &Path, name: &str, number: &dyn Fn(&str) -> Option<u64>) -> Option<Finding> {
    let blocked = number("discard_max_bytes") == Some(0);
    let hardware_bytes = number("discard_max_hw_bytes").unwrap_or(0);
    let (seen, mend) = match hardware_bytes {
        0 => (
            "it takes no TRIM: what is freed in the volume stays taken, and an SSD behind it \
             becomes slower",
            format!("lsblk --discard /dev/{name}: a USB bridge or a RAID may be what hides it"),
        ),
        bytes => (
            "TRIM is switched off in its queue",
            format!("echo {bytes} > /sys/block/{name}/queue/discard_max_bytes"),
        ),
    };
    blocked.then(|| Finding::new(Grade::Note, path.display().to_string(), seen, mend))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn seen(findings: &[Finding]) -> Vec<(Grade, &str)> {
        findings.iter().map(|one| (one.grade, one.seen.as_str())).collect()
    }

    #[test]
    fn file_that_others_can_read_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = |mode| {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            permissions(file.path(), &fs::metadata(file.path()).unwrap(), "the key")
        };
        assert_eq!(of(0o600), None);
        assert!(of(0o640).unwrap().seen.starts_with("its group"));
        assert!(of(0o644).unwrap().seen.starts_with("everybody"));
    }

    #[test]
    fn file_system_and_its_room_are_judged() {
        let of = |kind, free_bytes| {
            Around { kind, free_bytes }.findings("a.img".as_ref(), 1 << 30, 1 << 29)
        };
        let ext4 = of(0xef53, 1 << 40);
        assert_eq!(ext4.len(), 1, "{ext4:?}");
        assert_eq!(ext4[0].grade, Grade::Note);
        assert!(seen(&of(0xef53, 1 << 20))[0].1.contains("512 MiB of it have no room"));
        for (kind, word) in [(BTRFS, "btrfs"), (OVERLAY, "overlay"), (0x6969, "NFS")] {
            assert!(seen(&of(kind, 1 << 40))[0].1.contains(word));
        }
        assert_eq!(seen(&of(TMPFS, 0)).len(), 1);
    }

    #[test]
    fn queue_of_a_partition_is_that_of_its_disk() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("sdx");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("sdx1")).unwrap();
        for (file, text) in
            [("nr_requests", "4\n"), ("max_sectors_kb", "128\n"), ("max_hw_sectors_kb", "4096\n")]
        {
            fs::write(disk.join("queue").join(file), text).unwrap();
        }
        let findings = queue(&disk.join("sdx1"), "/dev/sdx1".as_ref(), true);
        let mends: Vec<&str> = findings.iter().map(|one| one.mend.as_str()).collect();
        let wanted = [
            "echo 128 > /sys/block/sdx/queue/nr_requests",
            "echo 1280 > /sys/block/sdx/queue/max_sectors_kb",
        ];
        assert_eq!(mends, wanted);
        fs::write(disk.join("queue/discard_max_bytes"), "0\n").unwrap();
        let blocked = |hardware_bytes: &str| {
            fs::write(disk.join("queue/discard_max_hw_bytes"), hardware_bytes).unwrap();
            queue(&disk, "/dev/sdx".as_ref(), true).pop().unwrap().mend
        };
        assert!(blocked("0\n").starts_with("lsblk --discard"));
        assert_eq!(blocked("512\n"), "echo 512 > /sys/block/sdx/queue/discard_max_bytes");
        fs::write(disk.join("queue/discard_max_bytes"), "512\n").unwrap();
        fs::write(disk.join("queue/nr_requests"), "256\n").unwrap();
        fs::write(disk.join("queue/max_hw_sectors_kb"), "128\n").unwrap();
        assert_eq!(queue(&disk, "/dev/sdx".as_ref(), true), []);
    }
}
