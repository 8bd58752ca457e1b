//! The threads of a mapped device: workers and the writing thread.

use blockyard_engine::dm::crypt::pipeline::{Choice, Order, Pipeline, Submit};
use blockyard_engine::mq::PlugRule;
use blockyard_engine::sq::Place;
use blockyard_engine::time::Nanos;

use super::super::super::config::Cryptd;
use super::super::super::machine::Machine;
use super::super::super::pools::PoolId;
use super::super::super::thread::{Kind, Turn};
use super::super::super::threads::Threads;
use super::super::super::trace::Wait;
use super::super::Devices;
use super::Mapped;
use crate::cpu::{Affinity, CpuId, ThreadId};

/// Whether some part may be handled in this way.
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

impl Mapped {
    /// Spawns the workers and the writing thread of the pipeline, asleep.
    pub(in crate::world) fn spawn(&mut self, threads: &mut Threads<'_>) {
        let choice = self.config.pipeline;
        let place =
            |place| some(&choice, |pipeline| pipeline.read == place || pipeline.write == place);
        let cryptd = self.config.cryptd != Cryptd::Never;
        let mut workers: Vec<(PoolId, Affinity)> = Vec::new();
        if place(Place::Unbound) {
            workers.extend(self.pools.unbound_workers(&mut threads.cpus));
        }
        if place(Place::SameCpu) {
            workers.extend(self.pools.bound_workers());
        }
        if cryptd {
            workers.extend(self.pools.cryptd_workers());
        }
        for (pool, affinity) in workers {
            let worker = self.spawn_one(threads, Kind::Worker(pool), affinity);
            self.pools.sleep(pool, worker);
        }
        if some(&choice, |pipeline| matches!(pipeline.submit, Submit::Thread(_))) {
            self.writer = Some(self.spawn_one(threads, Kind::Writer, Affinity::Any));
        }
    }

    fn spawn_one(&self, threads: &mut Threads<'_>, kind: Kind, affinity: Affinity) -> ThreadId {
        if self.config.high_priority {
            threads.spawn_urgent(kind, affinity)
        } else {
            threads.spawn_asleep(kind, affinity)
        }
    }
}

impl Devices {
    /// A worker takes the next item, or sleeps.
    pub(in crate::world::devices) fn work(
        &mut self,
        machine: &mut Machine<'_>,
        (cpu, thread): (CpuId, ThreadId),
        pool: PoolId,
    ) -> Turn {
        if let Some(other) = self.mapped().pools.end(pool, thread) {
            machine.threads.wake_from(other, Wait::Work);
        }
        if let Some(item) = self.mapped().pools.take(pool, thread) {
            let lock = self.mapped().lock_time(pool, machine.threads.now(), cpu);
            machine.threads[thread].defer_cost(lock);
            machine.threads[thread].pending.todo.push_back(item);
            return self.proceed(machine, cpu, thread).unwrap_or(Turn::Run(Nanos(0)));
        }
        self.mapped().pools.sleep(pool, thread);
        Turn::Block(Wait::Work)
    }

    /// The writing thread takes a batch, submitted under one plug, or sleeps.
    pub(in crate::world::devices) fn write_out(
        &mut self,
        machine: &mut Machine<'_>,
        cpu: CpuId,
        thread: ThreadId,
    ) -> Turn {
        let Some(token) = self.mapped().wake.take() else { return Turn::Block(Wait::Work) };
        if machine.config.queue.plug == PlugRule::PerContext {
            self.open_plug(machine, thread);
        }
        let cost = self.take_batch(machine, cpu, thread, token);
        self.go(machine, (cpu, thread), true, cost)
    }
}
