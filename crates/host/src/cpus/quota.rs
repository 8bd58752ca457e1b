//! CPUs whose time the cgroups of this process permit.
//!
//! The files with the limits are opened once, before a sandbox hides them, and read again later: an
//! operator may change a limit at any time. A move to another cgroup is not seen.
//!
//! Sources: Linux `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`) and
//! `Documentation/scheduler/sched-bwc.rst` (version 1). A limit of a cgroup above also holds.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Limit of a number in these files, with the sign: both are below 20 digits.
const TEXT_MAX_BYTES: usize = 64;

/// The limits of one cgroup.
enum Limit {
    /// `cpu.max` of version 2: time and period in microseconds, or `max`.
    Unified(File),
    /// `cpu.cfs_quota_us`, or -1, and `cpu.cfs_period_us` of version 1.
    Legacy { time: File, period: File },
}

impl Limit {
    fn cpus(&self) -> Option<usize> {
        match self {
            Self::Unified(file) => {
                let text = read(file)?;
                let (time, period) = text.trim().split_once(' ')?;
                cpus(time, period)
            }
            Self::Legacy { time, period } => cpus(&read(time)?, &read(period)?),
        }
    }
}

/// Whole CPUs, but at least one; `None` without a limit.
fn cpus(time_us: &str, period_us: &str) -> Option<usize> {
    let [time_us, period_us] = [time_us, period_us].map(|text| text.trim().parse::<u64>().ok());
    let cpus = time_us?.checked_div(period_us?)?;
    Some(usize::try_from(cpus).unwrap_or(usize::MAX).max(1))
}

fn read(file: &File) -> Option<String> {
    let mut text = [0; TEXT_MAX_BYTES];
    let len = file.read_at(&mut text, 0).ok()?;
    str::from_utf8(&text[..len]).ok().map(str::to_owned)
}

/// The limits of the process's cgroup and of those above.
pub(super) struct Quota(Vec<Limit>);

impl Quota {
    /// Opens the files of this process. Files that are not there limit nothing.
    pub(super) fn open() -> Self {
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::of(&cgroups, Path::new("/sys/fs/cgroup"))
    }

    /// As [`Quota::open`], with the text of `/proc/self/cgroup` and the place of the cgroups.
    pub(super) fn of(cgroups: &str, place: &Path) -> Self {
        let lines = cgroups.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        });
        Self(lines.flat_map(|(controllers, path)| limits(controllers, path, place)).collect())
    }

    /// CPUs whose time the limits permit now; `None` without a limit.
    pub(super) fn cpus(&self) -> Option<usize> {
        self.0.iter().filter_map(Limit::cpus).min()
    }
}

/// The limits of a cgroup and of those above it.
fn limits(controllers: &str, path: &str, place: &Path) -> Vec<Limit> {
    let is_unified = controllers.is_empty();
    if !is_unified && !controllers.split(',').any(|name| name == "cpu") {
        return Vec::new();
    }
    let mounts = if is_unified {
        vec![place.to_owned(), place.join("unified")]
    } else {
        vec![place.join(controllers), place.join("cpu"), place.join("cpu,cpuacct")]
    };
    let Some(mount) = mounts.into_iter().find(|mount| mount.is_dir()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    // A container may see its own cgroup as the topmost one, but have the path of the host.
    for folder in Path::new(path.trim_start_matches('/')).ancestors() {
        found.extend(limit(&mount.join(folder), is_unified));
    }
    found
}

fn limit(folder: &Path, is_unified: bool) -> Option<Limit> {
    let open = |name: &str| File::open::<PathBuf>(folder.join(name)).ok();
    if is_unified {
        return open("cpu.max").map(Limit::Unified);
    }
    Some(Limit::Legacy { time: open("cpu.cfs_quota_us")?, period: open("cpu.cfs_period_us")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(place: &Path, name: &str, text: &str) {
        let file = place.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn limit_that_changes_is_seen_and_the_lowest_of_the_cgroups_above_holds() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        write(place, "a/b/cpu.max", "max 100000\n");
        write(place, "a/cpu.max", "400000 100000\n");
        let quota = Quota::of("0::/a/b\n", place);
        assert_eq!(quota.cpus(), Some(4));
        write(place, "a/b/cpu.max", "250000 100000\n");
        assert_eq!(quota.cpus(), Some(2));
        write(place, "a/b/cpu.max", "1000 100000\n");
        assert_eq!(quota.cpus(), Some(1), "less than one");
        write(place, "a/b/cpu.max", "max 100000\n");
        write(place, "a/cpu.max", "max 100000\n");
        assert_eq!(quota.cpus(), None);
    }

    #[test]
    fn version_1_has_its_own_files_and_a_container_its_own_top() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        write(place, "cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
        write(place, "cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        let cgroups = "9:name=systemd:/\n4:cpu,cpuacct:/docker/1234\n2:cpuset:/\n";
        let quota = Quota::of(cgroups, place);
        assert_eq!(quota.cpus(), Some(3));
        write(place, "cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        assert_eq!(quota.cpus(), None);
    }

    #[test]
    fn files_that_make_no_sense_limit_nothing() {
        for text in ["", "100000", "100000 0", "a b", "-1 100000"] {
            let place = tempfile::tempdir().unwrap();
            write(place.path(), "cpu.max", text);
            assert_eq!(Quota::of("0::/\n", place.path()).cpus(), None, "{text:?}");
        }
        assert_eq!(Quota::of("no line\n0::/\n", Path::new("/nowhere")).cpus(), None);
    }
}
