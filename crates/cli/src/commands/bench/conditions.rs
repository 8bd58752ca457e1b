//! Conditions of a measurement, besides the jobs: the file, its storage and the machine, use of the
//! page cache, and the CPUs of the jobs.

use std::path::Path;

use blockyard::{Backing, BackingKind, Volume};
use rustix::thread::{CpuSet, sched_getaffinity};

/// File systems by their number in `statfs` (`linux/magic.h`).
const FILE_SYSTEMS: [(i64, &str); 9] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlay"),
    (0x6969, "NFS"),
    (0x6573_5546, "FUSE"),
];

/// Names and values, in display order.
pub(super) fn conditions(named: Option<&Path>, volume: &Volume) -> Vec<(&'static str, String)> {
    let backings = volume.backings();
    let each = |text: fn(&Backing) -> String| {
        let mut all: Vec<String> = backings.iter().map(text).collect();
        all.dedup();
        if all.is_empty() { "none".into() } else { all.join("; ") }
    };
    vec![
        ("file", named.map_or_else(|| "null device".into(), |path| path.display().to_string())),
        ("host", host()),
        ("backing", each(backing)),
        ("direct", each(direct)),
        ("placement", placement()),
    ]
}

fn backing(Backing { path, kind, is_block_device }: &Backing) -> String {
    let place = path.display();
    match (kind, is_block_device) {
        (BackingKind::Remote, _) => format!("{place}, a remote disk"),
        (_, true) => format!("{place}, a block device"),
        (_, false) => match rustix::fs::statfs(path.as_path()) {
            Ok(fs) => {
                let known = FILE_SYSTEMS.iter().find(|(number, _)| *number == fs.f_type);
                let name = known.map_or_else(|| format!("{:#x}", fs.f_type), |one| one.1.into());
                format!("{place}, a file on {name}")
            }
            Err(_) => "memory of this process".into(),
        },
    }
}

fn direct(backing: &Backing) -> String {
    match backing.kind {
        BackingKind::Direct => "yes, bypassing the page cache (O_DIRECT)",
        BackingKind::Cached => "no, through the page cache",
        BackingKind::Tmpfs => "no, its pages are the storage",
        BackingKind::Remote => "no, the server or cluster decides",
    }
    .into()
}

/// Name, kernel and processor of the machine.
fn host() -> String {
    let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpuinfo = line("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("", |(_, model)| model.trim());
    let name = line("/proc/sys/kernel/hostname");
    let kernel = line("/proc/sys/kernel/osrelease");
    let all = [name, format!("Linux {kernel}"), model.to_owned()];
    all.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// CPUs that the jobs may use, in the format of `taskset`.
fn placement() -> String {
    let Ok(allowed) = sched_getaffinity(None) else { return "unknown".into() };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let runs = cpus.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    format!("CPUs {}, chosen by the scheduler", runs.collect::<Vec<_>>().join(","))
}
