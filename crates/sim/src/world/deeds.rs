//! What is paid for before it is done.
//!
//! A *context* is a thread, or an interrupt of a CPU. What it does for others takes it a burst, and
//! is done at the end of that burst: no device works on a request, and no worker runs, while who
//! submits is still at it.
//!
//! ```text
//!   thread     deed ── its cost, by the scheduler ──> done ── more deeds ──> ... ── its own work
//!   interrupt  deed ── its cost, at once, behind the CPU's other interrupts ──> done ── more deeds
//! ```

use std::collections::VecDeque;

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::mq::{Issue, PlugRule};
use blockyard_engine::request::Tag;
use blockyard_engine::sq::Token;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::Task;

use super::dm::Step;
use super::io::KEEPER;
use super::thread::Out;
use super::trace::{Observer, Wait};
use super::{DeviceConfig, Turn, World};
use crate::cpu::{CpuId, ThreadId};

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    Thread(CpuId, ThreadId),
    Interrupt(CpuId),
}

impl Context {
    pub(super) fn cpu(self) -> CpuId {
        match self {
            Self::Thread(cpu, _) | Self::Interrupt(cpu) => cpu,
        }
    }
}

/// What a context does at the end of a burst.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    /// A bio that a thread has made is submitted.
    Bio(ThreadId, Out),
    /// The device gets a request.
    Issue(Issue),
    /// The device has said that it has done a request.
    Interrupted(Tag),
    /// Another CPU calls this one to end a request.
    Called(Tag),
    /// It ends.
    Completed(Tag),
    /// A mapped device's step is executed.
    Step(Step),
    /// A mapped device is told that a time has passed.
    Timeout(Token),
}

/// Of what a thread's next deed is the first.
#[derive(Clone, Copy, Debug)]
enum Next {
    Issue,
    Step,
    Bio,
}

/// What a thread has still to do for its bios.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Its burst has paid for it.
    paid: Option<Next>,
    /// Dispatched, and not given to the device.
    issues: VecDeque<Issue>,
    /// Of mapped devices.
    pub(super) todo: VecDeque<Step>,
    /// The next burst pays for it too.
    owed: Nanos,
    /// It has to wait for a request, when the device has what was dispatched before.
    parked: bool,
    /// When nothing is left, its plug is closed.
    unplugs: bool,
}

impl<T: Task, O: Observer> World<'_, T, O> {
    /// Submits what the thread has made, behind a burst of `cost`. `waits`: it will wait for it.
    pub(super) fn go(&mut self, cpu: CpuId, thread: ThreadId, waits: bool, cost: Nanos) -> Turn {
        if self.null.is_some() {
            return self.go_null(cpu, thread, cost);
        }
        let is_mapped = self.mapped.is_some();
        let per_context = self.config.queue.plug == PlugRule::PerContext;
        // One bio has nobody to be merged with in its plug, unless it is cut.
        let alone = if is_mapped { 0 } else { 1 };
        let submitter = &mut self.threads[thread.0 as usize];
        submitter.pending.owed = submitter.pending.owed + cost;
        if per_context && submitter.outbox.len() > alone {
            self.open_plug(thread);
        } else if !per_context && (waits || is_mapped) {
            submitter.pending.unplugs = true;
        }
        self.proceed(cpu, thread).unwrap_or(Turn::Run(Nanos(0)))
    }

    /// What a thread holds back from now on it lets go when it has nothing more to submit.
    pub(super) fn open_plug(&mut self, thread: ThreadId) {
        let submitter = &mut self.threads[thread.0 as usize];
        submitter.pending.unplugs = true;
        let io_context = submitter.io_context;
        self.block.queue().plug(io_context);
    }

    /// Does what the thread's last burst has paid for, and begins the next one; nothing when it has
    /// come to the end of its bios.
    pub(super) fn proceed(&mut self, cpu: CpuId, thread: ThreadId) -> Option<Turn> {
        let (at, by) = (thread.0 as usize, Context::Thread(cpu, thread));
        loop {
            if let Some(paid) = self.threads[at].pending.paid.take() {
                let deed = self.deed(thread, paid);
                if self.happens(by, deed) {
                    let pending = &mut self.threads[at].pending;
                    (pending.parked, pending.unplugs) = (true, true);
                }
            }
            let next = self.next(thread);
            if next.is_none() && self.close_plug(by, thread) {
                continue;
            }
            if next.is_none() && std::mem::take(&mut self.threads[at].pending.parked) {
                // It may have got its request while it gave the device what it had dispatched.
                if self.parked.iter().any(|(_, parked)| *parked == thread) {
                    return Some(Turn::Block(Wait::Request));
                }
                continue;
            }
            let owed = std::mem::take(&mut self.threads[at].pending.owed);
            let cost = next.map_or(owed, |next| owed + self.cost_of_next(cpu, thread, next));
            self.threads[at].pending.paid = next;
            if cost > Nanos(0) || next.is_none() {
                return (cost > Nanos(0)).then_some(Turn::Run(cost));
            }
        }
    }

    fn next(&self, thread: ThreadId) -> Option<Next> {
        let doer = &self.threads[thread.0 as usize];
        match &doer.pending {
            Pending { issues, .. } if !issues.is_empty() => Some(Next::Issue),
            // A sleeper makes nothing new; what it has dispatched would wait for it.
            Pending { parked: true, .. } => None,
            Pending { todo, .. } if !todo.is_empty() => Some(Next::Step),
            _ => (!doer.outbox.is_empty()).then_some(Next::Bio),
        }
    }

    fn cost_of_next(&mut self, cpu: CpuId, thread: ThreadId, next: Next) -> Nanos {
        match next {
            Next::Issue => {
                let issue = self.threads[thread.0 as usize].pending.issues[0];
                self.cost_of_issue(&issue)
            }
            Next::Bio => self.config.costs.submit,
            Next::Step => {
                let step = self.threads[thread.0 as usize].pending.todo[0];
                self.cost_of_step(cpu, &step)
            }
        }
    }

    fn deed(&mut self, thread: ThreadId, next: Next) -> Deed {
        let doer = &mut self.threads[thread.0 as usize];
        let deed = match next {
            Next::Issue => doer.pending.issues.pop_front().map(Deed::Issue),
            Next::Step => doer.pending.todo.pop_front().map(Deed::Step),
            Next::Bio => doer.outbox.pop_front().map(|out| Deed::Bio(thread, out)),
        };
        deed.expect("what was next is the first still")
    }

    /// Lets go what the thread has held back; false if that was nothing.
    fn close_plug(&mut self, by: Context, thread: ThreadId) -> bool {
        let submitter = &mut self.threads[thread.0 as usize];
        if !std::mem::take(&mut submitter.pending.unplugs) {
            return false;
        }
        let io_context = submitter.io_context;
        self.block.queue().unplug(self.now, io_context);
        self.run_queue(by);
        true
    }

    /// The thread is about to wait for I/O: what is held back goes on first, which may take it a
    /// burst.
    pub(super) fn unplug_for(&mut self, cpu: CpuId, thread: ThreadId) -> Option<Turn> {
        self.threads[thread.0 as usize].pending.unplugs = true;
        self.proceed(cpu, thread)
    }

    /// The context has spent something that it did not know before.
    pub(super) fn owes(&mut self, by: Context, cost: Nanos) {
        match by {
            Context::Thread(_, thread) => {
                let pending = &mut self.threads[thread.0 as usize].pending;
                pending.owed = pending.owed + cost;
            }
            Context::Interrupt(cpu) => {
                self.cpus.charge(self.now, cpu, cost);
            }
        }
    }

    /// A CPU is interrupted, to do something when it has paid for it.
    pub(super) fn interrupt(&mut self, cpu: CpuId, deed: Deed) {
        let cost = self.cost_of(cpu, &deed);
        let at = self.cpus.charge(self.now, cpu, cost);
        self.interrupts.schedule(at, (cpu, deed));
    }

    /// An interrupt has paid for what it does.
    pub(super) fn interrupt_ends(&mut self) {
        let Some((_, (cpu, deed))) = self.interrupts.take() else { return };
        self.running_on = Some(cpu);
        self.happens(Context::Interrupt(cpu), deed);
        self.running_on = None;
    }

    fn cost_of(&mut self, cpu: CpuId, deed: &Deed) -> Nanos {
        match deed {
            Deed::Bio(..) => self.config.costs.submit,
            Deed::Issue(issue) => self.cost_of_issue(issue),
            Deed::Interrupted(tag) => self.cost_of_interrupt(cpu, *tag),
            Deed::Completed(_) => self.config.costs.complete,
            Deed::Step(step) => self.cost_of_step(cpu, step),
            Deed::Called(_) | Deed::Timeout(_) => Nanos(0),
        }
    }

    /// Who gives memory a request copies.
    fn cost_of_issue(&self, issue: &Issue) -> Nanos {
        let copy = match &self.config.device {
            DeviceConfig::Memory(memory) => memory.copy(issue.len),
            _ => Nanos(0),
        };
        self.config.costs.issue + copy
    }

    /// True if the context, a thread, has to wait for a request.
    fn happens(&mut self, by: Context, deed: Deed) -> bool {
        match deed {
            Deed::Bio(thread, out) => return self.submit(by, thread, &out),
            Deed::Issue(issue) => self.issue_to_device(by, issue),
            Deed::Interrupted(tag) => self.interrupted(by, tag),
            Deed::Called(tag) => self.interrupt(by.cpu(), Deed::Completed(tag)),
            Deed::Completed(tag) => self.end_request(by, tag),
            Deed::Step(step) => return self.execute(by, step),
            Deed::Timeout(token) => self.answer(by, token, BlkStatus::Ok),
        }
        false
    }

    /// The queue gives the device what that takes; ended bios go to whom they belong.
    pub(super) fn run_queue(&mut self, by: Context) {
        let mut issues = std::mem::take(&mut self.issues);
        self.block.dispatch(self.now, &mut issues);
        for issue in issues.drain(..) {
            self.device_owes += 1;
            match by {
                Context::Thread(_, thread) => {
                    self.threads[thread.0 as usize].pending.issues.push_back(issue);
                }
                Context::Interrupt(cpu) => self.interrupt(cpu, Deed::Issue(issue)),
            }
        }
        self.issues = issues;
        self.note_idle();
        self.deliver_block(by);
    }

    /// A thread is stopped in the middle: what it had begun goes on without it.
    pub(super) fn abandon(&mut self, thread: ThreadId) {
        let by = Context::Interrupt(self.cpus.last_of(thread));
        self.threads[thread.0 as usize].pending.paid = None;
        while let Some(next) = self.next(thread) {
            let deed = self.deed(thread, next);
            self.happens(by, deed);
        }
    }

    /// No thread runs any more: what the device is about to get it gets.
    pub(super) fn release_issues(&mut self) {
        for at in 0..self.threads.len() {
            for issue in std::mem::take(&mut self.threads[at].pending.issues) {
                self.issue_to_device(Context::Interrupt(KEEPER), issue);
            }
        }
    }
}
