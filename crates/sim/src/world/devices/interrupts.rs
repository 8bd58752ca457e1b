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
use blockyard_engine::time::Nanos;

use super::super::actions::{Action, AtDevice, Context, Dispatched, Interrupt};
use super::super::config::Config;
use super::super::machine::Machine;
use super::super::trace::Event;
use super::io::shown_sector;
use super::{Backend, Devices};
use crate::cpu::CpuId;

/// Submitting CPUs of requests at the device, by number.
#[derive(Debug, Default)]
pub(super) struct Submitters(Vec<CpuId>);

impl Submitters {
    fn note(&mut self, number: u32, issue: &Issue) {
        let index = number as usize;
        self.0.resize(self.0.len().max(index + 1), CpuId(0));
        self.0[index] = CpuId(issue.origin.cpu);
    }

    pub(super) fn of(&self, number: u32) -> CpuId {
        self.0[number as usize]
    }
}

impl Devices {
    /// Issues a request to the device.
    pub(super) fn issue_to_device(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        request: Dispatched,
    ) {
        let Dispatched { member, issue } = request;
        let sectors = u32::try_from(issue.len.0).expect("requests are short");
        self.at_device += 1;
        self.note_issue(machine, &request);
        let to = self.member(member);
        to.submitters.note(to.block.number_of(issue.tag), &issue);
        let at_device = AtDevice { member, tag: issue.tag };
        let tag = self.shown_tag(at_device);
        let op = issue.op;
        let sector = shown_sector(machine.config, member, issue.sector);
        let in_flight = self.at_device;
        machine.threads.event(Event::Issue { tag, op, sector, sectors, in_flight });
        if machine.config.device.is_memory() {
            self.at_device -= 1;
            machine.threads.event(Event::Complete { tag });
            self.end_request(machine, by, at_device);
        } else {
            self.start_request(machine, request);
        }
    }

    /// The device has completed a request, and interrupts a CPU.
    pub(super) fn device_interrupts(&mut self, machine: &mut Machine<'_>, request: AtDevice) {
        let member = &self.members[usize::from(request.member.0)];
        let cpu = member.vector_of(machine.config, request.tag);
        self.interrupt(machine, cpu, Action::Interrupted(request));
    }

    fn submitter_of(&self, AtDevice { member, tag }: AtDevice) -> CpuId {
        let member = &self.members[usize::from(member.0)];
        member.submitters.of(member.block.number_of(tag))
    }

    /// Cost of a hard interrupt, including the completion if it is on the same CPU.
    pub(super) fn cost_of_interrupt(
        &mut self,
        config: &Config,
        cpu: CpuId,
        request: AtDevice,
    ) -> Nanos {
        let interrupt = config.costs.interrupt;
        match self.called_from(config, cpu, request) {
            Some(_) => interrupt,
            None => interrupt + self.cost_of_completion(config, request),
        }
    }

    /// Cost to complete a request, with the ends of its bios.
    pub(super) fn cost_of_completion(&mut self, config: &Config, request: AtDevice) -> Nanos {
        config.costs.complete + self.cost_of_ends(request)
    }

    /// Cost of the ends of a request's bios for a mapped device above the queue.
    pub(super) fn cost_of_ends(&mut self, AtDevice { member, tag }: AtDevice) -> Nanos {
        let Backend::Mapped(mapped) = &self.backend else { return Nanos(0) };
        let queue = self.members[usize::from(member.0)].block.queue();
        let writes = queue.bios(tag).filter(|bio| bio.op == Op::Write);
        writes.fold(Nanos(0), |sum, bio| sum + mapped.end_of_write(bio.len.bytes()))
    }

    fn called_from(&self, config: &Config, cpu: CpuId, request: AtDevice) -> Option<CpuId> {
        config.interrupts.called(self.submitter_of(request), cpu, config.topology)
    }

    /// Handles a hard interrupt: completes the request, or calls another CPU.
    pub(super) fn interrupted(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        request: AtDevice,
    ) {
        let Config { topology, costs, .. } = machine.config;
        let Some(cpu) = self.called_from(machine.config, by.cpu(), request) else {
            return self.end_request(machine, by, request);
        };
        let after = costs.call(topology.distance(cpu, by.cpu()));
        machine.threads.observers.causes.ended_by_call += 1;
        let exit = machine.threads.cpus.cost_of_function(machine.threads.now(), cpu);
        let sent = match exit {
            Nanos(0) => machine.threads.now(),
            exit => machine.threads.charge(by.cpu(), exit),
        };
        let called = Interrupt::of(cpu, Action::Called(request));
        self.interrupts.schedule(sent + after, called);
    }

    /// Completes a request and runs the queue.
    pub(super) fn end_request(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        AtDevice { member, tag }: AtDevice,
    ) {
        self.in_flight -= 1;
        let now = machine.threads.now();
        self.member(member).block.queue().complete(now, tag, BlkStatus::Ok);
        self.run_queue(machine, by);
    }
}
