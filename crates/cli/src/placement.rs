//! `--cpus` and `--numa`: the CPUs of a process, and the node of its memory.

use std::cmp::Reverse;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use blockyard_host::cpus;
use blockyard_workload::fio::cpu_list;
use clap::Args;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use crate::failure::Failure;

/// CPUs and memory.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlacementArgs {
    /// Limit the process, and the programs that it starts, to these CPUs, as in 0-3,8
    #[arg(long, value_name = "LIST", value_parser = CpuList::parse)]
    pub(crate) cpus: Option<CpuList>,

    /// Limit the process to the CPUs of this NUMA node, and prefer the node's memory. With --cpus,
    /// the CPUs must be in both. auto takes the node with most of the CPUs, and among equal ones
    /// that with most free memory; off takes none
    #[arg(long, value_name = "NODE|auto|off")]
    pub(crate) numa: Option<Numa>,
}

/// A choice of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numa {
    Off,
    Auto,
    Node(u16),
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            number => number.parse().map(Self::Node).map_err(|_| {
                "must be the number of a node in decimal digits, auto, or off".to_owned()
            }),
        }
    }
}

impl<'de> Deserialize<'de> for Numa {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumaVisitor)
    }
}

/// Reads a number or a word.
struct NumaVisitor;

impl Visitor<'_> for NumaVisitor {
    type Value = Numa;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a node, \"auto\", or \"off\"")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Numa, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Numa, E> {
        text.parse().map_err(|problem| E::custom(format!("`numa` {problem}")))
    }
}

/// CPUs, in order and each once; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(Vec<u16>);

impl CpuList {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        cpu_list(text).map(Self)
    }
}

impl PlacementArgs {
    /// Options have precedence over a configuration.
    pub(crate) fn or(&self, config: &Self) -> Self {
        Self { cpus: self.cpus.clone().or(config.cpus.clone()), numa: self.numa.or(config.numa) }
    }

    /// Applies them to this thread and to all later ones. Returns the CPUs, if they are limited; or
    /// the setting that cannot be applied, with the reason.
    pub(crate) fn apply(&self) -> Result<Option<Vec<u16>>, (Setting, Failure)> {
        let Some(Placed { cpus: wanted, node }) = self.find()? else { return Ok(None) };
        if let Some(node) = node {
            match cpus::prefer_memory_of(node) {
                // Containers often forbid it. The kernel takes memory of the CPU's node first
                // anyway.
                Err(_) if self.numa == Some(Numa::Auto) => (),
                result => result.map_err(|error| {
                    let problem =
                        format!("the system refuses the node's memory (set_mempolicy): {error}");
                    (Setting::Numa, Failure::failed(format!("--numa {node}: {problem}")))
                })?,
            }
        }
        // Also if these are all that are allowed now: CPUs may be added later.
        let list = cpus::as_list(&wanted);
        cpus::run_on(&wanted).map_err(|error| {
            (Setting::Cpus, Failure::failed(format!("cannot run on the CPUs {list}: {error}")))
        })?;
        Ok(Some(wanted))
    }

    /// The CPUs to which they would limit this process; `None` if they do not.
    pub(crate) fn cpus(&self) -> Result<Option<Vec<u16>>, Failure> {
        let placed = self.find().map_err(|(_, failure)| failure)?;
        Ok(placed.map(|placed| placed.cpus))
    }

    fn find(&self) -> Result<Option<Placed>, (Setting, Failure)> {
        if self.cpus.is_none() && matches!(self.numa, None | Some(Numa::Off)) {
            return Ok(None);
        }
        let wanted = self.allowed_cpus().map_err(|failure| (Setting::Cpus, failure))?;
        let of_node = self.of_node(&wanted).map_err(|failure| (Setting::Numa, failure))?;
        if self.cpus.is_none() && of_node.is_none() {
            return Ok(None);
        }
        Ok(Some(of_node.unwrap_or(Placed { cpus: wanted, node: None })))
    }

    /// Those of the CPUs that are of the node; `None` without a node.
    fn of_node(&self, wanted: &[u16]) -> Result<Option<Placed>, Failure> {
        let nodes = Nodes::of_this_machine();
        let node = match self.numa {
            None | Some(Numa::Off) => None,
            Some(Numa::Node(node)) => Some(node),
            Some(Numa::Auto) => nodes.best_for(wanted),
        };
        let Some(node) = node else { return Ok(None) };
        let failed = |problem: String| Failure::failed(format!("--numa {node}: {problem}"));
        let of_node = nodes.cpus_of(node).map_err(failed)?;
        let both: Vec<u16> = wanted.iter().copied().filter(|cpu| of_node.contains(cpu)).collect();
        if both.is_empty() {
            let its = cpus::as_list(&of_node);
            return Err(failed(match self.cpus {
                Some(_) => format!("no CPU of --cpus is of this node, which has {its}"),
                None => format!("this process may run on no CPU of the node, which has {its}"),
            }));
        }
        Ok(Some(Placed { cpus: both, node: Some(node) }))
    }

    /// Those of `--cpus`, or all that this process may run on.
    fn allowed_cpus(&self) -> Result<Vec<u16>, Failure> {
        let allowed = cpus::allowed();
        let Some(CpuList(list)) = &self.cpus else { return Ok(allowed) };
        match list.iter().find(|cpu| !allowed.contains(cpu)) {
            Some(other) => Err(Failure::failed(format!(
                "--cpus {}: this process may not run on CPU {other}, only on {}",
                cpus::as_list(list),
                cpus::as_list(&allowed)
            ))),
            None => Ok(list.clone()),
        }
    }
}

/// Where a process is to run.
struct Placed {
    cpus: Vec<u16>,
    /// The node that its memory comes from.
    node: Option<u16>,
}

/// One of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Cpus,
    Numa,
}

/// The nodes of a machine, as Linux shows them (`Documentation/ABI/stable/sysfs-devices-node`).
struct Nodes(PathBuf);

impl Nodes {
    fn of_this_machine() -> Self {
        Self("/sys/devices/system/node".into())
    }

    /// Nodes that are online, as text.
    fn online(&self) -> Option<String> {
        let text = fs::read_to_string(self.0.join("online")).ok()?;
        Some(text.trim().to_owned())
    }

    fn folder(&self, node: u16) -> PathBuf {
        self.0.join(format!("node{node}"))
    }

    /// The CPUs of a node.
    fn cpus_of(&self, node: u16) -> Result<Vec<u16>, String> {
        let Ok(list) = fs::read_to_string(self.folder(node).join("cpulist")) else {
            let nodes = self.online();
            let nodes = nodes.as_deref().unwrap_or("none");
            return Err(format!("there is no such node; the nodes of this machine are {nodes}"));
        };
        // A node may have memory only.
        Ok(cpu_list(list.trim()).unwrap_or_default())
    }

    /// The node that has most of these CPUs; among equal ones, that with most free memory. `None`
    /// on a machine with a single node, or if no node has any of them.
    fn best_for(&self, wanted: &[u16]) -> Option<u16> {
        let nodes = cpu_list(&self.online()?).ok()?;
        let cpus_here = |node: u16| {
            let its = self.cpus_of(node).unwrap_or_default();
            its.iter().filter(|cpu| wanted.contains(cpu)).count()
        };
        let best = |node: &u16| (cpus_here(*node), self.free_kib(*node), Reverse(*node));
        let may_be = |node: &u16| nodes.len() > 1 && cpus_here(*node) > 0;
        nodes.iter().copied().filter(may_be).max_by_key(best)
    }

    /// Free memory of a node.
    fn free_kib(&self, node: u16) -> u64 {
        let text = fs::read_to_string(self.folder(node).join("meminfo")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.split_once("MemFree:"));
        let number = line.and_then(|(_, rest)| rest.split_whitespace().next());
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A machine with these nodes: CPUs and free memory in KiB.
    fn machine(place: &Path, nodes: &[(&str, u64)]) -> Nodes {
        for (number, (cpus, free_kib)) in nodes.iter().enumerate() {
            let folder = place.join(format!("node{number}"));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cpulist"), format!("{cpus}\n")).unwrap();
            let memory =
                format!("Node {number} MemTotal: 9 kB\nNode {number} MemFree: {free_kib} kB\n");
            fs::write(folder.join("meminfo"), memory).unwrap();
        }
        fs::write(place.join("online"), format!("0-{}\n", nodes.len() - 1)).unwrap();
        Nodes(place.to_owned())
    }

    #[test]
    fn best_node_has_most_of_the_cpus_and_then_most_free_memory() {
        let place = tempfile::tempdir().unwrap();
        let nodes = machine(place.path(), &[("0-3", 10), ("4-7", 30), ("8-11", 20), ("", 90)]);
        let all: Vec<u16> = (0..12).collect();
        assert_eq!(nodes.best_for(&all), Some(1));
        assert_eq!(nodes.best_for(&[0, 1, 2, 4, 5]), Some(0));
        assert_eq!(nodes.best_for(&[77]), None);
        assert_eq!(nodes.cpus_of(3), Ok(Vec::new()), "it has memory only");
        assert_eq!(
            nodes.cpus_of(4).unwrap_err(),
            "there is no such node; the nodes of this machine are 0-3"
        );
        let place = tempfile::tempdir().unwrap();
        assert_eq!(machine(place.path(), &[("0-3", 10)]).best_for(&[0]), None);
        assert_eq!(Nodes(place.path().join("none")).best_for(&[0]), None);
    }

    #[test]
    fn without_a_node_and_without_cpus_nothing_is_limited() {
        for numa in [None, Some(Numa::Off)] {
            assert!(matches!(PlacementArgs { cpus: None, numa }.apply(), Ok(None)), "{numa:?}");
        }
    }

    #[test]
    fn choice_of_a_node_is_a_number_or_a_word() {
        let parsed = ["0", "1023", "auto", "off"].map(str::parse::<Numa>);
        assert_eq!(
            parsed.map(Result::unwrap),
            [Numa::Node(0), Numa::Node(1023), Numa::Auto, Numa::Off]
        );
        for wrong in ["", "-1", "0x0", "65536", "Auto"] {
            assert!(wrong.parse::<Numa>().is_err(), "{wrong:?}");
        }
    }
}
