//! Whose interrupt it is: where a device says that it has done a request, and where that ends.
//!
//! ```text
//!   device ── vector of the submitter's CPU ──> hard interrupt ─┬─ near enough ─────> ends here
//!                                                               └─ rq_affinity, IPI > ends there
//!   memory: its submitter copies, and the request ends where it was issued
//! ```
//! Vectors are spread over the CPUs in order, as managed ones are (`irq_create_affinity_masks`);
//! each interrupts the first CPU of its part. A device with one vector interrupts CPU 0. Where the
//! request ends then is the engine's decision ([`Completion`]), as in `blk_mq_complete_request` and
//! in `blk_complete_request` before it; a softirq of the same CPU follows the hard interrupt at
//! once.
//!
//! What it leaves out: threads for interrupts, coalescing, `irqbalance`.

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::mq::Issue;
use blockyard_engine::mq::complete::{CompleteOn, Completion, RqAffinity};
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::Task;

use super::World;
use super::deeds::{Context, Deed};
use super::trace::{Event, Observer};
use crate::cpu::{CpuId, Topology};

/// Where a device's interrupts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptConfig {
    /// Vectors that it has: one for all CPUs, or for a part of them each. More than there are CPUs
    /// are of no use.
    pub vectors: u16,
    /// How near to its submitter a request has to end.
    pub rq_affinity: RqAffinity,
}

impl InterruptConfig {
    /// The CPU that is interrupted for a request of this one.
    fn vector_of(self, submitter: CpuId, topology: Topology) -> CpuId {
        let (cpus, vectors) = (u32::from(topology.cpus()), u32::from(self.vectors));
        let vectors = vectors.clamp(1, cpus);
        let part = u32::from(submitter.0) * vectors / cpus;
        CpuId(u16::try_from((part * cpus).div_ceil(vectors)).expect("it is one of the CPUs"))
    }

    /// Where a request of this CPU ends that the other one was interrupted for, if not there.
    fn called(self, submitter: CpuId, interrupted: CpuId, topology: Topology) -> Option<CpuId> {
        let completion = Completion {
            rq_affinity: self.rq_affinity,
            submitted_on: submitter.0,
            completed_on: interrupted.0,
            shares_cache: topology.socket_of(submitter) == topology.socket_of(interrupted),
            hw_queues: self.vectors,
            polled: false,
        };
        (completion.place() == CompleteOn::Ipi).then_some(submitter)
    }
}

/// Who submitted the requests that the device works on, by tag.
#[derive(Debug, Default)]
pub(super) struct Submitters(Vec<CpuId>);

impl Submitters {
    fn note(&mut self, issue: &Issue) {
        let index = issue.tag.index as usize;
        self.0.resize(self.0.len().max(index + 1), CpuId(0));
        self.0[index] = CpuId(issue.origin.cpu);
    }

    fn of(&self, tag: Tag) -> CpuId {
        self.0[tag.index as usize]
    }
}

impl<T: Task, O: Observer> World<'_, T, O> {
    /// The device gets a request.
    pub(super) fn issue_to_device(&mut self, by: Context, issue: Issue) {
        let sectors = u32::try_from(issue.len.0).expect("requests are short");
        self.device_has += 1;
        self.causes.issued_sectors += issue.len.0;
        self.note_issue(&issue);
        self.submitters.note(&issue);
        let (tag, op, sector) = (issue.tag, issue.op, issue.sector.0);
        let in_flight = self.device_has;
        self.trace.event(self.now, Event::Issue { tag: tag.index, op, sector, sectors, in_flight });
        if self.config.device.is_memory() {
            self.device_has -= 1;
            self.trace.event(self.now, Event::Complete { tag: tag.index });
            self.end_request(by, tag);
        } else {
            self.block.start(self.now, issue);
        }
    }

    /// The device has done a request, and interrupts a CPU.
    pub(super) fn device_interrupts(&mut self, tag: Tag) {
        let Self { config, submitters, .. } = self;
        let cpu = config.interrupts.vector_of(submitters.of(tag), config.topology);
        self.interrupt(cpu, Deed::Interrupted(tag));
    }

    /// What a hard interrupt costs, with the end of the request if that is there, too.
    pub(super) fn cost_of_interrupt(&self, cpu: CpuId, tag: Tag) -> Nanos {
        let costs = &self.config.costs;
        match self.called_from(cpu, tag) {
            Some(_) => costs.interrupt,
            None => costs.interrupt + costs.complete,
        }
    }

    fn called_from(&self, cpu: CpuId, tag: Tag) -> Option<CpuId> {
        let Self { config, submitters, .. } = self;
        config.interrupts.called(submitters.of(tag), cpu, config.topology)
    }

    /// The hard interrupt has been taken: the request ends, or another CPU is called for that.
    pub(super) fn interrupted(&mut self, by: Context, tag: Tag) {
        let Some(cpu) = self.called_from(by.cpu(), tag) else { return self.end_request(by, tag) };
        let (topology, costs) = (&self.config.topology, &self.config.costs);
        let near = topology.socket_of(cpu) == topology.socket_of(by.cpu());
        let after = if near { costs.ipi } else { costs.ipi_remote };
        self.causes.ended_by_call += 1;
        self.interrupts.schedule(self.now + after, (cpu, Deed::Called(tag)));
    }

    /// A request ends, and the queue is run.
    pub(super) fn end_request(&mut self, by: Context, tag: Tag) {
        self.device_owes -= 1;
        self.block.queue().complete(self.now, tag, BlkStatus::Ok);
        self.run_queue(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_SOCKETS: Topology = Topology { sockets: 2, cpus_per_socket: 4 };

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
        let called = |rq_affinity, submitter| {
            let config = InterruptConfig { vectors: 1, rq_affinity };
            config.called(CpuId(submitter), CpuId(0), TWO_SOCKETS).map(|cpu| cpu.0)
        };
        let of = |rq_affinity| [0, 1, 5].map(|submitter| called(rq_affinity, submitter));
        assert_eq!(of(RqAffinity::Off), [None, None, None]);
        assert_eq!(of(RqAffinity::Group), [None, None, Some(5)]);
        assert_eq!(of(RqAffinity::Force), [None, Some(1), Some(5)]);
    }
}
