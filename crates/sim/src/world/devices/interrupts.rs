//! Interrupts: the CPU that a device interrupts, and the CPU that completes the request.
//!
//! ```text
//!   device ── vector of the submitter's CPU ──> hard interrupt ─┬─ near enough ─────> ends here
//!                                                               └─ rq_affinity, IPI > ends there
//!   memory: its submitter copies, and the request ends where it was issued
//! ```
//! The configuration determines the interrupted CPU and the CPU that completes the request
//! ([`super::super::config`]). A softirq of the same CPU directly follows the hard interrupt.
//!
//! Left out: threaded interrupts, coalescing, `irqbalance`.

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::mq::Issue;
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;

use super::super::actions::{Action, Context, Interrupt};
use super::super::config::Config;
use super::super::machine::Machine;
use super::super::trace::Event;
use super::{Backend, Devices};
use crate::cpu::CpuId;

/// Submitting CPUs of requests at the device, by tag.
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

impl Devices {
    /// Issues a request to the device.
    pub(super) fn issue_to_device(&mut self, machine: &mut Machine<'_>, by: Context, issue: Issue) {
        let sectors = u32::try_from(issue.len.0).expect("requests are short");
        self.at_device += 1;
        self.note_issue(machine, &issue);
        self.submitters.note(&issue);
        let tag = issue.tag;
        let op = issue.op;
        let sector = issue.sector.0;
        let in_flight = self.at_device;
        machine.threads.event(Event::Issue { tag: tag.index, op, sector, sectors, in_flight });
        if machine.config.device.is_memory() {
            self.at_device -= 1;
            machine.threads.event(Event::Complete { tag: tag.index });
            self.end_request(machine, by, tag);
        } else {
            self.start_request(machine, issue);
        }
    }

    /// The device has completed a request, and interrupts a CPU.
    pub(super) fn device_interrupts(&mut self, machine: &mut Machine<'_>, tag: Tag) {
        let config = machine.config;
        let cpu = config.interrupts.vector_of(self.submitters.of(tag), config.topology);
        self.interrupt(machine, cpu, Action::Interrupted(tag));
    }

    /// Cost of a hard interrupt, including the completion if it is on the same CPU.
    pub(super) fn cost_of_interrupt(&mut self, config: &Config, cpu: CpuId, tag: Tag) -> Nanos {
        let interrupt = config.costs.interrupt;
        match self.called_from(config, cpu, tag) {
            Some(_) => interrupt,
            None => interrupt + self.cost_of_completion(config, tag),
        }
    }

    /// Cost to complete a request, with the ends of its bios.
    pub(super) fn cost_of_completion(&mut self, config: &Config, tag: Tag) -> Nanos {
        config.costs.complete + self.cost_of_ends(tag)
    }

    /// Cost of the ends of a request's bios for a mapped device above the queue.
    pub(super) fn cost_of_ends(&mut self, tag: Tag) -> Nanos {
        let Backend::Mapped(mapped) = &self.backend else { return Nanos(0) };
        let writes = self.block.queue().bios(tag).filter(|bio| bio.op == Op::Write);
        writes.fold(Nanos(0), |sum, bio| sum + mapped.end_of_write(bio.len.bytes()))
    }

    fn called_from(&self, config: &Config, cpu: CpuId, tag: Tag) -> Option<CpuId> {
        config.interrupts.called(self.submitters.of(tag), cpu, config.topology)
    }

    /// Handles a hard interrupt: completes the request, or calls another CPU.
    pub(super) fn interrupted(&mut self, machine: &mut Machine<'_>, by: Context, tag: Tag) {
        let Config { topology, costs, .. } = machine.config;
        let Some(cpu) = self.called_from(machine.config, by.cpu(), tag) else {
            return self.end_request(machine, by, tag);
        };
        let after = costs.call(topology.distance(cpu, by.cpu()));
        machine.threads.observers.causes.ended_by_call += 1;
        let sent = match costs.vm {
            None => machine.threads.now(),
            Some(vm) => machine.threads.charge(by.cpu(), vm.exit),
        };
        let called = Interrupt::of(cpu, Action::Called(tag));
        self.interrupts.schedule(sent + after, called);
    }

    /// Completes a request and runs the queue.
    pub(super) fn end_request(&mut self, machine: &mut Machine<'_>, by: Context, tag: Tag) {
        self.in_flight -= 1;
        self.block.queue().complete(machine.threads.now(), tag, BlkStatus::Ok);
        self.run_queue(machine, by);
    }
}
