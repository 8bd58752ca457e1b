//! The machine: cipher instructions, clock, memory for secrets, and the permissions of the kernel.

use std::path::Path;

use super::{Fact, Finding, Subject};

/// Locked memory for the secrets of a server with some dozen volumes. Ours.
const LOCKED_MIN_BYTES: u64 = 64 << 10;

/// All findings, with `/proc` and `/sys` under `root`.
pub(super) fn findings(root: &Path) -> Vec<Finding> {
    let facts = [ciphers(root), governor(root), nodes(root), locked(root), io_uring(root)];
    facts.into_iter().flatten().map(|fact| Finding::new(Subject::Machine, fact)).collect()
}

fn read(root: &Path, path: &str) -> Option<String> {
    std::fs::read_to_string(root.join(path)).ok()
}

/// Total time of all CPUs since the machine started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Ticks {
    /// No work, or a wait for a disk.
    idle: f64,
    all: f64,
}

impl Ticks {
    /// The present ticks; zeros if the machine does not report them.
    pub(super) fn now(root: &Path) -> Self {
        let stat = read(root, "proc/stat").unwrap_or_default();
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        // Fields: user nice system idle iowait irq softirq steal; guests are in the first two.
        let fields = line.unwrap_or("").split_whitespace().take(8);
        let fields: Vec<f64> = fields.map(|field| field.parse().unwrap_or(0.0)).collect();
        Self { idle: fields.iter().skip(3).take(2).sum(), all: fields.iter().sum() }
    }

    /// The mean number of idle CPUs since then.
    pub(super) fn idle_cpus(self, before: Self, cpus: usize) -> f64 {
        (self.idle - before.idle).max(0.0) / (self.all - before.all).max(1.0) * cpus as f64
    }
}

/// Without AES instructions, AES takes many times as long, and its tables leak the key to other
/// processes.
fn ciphers(root: &Path) -> Option<Fact> {
    let cpuinfo = read(root, "proc/cpuinfo")?;
    let flags = cpuinfo.lines().find(|line| {
        let name = line.split(':').next().unwrap_or("").trim();
        name == "flags" || name == "Features"
    })?;
    let has_aes = flags.split_whitespace().any(|flag| flag == "aes");
    (!has_aes).then_some(Fact::NoAesInstructions)
}

/// The mail of 2013: encryption comes in bursts on changing CPUs, which automatic scaling takes for
/// idleness.
fn governor(root: &Path) -> Option<Fact> {
    let cpus = std::fs::read_dir(root.join("sys/devices/system/cpu")).ok()?;
    let mut governors: Vec<String> = cpus
        .filter_map(|cpu| {
            let path = cpu.ok()?.path().join("cpufreq/scaling_governor");
            Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
        })
        .filter(|governor| governor != "performance")
        .collect();
    let cpus = governors.len();
    governors.sort();
    governors.dedup();
    (cpus > 0).then_some(Fact::Governor { cpus, governors })
}

/// Memory of another node is slower. Ranges as in `0-1,4`.
fn nodes(root: &Path) -> Option<Fact> {
    let online = read(root, "sys/devices/system/node/online")?;
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    let nodes = online.trim().split(',').map(count).sum::<Option<usize>>()?;
    (nodes > 1).then_some(Fact::Nodes { nodes })
}

/// Secrets that are not locked can be swapped out.
fn locked(root: &Path) -> Option<Fact> {
    let limits = read(root, "proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let limit_bytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    let has_swap = read(root, "proc/swaps").is_some_and(|swaps| swaps.lines().count() > 1);
    (limit_bytes < LOCKED_MIN_BYTES && has_swap).then_some(Fact::LockedMemory { limit_bytes })
}

/// Needed for devices, and for files that bypass the page cache.
fn io_uring(root: &Path) -> Option<Fact> {
    let disabled = read(root, "proc/sys/kernel/io_uring_disabled")?;
    (disabled.trim() != "0").then_some(Fact::IoUringDisabled)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn facts_of(files: &[(&str, &str)]) -> Vec<Fact> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        findings(root.path()).into_iter().map(|one| one.fact).collect()
    }

    #[test]
    fn good_machine_has_no_findings() {
        let facts = facts_of(&[
            ("proc/cpuinfo", "processor : 0\nflags\t\t: fpu aes avx\n"),
            ("proc/self/limits", "Max locked memory  8388608  8388608  bytes\n"),
            ("proc/swaps", "Filename Type\n/dev/sda2 partition\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
        ]);
        assert_eq!(facts, []);
        assert_eq!(facts_of(&[]), []);
    }

    #[test]
    fn idle_cpus_are_those_between_two_looks() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        let look = |line: &str| {
            fs::write(root.path().join("proc/stat"), format!("{line}\ncpu0 1 2 3\n")).unwrap();
            Ticks::now(root.path())
        };
        let before = look("cpu  100 0 100 1000 50 0 0 0 70 0");
        let now = look("cpu  160 0 140 1080 70 0 0 0 90 0");
        assert_eq!(now.idle_cpus(before, 4), 2.0);
        assert_eq!(Ticks::default().idle_cpus(Ticks::default(), 4), 0.0);
    }

    #[test]
    fn each_defect_of_a_machine_is_a_finding() {
        let facts = facts_of(&[
            ("proc/cpuinfo", "Features\t: fp asimd crc32 aesx\n"),
            ("proc/self/limits", "Max locked memory  16384  16384  bytes\n"),
            ("proc/swaps", "Filename Type\n/dev/sda2 partition\n"),
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "ondemand\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "ondemand\n"),
            ("sys/devices/system/node/online", "0-1,4\n"),
        ]);
        let wanted = [
            Fact::NoAesInstructions,
            Fact::Governor { cpus: 2, governors: vec!["ondemand".into()] },
            Fact::Nodes { nodes: 3 },
            Fact::LockedMemory { limit_bytes: 16384 },
            Fact::IoUringDisabled,
        ];
        assert_eq!(facts, wanted);
    }
}
