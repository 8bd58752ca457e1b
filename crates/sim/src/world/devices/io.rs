//! Bios on their way through the queue and back.

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op};
use blockyard_engine::mq::{Issue, Submitted};
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;

use super::super::actions::{Action, Context};
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
        let parked = self.enters_queue(machine, bio, thread);
        if parked {
            self.bios.park(user, thread);
        }
        self.run_queue(machine, by);
        parked
    }

    /// Passes a bio to the queue; returns whether it is parked.
    pub(super) fn enters_queue(
        &mut self,
        machine: &mut Machine<'_>,
        bio: Bio,
        thread: ThreadId,
    ) -> bool {
        let now = machine.threads.now();
        machine.threads.observers.note_submit(now, &bio, thread, self.in_flight);
        self.block.submit(now, bio) == Submitted::Parked
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
    pub(super) fn note_issue(&mut self, machine: &mut Machine<'_>, issue: &Issue) {
        let causes = &mut machine.threads.observers.causes;
        causes.issued_sectors += issue.len.0;
        if issue.op != Op::Write {
            return;
        }
        causes.write_requests += 1;
        causes.write_sectors += issue.len.0;
        let mut bios = self.block.queue().bios(issue.tag);
        let first = bios.next().map(|bio| bio.origin.io_context);
        let mixed = bios.any(|bio| Some(bio.origin.io_context) != first);
        causes.mixed_write_requests += u64::from(mixed);
    }

    /// Advances the queue or the device.
    pub(super) fn advance_block(&mut self, machine: &mut Machine<'_>) {
        let mut ended = std::mem::take(&mut self.scratch.device_ended);
        self.block.advance_device(machine.threads.now(), &mut ended);
        for (at, tag) in ended.drain(..) {
            machine.threads.observers.event(at, Event::Complete { tag: tag.index });
            self.model_completes(machine, tag);
        }
        self.scratch.device_ended = ended;
        self.run_queue(machine, Context::Interrupt(KEEPER));
    }

    /// The device has completed a request.
    pub(super) fn device_completes(&mut self, machine: &mut Machine<'_>, tag: Tag) {
        self.at_device -= 1;
        self.device_interrupts(machine, tag);
    }

    /// Runs the queue; ended bios return to their owners.
    pub(super) fn run_queue(&mut self, machine: &mut Machine<'_>, by: Context) {
        self.block.dispatch(machine.threads.now(), &mut self.scratch.issues);
        self.pay_elevator(machine, by);
        if !self.scratch.issues.is_empty() {
            self.hand_out_issues(machine, by);
        }
        machine.threads.observers.note_idle(machine.threads.clock.now, self.in_flight);
        let queue = self.block.queue();
        queue.take_done(&mut self.scratch.done);
        queue.take_unparked(&mut self.scratch.unparked);
        if !self.scratch.done.is_empty() {
            self.end_bios(machine, by);
        }
        if !self.scratch.unparked.is_empty() {
            self.bios.wake_parked(&mut machine.threads, &mut self.scratch.unparked);
        }
    }

    /// The context pays for the elevator's work since the last call.
    fn pay_elevator(&mut self, machine: &mut Machine<'_>, by: Context) {
        let now = machine.threads.now();
        let unpaid = match by {
            Context::Thread(_, thread) => machine.threads[thread].pending.deferred,
            Context::Interrupt(_) => Nanos(0),
        };
        let steps = self.block.queue().steps();
        let cost = self.elevator.take(steps, now + unpaid, 0);
        match by {
            _ if cost == Nanos(0) => {}
            Context::Thread(_, thread) => machine.threads[thread].defer_cost(cost),
            Context::Interrupt(cpu) => drop(machine.threads.charge(cpu, cost)),
        }
    }

    /// Hands dispatched requests to the context that issues them.
    fn hand_out_issues(&mut self, machine: &mut Machine<'_>, by: Context) {
        let mut issues = std::mem::take(&mut self.scratch.issues);
        for issue in issues.drain(..) {
            self.in_flight += 1;
            match by {
                Context::Thread(_, thread) => {
                    machine.threads[thread].pending.issues.push_back(issue);
                }
                Context::Interrupt(cpu) => self.interrupt(machine, cpu, Action::Issue(issue)),
            }
        }
        self.scratch.issues = issues;
    }

    /// Passes ended bios of the queue to their owners.
    fn end_bios(&mut self, machine: &mut Machine<'_>, by: Context) {
        let mut done = std::mem::take(&mut self.scratch.done);
        for Done { user, status } in done.drain(..) {
            if let Backend::Mapped(_) = self.backend {
                self.end_lower(machine, by.cpu(), user, status);
            } else {
                self.leaves_queue(machine, (user, self.bios.bytes(user)), status);
                self.bios.end(machine, user, status);
            }
        }
        self.scratch.done = done;
    }
}
