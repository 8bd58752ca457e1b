//! Where a device's interrupts go, and where a request ends then.
//!
//! Vectors are spread over the CPUs in order, as managed ones are (`irq_create_affinity_masks`);
//! each interrupts the first CPU of its part. A device with one vector interrupts CPU 0. Where the
//! request ends is the engine's decision ([`Completion`]), as in `blk_mq_complete_request` and in
//! `blk_complete_request` before it.

use blockyard_engine::mq::complete::{CompleteOn, Completion, RqAffinity};

use crate::cpu::{CpuId, Distance, Topology};

/// Interrupts of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptConfig {
    /// Number of vectors: one for all CPUs, or one for a part of them each. Vectors beyond the
    /// number of CPUs are unused.
    pub vectors: u16,
    /// Affinity of completions to the submitter.
    pub rq_affinity: RqAffinity,
}

impl InterruptConfig {
    /// The CPU interrupted for a request of this CPU.
    pub(in crate::world) fn vector_of(self, submitter: CpuId, topology: Topology) -> CpuId {
        let cpus = u32::from(topology.cpus());
        let vectors = u32::from(self.vectors);
        let vectors = vectors.clamp(1, cpus);
        let part = u32::from(submitter.0) * vectors / cpus;
        CpuId(u16::try_from((part * cpus).div_ceil(vectors)).expect("it is one of the CPUs"))
    }

    /// The CPU that completes a request, if not the interrupted one.
    pub(in crate::world) fn called(
        self,
        submitter: CpuId,
        interrupted: CpuId,
        topology: Topology,
    ) -> Option<CpuId> {
        let completion = Completion {
            rq_affinity: self.rq_affinity,
            submitted_on: submitter.0,
            completed_on: interrupted.0,
            shares_cache: topology.distance(submitter, interrupted) == Distance::SameCache,
            hw_queues: self.vectors,
            polled: false,
        };
        (completion.place() == CompleteOn::Ipi).then_some(submitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_SOCKETS: Topology = Topology::of(2, 4);

    fn interrupted(vectors: u16) -> Vec<u16> {
        let config = InterruptConfig { vectors, rq_affinity: RqAffinity::Group };
        (0..8).map(|cpu| config.vector_of(CpuId(cpu), TWO_SOCKETS).0).collect()
    }

    #[test]
    fn vectors_are_spread_over_the_cpus_in_order() {
        assert_eq!(interrupted(1), [0; 8]);
        assert_eq!(interrupted(2), [0, 0, 0, 0, 4, 4, 4, 4]);
        assert_eq!(interrupted(3), [0, 0, 0, 3, 3, 3, 6, 6]);
        assert_eq!(interrupted(8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(interrupted(64), interrupted(8));
    }

    #[test]
    fn request_ends_as_near_to_its_submitter_as_rq_affinity_says() {
        let called = |rq_affinity, submitter, topology| {
            let config = InterruptConfig { vectors: 1, rq_affinity };
            config.called(CpuId(submitter), CpuId(0), topology).map(|cpu| cpu.0)
        };
        let of = |rq_affinity, topology| {
            [0, 1, 2, 5].map(|submitter| called(rq_affinity, submitter, topology))
        };
        assert_eq!(of(RqAffinity::Off, TWO_SOCKETS), [None; 4]);
        assert_eq!(of(RqAffinity::Group, TWO_SOCKETS), [None, None, None, Some(5)]);
        let two_caches = Topology { cpus_per_l3: Some(2), ..TWO_SOCKETS };
        assert_eq!(of(RqAffinity::Group, two_caches), [None, None, Some(2), Some(5)]);
        assert_eq!(of(RqAffinity::Force, TWO_SOCKETS), [None, Some(1), Some(2), Some(5)]);
    }
}
