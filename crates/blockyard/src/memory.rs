//! Memory limit of this process: the machine's memory, or the limit of a control group, whichever
//! is less.
//!
//! `memory.max` of version 2 applies to all groups below, so all groups up to the root count; in a
//! container, the visible root is the container's own group (cgroups(7)).

use std::path::Path;

/// The limit, with `/proc` and `/sys` under `root`.
pub(crate) fn limit_bytes(root: &Path) -> u64 {
    let machine = read(root, "proc/meminfo").and_then(|text| total(&text));
    // The default is the memory of a small machine.
    machine.into_iter().chain(group_bytes(root)).min().unwrap_or(1 << 30)
}

/// The limit of its control groups, if one has a limit.
fn group_bytes(root: &Path) -> Option<u64> {
    let groups = read(root, "proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    let mut folder = Some(Path::new(own.trim_end()));
    let mut least: Option<u64> = None;
    while let Some(group) = folder {
        let file = Path::new("sys/fs/cgroup").join(group).join("memory.max");
        let limit = read(root, &file).and_then(|text| text.trim().parse().ok());
        least = least.into_iter().chain(limit).min();
        folder = group.parent();
    }
    least
}

fn read(root: &Path, path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(root.join(path)).ok()
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn memory_of_the_machine_is_read_from_meminfo() {
        assert_eq!(total("MemTotal:       16 kB\nMemFree:  1 kB\n"), Some(16 << 10));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(limit_bytes("/".as_ref()) > 1 << 20);
    }

    #[test]
    fn least_limit_on_the_way_to_the_root_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal:  1048576 kB\n");
        write("proc/self/cgroup", "0::/a.slice/b.scope\n");
        assert_eq!((limit_bytes(root.path()), group_bytes(root.path())), (1 << 30, None));
        write("sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
        write("sys/fs/cgroup/a.slice/memory.max", "4096\n");
        write("sys/fs/cgroup/memory.max", "8192\n");
        assert_eq!(limit_bytes(root.path()), 4096);
    }
}
