//! The threads of a mapped device: workers and the writing thread.

use blockyard_engine::dm::crypt::pipeline::{Choice, Order, Pipeline, Submit};
use blockyard_engine::mq::PlugRule;
use blockyard_engine::sq::Place;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::Task;

use super::super::thread::Kind;
use super::super::trace::{Observer, Wait};
use super::super::{Turn, World};
use super::PoolId;
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

    /// A worker takes the next item, or sleeps.
    pub(in crate::world) fn work(&mut self, cpu: CpuId, thread: ThreadId, pool: PoolId) -> Turn {
        if let Some(item) = self.mapped().pools.take(pool) {
            self.threads[thread.0 as usize].pending.todo.push_back(item);
            return self.proceed(cpu, thread).unwrap_or(Turn::Run(Nanos(0)));
        }
        self.mapped().pools.sleep(pool, thread);
        Turn::Block(Wait::Work)
    }

    /// The writing thread takes a batch, which goes out under one plug, or sleeps.
    pub(in crate::world) fn write_out(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        let Some(token) = self.mapped().wake.take() else { return Turn::Block(Wait::Work) };
        if self.config.queue.plug == PlugRule::PerContext {
            self.open_plug(thread);
        }
        let cost = self.take_batch(cpu, thread, token);
        self.go(cpu, thread, true, cost)
    }
}
