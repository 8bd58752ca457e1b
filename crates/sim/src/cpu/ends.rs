//! The ends of bursts by CPU, as a tree of minima: an event looks at a few of them, even if the
//! machine has hundreds of CPUs.

use blockyard_engine::time::Nanos;

/// End of the burst of a CPU without a thread.
pub(super) const NEVER: Nanos = Nanos(u64::MAX);

/// The end of the burst of each CPU's thread, or [`NEVER`].
#[derive(Debug)]
pub(super) struct Ends {
    /// A full binary tree in one array: the children of node n are 2 n and 2 n + 1, its root is
    /// node 1, and a node is the minimum of its children. The leaves are the CPUs.
    minima: Vec<Nanos>,
    /// Number of the first leaf.
    first: usize,
}

impl Ends {
    pub(super) fn new(cpus: usize) -> Self {
        let first = cpus.next_power_of_two();
        Self { minima: vec![NEVER; 2 * first], first }
    }

    pub(super) fn of(&self, cpu: usize) -> Nanos {
        self.minima[self.first + cpu]
    }

    /// Sets the end of a CPU; returns the earlier value.
    pub(super) fn set(&mut self, cpu: usize, end: Nanos) -> Nanos {
        let mut node = self.first + cpu;
        let before = std::mem::replace(&mut self.minima[node], end);
        while node > 1 {
            let least = self.minima[node].min(self.minima[node ^ 1]);
            node /= 2;
            if self.minima[node] == least {
                break;
            }
            self.minima[node] = least;
        }
        before
    }

    /// The first end of all.
    pub(super) fn next(&self) -> Nanos {
        self.minima[1]
    }

    /// The CPU with the least number whose burst has ended.
    pub(super) fn first_due(&self, now: Nanos) -> Option<usize> {
        if self.minima[1] > now {
            return None;
        }
        let mut node = 1;
        while node < self.first {
            node *= 2;
            node += usize::from(self.minima[node] > now);
        }
        Some(node - self.first)
    }
}

#[cfg(test)]
mod tests {
    use blockyard_workload::random::Random;

    use super::*;

    #[test]
    fn tree_agrees_with_a_scan_for_any_number_of_cpus() {
        let mut random = Random::new(1, 0);
        for cpus in [1, 2, 3, 5, 8, 160] {
            let mut ends = Ends::new(cpus);
            let mut scanned = vec![NEVER; cpus];
            for _ in 0..2_000 {
                let cpu = random.below(cpus as u64) as usize;
                let end = match random.below(4) {
                    0 => NEVER,
                    _ => Nanos(random.below(50)),
                };
                assert_eq!(ends.set(cpu, end), std::mem::replace(&mut scanned[cpu], end));
                let now = Nanos(random.below(50));
                assert_eq!(Some(ends.next()), scanned.iter().copied().min());
                assert_eq!(ends.first_due(now), scanned.iter().position(|end| *end <= now));
                assert_eq!(ends.of(cpu), end);
            }
        }
    }
}
