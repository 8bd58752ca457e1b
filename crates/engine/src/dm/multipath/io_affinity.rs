//! `io-affinity`: the path of the submitting CPU (`dm-ps-io-affinity.c`).
//!
//! Each path's argument is a mask of CPUs in the form of `/proc`: hexadecimal, groups of 32 CPUs
//! separated by commas, the highest first. A CPU in two masks belongs to the first path.
//!
//! ```text
//! path of this CPU, live? ──> else a live path of a CPU on the same node ──> else any live path
//! ```
//! An I/O from a CPU without a path is a miss, and counted. A world may give the nodes of the CPUs
//! ([`CpuNodes`]); otherwise there is one node.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};

use super::line::PathSpec;
use super::selector::{Ask, PathSelector, Served};
use crate::dm::words::shown;

/// Words in a status line: misses of the whole group, equal for each path.
pub(super) const INFO_ARGS: usize = 1;

/// Greatest number of CPUs in a mask. Our choice.
const CPUS_MAX: usize = 1024;
const GROUP_BITS: usize = 32;

/// A set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuMask {
    /// Groups of CPUs, the lowest first; the last one is not zero.
    groups: Vec<u32>,
}

impl CpuMask {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "CPU mask `{}` is not `<hex digits>[,<8 hex digits>]...` with a CPU, all of them \
                 below {CPUS_MAX}",
                shown(text)
            )
        };
        if text.split(',').count() > CPUS_MAX / GROUP_BITS {
            return Err(wrong());
        }
        let mut groups = Vec::new();
        for digits in text.rsplit(',') {
            let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let group = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex);
            groups.push(group.filter(|_| digits.len() <= 8).ok_or_else(wrong)?);
        }
        while groups.last() == Some(&0) {
            groups.pop();
        }
        if groups.is_empty() { Err(wrong()) } else { Ok(Self { groups }) }
    }

    /// The CPUs, in ascending order.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        let bits = |(at, group): (usize, &u32)| {
            let group = *group;
            (0..GROUP_BITS).filter(move |bit| group >> bit & 1 == 1).map(move |b| at * 32 + b)
        };
        self.groups.iter().enumerate().flat_map(bits)
    }
}

impl fmt::Display for CpuMask {
    /// Without leading zeroes, because the engine does not know the number of CPUs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((highest, rest)) = self.groups.split_last() else { return f.write_str("0") };
        write!(f, "{highest:x}")?;
        rest.iter().rev().try_for_each(|group| write!(f, ",{group:08x}"))
    }
}

/// Node of each CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuNodes {
    /// Nodes by CPU; missing CPUs are on node zero.
    nodes: Vec<u16>,
}

impl CpuNodes {
    /// From the node of each CPU.
    #[must_use]
    pub fn new(nodes: Vec<u16>) -> Self {
        Self { nodes }
    }

    fn of(&self, cpu: usize) -> u16 {
        self.nodes.get(cpu).copied().unwrap_or(0)
    }
}

/// The io-affinity selector.
#[derive(Debug)]
pub struct IoAffinity {
    /// Path of each CPU.
    owners: Vec<Option<usize>>,
    failed: Vec<bool>,
    nodes: CpuNodes,
    misses: u64,
}

impl IoAffinity {
    /// Creates a selector of these paths.
    #[must_use]
    pub fn new(paths: &[PathSpec], nodes: CpuNodes) -> Self {
        let mut owners = Vec::new();
        for (place, path) in paths.iter().enumerate() {
            for cpu in path.cpus.cpus() {
                if cpu >= owners.len() {
                    owners.resize(cpu + 1, None);
                }
                owners[cpu].get_or_insert(place);
            }
        }
        Self { owners, failed: vec![false; paths.len()], nodes, misses: 0 }
    }

    fn is_live(&self, path: usize) -> bool {
        !self.failed[path]
    }
}

impl PathSelector for IoAffinity {
    fn choose(&mut self, ask: &Ask) -> Option<usize> {
        let cpu = usize::from(ask.cpu);
        let own = self.owners.get(cpu).copied().flatten();
        if let Some(path) = own
            && self.is_live(path)
        {
            return Some(path);
        }
        self.misses += u64::from(own.is_none());
        let node = self.nodes.of(cpu);
        let live = || {
            let owned = self.owners.iter().enumerate();
            owned.filter_map(|(cpu, owner)| owner.map(|path| (cpu, path)))
        };
        let near = live().find(|(cpu, path)| self.nodes.of(*cpu) == node && self.is_live(*path));
        let any = || live().find(|(_, path)| self.is_live(*path));
        near.or_else(any).map(|(_, path)| path)
    }

    fn start(&mut self, _: usize, _: u64) {}

    fn end(&mut self, _: usize, _: &Served) {}

    fn fail(&mut self, path: usize) {
        assert!(!self.failed[path]);
        self.failed[path] = true;
    }

    fn reinstate(&mut self, path: usize) {
        assert!(self.failed[path]);
        self.failed[path] = false;
    }

    fn info(&self, _: usize, out: &mut String) {
        write!(out, "{} ", self.misses).expect("a string never fails");
    }
}

/// Parses a path's argument: `<CPU mask>`.
pub(super) fn parse_path(args: &[&str], path: &mut PathSpec) -> Result<(), String> {
    let [mask] = args else {
        return Err(format!(
            "a path of io-affinity takes `<CPU mask>`, but {} arguments follow",
            args.len()
        ));
    };
    path.cpus = CpuMask::parse(mask)?;
    Ok(())
}

/// Refuses a path without CPUs of its own, which would never be used.
pub(super) fn check(paths: &[PathSpec]) -> Result<(), String> {
    let selector = IoAffinity::new(paths, CpuNodes::default());
    for (place, path) in paths.iter().enumerate() {
        if !selector.owners.contains(&Some(place)) {
            return Err(format!(
                "path `{}` has CPU mask {}, but all of its CPUs belong to paths before it",
                shown(&path.device),
                path.cpus
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::super::testing::ask;
    use super::*;

    fn paths(masks: &[&str]) -> Vec<PathSpec> {
        let path =
            |mask: &&str| PathSpec { cpus: CpuMask::parse(mask).unwrap(), ..PathSpec::new("/a") };
        masks.iter().map(path).collect()
    }

    fn from(selector: &mut IoAffinity, cpu: u16) -> Option<usize> {
        selector.choose(&Ask { cpu, ..ask(512) })
    }

    #[test]
    fn each_cpu_has_its_path_and_the_first_claim_counts() {
        let mut selector = IoAffinity::new(&paths(&["3", "6", "8"]), CpuNodes::default());
        let chosen = [0, 1, 2, 3].map(|cpu| from(&mut selector, cpu));
        assert_eq!(chosen, [Some(0), Some(0), Some(1), Some(2)]);
        assert_eq!(selector.misses, 0);
    }

    #[test]
    fn cpu_without_a_live_path_takes_one_of_its_node_then_any() {
        let nodes = CpuNodes::new(vec![0, 0, 1, 1, 1]);
        let mut selector = IoAffinity::new(&paths(&["1", "4", "8"]), nodes);
        assert_eq!(from(&mut selector, 4), Some(1), "nobody's CPU, on node 1");
        assert_eq!(selector.misses, 1);
        selector.fail(1);
        assert_eq!(from(&mut selector, 2), Some(2), "its own failed; the same node");
        selector.fail(2);
        assert_eq!(from(&mut selector, 2), Some(0), "another node");
        assert_eq!(selector.misses, 1, "a failed path is no miss");
        selector.fail(0);
        assert_eq!(from(&mut selector, 0), None);
        selector.reinstate(2);
        assert_eq!(from(&mut selector, u16::MAX), Some(2));
        let mut info = String::new();
        selector.info(0, &mut info);
        assert_eq!(info, "2 ");
    }

    #[test]
    fn masks_are_read_and_written_in_groups() {
        for (text, cpus, shown) in [
            ("f", vec![0, 1, 2, 3], "f"),
            ("0000,00000001,80000000", vec![31, 32], "1,80000000"),
            ("1,0", vec![32], "1,00000000"),
        ] {
            let mask = CpuMask::parse(text).unwrap();
            assert_eq!(mask.cpus().collect::<Vec<_>>(), cpus, "{text}");
            assert_eq!(mask.to_string(), shown);
            assert_eq!(CpuMask::parse(shown).unwrap(), mask);
        }
        let long = "1,".repeat(40);
        for wrong in ["", "0", "g", "+1", "123456789", "1,", ",1", &long] {
            assert!(CpuMask::parse(wrong).unwrap_err().contains("CPU mask"), "{wrong}");
        }
    }

    #[test]
    fn path_without_a_cpu_of_its_own_is_refused() {
        assert!(check(&paths(&["3", "2"])).unwrap_err().contains("path `/a` has CPU mask 2"));
        assert!(check(&paths(&["3", "6"])).is_ok());
    }
}
