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
use super::super::{Backend, Devices};
use super::Mapped;
use super::adaptive::{Look, SPIN_STEP, Taken};
use crate::cpu::{Affinity, CpuId, ThreadId};

/// Whether some part may be handled in this way.
fn some(choice: &Choice, of: impl Fn(&Pipeline) -> bool) -> bool {
    match choice {
        Choice::Fixed(pipeline) => of(pipeline),
        // Its workers are a server's, and a batch of writes is submitted where it is complete.
        Choice::Adaptive(_) => false,
    }
}

/// Whether batches are sorted.
pub(super) fn sorts(choice: &Choice) -> bool {
    matches!(choice, Choice::Fixed(pipeline) if pipeline.submit == Submit::Thread(Order::Sorted))
}

impl Mapped {
    /// Spawns the workers and the writing thread of the pipeline, asleep.
    pub(in crate::world) fn spawn(&mut self, threads: &mut Threads<'_>) {
        if let Some(workers) = &mut self.host_workers {
            for _ in 0..workers.workers() {
                workers.add_worker(threads.spawn_asleep(Kind::HostWorker, Affinity::Any));
            }
        }
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

    /// A worker of `adaptive` takes the next job, looks for one, or sleeps.
    pub(in crate::world::devices) fn work_for_host(
        &mut self,
        machine: &mut Machine<'_>,
        cpu: CpuId,
        thread: ThreadId,
    ) -> Turn {
        match self.host_workers().look(thread) {
            Look::Takes(taken) => self.run_job(machine, (cpu, thread), taken),
            Look::Spins => Turn::Run(SPIN_STEP),
            Look::Sleeps => Turn::Block(Wait::Work),
        }
    }

    /// A thread runs the ciphers of a job.
    fn run_job(
        &mut self,
        machine: &mut Machine<'_>,
        (cpu, thread): (CpuId, ThreadId),
        taken: Taken,
    ) -> Turn {
        if let Some(worker) = taken.woken {
            machine.threads.wake_from(worker, Wait::Work);
        }
        let lock = self.lock_of_jobs(taken.lane, machine.threads.now(), cpu);
        let worker = &mut machine.threads[thread];
        worker.defer_cost(lock);
        worker.pending.todo.extend(taken.steps);
        self.proceed(machine, cpu, thread).unwrap_or(Turn::Run(Nanos(0)))
    }

    /// The submitter looks for completions, and would otherwise sleep if `waits`. Returns what it
    /// does instead, with a device that is served by `adaptive`.
    pub(in crate::world) fn before_reap(
        &mut self,
        machine: &mut Machine<'_>,
        (cpu, thread): (CpuId, ThreadId),
        waits: bool,
    ) -> Option<Turn> {
        let Backend::Mapped(mapped) = &mut self.backend else { return None };
        let workers = mapped.host_workers.as_mut()?;
        workers.end_turn(thread);
        if workers.has_batch(thread) {
            machine.threads[thread].pending.hands_over = true;
            return Some(self.proceed(machine, cpu, thread).unwrap_or(Turn::Run(Nanos(0))));
        }
        if !waits {
            workers.has_reaped(thread);
            return None;
        }
        let lane = workers.lane_of(thread);
        if workers.has_work_at_workers(thread)
            && let Some(taken) = workers.take(lane)
        {
            return Some(self.run_job(machine, (cpu, thread), taken));
        }
        if workers.submitter_spins(thread) {
            return Some(Turn::Run(SPIN_STEP));
        }
        workers.sleeps(thread);
        None
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
