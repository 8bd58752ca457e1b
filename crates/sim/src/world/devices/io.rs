//! Bios on their way through the queue and back.

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Sector};
use blockyard_engine::mq::Submitted;
use blockyard_engine::time::Nanos;

use super::super::actions::{Action, AtDevice, Context, Dispatched, MemberId};
use super::super::config::Config;
use super::super::in_flight::Out;
use super::super::machine::Machine;
use super::super::trace::Event;
use super::{Backend, Devices, KEEPER};
use crate::cpu::ThreadId;

impl Devices {
    /// Submits a thread's bio; returns whether the submitter must wait for a request.
    pub(super) fn submit(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        thread: ThreadId,
        out: &Out,
    ) -> bool {
        let bio = self.bios.make(&machine.threads, by.cpu(), thread, out);
        let now = machine.threads.now();
        if self.throttled.as_mut().is_some_and(|throttled| !throttled.admits(now, &bio)) {
            return false;
        }
        if let Backend::Mapped(_) = self.backend {
            self.submit_mapped(machine, by, bio, thread);
            return false;
        }
        let user = bio.user;
        let parked = self.enters_queue(machine, by, bio, thread);
        if parked {
            self.bios.park(user, thread);
        }
        self.run_queue(machine, by);
        parked
    }

    /// Passes a bio to the queue or the RAID; returns whether it is parked.
    pub(super) fn enters_queue(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        bio: Bio,
        thread: ThreadId,
    ) -> bool {
        if self.raid.is_some() {
            return self.enters_raid(machine, by, bio, thread);
        }
        self.enters_member(machine, MemberId(0), bio, thread)
    }

    /// Passes a bio to the queue of a device; returns whether it is parked.
    pub(super) fn enters_member(
        &mut self,
        machine: &mut Machine<'_>,
        member: MemberId,
        bio: Bio,
        thread: ThreadId,
    ) -> bool {
        let now = machine.threads.now();
        let sector = Sector(shown_sector(machine.config, member, bio.sector));
        let shown = Bio { sector, ..bio };
        machine.threads.observers.note_submit(now, &shown, thread, self.in_flight);
        self.member(member).block.submit(now, bio) == Submitted::Parked
    }

    /// Notes the end of a bio in the queue.
    pub(super) fn leaves_queue(
        &self,
        machine: &mut Machine<'_>,
        (user, bytes): (u64, u64),
        status: BlkStatus,
    ) {
        let now = machine.threads.now();
        machine.threads.observers.note_end(now, (user, bytes), status, self.in_flight);
    }

    /// Counts writes by size, and requests with bios of several submitters.
    pub(super) fn note_issue(&mut self, machine: &mut Machine<'_>, request: &Dispatched) {
        let issue = &request.issue;
        let causes = &mut machine.threads.observers.causes;
        causes.issued_sectors += issue.len.0;
        if issue.op != Op::Write {
            return;
        }
        causes.write_requests += 1;
        causes.write_sectors += issue.len.0;
        let mut bios = self.member(request.member).block.queue().bios(issue.tag);
        let first = bios.next().map(|bio| bio.origin.io_context);
        let mixed = bios.any(|bio| Some(bio.origin.io_context) != first);
        causes.mixed_write_requests += u64::from(mixed);
    }

    /// Advances the first device, or queue, whose event is due.
    pub(super) fn advance_member(&mut self, machine: &mut Machine<'_>) {
        let now = machine.threads.now();
        let due = |id: &MemberId| self.members[usize::from(id.0)].block.next_event() == Some(now);
        let Some(member) = self.member_ids().find(due) else { return };
        let mut ended = std::mem::take(&mut self.scratch.device_ended);
        self.member(member).block.advance_device(now, &mut ended);
        for (at, tag) in ended.drain(..) {
            let request = AtDevice { member, tag };
            let tag = self.shown_tag(request);
            machine.threads.observers.event(at, Event::Complete { tag });
            self.model_completes(machine, request);
        }
        self.scratch.device_ended = ended;
        self.run_queue(machine, Context::Interrupt(KEEPER));
    }

    /// The device has completed a request.
    pub(super) fn device_completes(&mut self, machine: &mut Machine<'_>, request: AtDevice) {
        self.at_device -= 1;
        self.device_interrupts(machine, request);
    }

    /// Runs the queues; ended bios return to their owners.
    pub(super) fn run_queue(&mut self, machine: &mut Machine<'_>, by: Context) {
        for member in self.member_ids() {
            let queue = &mut self.members[usize::from(member.0)].block;
            queue.dispatch(machine.threads.now(), &mut self.scratch.issues);
            self.pay_elevator(machine, by, member);
            if !self.scratch.issues.is_empty() {
                self.hand_out_issues(machine, by, member);
            }
        }
        machine.threads.observers.note_idle(machine.threads.clock.now, self.in_flight);
        // Only these: the end of a bio may run the queues again before the others are woken.
        let mut unparked = Vec::new();
        for member in &mut self.members {
            let queue = member.block.queue();
            queue.take_done(&mut self.scratch.done);
            queue.take_unparked(&mut unparked);
        }
        if let Some(raid) = &mut self.raid {
            raid.unpark(&mut unparked);
        }
        self.scratch.unparked.append(&mut unparked);
        if !self.scratch.done.is_empty() {
            self.end_bios(machine, by);
        }
        if !self.scratch.unparked.is_empty() {
            self.bios.wake_parked(&mut machine.threads, &mut self.scratch.unparked);
        }
    }

    /// The context pays for the elevator's work since the last call.
    fn pay_elevator(&mut self, machine: &mut Machine<'_>, by: Context, member: MemberId) {
        let now = machine.threads.now();
        let unpaid = match by {
            Context::Thread(_, thread) => machine.threads[thread].pending.deferred,
            Context::Interrupt(_) => Nanos(0),
        };
        let cost = self.member(member).elevator_work(now + unpaid, by.cpu());
        match by {
            _ if cost == Nanos(0) => {}
            Context::Thread(_, thread) => machine.threads[thread].defer_cost(cost),
            Context::Interrupt(cpu) => drop(machine.threads.charge(cpu, cost)),
        }
    }

    /// Hands dispatched requests to the context that issues them.
    fn hand_out_issues(&mut self, machine: &mut Machine<'_>, by: Context, member: MemberId) {
        let mut issues = std::mem::take(&mut self.scratch.issues);
        for issue in issues.drain(..) {
            self.in_flight += 1;
            let request = Dispatched { member, issue };
            match by {
                Context::Thread(_, thread) => {
                    machine.threads[thread].pending.issues.push_back(request);
                }
                Context::Interrupt(cpu) => self.interrupt(machine, cpu, Action::Issue(request)),
            }
        }
        self.scratch.issues = issues;
    }

    /// Passes ended bios of the queues to their owners.
    fn end_bios(&mut self, machine: &mut Machine<'_>, by: Context) {
        let mut ended = std::mem::take(&mut self.scratch.done);
        for done in ended.drain(..) {
            let Done { user, status } = if self.raid.is_some() {
                let Some(whole) = self.end_part(machine, by, done) else { continue };
                whole
            } else {
                let bytes = self.bytes_of(done.user);
                self.leaves_queue(machine, (done.user, bytes), done.status);
                done
            };
            if let Backend::Mapped(_) = self.backend {
                self.end_lower(machine, by.cpu(), user, status);
            } else {
                self.bios.end(machine, user, status);
            }
        }
        self.scratch.done = ended;
    }

    /// Number of a request in events.
    pub(super) fn shown_tag(&self, AtDevice { member, tag }: AtDevice) -> u32 {
        let number = self.members[usize::from(member.0)].block.number_of(tag);
        number * self.members.len() as u32 + u32::from(member.0)
    }

    /// Length of a bio of the back end.
    fn bytes_of(&self, user: u64) -> u64 {
        match &self.backend {
            Backend::Mapped(mapped) => mapped.lower_bytes(user),
            Backend::Queue | Backend::Null(_) => self.bios.bytes(user),
        }
    }
}

/// Sector of a device in events, in which the members of a RAID lie one behind the other.
pub(super) fn shown_sector(config: &Config, member: MemberId, sector: Sector) -> u64 {
    sector.0 + u64::from(member.0) * config.device.sectors()
}
