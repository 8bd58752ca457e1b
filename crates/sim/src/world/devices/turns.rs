//! The bios of a thread in its turns, and the actions of interrupts ([`super::super::actions`]).

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::mq::PlugRule;
use blockyard_engine::time::Nanos;

use super::super::actions::{Action, AtDevice, Context, Dispatched, Interrupt, Next};
use super::super::bandwidth::Traffic;
use super::super::config::{Config, DeviceConfig};
use super::super::machine::Machine;
use super::super::thread::Turn;
use super::super::trace::Wait;
use super::{Backend, Devices, KEEPER};
use crate::cpu::{CpuId, ThreadId};

impl Devices {
    /// Submits the thread's bios after a burst of `cost`. `waits`: the thread will wait for them.
    pub(in crate::world) fn go(
        &mut self,
        machine: &mut Machine<'_>,
        (cpu, thread): (CpuId, ThreadId),
        waits: bool,
        cost: Nanos,
    ) -> Turn {
        let is_mapped = match &mut self.backend {
            Backend::Null(null) => return null.go(machine, cpu, thread, cost),
            Backend::Mapped(_) => true,
            Backend::Queue => false,
        };
        let per_context = machine.config.queue.plug == PlugRule::PerContext;
        // A lone bio has no other to merge with in its plug, unless it is split.
        let alone = if is_mapped { 0 } else { 1 };
        let submitter = &mut machine.threads[thread];
        submitter.defer_cost(cost);
        if per_context && submitter.outbox.len() > alone {
            self.open_plug(machine, thread);
        } else if !per_context && (waits || is_mapped) {
            submitter.pending.unplugs = true;
        }
        self.proceed(machine, cpu, thread).unwrap_or(Turn::Run(Nanos(0)))
    }

    /// Opens a plug, which is closed when the thread has nothing more to submit.
    pub(super) fn open_plug(&mut self, machine: &mut Machine<'_>, thread: ThreadId) {
        let submitter = &mut machine.threads[thread];
        submitter.pending.unplugs = true;
        let io_context = submitter.io_context;
        for member in &mut self.members {
            member.block.queue().plug(io_context);
        }
    }

    /// Performs the action paid for by the last burst, and starts the next burst; `None` after the
    /// last bio.
    pub(super) fn proceed(
        &mut self,
        machine: &mut Machine<'_>,
        cpu: CpuId,
        thread: ThreadId,
    ) -> Option<Turn> {
        let by = Context::Thread(cpu, thread);
        loop {
            if let Some(paid) = machine.threads[thread].pending.paid.take()
                && self.perform_next(machine, by, thread, paid)
            {
                let pending = &mut machine.threads[thread].pending;
                (pending.parked, pending.unplugs) = (true, true);
            }
            let next = machine.threads[thread].next_action();
            if next.is_none() && self.close_plug(machine, by, thread) {
                continue;
            }
            if next.is_none() && std::mem::take(&mut machine.threads[thread].pending.parked) {
                // It may have got its request while issuing its dispatched ones.
                if self.bios.has_parked(thread) {
                    return Some(Turn::Block(Wait::Request));
                }
                continue;
            }
            self.add_traffic(machine, thread, next);
            let deferred = std::mem::take(&mut machine.threads[thread].pending.deferred);
            let at = machine.threads.now() + deferred;
            let cost = next.map_or(deferred, |next| {
                deferred + self.cost_of_next(machine, (cpu, at), thread, next)
            });
            machine.threads[thread].pending.paid = next;
            if cost > Nanos(0) || next.is_none() {
                return (cost > Nanos(0)).then_some(Turn::Run(cost));
            }
        }
    }

    fn cost_of_next(
        &mut self,
        machine: &Machine<'_>,
        by: (CpuId, Nanos),
        thread: ThreadId,
        next: Next,
    ) -> Nanos {
        match next {
            Next::Issue => {
                let issue = machine.threads[thread].pending.issues[0];
                self.cost_of_issue(machine.config, &issue)
            }
            Next::Bio => machine.config.costs.submit,
            Next::HandOver => self.cost_of_hand_over(by, thread),
            Next::Step => {
                let step = machine.threads[thread].pending.todo[0];
                self.cost_of_step(machine.config, by, &step)
            }
        }
    }

    /// Adds the traffic of an action to the burst that pays for it.
    fn add_traffic(&mut self, machine: &mut Machine<'_>, thread: ThreadId, next: Option<Next>) {
        if machine.config.bandwidth.is_none() {
            return;
        }
        let pending = &machine.threads[thread].pending;
        let traffic = match next {
            Some(Next::Step) => self.traffic_of_step(machine.config, &pending.todo[0]),
            Some(Next::Issue) => traffic_of_issue(machine.config, &pending.issues[0]),
            Some(Next::Bio | Next::HandOver) | None => return,
        };
        machine.threads.adds(thread, traffic);
    }

    /// Closes a thread's plug; false if it was empty.
    fn close_plug(&mut self, machine: &mut Machine<'_>, by: Context, thread: ThreadId) -> bool {
        let submitter = &mut machine.threads[thread];
        if !std::mem::take(&mut submitter.pending.unplugs) {
            return false;
        }
        let io_context = submitter.io_context;
        for member in &mut self.members {
            member.block.queue().unplug(machine.threads.now(), io_context);
        }
        self.run_queue(machine, by);
        true
    }

    /// Closes the thread's plug before it waits for I/O, which may take a burst.
    pub(in crate::world) fn unplug_for(
        &mut self,
        machine: &mut Machine<'_>,
        cpu: CpuId,
        thread: ThreadId,
    ) -> Option<Turn> {
        machine.threads[thread].pending.unplugs = true;
        self.proceed(machine, cpu, thread)
    }

    /// Interrupts a CPU, with an action after the cost is paid.
    pub(super) fn interrupt(&mut self, machine: &mut Machine<'_>, cpu: CpuId, mut action: Action) {
        if let Action::Step(step) = &mut action {
            step.via = self.via_of_interrupt(&machine.threads, cpu, step);
        }
        let now = machine.threads.now();
        let cost = self.cost_of(machine.config, (cpu, now), &action);
        let at = machine.threads.charge(cpu, cost);
        let traffic = match &action {
            Action::Step(step) => self.traffic_of_step(machine.config, step),
            Action::Issue(issue) => traffic_of_issue(machine.config, issue),
            _ => Traffic::default(),
        };
        let least = at.since(now);
        let socket = machine.config.topology.socket_of(cpu);
        let flow = machine.threads.begin_flow(traffic, socket, least);
        self.interrupts.schedule(at, Interrupt { cpu, action, flow });
    }

    /// Ends an interrupt whose cost is paid.
    pub(super) fn interrupt_ends(&mut self, machine: &mut Machine<'_>) {
        let Some((now, interrupt)) = self.interrupts.take() else { return };
        let Interrupt { cpu, action, flow } = interrupt;
        if let Some(until) = flow.and_then(|flow| machine.threads.flow_end(flow)) {
            // Its CPU waits for memory.
            let at = machine.threads.charge(cpu, until.since(now));
            return self.interrupts.schedule(at.max(until), interrupt);
        }
        machine.threads.running_on = Some(cpu);
        self.perform(machine, Context::Interrupt(cpu), action);
        machine.threads.running_on = None;
    }

    fn cost_of(&mut self, config: &Config, by: (CpuId, Nanos), action: &Action) -> Nanos {
        match action {
            Action::Issue(issue) => self.cost_of_issue(config, issue),
            Action::Interrupted(tag) => self.cost_of_interrupt(config, by.0, *tag),
            Action::Completed(tag) => self.cost_of_completion(config, *tag),
            Action::Step(step) => self.cost_of_step(config, by, step),
            Action::Called(_) | Action::Timeout(_) => Nanos(0),
        }
    }

    /// Performs the next action of a thread, which is of this kind. Returns whether the thread must
    /// wait for a request.
    fn perform_next(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        thread: ThreadId,
        next: Next,
    ) -> bool {
        let submitter = &mut machine.threads[thread];
        match next {
            Next::Bio => {
                let out = submitter.outbox.pop_front().expect("the next action is a bio");
                self.submit(machine, by, thread, &out)
            }
            Next::HandOver => {
                submitter.pending.hands_over = false;
                self.hand_over_batch(machine, thread);
                false
            }
            Next::Issue => {
                let issue = submitter.pending.issues.pop_front();
                self.issue_to_device(machine, by, issue.expect("the next action is an issue"));
                false
            }
            Next::Step => {
                let step = submitter.pending.todo.pop_front();
                self.execute(machine, by, step.expect("the next action is a step"))
            }
        }
    }

    /// Performs an action of an interrupt.
    fn perform(&mut self, machine: &mut Machine<'_>, by: Context, action: Action) {
        match action {
            Action::Issue(issue) => self.issue_to_device(machine, by, issue),
            Action::Interrupted(tag) => self.interrupted(machine, by, tag),
            Action::Called(tag) => self.interrupt(machine, by.cpu(), Action::Completed(tag)),
            Action::Completed(tag) => self.end_request(machine, by, tag),
            Action::Step(step) => {
                // An interrupt cannot wait for a request; its bio is parked.
                self.execute(machine, by, step);
            }
            Action::Timeout(token) => self.answer(machine, by, token, BlkStatus::Ok),
        }
    }

    /// Stops a thread; its started work continues without it.
    pub(super) fn abandon(&mut self, machine: &mut Machine<'_>, thread: ThreadId) {
        let by = Context::Interrupt(machine.threads.cpus.last_of(thread));
        let pending = &mut machine.threads[thread].pending;
        (pending.paid, pending.hands_over) = (None, true);
        while let Some(next) = machine.threads[thread].next_action() {
            self.perform_next(machine, by, thread, next);
        }
        self.take_over(machine);
    }

    /// Issues pending requests; no thread runs any more.
    pub(super) fn release_issues(&mut self, machine: &mut Machine<'_>) {
        for thread in machine.threads.ids() {
            for issue in std::mem::take(&mut machine.threads[thread].pending.issues) {
                self.issue_to_device(machine, Context::Interrupt(KEEPER), issue);
            }
        }
    }

    /// On a RAM disk the issuing context copies, and ends the bios.
    fn cost_of_issue(&mut self, config: &Config, request: &Dispatched) -> Nanos {
        let Dispatched { member, issue } = *request;
        match &config.device {
            DeviceConfig::Memory(memory) => {
                config.costs.issue
                    + memory.copy(issue.len)
                    + self.cost_of_ends(AtDevice { member, tag: issue.tag })
            }
            _ => config.costs.issue,
        }
    }
}

/// Traffic of the issue of a request: a RAM disk's copy.
fn traffic_of_issue(config: &Config, Dispatched { issue, .. }: &Dispatched) -> Traffic {
    let Some(bandwidth) = config.bandwidth.filter(|_| config.device.is_memory()) else {
        return Traffic::default();
    };
    let home = config.topology.socket_of(CpuId(issue.origin.cpu));
    Traffic { bytes: issue.len.bytes() * u64::from(bandwidth.copy_percent) / 100, home }
}
