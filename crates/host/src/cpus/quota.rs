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
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        Self::of(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    /// As [`Quota::open`], with the text of `/proc/self/cgroup` and of `/proc/self/mountinfo`.
    pub(super) fn of(cgroups: &str, mounts: &str) -> Self {
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        let mut found = Vec::new();
        for line in cgroups.lines() {
            let Some((controllers, path)) =
                line.split_once(':').and_then(|(_, s)| s.split_once(':'))
            else {
                continue;
            };
            let is_unified = controllers.is_empty();
            let is_it = |mount: &&Mount| mount.is_unified == is_unified;
            if (is_unified || has_cpu(controllers))
                && let Some(mount) = mounts.iter().find(is_it)
            {
                found.extend(mount.limits(path));
            }
        }
        Self(found)
    }

    /// CPUs whose time the limits permit now; `None` without a limit.
    pub(super) fn cpus(&self) -> Option<usize> {
        self.0.iter().filter_map(Limit::cpus).min()
    }
}

/// Whether a list of controllers or options has the one for CPU time.
fn has_cpu(list: &str) -> bool {
    list.split(',').any(|name| name == "cpu")
}

/// A mount of the cgroups: of version 2, or of version 1 with the controller for CPU time.
struct Mount<'a> {
    /// The cgroup that the mount shows as its top.
    root: &'a str,
    place: &'a Path,
    is_unified: bool,
}

impl<'a> Mount<'a> {
    /// Reads a line of `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, rest) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let root = mount.next()?;
        let place = Path::new(mount.next()?);
        let mut rest = rest.split(' ');
        let kind = rest.next()?;
        let options = rest.nth(1)?;
        let is_unified = kind == "cgroup2";
        let is_it = is_unified || (kind == "cgroup" && has_cpu(options));
        is_it.then_some(Self { root, place, is_unified })
    }

    /// The limits of a cgroup and of those above it, as far as they are shown.
    fn limits(&self, path: &str) -> Vec<Limit> {
        // A container may have the path of its host, of which it sees a part.
        let below = Path::new(path).strip_prefix(self.root).unwrap_or(Path::new(""));
        let folders = below.ancestors().map(|folder| self.place.join(folder));
        folders.filter_map(|folder| limit(&folder, self.is_unified)).collect()
    }
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

    /// A line for a mount of version 2.
    fn unified(root: &str, place: &Path) -> String {
        let place = place.display();
        format!("30 24 0:26 {root} {place} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n")
    }

    /// A line for a mount of version 1.
    fn legacy(root: &str, place: &Path) -> String {
        let place = place.display();
        format!("31 24 0:27 {root} {place} rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n")
    }

    #[test]
    fn limit_that_changes_is_seen_and_the_lowest_of_the_cgroups_above_holds() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        write(place, "a/b/cpu.max", "max 100000\n");
        write(place, "a/cpu.max", "400000 100000\n");
        let quota = Quota::of("0::/a/b\n", &unified("/", place));
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
    fn mounts_say_where_the_cgroup_is() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let [one, two] = ["one", "two"].map(|name| place.join(name));
        for (folder, time) in [("one", 300_000), ("one/job", 200_000)] {
            write(place, &format!("{folder}/cpu.cfs_quota_us"), &format!("{time}\n"));
            write(place, &format!("{folder}/cpu.cfs_period_us"), "100000\n");
        }
        write(place, "two/cpu.max", "500000 100000\n");
        let cgroups = "9:name=systemd:/\n4:cpu,cpuacct:/docker/1234/job\n2:cpuset:/\n0::/\n";
        let both = unified("/", &two) + &legacy("/docker/1234", &one);
        assert_eq!(Quota::of(cgroups, &both).cpus(), Some(2), "that of the job");
        let outside = legacy("/docker/5678", &one);
        assert_eq!(Quota::of(cgroups, &outside).cpus(), Some(3), "the shown top");
        assert_eq!(Quota::of(cgroups, &unified("/", &two)).cpus(), Some(5));
        write(place, "one/job/cpu.cfs_quota_us", "-1\n");
        assert_eq!(Quota::of(cgroups, &legacy("/docker/1234", &one)).cpus(), Some(3));
    }

    #[test]
    fn files_that_make_no_sense_limit_nothing() {
        for text in ["", "100000", "100000 0", "a b", "-1 100000"] {
            let place = tempfile::tempdir().unwrap();
            write(place.path(), "cpu.max", text);
            assert_eq!(Quota::of("0::/\n", &unified("/", place.path())).cpus(), None, "{text:?}");
        }
        for mounts in ["", "x", "1 2 3 - cgroup2", "1 2 3 / /nowhere rw - cgroup2 c rw\n"] {
            assert_eq!(Quota::of("no line\n0::/\n", mounts).cpus(), None, "{mounts:?}");
        }
    }
}
