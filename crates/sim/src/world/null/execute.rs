//! What contexts do: bios come in, requests go to the device and have been done, originals end.

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op};
use blockyard_engine::dm::multipath::stacked::{Answer, CompleteBy, Dispatched};
use blockyard_engine::mq::complete::{CompleteOn, Completion, RqAffinity};
use blockyard_engine::mq::{Issue, Submitted};
use blockyard_engine::time::Nanos;
use blockyard_workload::program::Task;

use super::super::io::KEEPER;
use super::super::trace::{Event, Observer, Wait};
use super::super::{Turn, World};
use super::{
    CompletionRule, Context, Interrupt, IrqMode, Null, PATH, QueueMode, Queues, Softirq, Work,
};
use crate::cpu::{CpuId, ThreadId};

/// More hardware queues than one, whatever the number is.
const SEVERAL: u16 = 2;

impl Null {
    /// Where a request of the device ends that was done on a CPU.
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
            // `blk_complete_request` never ends anything on the spot.
            (CompleteOn::Here, QueueMode::Rq, None) => CompleteOn::Softirq,
            (place, ..) => place,
        }
    }

    /// Where an original ends that goes through `blk_complete_request`.
    fn place_of_original(&self, by: Context, issue: &Issue, shares_cache: bool) -> CompleteOn {
        let elsewhere = issue.origin.cpu != by.cpu.0;
        match self.config.rq_affinity {
            RqAffinity::Group if elsewhere && !shares_cache => CompleteOn::Ipi,
            RqAffinity::Force if elsewhere => CompleteOn::Ipi,
            _ => CompleteOn::Softirq,
        }
    }
}

impl<T: Task, O: Observer> World<'_, T, O> {
    pub(super) fn null(&mut self) -> &mut Null {
        self.null.as_mut().expect("there is a null device")
    }

    /// A thread submits what it has made.
    pub(in crate::world) fn go_null(&mut self, cpu: CpuId, thread: ThreadId, cost: Nanos) -> Turn {
        let by = Context { cpu, is_worker: false, is_interrupt: false };
        self.null().spend(cost);
        while let Some(out) = self.threads[thread.0 as usize].outbox.pop_front() {
            let submit = self.config.costs.submit;
            self.null().spend(submit);
            let bio = self.bio_of(cpu, thread, &out);
            if self.enters_null(by, bio, thread) {
                self.parked.push((bio.user, thread));
                let spent = self.null().take_spent();
                self.cpus.charge(self.now, cpu, spent);
                return Turn::Block(Wait::Request);
            }
        }
        Turn::Run(self.null().take_spent())
    }

    /// A thread is stopped: what it has made goes on without it.
    pub(in crate::world) fn abandon_null(&mut self, thread: ThreadId) {
        let cpu = self.cpus.last_of(thread);
        let by = Context { cpu, is_worker: false, is_interrupt: true };
        while let Some(out) = self.threads[thread.0 as usize].outbox.pop_front() {
            let bio = self.bio_of(by.cpu, thread, &out);
            self.enters_null(by, bio, thread);
        }
        let (now, io_context) = (self.now, self.threads[thread.0 as usize].io_context);
        self.null().exit_context(now, io_context);
        self.end_interrupt(by);
    }

    /// A bio comes; true if it is parked.
    fn enters_null(&mut self, by: Context, bio: Bio, thread: ThreadId) -> bool {
        self.note_submit(&bio, thread);
        let now = self.now;
        let null = self.null();
        if matches!(null.queues, Queues::Bios) {
            null.causes.issued += 1;
            null.spend(null.config.end);
            null.ended.push(Done { user: bio.user, status: BlkStatus::Ok });
            self.deliver();
            return false;
        }
        let parked = null.submit(now, bio) == Submitted::Parked;
        if let Some(stack) = null.stack {
            null.spend(stack.costs.request);
        }
        self.run_queues(by);
        parked
    }

    /// Dispatches what the device takes.
    pub(super) fn run_queues(&mut self, by: Context) {
        let now = self.now;
        let null = self.null();
        match &mut null.queues {
            Queues::Bios => {}
            Queues::One(queue) => {
                let mut issues = std::mem::take(&mut null.issues);
                queue.dispatch(now, &mut issues);
                issues.drain(..).for_each(|issue| self.give(by, issue));
                self.null().issues = issues;
            }
            Queues::Stacked(queue) => {
                let mut dispatched = std::mem::take(&mut null.dispatched);
                let before = queue.counters().clones;
                queue.dispatch(now, by.cpu.0, &mut dispatched);
                let clones = queue.counters().clones - before;
                let costs = null.stack.expect("it is what makes it stacked").costs;
                null.lock_paths(now, clones, &costs);
                dispatched.drain(..).for_each(|what| self.dispatched(by, what));
                self.null().dispatched = dispatched;
            }
        }
        self.deliver();
    }

    /// The worker of a hardware queue of the path runs it.
    pub(super) fn run_path(&mut self, by: Context, hctx: u16) {
        let now = self.now;
        let null = self.null();
        let Queues::Stacked(queue) = &mut null.queues else {
            unreachable!("only a stacked queue has the work of a path");
        };
        let mut dispatched = std::mem::take(&mut null.dispatched);
        queue.run_path(now, PATH, hctx, &mut dispatched);
        dispatched.drain(..).for_each(|what| self.dispatched(by, what));
        self.null().dispatched = dispatched;
    }

    fn dispatched(&mut self, by: Context, what: Dispatched) {
        match what {
            Dispatched::Issue { issue, .. } => self.give(by, issue),
            Dispatched::Run { hctx, .. } => self.call(by, Work::Lower(hctx)),
        }
    }

    /// Gives a request to the device; a worker does that in turns of its own.
    fn give(&mut self, by: Context, issue: Issue) {
        match by.is_worker {
            true => self.null().workers.of(by.cpu).issues.push_back(issue),
            false => self.issue(by, issue),
        }
    }

    /// Asks for a worker.
    fn call(&mut self, by: Context, work: Work) {
        let null = self.null();
        let stack = null.stack.expect("only a stacked queue has workers");
        null.causes.calls += 1;
        let queue = if let Work::Upper(_) = work { stack.upper } else { null.queue };
        let Some(cpu) = null.workers.queue(work, &queue, by.cpu) else { return };
        null.spend(stack.costs.queue_work);
        let worker = null.workers.of(cpu).thread.expect("each CPU has one");
        self.wake_from(worker, Wait::Work);
    }

    /// The device has a request.
    pub(super) fn issue(&mut self, by: Context, issue: Issue) {
        let (now, cost) = (self.now, self.config.costs.issue);
        self.device_has += 1;
        self.causes.issued_sectors += issue.len.0;
        self.causes.write_requests += u64::from(issue.op == Op::Write);
        let in_flight = self.device_has;
        let null = self.null();
        null.spend(cost);
        null.causes.issued += 1;
        null.causes.issued_by_workers += u64::from(by.is_worker);
        if let Some(stack) = &null.stack {
            let above = stack.upper.hctx_of(issue.origin.cpu);
            null.causes.crossed += u64::from(above != issue.tag.hctx);
        }
        let tag = null.number_of(&issue);
        let irqmode = null.config.irqmode;
        let done_at = now + null.spent + null.config.completion;
        let Issue { op, sector, len, .. } = issue;
        let sectors = u32::try_from(len.0).expect("requests are short");
        self.trace.event(now, Event::Issue { tag, op, sector: sector.0, sectors, in_flight });
        match irqmode {
            IrqMode::Timer => {
                let interrupt = Interrupt::Timer(by.cpu, issue);
                self.null().interrupts.schedule(done_at, interrupt);
            }
            IrqMode::Softirq => self.complete(by, issue),
            IrqMode::None => {
                self.note_done(&issue);
                self.request_ended(by, issue);
            }
        }
    }

    fn note_done(&mut self, issue: &Issue) {
        self.device_has -= 1;
        let tag = self.null().number_of(issue);
        self.trace.event(self.now, Event::Complete { tag });
    }

    /// The device says, on a CPU, that it has done a request.
    fn complete(&mut self, by: Context, issue: Issue) {
        self.note_done(&issue);
        let near = self.shares_cache(by, &issue);
        match self.null().place(by, &issue, near) {
            CompleteOn::Here => self.request_ended(by, issue),
            CompleteOn::Softirq => self.raise(by, Softirq::Request(issue)),
            CompleteOn::Ipi => self.call_cpu(near, CpuId(issue.origin.cpu), issue, false),
        }
    }

    /// CPUs of a socket share a cache.
    fn shares_cache(&self, by: Context, issue: &Issue) -> bool {
        let topology = self.config.topology;
        topology.socket_of(by.cpu) == topology.socket_of(CpuId(issue.origin.cpu))
    }

    /// A request of the device ends. A clone's original does, too, now or later.
    fn request_ended(&mut self, by: Context, issue: Issue) {
        let (now, near) = (self.now, self.shares_cache(by, &issue));
        let null = self.null();
        null.spend(null.config.end);
        null.causes.ended_elsewhere += u64::from(issue.origin.cpu != by.cpu.0);
        match &mut null.queues {
            Queues::Bios => unreachable!("bios are no requests"),
            Queues::One(queue) => queue.complete(now, issue.tag, BlkStatus::Ok),
            Queues::Stacked(queue) => match queue.config().stacking.complete_by {
                CompleteBy::Here => self.original_ends(by, issue),
                CompleteBy::Softirq => match null.place_of_original(by, &issue, near) {
                    CompleteOn::Ipi => self.call_cpu(near, CpuId(issue.origin.cpu), issue, true),
                    _ => self.raise(by, Softirq::Original(issue)),
                },
            },
        }
        self.deliver();
    }

    fn original_ends(&mut self, by: Context, issue: Issue) {
        let now = self.now;
        let null = self.null();
        let stack = null.stack.expect("an original is in a stacked queue");
        let Queues::Stacked(queue) = &mut null.queues else {
            unreachable!("an original is in a stacked queue");
        };
        let completed = queue.complete(now, PATH, issue.tag, Answer::done(&issue));
        let waits = queue.upper().has_work();
        null.spend(stack.costs.end);
        if completed.run && (waits || !stack.run_looks_first) {
            self.call(by, Work::Upper(stack.upper.hctx_of(by.cpu.0)));
        }
        self.deliver();
    }

    /// Something is to be done in the softirq of this CPU.
    fn raise(&mut self, by: Context, what: Softirq) {
        let null = self.null();
        null.causes.softirqs += 1;
        let softirq = &mut null.softirqs[usize::from(by.cpu.0)];
        softirq.raised.push_back(what);
        let wakes = softirq.raised.len() == 1 && !by.is_interrupt;
        if let Some(thread) = softirq.thread.filter(|_| wakes) {
            self.wake_from(thread, Wait::Work);
        }
    }

    /// The same in that of another CPU.
    fn call_cpu(&mut self, near: bool, cpu: CpuId, issue: Issue, is_original: bool) {
        let costs = &self.config.costs;
        let after = if near { costs.ipi } else { costs.ipi_remote };
        let at = self.now + after;
        let what = if is_original { Softirq::Original(issue) } else { Softirq::Request(issue) };
        let null = self.null();
        let at = at + null.spent;
        null.interrupts.schedule(at, Interrupt::Call(cpu, what));
    }

    pub(super) fn run_softirq(&mut self, by: Context, what: Softirq) {
        match what {
            Softirq::Request(issue) => self.request_ended(by, issue),
            Softirq::Original(issue) => self.original_ends(by, issue),
        }
    }

    /// Something happens that no thread does.
    pub(in crate::world) fn advance_null(&mut self) {
        let now = self.now;
        let null = self.null();
        let due = null.interrupts.next_at().is_some_and(|at| at <= now);
        let interrupt = if due { null.interrupts.take() } else { None };
        let cpu = match &interrupt {
            Some((_, Interrupt::Timer(cpu, _) | Interrupt::Call(cpu, _))) => *cpu,
            None => KEEPER,
        };
        let by = Context { cpu, is_worker: false, is_interrupt: true };
        self.running_on = Some(cpu);
        if let Some((_, what)) = interrupt {
            let cost = self.config.costs.interrupt;
            self.null().spend(cost);
            match what {
                Interrupt::Timer(_, issue) => self.complete(by, issue),
                Interrupt::Call(_, what) => self.run_softirq(by, what),
            }
        }
        self.end_interrupt(by);
        self.running_on = None;
    }

    /// What an interrupt has raised is run when it ends; its CPU pays.
    fn end_interrupt(&mut self, by: Context) {
        self.run_queues(by);
        while let Some(what) = self.null().softirqs[usize::from(by.cpu.0)].raised.pop_front() {
            self.run_softirq(by, what);
            self.run_queues(by);
        }
        let spent = self.null().take_spent();
        self.cpus.charge(self.now, by.cpu, spent);
    }

    /// Tells who waits for what has ended.
    fn deliver(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.null().take_done(&mut done);
        for Done { user, status } in done.drain(..) {
            self.leaves_queue(user, self.in_flight.bytes(user), status);
            self.end_bio(user, status);
        }
        self.done = done;
        let mut unparked = std::mem::take(&mut self.unparked);
        self.null().take_unparked(&mut unparked);
        self.wake_parked(&mut unparked);
        self.unparked = unparked;
    }
}

impl Null {
    /// The tags of all hardware queues, counted through.
    fn number_of(&self, issue: &Issue) -> u32 {
        u32::from(issue.tag.hctx) * self.config.hw_queue_depth + issue.tag.index
    }
}
