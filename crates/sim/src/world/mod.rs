//! The world: programs run on CPUs, over a page cache, a file system, a queue and a device.
//!
//! ```text
//!   task ── call ──> page cache ── miss, write-back ──> file system ── extents ──> bios
//!                      ^ flushers, journal                                          │
//!                      └───────────── ended ── request queue, elevator <────────────┘
//!                                              device model
//! ```
//! Time advances from event to event: a timer, the queue or the device, or the end of a burst.
//! Events at one moment occur in this order, after the ends of flows through memory. A thread acts
//! in turns: it runs for the cost of an action, then performs it or waits.
//!
//! Left out: reads of metadata other than bitmaps, partial pages, memory pressure on writers, swap.

mod actions;
mod background;
mod bandwidth;
mod calls;
mod causes;
mod clock;
mod config;
mod devices;
mod files;
mod in_flight;
mod machine;
mod observers;
mod pools;
#[cfg(test)]
mod tests;
mod thread;
mod threads;
mod trace;

use std::collections::BTreeMap;

use blockyard_engine::priority::Priority;
use blockyard_engine::time::{Nanos, earlier};
use blockyard_workload::program::{Program, Task};

use self::devices::Devices;
use self::machine::Machine;
use self::thread::{Doing, Kind, Turn};
use crate::cpu::{Affinity, CpuId, ThreadId};

pub use causes::{
    Causes, CryptCauses, ElevatorCounters, MemoryCauses, NullCauses, Outcome, Spread,
};
pub use config::{
    ActiveLimit, BandwidthConfig, Below, CallCosts, CompletionRule, Config, Cryptd, DeviceConfig,
    ElevatorCosts, ElevatorLock, FsyncOrder, Housekeeping, InterruptConfig, IrqMode, MappedConfig,
    MappedCosts, NullConfig, PagesConfig, QueueMode, RaidConfig, RamConfig, SHARD_CORES, Scope,
    StackConfig, StackCosts, Workqueue, WriteBack,
};
pub use trace::{Event, Observer, Role, Wait};

/// Limit of a run: ten simulated days.
const LONGEST_RUN: Nanos = Nanos::from_ms(10 * 24 * 3_600_000);

/// A running world.
struct World<'a, T> {
    machine: Machine<'a>,
    devices: Devices,
    /// The tasks of the phase, by their threads.
    tasks: BTreeMap<ThreadId, T>,
    /// Number of foreground tasks that have not ended.
    left: usize,
}

/// Runs a program from its first phase to its last.
///
/// # Errors
/// The finding of an oracle: a thread waits without any event, or something is left at the end.
pub fn run<P: Program, O: Observer>(
    config: &Config,
    program: &mut P,
    mut observer: O,
) -> Result<(Outcome, O), String> {
    let mut world = World::new(config, &mut observer);
    let mut ended = Nanos(0);
    let mut cpu_busy = Nanos(0);
    while let Some(phase) = program.next_phase() {
        let started = world.now();
        world.start(phase.tasks, phase.background);
        while world.left > 0 {
            world.step()?;
        }
        ended = world.now();
        cpu_busy = world.machine.threads.cpus.busy(ended);
        program.end_phase(started, ended, world.stop());
    }
    world.drain()?;
    let outcome = world.outcome(ended, cpu_busy);
    Ok((outcome, observer))
}

impl<'a, T: Task> World<'a, T> {
    fn new(config: &'a Config, observer: &'a mut dyn Observer) -> Self {
        let mut machine = Machine::new(config, observer);
        let mut devices = Devices::new(config);
        for _ in 0..config.write_back.flushers {
            machine.threads.spawn(Kind::Flusher, Priority::default(), Affinity::Any);
        }
        machine.threads.spawn(Kind::Journal, Priority::default(), Affinity::Any);
        devices.spawn(&mut machine);
        background::spawn_housekeepers(&mut machine.threads, config);
        Self { machine, devices, tasks: BTreeMap::new(), left: 0 }
    }

    fn now(&self) -> Nanos {
        self.machine.threads.now()
    }

    /// Starts the tasks of a phase.
    fn start(&mut self, tasks: Vec<T>, background: Vec<T>) {
        self.left = tasks.len();
        let tasks = tasks.into_iter().map(|task| (task, false));
        for (task, background) in tasks.chain(background.into_iter().map(|task| (task, true))) {
            let affinity = match (task.cpus(), task.socket()) {
                ([], None) => Affinity::Any,
                ([], Some(socket)) => Affinity::Socket(socket),
                ([cpu], _) => Affinity::Cpu(CpuId(*cpu)),
                (cpus, _) => self.machine.threads.cpus.set_of(cpus),
            };
            let kind = Kind::Task { background };
            let thread = self.machine.threads.spawn(kind, task.priority(), affinity);
            self.tasks.insert(thread, task);
        }
    }

    /// Ends the phase; returns its tasks.
    fn stop(&mut self) -> Vec<T> {
        let tasks = std::mem::take(&mut self.tasks);
        for thread in tasks.keys().copied() {
            if !self.machine.threads[thread].is_over() {
                self.end_thread(thread);
            }
        }
        tasks.into_values().collect()
    }

    fn end_thread(&mut self, thread: ThreadId) {
        self.machine.threads[thread].over = true;
        let doing = &self.machine.threads[thread].doing;
        if let Doing::Write { handle: true, .. } | Doing::Create { handle: true, .. } = doing {
            let Machine { threads, files, .. } = &mut self.machine;
            files.end_handle(threads);
        }
        // Submits the pages that the thread was about to write back.
        self.devices.end_thread(&mut self.machine, thread);
        let now = self.now();
        self.machine.threads.cpus.exit(now, thread);
    }

    /// Handles the next event.
    fn step(&mut self) -> Result<(), String> {
        let timer = self.machine.threads.clock.timers.next_at();
        let device = self.devices.next_event();
        let memory = self.machine.threads.next_flow_end();
        let others = earlier(memory, self.machine.threads.cpus.next_event());
        let next = earlier(earlier(timer, device), others);
        let stuck = || format!("nothing happens any more: {}", self.blocked_tasks());
        let at = next.ok_or_else(stuck)?;
        if at > LONGEST_RUN {
            return Err(format!("the run has not ended after ten days: {}", self.blocked_tasks()));
        }
        self.machine.threads.clock.now = at;
        if memory == Some(at) {
            self.machine.threads.end_flows();
            self.devices.end_transfers(&mut self.machine);
        } else if timer == Some(at) {
            self.machine.threads.ring();
        } else if device == Some(at) {
            self.devices.advance(&mut self.machine);
        } else {
            while let Some((cpu, thread)) = self.machine.threads.cpus.take(at) {
                self.turn(cpu, thread);
            }
        }
        self.machine.threads.note_switches();
        Ok(())
    }

    fn blocked_tasks(&self) -> String {
        format!(
            "at {} ns {} tasks have not ended; waiting: {}",
            self.now().0,
            self.left,
            self.machine.threads.waiting()
        )
    }

    /// Handles a thread's turn.
    fn turn(&mut self, cpu: CpuId, thread: ThreadId) {
        self.machine.threads.running_on = Some(cpu);
        let begun = self.devices.continue_turn(&mut self.machine, cpu, thread);
        let turn = begun.unwrap_or_else(|| self.own_turn(cpu, thread));
        match turn {
            Turn::Run(burst) => {
                let now = self.now();
                self.machine.threads.cpus.run(now, cpu, burst);
                self.machine.threads.draw(cpu, thread);
            }
            Turn::Block(on) => self.machine.threads.block_on(cpu, thread, on),
            Turn::Exit => {
                if let Kind::Task { background: false } = self.machine.threads[thread].kind {
                    self.left -= 1;
                }
                self.machine.threads.block_on(cpu, thread, Wait::Exit);
                self.end_thread(thread);
            }
        }
        self.machine.threads.running_on = None;
    }

    /// A thread with nothing to submit continues its own work.
    fn own_turn(&mut self, cpu: CpuId, thread: ThreadId) -> Turn {
        let Self { machine, devices, tasks, .. } = self;
        match machine.threads[thread].kind {
            Kind::Housekeeper => background::keep_house(machine, thread),
            Kind::Flusher => background::flush(machine, devices, cpu, thread),
            Kind::Journal => background::journal(machine, devices, cpu, thread),
            Kind::Task { .. } => {
                let task = tasks.get_mut(&thread).expect("its phase has not ended");
                calls::go_on(machine, devices, task, (cpu, thread))
            }
            kind @ (Kind::Worker(_)
            | Kind::HostWorker
            | Kind::Writer
            | Kind::Kblockd(_)
            | Kind::Softirq(_)) => devices.turn(machine, (cpu, thread), kind),
        }
    }

    /// After the end of all tasks: lets I/O in flight end, and checks that nothing is left.
    fn drain(&mut self) -> Result<(), String> {
        while self.devices.needs_threads() {
            self.step()?;
        }
        self.devices.drain(&mut self.machine)
    }

    fn outcome(self, ended: Nanos, cpu_busy: Nanos) -> Outcome {
        let Self { machine: Machine { config, threads, .. }, mut devices, .. } = self;
        let counters = threads.cpus.counters();
        let mut causes = threads.observers.causes.clone();
        causes.switches = counters.switches;
        causes.wake_ups = counters.wake_ups;
        causes.memory = threads.memory_causes();
        devices.add_causes(&threads, &mut causes);
        let trace_hash = threads.observers.trace_hash();
        Outcome { ended, cpus: config.topology.cpus(), cpu_busy, trace_hash, causes }
    }
}
