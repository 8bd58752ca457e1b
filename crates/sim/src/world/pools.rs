//! Work items and their workers (the part of `kernel/workqueue.c` that dm-crypt uses).
//!
//! An unbound queue has a pool per socket, with as many workers as CPUs (`num_online_cpus` is the
//! queue's limit); each item wakes one. A bound queue has one worker per CPU, and so has cryptd.
//! Items are taken in FIFO order; the worker that went to sleep last is woken first.

use std::collections::VecDeque;

use super::actions::Step;
use crate::cpu::{Affinity, CpuId, ThreadId, Topology};

/// Id of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolId(u16);

#[derive(Debug, Default)]
struct Pool {
    items: VecDeque<Step>,
    /// Sleeping workers, the most recent last.
    idle: Vec<ThreadId>,
}

/// All pools: first those of sockets, then those of CPUs, then cryptd's.
#[derive(Debug)]
pub(super) struct Pools {
    topology: Topology,
    pools: Vec<Pool>,
}

impl Pools {
    pub(super) fn new(topology: Topology) -> Self {
        let count = topology.sockets + 2 * topology.cpus();
        Self { topology, pools: (0..count).map(|_| Pool::default()).collect() }
    }

    /// The workers to spawn, of unbound and of bound pools, and of cryptd.
    pub(super) fn workers(
        &self,
        unbound: bool,
        bound: bool,
        cryptd: bool,
    ) -> impl Iterator<Item = (PoolId, Affinity)> + use<> {
        let Topology { sockets, cpus_per_socket } = self.topology;
        let of_sockets = (0..if unbound { sockets } else { 0 }).flat_map(move |socket| {
            (0..cpus_per_socket).map(move |_| (PoolId(socket), Affinity::Socket(socket)))
        });
        let cpus = if bound { self.topology.cpus() } else { 0 };
        let of_cpus = (0..cpus).map(move |cpu| (PoolId(sockets + cpu), Affinity::Cpu(CpuId(cpu))));
        let all = self.topology.cpus();
        let of_cryptd = (0..if cryptd { all } else { 0 })
            .map(move |cpu| (PoolId(sockets + all + cpu), Affinity::Cpu(CpuId(cpu))));
        of_sockets.chain(of_cpus).chain(of_cryptd)
    }

    pub(super) fn unbound(&self, cpu: CpuId) -> PoolId {
        PoolId(self.topology.socket_of(cpu))
    }

    pub(super) fn bound(&self, cpu: CpuId) -> PoolId {
        PoolId(self.topology.sockets + cpu.0)
    }

    pub(super) fn cryptd(&self, cpu: CpuId) -> PoolId {
        PoolId(self.topology.sockets + self.topology.cpus() + cpu.0)
    }

    /// Queues an item; returns the worker to wake for it.
    pub(super) fn queue(&mut self, pool: PoolId, item: Step) -> Option<ThreadId> {
        let pool = &mut self.pools[usize::from(pool.0)];
        pool.items.push_back(item);
        pool.idle.pop()
    }

    pub(super) fn take(&mut self, pool: PoolId) -> Option<Step> {
        self.pools[usize::from(pool.0)].items.pop_front()
    }

    /// A worker goes to sleep.
    pub(super) fn sleep(&mut self, pool: PoolId, worker: ThreadId) {
        self.pools[usize::from(pool.0)].idle.push(worker);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pools.iter().all(|pool| pool.items.is_empty())
    }
}
