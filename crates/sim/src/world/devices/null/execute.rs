//! Actions of contexts: arriving bios, issues, completions, ends of originals.

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op};
use blockyard_engine::dm::multipath::stacked::{Answer, CompleteBy, Dispatched};
use blockyard_engine::mq::complete::{CompleteOn, Completion, RqAffinity};
use blockyard_engine::mq::{Issue, PlugRule, Submitted};
use blockyard_engine::time::Nanos;

use super::super::super::config::{CompletionRule, IrqMode, QueueMode};
use super::super::super::machine::Machine;
use super::super::super::thread::Turn;
use super::super::super::trace::{Event, Wait};
use super::super::KEEPER;
use super::workers::Work;
use super::{Context, Interrupt, Null, PATH, Queues, Softirq};
use crate::cpu::{CpuId, Distance, ThreadId, Topology};

/// Stands for several hardware queues, of any number.
const SEVERAL: u16 = 2;

impl Null {
    /// The place of completion of a device's request.
    fn place(&self, by: Context, issue: &Issue, shares_cache: bool) -> CompleteOn {
        let completion = Completion {
            rq_affinity: self.config.rq_affinity,
            submitted_on: issue.origin.cpu,
            completed_on: by.cpu.0,
            shares_cache,
            hw_queues: match self.config.completion_rule {
                CompletionRule::Inline => SEVERAL,
                CompletionRule::SoftirqIfSingle => self.queue.hw_queues,
            },
            polled: false,
        };
        match (completion.place(), self.config.queue_mode, self.stack) {
            // `blk_complete_request` never completes directly.
            (CompleteOn::Here, QueueMode::Rq, None) => CompleteOn::Softirq,
            (place, ..) => place,
        }
    }

    /// The place of completion of an original through `blk_complete_request`.
    fn place_of_original(&self, by: Context, issue: &Issue, shares_cache: bool) -> CompleteOn {
        let elsewhere = issue.origin.cpu != by.cpu.0;
        match self.config.rq_affinity {
            RqAffinity::Group if elsewhere && !shares_cache => CompleteOn::Ipi,
            RqAffinity::Force if elsewhere => CompleteOn::Ipi,
            _ => CompleteOn::Softirq,
        }
    }

    /// Submits a thread's bios.
    pub(in crate::world) fn go(
        &mut self,
        machine: &mut Machine<'_>,
        cpu: CpuId,
        thread: ThreadId,
        cost: Nanos,
    ) -> Turn {
        let by = Context { cpu, is_worker: false, is_interrupt: false };
        machine.threads.spend(cost);
        let io_context = machine.threads[thread].io_context;
        let plugs = self.queue.plug == PlugRule::PerContext;
        let plugs = plugs && machine.threads[thread].outbox.len() > 1;
        if plugs {
            self.plug(io_context);
        }
        let mut is_parked = false;
        while !is_parked && let Some(out) = machine.threads[thread].outbox.pop_front() {
            machine.threads.spend(machine.config.costs.submit);
            let bio = self.bios.make(&machine.threads, cpu, thread, &out);
            is_parked = self.enters(machine, by, bio, thread);
        }
        // A thread closes its plug before it sleeps.
        if plugs {
            self.unplug(machine.threads.now(), io_context);
            self.run_queues(machine, by);
        }
        // The queues may have given it a request since then.
        if self.bios.has_parked(thread) {
            machine.threads.charge_spent(cpu);
            return Turn::Block(Wait::Request);
        }
        Turn::Run(machine.threads.take_spent())
    }

    /// Stops a thread; its bios continue without it.
    pub(in crate::world) fn abandon(&mut self, machine: &mut Machine<'_>, thread: ThreadId) {
        let cpu = machine.threads.cpus.last_of(thread);
        let by = Context { cpu, is_worker: false, is_interrupt: true };
        while let Some(out) = machine.threads[thread].outbox.pop_front() {
            let bio = self.bios.make(&machine.threads, by.cpu, thread, &out);
            self.enters(machine, by, bio, thread);
        }
        self.exit_context(machine.threads.now(), machine.threads[thread].io_context);
        self.end_interrupt(machine, by);
    }

    /// Submits a bio; returns whether its thread waits for a request.
    fn enters(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        bio: Bio,
        thread: ThreadId,
    ) -> bool {
        let now = machine.threads.now();
        machine.threads.observers.note_submit(now, &bio, thread, 0);
        if matches!(self.queues, Queues::Bios) {
            self.causes.issued += 1;
            machine.threads.spend(self.config.end);
            self.ended.push(Done { user: bio.user, status: BlkStatus::Ok });
            self.deliver(machine);
            return false;
        }
        let at = now + machine.threads.spent();
        if self.submit(at, now, bio) == Submitted::Parked {
            self.bios.park(bio.user, thread);
        }
        if let Some(stack) = self.stack {
            machine.threads.spend(stack.costs.request);
        }
        self.run_queues(machine, by);
        self.bios.has_parked(thread)
    }

    /// Dispatches as many requests as the device accepts.
    pub(super) fn run_queues(&mut self, machine: &mut Machine<'_>, by: Context) {
        let now = machine.threads.now();
        match &mut self.queues {
            Queues::Bios => {}
            Queues::One(_) => self.run_one(machine, by),
            Queues::Stacked(queue) => {
                let mut dispatched = std::mem::take(&mut self.dispatched);
                let before = queue.counters().clones;
                queue.dispatch(now, by.cpu.0, &mut dispatched);
                let clones = queue.counters().clones - before;
                let costs = self.stack.expect("it is what makes it stacked").costs;
                self.pay_elevator(&mut machine.threads, by.cpu);
                self.lock_paths(&mut machine.threads, clones, &costs);
                dispatched.drain(..).for_each(|what| self.dispatched(machine, by, what));
                self.dispatched = dispatched;
            }
        }
        self.deliver(machine);
    }

    /// Dispatches from the device's only queue. A completion may let the elevator dispatch more.
    fn run_one(&mut self, machine: &mut Machine<'_>, by: Context) {
        let mut issues = std::mem::take(&mut self.issues);
        while self.dispatches(&mut machine.threads, by.cpu)
            && let Queues::One(queue) = &mut self.queues
        {
            queue.dispatch(machine.threads.now(), &mut issues);
            self.pay_elevator(&mut machine.threads, by.cpu);
            if issues.is_empty() {
                break;
            }
            issues.drain(..).for_each(|issue| self.give(machine, by, issue));
        }
        self.issues = issues;
    }

    /// The worker of a path's hardware queue runs it.
    pub(super) fn run_path(&mut self, machine: &mut Machine<'_>, by: Context, hctx: u16) {
        let Queues::Stacked(queue) = &mut self.queues else {
            unreachable!("only a stacked queue has the work of a path");
        };
        let mut dispatched = std::mem::take(&mut self.dispatched);
        queue.run_path(machine.threads.now(), PATH, hctx, &mut dispatched);
        dispatched.drain(..).for_each(|what| self.dispatched(machine, by, what));
        self.dispatched = dispatched;
    }

    fn dispatched(&mut self, machine: &mut Machine<'_>, by: Context, what: Dispatched) {
        match what {
            Dispatched::Issue { issue, .. } => self.give(machine, by, issue),
            Dispatched::Run { hctx, .. } => self.call(machine, by, Work::Lower(hctx)),
        }
    }

    /// Issues a request to the device; a worker does that in separate turns.
    fn give(&mut self, machine: &mut Machine<'_>, by: Context, issue: Issue) {
        if by.is_worker {
            self.workers.of(by.cpu).issues.push_back(issue);
        } else {
            self.issue(machine, by, issue);
        }
    }

    /// Calls a worker.
    fn call(&mut self, machine: &mut Machine<'_>, by: Context, work: Work) {
        let stack = self.stack.expect("only a stacked queue has workers");
        self.causes.calls += 1;
        let queue = if let Work::Upper(_) = work { stack.upper } else { self.queue };
        let Some(cpu) = self.workers.queue(work, &queue, by.cpu) else { return };
        machine.threads.spend(stack.costs.queue_work);
        let worker = self.workers.of(cpu).thread.expect("each CPU has one");
        machine.threads.wake_from(worker, Wait::Work);
    }

    /// The device has a request.
    pub(super) fn issue(&mut self, machine: &mut Machine<'_>, by: Context, issue: Issue) {
        let threads = &mut machine.threads;
        self.at_device += 1;
        threads.observers.causes.issued_sectors += issue.len.0;
        threads.observers.causes.write_requests += u64::from(issue.op == Op::Write);
        threads.spend(machine.config.costs.issue);
        self.causes.issued += 1;
        self.causes.issued_by_workers += u64::from(by.is_worker);
        if let Some(stack) = &self.stack {
            let above = stack.upper.hctx_of(issue.origin.cpu);
            self.causes.crossed += u64::from(above != issue.tag.hctx);
        }
        let tag = self.number_of(&issue);
        let done_at = threads.now() + threads.spent() + self.config.completion;
        let Issue { op, sector, len, .. } = issue;
        let sectors = u32::try_from(len.0).expect("requests are short");
        let in_flight = self.at_device;
        threads.event(Event::Issue { tag, op, sector: sector.0, sectors, in_flight });
        match self.config.irqmode {
            IrqMode::Timer => {
                self.interrupts.schedule(done_at, Interrupt::Timer(by.cpu, issue));
            }
            IrqMode::Softirq => self.complete(machine, by, issue),
            IrqMode::None => {
                self.note_done(machine, &issue);
                self.request_ended(machine, by, issue);
            }
        }
    }

    fn note_done(&mut self, machine: &mut Machine<'_>, issue: &Issue) {
        self.at_device -= 1;
        let tag = self.number_of(issue);
        machine.threads.event(Event::Complete { tag });
    }

    /// The device has completed a request on a CPU.
    fn complete(&mut self, machine: &mut Machine<'_>, by: Context, issue: Issue) {
        self.note_done(machine, &issue);
        let distance = distance(machine.config.topology, by, &issue);
        match self.place(by, &issue, distance == Distance::SameCache) {
            CompleteOn::Here => self.request_ended(machine, by, issue),
            CompleteOn::Softirq => self.raise(machine, by, Softirq::Request(issue)),
            CompleteOn::Ipi => self.call_cpu(machine, distance, Softirq::Request(issue)),
        }
    }

    /// Ends a device's request, and now or later the clone's original.
    fn request_ended(&mut self, machine: &mut Machine<'_>, by: Context, issue: Issue) {
        let distance = distance(machine.config.topology, by, &issue);
        let near = distance == Distance::SameCache;
        machine.threads.spend(self.config.end);
        self.causes.ended_elsewhere += u64::from(issue.origin.cpu != by.cpu.0);
        match &mut self.queues {
            Queues::Bios => unreachable!("bios are no requests"),
            Queues::One(queue) => {
                queue.complete(machine.threads.now(), issue.tag, BlkStatus::Ok);
                self.pay_completion(&mut machine.threads, by.cpu);
            }
            Queues::Stacked(queue) => match queue.config().stacking.complete_by {
                CompleteBy::Here => self.original_ends(machine, by, issue),
                CompleteBy::Softirq => match self.place_of_original(by, &issue, near) {
                    CompleteOn::Ipi => self.call_cpu(machine, distance, Softirq::Original(issue)),
                    _ => self.raise(machine, by, Softirq::Original(issue)),
                },
            },
        }
        self.deliver(machine);
    }

    fn original_ends(&mut self, machine: &mut Machine<'_>, by: Context, issue: Issue) {
        let stack = self.stack.expect("an original is in a stacked queue");
        let Queues::Stacked(queue) = &mut self.queues else {
            unreachable!("an original is in a stacked queue");
        };
        let now = machine.threads.now();
        let completed = queue.complete(now, PATH, issue.tag, Answer::done(&issue));
        let waits = queue.upper().has_work();
        machine.threads.spend(stack.costs.end);
        if completed.run && (waits || !stack.run_looks_first) {
            self.call(machine, by, Work::Upper(stack.upper.hctx_of(by.cpu.0)));
        }
        self.deliver(machine);
    }

    /// Raises the softirq of this CPU.
    fn raise(&mut self, machine: &mut Machine<'_>, by: Context, what: Softirq) {
        self.causes.softirqs += 1;
        let softirq = &mut self.softirqs[usize::from(by.cpu.0)];
        softirq.raised.push_back(what);
        let wakes = softirq.raised.len() == 1 && !by.is_interrupt;
        if let Some(thread) = softirq.thread.filter(|_| wakes) {
            machine.threads.wake_from(thread, Wait::Work);
        }
    }

    /// Something is to be done in the softirq of the CPU that submitted the request.
    fn call_cpu(&mut self, machine: &mut Machine<'_>, distance: Distance, what: Softirq) {
        let (Softirq::Request(issue) | Softirq::Original(issue)) = what;
        let called = CpuId(issue.origin.cpu);
        let exit = machine.threads.cpus.cost_of_function(machine.threads.now(), called);
        machine.threads.spend(exit);
        let after = machine.config.costs.call(distance);
        let at = machine.threads.now() + after + machine.threads.spent();
        self.interrupts.schedule(at, Interrupt::Call(called, what));
    }

    pub(super) fn run_softirq(&mut self, machine: &mut Machine<'_>, by: Context, what: Softirq) {
        match what {
            Softirq::Request(issue) => self.request_ended(machine, by, issue),
            Softirq::Original(issue) => self.original_ends(machine, by, issue),
        }
    }

    /// Handles an event outside threads.
    pub(in crate::world) fn advance(&mut self, machine: &mut Machine<'_>) {
        let now = machine.threads.now();
        let due = self.interrupts.next_at().is_some_and(|at| at <= now);
        let interrupt = if due { self.interrupts.take() } else { None };
        let cpu = match &interrupt {
            Some((
                _,
                Interrupt::Timer(cpu, _) | Interrupt::Call(cpu, _) | Interrupt::Dispatch(cpu),
            )) => *cpu,
            None => KEEPER,
        };
        let by = Context { cpu, is_worker: false, is_interrupt: true };
        machine.threads.running_on = Some(cpu);
        match interrupt {
            Some((_, Interrupt::Timer(_, issue))) => {
                machine.threads.spend(machine.config.costs.interrupt);
                self.complete(machine, by, issue);
            }
            Some((_, Interrupt::Call(_, what))) => {
                machine.threads.spend(machine.config.costs.interrupt);
                self.run_softirq(machine, by, what);
            }
            // The queues are run below, and this CPU is in its loop already.
            Some((_, Interrupt::Dispatch(_))) | None => {}
        }
        self.end_interrupt(machine, by);
        machine.threads.running_on = None;
    }

    /// Runs the softirqs raised by an interrupt at its end; its CPU pays.
    fn end_interrupt(&mut self, machine: &mut Machine<'_>, by: Context) {
        self.run_queues(machine, by);
        while let Some(what) = self.softirqs[usize::from(by.cpu.0)].raised.pop_front() {
            self.run_softirq(machine, by, what);
            self.run_queues(machine, by);
        }
        machine.threads.charge_spent(by.cpu);
    }

    /// Passes ended bios to their waiters.
    fn deliver(&mut self, machine: &mut Machine<'_>) {
        let now = machine.threads.now();
        let mut done = std::mem::take(&mut self.done);
        self.take_done(&mut done);
        for Done { user, status } in done.drain(..) {
            let bio = (user, self.bios.bytes(user));
            machine.threads.observers.note_end(now, bio, status, 0);
            self.bios.end(machine, user, status);
        }
        self.done = done;
        let mut unparked = std::mem::take(&mut self.unparked);
        self.take_unparked(&mut unparked);
        self.bios.wake_parked(&mut machine.threads, &mut unparked);
        self.unparked = unparked;
    }

    /// Numbers the tags of all hardware queues consecutively.
    fn number_of(&self, issue: &Issue) -> u32 {
        u32::from(issue.tag.hctx) * self.config.hw_queue_depth + issue.tag.index
    }
}

/// Distance of a context from the submitter of a request.
fn distance(topology: Topology, by: Context, issue: &Issue) -> Distance {
    topology.distance(by.cpu, CpuId(issue.origin.cpu))
}
