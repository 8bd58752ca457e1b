//! Work items and their workers (the part of `kernel/workqueue.c` that dm-crypt uses).
//!
//! The unbound queue has a pool for each pod of CPUs ([`Workqueue`]), with as many workers as items
//! may be in work there; each item wakes one. Items beyond the limit wait in their pool. The end of
//! an item admits the first of them, of each waiting pool in turn. A bound queue has one worker per
//! CPU, and so has cryptd. Items are taken in FIFO order; the worker that went to sleep last is
//! woken first.
//!
//! Left out: creation of workers, and concurrency management of bound pools.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use blockyard_engine::time::Nanos;

use super::actions::Step;
use super::config::{ActiveLimit, Scope, Workqueue};
use crate::cpu::{Affinity, CpuId, Cpus, ThreadId, Topology};

/// Id of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolId(u16);

/// Lock of a queue. Its cache lines are with the CPU that used the queue last.
#[derive(Debug, Default)]
pub(super) struct QueueLock {
    free_at: Nanos,
    last: Option<CpuId>,
}

impl QueueLock {
    /// Time that a CPU needs for the queue from `at` on: it waits for the CPUs before it, and then
    /// its lines move to it in `lines`, unless it has them. The CPU spins in the meantime.
    pub(super) fn take(&mut self, at: Nanos, cpu: CpuId, lines: Nanos) -> Nanos {
        let hold = if self.last.replace(cpu) == Some(cpu) { Nanos(0) } else { lines };
        let wait = self.free_at.since(at);
        if hold > Nanos(0) {
            self.free_at = at + wait + hold;
        }
        wait + hold
    }
}

#[derive(Debug, Default)]
struct Pool {
    lock: QueueLock,
    items: VecDeque<Step>,
    /// Sleeping workers, the most recent last.
    idle: Vec<ThreadId>,
    /// Workers with an item.
    working: BTreeSet<ThreadId>,
    /// Number of its limit, and the items that wait for that.
    limit: Option<usize>,
    waiting: VecDeque<Step>,
}

/// Limit of the items in work of some pools (`struct wq_node_nr_active`).
#[derive(Clone, Debug, Default)]
struct Active {
    count: u16,
    /// Pools with items that wait.
    waiting: VecDeque<PoolId>,
}

/// All pools: first those of pods, then those of CPUs, then cryptd's.
#[derive(Debug)]
pub(super) struct Pools {
    queue: Workqueue,
    topology: Topology,
    pods: Vec<Range<u16>>,
    /// The pod of each CPU.
    pod_of: Vec<u16>,
    pools: Vec<Pool>,
    active: Vec<Active>,
}

impl Pools {
    pub(super) fn new(queue: Workqueue, topology: Topology, cpus_per_core: u16) -> Self {
        let pods = queue.pods(topology, cpus_per_core);
        let limit_of = |(at, pod): (usize, &Range<u16>)| match queue.limit {
            ActiveLimit::Pod => at,
            ActiveLimit::Socket => usize::from(topology.socket_of(CpuId(pod.start))),
        };
        let of_pods = pods.iter().enumerate().map(limit_of);
        let of_pods = of_pods.map(|limit| Pool { limit: Some(limit), ..Pool::default() });
        let of_cpus = (0..2 * topology.cpus()).map(|_| Pool::default());
        let pod_of = pods.iter().zip(0..).flat_map(|(pod, at)| pod.clone().map(move |_| at));
        Self {
            queue,
            topology,
            pod_of: pod_of.collect(),
            pools: of_pods.chain(of_cpus).collect(),
            active: vec![Active::default(); pods.len()],
            pods,
        }
    }

    /// The workers of the unbound queue to spawn.
    pub(super) fn unbound_workers(&self, cpus: &mut Cpus) -> Vec<(PoolId, Affinity)> {
        let each = self.queue.active_max(self.topology);
        let pods = self.pods.iter().zip(0..);
        let workers = pods.flat_map(|(pod, at)| {
            let affinity = self.affinity(cpus, pod);
            (0..each).map(move |_| (PoolId(at), affinity))
        });
        workers.collect()
    }

    /// CPUs of the workers of a pod.
    fn affinity(&self, cpus: &mut Cpus, pod: &Range<u16>) -> Affinity {
        let members: Vec<u16> = pod.clone().collect();
        match (self.queue.scope, self.queue.is_strict) {
            (Scope::System, _) => Affinity::Any,
            (Scope::Numa, true) => Affinity::Socket(self.topology.socket_of(CpuId(pod.start))),
            (_, true) => cpus.set_of(&members),
            (_, false) => cpus.near(&members),
        }
    }

    /// The workers of the bound queue to spawn.
    pub(super) fn bound_workers(&self) -> impl Iterator<Item = (PoolId, Affinity)> + '_ {
        let cpus = (0..self.topology.cpus()).map(CpuId);
        cpus.map(|cpu| (self.bound(cpu), Affinity::Cpu(cpu)))
    }

    /// The workers of cryptd to spawn.
    pub(super) fn cryptd_workers(&self) -> impl Iterator<Item = (PoolId, Affinity)> + '_ {
        let cpus = (0..self.topology.cpus()).map(CpuId);
        cpus.map(|cpu| (self.cryptd(cpu), Affinity::Cpu(cpu)))
    }

    pub(super) fn unbound(&self, cpu: CpuId) -> PoolId {
        PoolId(self.pod_of[usize::from(cpu.0)])
    }

    pub(super) fn bound(&self, cpu: CpuId) -> PoolId {
        PoolId(u16::try_from(self.pods.len()).expect("a pod has a CPU") + cpu.0)
    }

    pub(super) fn cryptd(&self, cpu: CpuId) -> PoolId {
        PoolId(self.bound(cpu).0 + self.topology.cpus())
    }

    /// Time for the queue's lock and its lines, of a CPU that begins at this time.
    pub(super) fn lock(&mut self, pool: PoolId, at: Nanos, cpu: CpuId, lines: Nanos) -> Nanos {
        self.pools[usize::from(pool.0)].lock.take(at, cpu, lines)
    }

    /// Queues an item; returns the worker to wake for it.
    pub(super) fn queue(&mut self, id: PoolId, item: Step) -> Option<ThreadId> {
        let max = self.queue.active_max(self.topology);
        let pool = &mut self.pools[usize::from(id.0)];
        if let Some(limit) = pool.limit {
            let active = &mut self.active[limit];
            // An item does not pass those of its pool that wait.
            if active.count >= max || !pool.waiting.is_empty() {
                if pool.waiting.is_empty() {
                    active.waiting.push_back(id);
                }
                pool.waiting.push_back(item);
                return None;
            }
            active.count += 1;
        }
        pool.items.push_back(item);
        pool.idle.pop()
    }

    /// A worker has no item any more. Returns the worker to wake, of another pool, for an item that
    /// waited.
    pub(super) fn end(&mut self, id: PoolId, worker: ThreadId) -> Option<ThreadId> {
        let pool = &mut self.pools[usize::from(id.0)];
        let limit = pool.limit.filter(|_| pool.working.remove(&worker))?;
        let active = &mut self.active[limit];
        let Some(next) = active.waiting.pop_front() else {
            active.count -= 1;
            return None;
        };
        let pool = &mut self.pools[usize::from(next.0)];
        pool.items.extend(pool.waiting.pop_front());
        if !pool.waiting.is_empty() {
            active.waiting.push_back(next);
        }
        if next == id { None } else { pool.idle.pop() }
    }

    pub(super) fn take(&mut self, id: PoolId, worker: ThreadId) -> Option<Step> {
        let pool = &mut self.pools[usize::from(id.0)];
        let item = pool.items.pop_front()?;
        if pool.limit.is_some() {
            pool.working.insert(worker);
        }
        Some(item)
    }

    /// A worker goes to sleep.
    pub(super) fn sleep(&mut self, pool: PoolId, worker: ThreadId) {
        self.pools[usize::from(pool.0)].idle.push(worker);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pools.iter().all(|pool| pool.items.is_empty() && pool.waiting.is_empty())
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
        // The control: without a cost no CPU waits, not even for one that begins later.
        let mut free = QueueLock::default();
        assert_eq!(free.take(Nanos(300), CpuId(0), Nanos(0)), Nanos(0));
        assert_eq!(free.take(Nanos(0), CpuId(1), Nanos(0)), Nanos(0));
    }
}
