//! Work items and their workers (the part of `kernel/workqueue.c` that dm-crypt uses).
//!
//! An unbound queue has a pool per socket, with as many workers as CPUs (`num_online_cpus` is the
//! queue's limit); each item wakes one. A bound queue has one worker per CPU, and so has cryptd.
//! Items are taken in FIFO order; the worker that went to sleep last is woken first.

use std::collections::VecDeque;

use blockyard_engine::time::Nanos;

use super::actions::Step;
use crate::cpu::{Affinity, CpuId, ThreadId, Topology};

/// Id of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolId(u16);

/// Lock of a queue. Its cache lines are with the CPU that used the queue last.
#[derive(Debug, Default)]
struct QueueLock {
    free_at: Nanos,
    last: Option<CpuId>,
}

impl QueueLock {
    /// Time that a CPU needs for the queue from `at` on: it waits for the CPUs before it, and then
    /// its lines move to it in `lines`, unless it has them. The CPU spins in the meantime.
    fn take(&mut self, at: Nanos, cpu: CpuId, lines: Nanos) -> Nanos {
        let hold = if self.last.replace(cpu) == Some(cpu) { Nanos(0) } else { lines };
        let wait = self.free_at.since(at);
        self.free_at = at + wait + hold;
        wait + hold
    }
}

#[derive(Debug, Default)]
struct Pool {
    lock: QueueLock,
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

    /// Time for the queue's lock and its lines, of a CPU that begins at this time.
    pub(super) fn lock(&mut self, pool: PoolId, at: Nanos, cpu: CpuId, lines: Nanos) -> Nanos {
        self.pools[usize::from(pool.0)].lock.take(at, cpu, lines)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_queue_move_to_one_cpu_after_the_other() {
        let mut lock = QueueLock::default();
        let lines = Nanos(100);
        assert_eq!(lock.take(Nanos(0), CpuId(0), lines), Nanos(100));
        assert_eq!(lock.take(Nanos(200), CpuId(0), lines), Nanos(0), "it has them");
        assert_eq!(lock.take(Nanos(200), CpuId(1), lines), Nanos(100), "until 300");
        assert_eq!(lock.take(Nanos(250), CpuId(2), lines), Nanos(150), "until 400");
        assert_eq!(lock.take(Nanos(260), CpuId(3), lines), Nanos(240), "until 500");
        // Of many CPUs that take turns, one is served in each 100 ns.
        let last = (0..50).map(|turn| lock.take(Nanos(500), CpuId(turn % 5), lines)).last();
        assert_eq!(last, Some(Nanos(50 * 100)));
    }
}
