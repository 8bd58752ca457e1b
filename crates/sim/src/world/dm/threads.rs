//! The threads of a mapped device: workers and the writing thread; and a task that submits to it.

use blockyard_engine::dm::crypt::pipeline::{Choice, Order, Pipeline, Submit};
use blockyard_engine::mq::PlugRule;
use blockyard_engine::sq::Place;
use blockyard_engine::time::Nanos;
use blockyard_load::program::Task;

use super::super::io::INTERRUPTED;
use super::super::thread::{Kind, Thread};
use super::super::trace::{Observer, Wait};
use super::super::{Sent, Turn, World};
use super::{Context, PoolId};
use crate::cpu::{Affinity, CpuId, ThreadId};

/// Whether some part may be handled so.
fn some(choice: &Choice, of: impl Fn(&Pipeline) -> bool) -> bool {
    match choice {
        Choice::Fixed(pipeline) => of(pipeline),
        Choice::Adaptive(_) => true,
    }
}

/// Whether batches are sorted.
pub(super) fn sorts(choice: &Choice) -> bool {
    matches!(choice, Choice::Fixed(pipeline) if pipeline.submit == Submit::Thread(Order::Sorted))
}

impl<T: Task, O: Observer> World<'_, T, O> {
    /// Makes the workers and the writing thread that the pipeline needs. They sleep.
    pub(in crate::world) fn spawn_mapped(&mut self) {
        let Some(mapped) = &self.mapped else { return };
        let choice = mapped.config.pipeline;
        let place =
            |place| some(&choice, |pipeline| pipeline.read == place || pipeline.write == place);
        let workers: Vec<(PoolId, Affinity)> =
            mapped.pools.workers(place(Place::Unbound), place(Place::SameCpu)).collect();
        for (pool, affinity) in workers {
            let worker = self.spawn_asleep(Kind::Worker(pool), affinity);
            self.mapped().pools.sleep(pool, worker);
        }
        if some(&choice, |pipeline| matches!(pipeline.submit, Submit::Thread(_))) {
            let writer = self.spawn_asleep(Kind::Writer, Affinity::Any);
            self.mapped().writer = Some(writer);
        }
    }

    fn spawn_asleep(&mut self, kind: Kind<T>, affinity: Affinity) -> ThreadId {
        let thread = self.cpus.spawn(affinity);
        self.put_to_sleep(kind, thread);
        thread
    }

    /// The turn of a worker: the next item, or sleep.
    pub(in crate::world) fn work(&mut self, cpu: CpuId, thread: ThreadId, pool: PoolId) -> Turn {
        let spent = match self.execute(cpu, thread) {
            (Sent::Parked, _) => return Turn::Block(Wait::Request),
            (Sent::All(spent), true) => return Turn::Run(spent),
            (Sent::All(spent), false) => spent,
        };
        let mapped = self.mapped();
        if let Some(item) = mapped.pools.take(pool) {
            let cost = mapped.config.costs.part + mapped.cipher_time(&item, cpu);
            self.threads[thread.0 as usize].pending.ciphering = Some(item);
            return Turn::Run(spent + cost);
        }
        if spent > Nanos(0) {
            return Turn::Run(spent);
        }
        mapped.pools.sleep(pool, thread);
        Turn::Block(Wait::Work)
    }

    /// The turn of the writing thread: a batch under one plug, then the next one, or sleep.
    pub(in crate::world) fn write_out(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        let mut spent = match self.execute(cpu, thread) {
            (Sent::Parked, _) => return Turn::Block(Wait::Request),
            (Sent::All(spent), true) => return Turn::Run(spent),
            (Sent::All(spent), false) => spent,
        };
        self.close_plug(thread);
        if let Some(token) = self.mapped().wake.take() {
            self.open_plug(thread);
            spent = spent + self.take_batch(cpu, thread, token);
            return Turn::Run(spent);
        }
        if spent > Nanos(0) { Turn::Run(spent) } else { Turn::Block(Wait::Work) }
    }

    /// A thread submits what it has made, and executes what that brings.
    pub(in crate::world) fn go_mapped(
        &mut self,
        cpu: CpuId,
        thread: ThreadId,
        cost: Nanos,
    ) -> Turn {
        let at = thread.0 as usize;
        let mut spent = cost;
        if !self.threads[at].outbox.is_empty() {
            self.open_plug(thread);
        }
        loop {
            match self.execute(cpu, thread) {
                (Sent::Parked, _) => return Turn::Block(Wait::Request),
                (Sent::All(more), true) => return Turn::Run(spent + more),
                (Sent::All(more), false) => spent = spent + more,
            }
            let Some(out) = self.threads[at].outbox.pop_front() else { break };
            spent = spent + self.config.costs.submit;
            let bio = self.bio_of(cpu, thread, &out);
            self.submit_mapped(Context::Thread(cpu, thread), bio, thread);
        }
        self.close_plug(thread);
        Turn::Run(spent + self.see_device())
    }

    fn open_plug(&mut self, thread: ThreadId) {
        let Thread { io_context, pending, .. } = &mut self.threads[thread.0 as usize];
        if self.config.queue.plug == PlugRule::PerContext && !pending.plugged {
            pending.plugged = true;
            self.block.queue().plug(*io_context);
        }
    }

    fn close_plug(&mut self, thread: ThreadId) {
        let Thread { io_context, pending, .. } = &mut self.threads[thread.0 as usize];
        let per_context = self.config.queue.plug == PlugRule::PerContext;
        if std::mem::take(&mut pending.plugged) || !per_context {
            self.block.queue().unplug(self.now, *io_context);
            self.run_block();
        }
    }

    /// A thread is stopped in the middle: what it had begun goes on without it.
    pub(in crate::world) fn abandon_mapped(&mut self, thread: ThreadId) {
        let by = Context::Interrupt(INTERRUPTED);
        while let Some(out) = self.threads[thread.0 as usize].outbox.pop_front() {
            let bio = self.bio_of(by.cpu(), thread, &out);
            self.submit_mapped(by, bio, thread);
        }
        let pending = std::mem::take(&mut self.threads[thread.0 as usize].pending);
        if let Some(step) = pending.ciphering {
            self.ciphered(by, step);
        }
        self.interrupts.extend(pending.todo.into_iter().map(|step| (by.cpu(), step)));
        self.run_interrupts();
    }
}
