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

    /// Applies them to this thread and to all later ones.
    pub(crate) fn apply(&self) -> Result<(), Failure> {
        let allowed = cpus::allowed();
        let mut wanted = allowed.clone();
        if let Some(CpuList(list)) = &self.cpus {
            if let Some(other) = list.iter().find(|cpu| !allowed.contains(cpu)) {
                return Err(Failure::failed(format!(
                    "--cpus {}: this process may not run on CPU {other}, only on {}",
                    cpus::as_list(list),
                    cpus::as_list(&allowed)
                )));
            }
            wanted.clone_from(list);
        }
        if let Some(node) = self.numa {
            let of_node = cpus_of(node)?;
            wanted.retain(|cpu| of_node.contains(cpu));
            let refused = |problem: &dyn std::fmt::Display| {
                Failure::failed(format!("--numa {node}: {problem}"))
            };
            if wanted.is_empty() {
                let its = cpus::as_list(&of_node);
                return Err(refused(&format_args!("no CPU of the node is allowed; it has {its}")));
            }
            cpus::prefer_memory_of(node).map_err(|error| refused(&error))?;
        }
        if wanted == allowed {
            return Ok(());
        }
        let list = cpus::as_list(&wanted);
        cpus::run_on(&wanted)
            .map_err(|error| Failure::failed(format!("cannot run on the CPUs {list}: {error}")))
    }
}

/// The CPUs of a node.
fn cpus_of(node: u16) -> Result<Vec<u16>, Failure> {
    const NODES: &str = "/sys/devices/system/node";
    let Ok(list) = fs::read_to_string(format!("{NODES}/node{node}/cpulist")) else {
        let nodes = fs::read_to_string(format!("{NODES}/online"));
        return Err(Failure::failed(format!(
            "--numa {node}: there is no such node; this machine has {}",
            nodes.as_deref().map_or("none", str::trim)
        )));
    };
    // A node may have memory only.
    Ok(cpu_list(list.trim()).unwrap_or_default())
}
