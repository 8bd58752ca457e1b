//! The unbound workqueue of a crypt target: its pods of CPUs, and its limit of items.
//!
//! ```text
//!   item ── CPU that queued it ──> pod of the CPU ──> a worker of the pod's pool
//! ```
//! Scopes exist since Linux 6.5 (`Documentation/core-api/workqueue.rst`, "Affinity Scopes");
//! `cache_shard` is of 7.1. Older kernels had a pool for each NUMA node, which is the default here.

use std::ops::Range;

use crate::cpu::Topology;

/// Usual number of cores in a shard (`workqueue.cache_shard_size`).
pub const SHARD_CORES: u16 = 8;
/// Items that a socket may always have in work (`WQ_DFL_MIN_ACTIVE`).
const MIN_ACTIVE: u16 = 8;

/// The unbound workqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workqueue {
    /// CPUs that share a pool of workers.
    pub scope: Scope,
    /// Workers stay on the CPUs of their pod (`affinity_strict`). Otherwise they only wake up
    /// there, if a CPU is idle, and run where there is room.
    pub is_strict: bool,
    /// Items in work at once; `None`: one for each CPU, divided among the sockets.
    pub max_active: Option<u16>,
    /// Pods that share this limit.
    pub limit: ActiveLimit,
}

/// CPUs that share a pool of workers (`enum wq_affn_scope`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A single CPU.
    Cpu,
    /// CPUs of a core.
    Smt,
    /// CPUs of an L3 cache.
    Cache,
    /// CPUs of a part of an L3 cache, with about so many cores.
    CacheShard {
        /// Cores.
        cores: u16,
    },
    /// CPUs of a socket.
    Numa,
    /// All CPUs.
    System,
}

/// Pods that share the limit of items in work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveLimit {
    /// Pods of a socket, by its share of the CPUs (since 6.9).
    Socket,
    /// A pod alone has the whole limit (until 6.8).
    Pod,
}

impl Default for Workqueue {
    /// A pool for each socket, of which no worker leaves the socket.
    fn default() -> Self {
        Self { scope: Scope::Numa, is_strict: true, max_active: None, limit: ActiveLimit::Socket }
    }
}

impl Workqueue {
    /// The pods, in the order of their CPUs.
    pub(in crate::world) fn pods(self, topology: Topology, cpus_per_core: u16) -> Vec<Range<u16>> {
        let cpus = topology.cpus();
        let l3_cpus = topology.l3_cpus();
        let size = match self.scope {
            Scope::Cpu => 1,
            Scope::Smt => cpus_per_core,
            Scope::Cache => l3_cpus,
            Scope::Numa => topology.cpus_per_socket,
            Scope::System => cpus,
            Scope::CacheShard { cores } => {
                let caches = (0..cpus).step_by(usize::from(l3_cpus));
                let shards = move |first| {
                    shards(l3_cpus / cpus_per_core, cores).map(move |cores| {
                        first + cores.start * cpus_per_core..first + cores.end * cpus_per_core
                    })
                };
                return caches.flat_map(shards).collect();
            }
        };
        (0..cpus).step_by(usize::from(size)).map(|first| first..first + size).collect()
    }

    /// Items in work at once of the pods that share a limit (`wq_update_node_max_active`).
    pub(in crate::world) fn active_max(self, topology: Topology) -> u16 {
        let is_divided = self.limit == ActiveLimit::Socket && self.scope != Scope::System;
        let all = self.max_active.unwrap_or(topology.cpus());
        if is_divided { all.div_ceil(topology.sockets).max(all.min(MIN_ACTIVE)) } else { all }
    }
}

/// The shards of a cache with `cores` cores, as ranges of them: as many as brings their size next
/// to `size`, the first ones with a core more (`llc_calc_shard_layout`).
fn shards(cores: u16, size: u16) -> impl Iterator<Item = Range<u16>> {
    let count = ((cores + size / 2) / size).max(1);
    let least = cores / count;
    let larger = cores % count;
    (0..count).map(move |shard| {
        let first = shard * least + shard.min(larger);
        first..first + least + u16::from(shard < larger)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_the_cpus_of_a_core_a_cache_a_socket_or_all() {
        let topology = Topology { cpus_per_l3: Some(4), ..Topology::of(2, 8) };
        let sizes = |scope| {
            let pods = Workqueue { scope, ..Workqueue::default() }.pods(topology, 2);
            assert_eq!((pods[0].start, pods.last().unwrap().end), (0, 16));
            assert!(pods.windows(2).all(|pods| pods[0].end == pods[1].start), "{pods:?}");
            pods.iter().map(ExactSizeIterator::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(Scope::Cpu), [1; 16]);
        assert_eq!(sizes(Scope::Smt), [2; 8]);
        assert_eq!(sizes(Scope::Cache), [4; 4]);
        assert_eq!(sizes(Scope::CacheShard { cores: 1 }), [2; 8]);
        assert_eq!(sizes(Scope::CacheShard { cores: SHARD_CORES }), [4; 4]);
        assert_eq!(sizes(Scope::Numa), [8; 2]);
        assert_eq!(sizes(Scope::System), [16]);
    }

    /// The kernel's own example has 36 cores.
    #[test]
    fn shards_of_a_cache_are_as_even_as_possible() {
        let sizes = |cores| shards(cores, SHARD_CORES).map(|shard| shard.len()).collect::<Vec<_>>();
        assert_eq!(sizes(36), [8, 7, 7, 7, 7]);
        assert_eq!(sizes(9), [9]);
        assert_eq!(sizes(12), [6, 6]);
        assert_eq!(sizes(1), [1]);
    }

    #[test]
    fn sockets_divide_the_limit_and_keep_a_least_share() {
        let of = |max_active, limit, scope| {
            let queue = Workqueue { max_active, limit, scope, is_strict: true };
            queue.active_max(Topology::of(2, 16))
        };
        assert_eq!(of(None, ActiveLimit::Socket, Scope::Cpu), 16);
        assert_eq!(of(Some(32), ActiveLimit::Socket, Scope::Cache), 16);
        assert_eq!(of(Some(10), ActiveLimit::Socket, Scope::Numa), 8);
        assert_eq!(of(Some(3), ActiveLimit::Socket, Scope::Numa), 3);
        assert_eq!(of(Some(32), ActiveLimit::Pod, Scope::Cache), 32);
        assert_eq!(of(Some(10), ActiveLimit::Socket, Scope::System), 10);
    }
}
