//! The CPUs of a machine, their L3 caches and sockets, and the CPUs on which a thread may run.
//!
//! CPUs are numbered by sockets, and in a socket by L3 caches.

use std::ops::Range;

use super::set::CpuSet;
use super::{CpuId, Cpus};

/// Number of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Sockets.
    pub sockets: u16,
    /// CPUs per socket.
    pub cpus_per_socket: u16,
    /// CPUs that share an L3 cache; `None`: all of a socket.
    pub cpus_per_l3: Option<u16>,
}

/// Distance between two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// They share an L3 cache.
    SameCache,
    /// They share a socket only.
    SameSocket,
    /// They are in different sockets.
    Remote,
}

impl Topology {
    /// Sockets with one L3 cache each.
    #[must_use]
    pub const fn of(sockets: u16, cpus_per_socket: u16) -> Self {
        Self { sockets, cpus_per_socket, cpus_per_l3: None }
    }

    /// All CPUs.
    #[must_use]
    pub fn cpus(&self) -> u16 {
        self.sockets * self.cpus_per_socket
    }

    /// CPUs that share an L3 cache.
    #[must_use]
    pub fn l3_cpus(&self) -> u16 {
        self.cpus_per_l3.unwrap_or(self.cpus_per_socket)
    }

    pub(super) fn socket(&self, cpu: usize) -> usize {
        cpu / usize::from(self.cpus_per_socket)
    }

    /// The CPUs of the socket of a CPU.
    pub(super) fn neighbours(&self, cpu: usize) -> Range<usize> {
        group(cpu, self.cpus_per_socket)
    }

    /// The CPUs that share the L3 cache of a CPU.
    pub(super) fn l3_neighbours(&self, cpu: usize) -> Range<usize> {
        group(cpu, self.l3_cpus())
    }

    /// The socket of a CPU.
    #[must_use]
    pub fn socket_of(&self, cpu: CpuId) -> u16 {
        cpu.0 / self.cpus_per_socket
    }

    /// Distance between two CPUs.
    #[must_use]
    pub fn distance(&self, one: CpuId, other: CpuId) -> Distance {
        self.distance_at(usize::from(one.0), usize::from(other.0))
    }

    pub(super) fn distance_at(&self, one: usize, other: usize) -> Distance {
        if self.l3_neighbours(one).contains(&other) {
            Distance::SameCache
        } else if self.socket(one) == self.socket(other) {
            Distance::SameSocket
        } else {
            Distance::Remote
        }
    }
}

/// The CPUs of a CPU's group, if each group has `size` CPUs.
fn group(cpu: usize, size: u16) -> Range<usize> {
    let size = usize::from(size);
    let first = cpu / size * size;
    first..first + size
}

/// CPUs on which a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// All CPUs.
    Any,
    /// A single CPU.
    Cpu(CpuId),
    /// The CPUs of this socket.
    Socket(u16),
    /// The CPUs of a set ([`Cpus::set_of`]).
    Set(SetId),
    /// All CPUs. A wake-up first looks for an idle one of the set, or near to it
    /// ([`Cpus::near`]).
    Near(SetId),
}

/// A set of CPUs on which threads may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetId(u32);

impl SetId {
    pub(super) fn of(self, sets: &[CpuSet]) -> &CpuSet {
        &sets[self.0 as usize]
    }
}

impl Affinity {
    pub(super) fn allows(self, topology: Topology, sets: &[CpuSet], at: usize) -> bool {
        match self {
            Self::Any | Self::Near(_) => true,
            Self::Cpu(cpu) => usize::from(cpu.0) == at,
            Self::Socket(socket) => usize::from(socket) == topology.socket(at),
            Self::Set(set) => set.of(sets).contains(at),
        }
    }

    /// A range with all allowed CPUs of a thread that last ran on `last`.
    pub(super) fn allowed(self, topology: Topology, last: usize) -> Range<usize> {
        match self {
            Self::Any | Self::Set(_) | Self::Near(_) => 0..usize::from(topology.cpus()),
            Self::Cpu(cpu) => usize::from(cpu.0)..usize::from(cpu.0) + 1,
            Self::Socket(_) => topology.neighbours(last),
        }
    }

    /// The CPU of the thread with this number, before it runs.
    pub(super) fn first_cpu(self, topology: Topology, sets: &[CpuSet], number: usize) -> usize {
        let per_socket = usize::from(topology.cpus_per_socket);
        match self {
            Self::Any => number % usize::from(topology.cpus()),
            Self::Cpu(cpu) => usize::from(cpu.0),
            Self::Socket(socket) => usize::from(socket) * per_socket + number % per_socket,
            Self::Set(set) | Self::Near(set) => {
                let set = set.of(sets);
                set.iter().nth(number % set.iter().count()).expect("it is one of them")
            }
        }
    }
}

impl Cpus {
    /// Affinity to some CPUs.
    ///
    /// # Panics
    /// A CPU does not exist.
    pub fn set_of(&mut self, cpus: &[u16]) -> Affinity {
        Affinity::Set(self.new_set(cpus))
    }

    /// Preference of some CPUs, without a restriction to them.
    ///
    /// # Panics
    /// A CPU does not exist.
    pub fn near(&mut self, cpus: &[u16]) -> Affinity {
        Affinity::Near(self.new_set(cpus))
    }

    fn new_set(&mut self, cpus: &[u16]) -> SetId {
        let mut set = CpuSet::new(self.cpus.len());
        for cpu in cpus.iter().map(|cpu| usize::from(*cpu)) {
            assert!(cpu < self.cpus.len(), "threads are bound to existing CPUs");
            set.set(cpu, true);
        }
        self.sets.push(set);
        SetId(u32::try_from(self.sets.len() - 1).expect("sets are few"))
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::time::Nanos;

    use super::super::tests::{COSTS, CPU0};
    use super::super::{Costs, Migration};
    use super::*;

    /// Lets a thread with an endless burst occupy a CPU.
    fn occupy(cpus: &mut Cpus, cpu: u16) {
        let thread = cpus.spawn(Affinity::Cpu(CpuId(cpu)));
        cpus.wake(Nanos(0), thread, CpuId(cpu), Nanos(0));
        let at = cpus.burst_end(CpuId(cpu));
        assert_eq!(cpus.take(at), Some((CpuId(cpu), thread)));
        cpus.run(at, CpuId(cpu), Nanos::from_ms(1_000));
    }

    /// A thread of CPU 5 wakes up again while other threads occupy CPUs. Returns its CPU, and the
    /// time of the refill of its caches.
    fn wakes_on(topology: Topology, affinity: Option<&[u16]>, busy: &[u16]) -> (u16, u64) {
        let costs = Costs {
            migrate: Migration { same_l3: Nanos(40), other_l3: Nanos(60), remote: Nanos(90) },
            ..COSTS
        };
        let mut cpus = Cpus::new(topology, costs);
        let affinity = affinity.map_or(Affinity::Any, |near| cpus.near(near));
        let thread = cpus.spawn(affinity);
        // Its last CPU is changed directly.
        cpus.threads[0].last = 5;
        cpus.threads[0].used = Nanos(1);
        busy.iter().for_each(|cpu| occupy(&mut cpus, *cpu));
        let used = cpus.used(thread);
        cpus.wake(Nanos(1_000), thread, CPU0, Nanos(0));
        (cpus.last_of(thread).0, (cpus.used(thread) - used).0)
    }

    #[test]
    fn waking_thread_prefers_its_cache_and_then_its_socket() {
        let one_cache = Topology::of(2, 8);
        let caches = Topology { cpus_per_l3: Some(4), ..one_cache };
        assert_eq!(wakes_on(caches, None, &[]), (5, 0));
        assert_eq!(wakes_on(caches, None, &[5]), (4, 40), "an idle CPU of its cache");
        assert_eq!(wakes_on(one_cache, None, &[5]), (0, 40), "the control: one cache a socket");
        assert_eq!(wakes_on(caches, None, &[4, 5, 6, 7]), (0, 60), "another cache");
        assert_eq!(wakes_on(caches, None, &[0, 1, 2, 3, 4, 5, 6, 7]), (8, 90), "another socket");
    }

    #[test]
    fn thread_returns_to_the_cpus_that_it_prefers_if_one_is_idle() {
        let topology = Topology { cpus_per_l3: Some(4), ..Topology::of(1, 8) };
        let near = Some(&[0, 1, 2, 3][..]);
        assert_eq!(wakes_on(topology, None, &[0]).0, 5, "the control: no preference");
        assert_eq!(wakes_on(topology, near, &[0]).0, 1);
        assert_eq!(wakes_on(topology, near, &[0, 1, 2, 3]).0, 4, "no CPU of them is idle");
        assert_eq!(wakes_on(topology, Some(&[4, 5]), &[0]).0, 5, "its last CPU is one of them");
    }
}
