//! `--cpus` and `--numa`: the CPUs of a process, and the node of its memory.

use std::fs;

use blockyard_host::cpus;
use blockyard_workload::fio::cpu_list;
use clap::Args;

use crate::failure::Failure;

/// CPUs and memory.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlacementArgs {
    /// Limit the process, and the programs that it starts, to these CPUs, as in 0-3,8
    #[arg(long, value_name = "LIST", value_parser = CpuList::parse)]
    pub(crate) cpus: Option<CpuList>,

    /// Limit the process to the CPUs of this NUMA node, and prefer the node's memory. With --cpus,
    /// the CPUs must be in both
    #[arg(long, value_name = "NODE")]
    pub(crate) numa: Option<u16>,
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
        if *self == Self::default() {
            return Ok(None);
        }
        let mut wanted = self.allowed_cpus().map_err(|failure| (Setting::Cpus, failure))?;
        if let Some(node) = self.numa {
            let failed = |problem: String| {
                (Setting::Numa, Failure::failed(format!("--numa {node}: {problem}")))
            };
            let of_node = cpus_of(node).map_err(failed)?;
            wanted.retain(|cpu| of_node.contains(cpu));
            if wanted.is_empty() {
                let its = cpus::as_list(&of_node);
                return Err(failed(match self.cpus {
                    Some(_) => format!("no CPU of --cpus is of this node, which has {its}"),
                    None => format!("this process may run on no CPU of the node, which has {its}"),
                }));
            }
            cpus::prefer_memory_of(node).map_err(|error| {
                failed(format!("the system refuses the node's memory (set_mempolicy): {error}"))
            })?;
        }
        // Also if these are all that are allowed now: CPUs may be added later.
        let list = cpus::as_list(&wanted);
        cpus::run_on(&wanted).map_err(|error| {
            (Setting::Cpus, Failure::failed(format!("cannot run on the CPUs {list}: {error}")))
        })?;
        Ok(Some(wanted))
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

/// One of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Cpus,
    Numa,
}

/// The CPUs of a node.
fn cpus_of(node: u16) -> Result<Vec<u16>, String> {
    const NODES: &str = "/sys/devices/system/node";
    let Ok(list) = fs::read_to_string(format!("{NODES}/node{node}/cpulist")) else {
        let nodes = fs::read_to_string(format!("{NODES}/online"));
        let nodes = nodes.as_deref().map_or("none", str::trim);
        return Err(format!("there is no such node; this machine has {nodes}"));
    };
    // A node may have memory only.
    Ok(cpu_list(list.trim()).unwrap_or_default())
}
