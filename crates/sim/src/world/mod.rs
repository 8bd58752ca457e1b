//! The world: programs run on CPUs, over a page cache, a file system, a queue and a device.
//!
//! ```text
//!   task ── call ──> page cache ── miss, write-back ──> file system ── extents ──> bios
//!                      ^ flushers, journal                                          │
//!                      └───────────── ended ── request queue, elevator <────────────┘
//!                                              device model
//! ```
//! Time goes from event to event: a timer, the queue or the device, or a CPU whose thread has ended
//! a burst. What happens at one moment happens in that order. A thread acts in turns: it runs for
//! as long as something costs, and then does it, or waits.
//!
//! What it leaves out: reads of metadata, partial pages, memory pressure on writers, swap.

mod background;
mod calls;
mod config;
mod deeds;
mod dm;
mod in_flight;
mod interrupts;
mod io;
mod null;
#[cfg(test)]
mod tests;
mod thread;
mod trace;

use std::collections::BTreeMap;

use blockyard_engine::bio::{BlkStatus, Done};
use blockyard_engine::mq::{self, Issue, QueueConfig};
use blockyard_engine::priority::Priority;
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::{FileId, Program, Task};

use self::background::Journal;
use self::deeds::{Context, Deed};
use self::dm::{Mapped, Step};
use self::in_flight::{InFlights, WriteBacks};
use self::interrupts::Submitters;
use self::null::Null;
use self::thread::{Kind, Thread, WritesUpTo};
use self::trace::Trace;
use crate::block::BlockDevice;
use crate::cache::PageCache;
use crate::cpu::{Affinity, CpuId, Cpus, ThreadId};
use crate::device::Device;
use crate::device::disk::DiskCounters;
use crate::fs::{Extent, FileSystem};
use crate::heap::EventHeap;

pub use config::{Config, DeviceConfig, Housekeeping, RamConfig, WriteBack};
pub use dm::{Below, CryptCauses, MappedConfig, MappedCosts, PagesConfig, Spread};
pub use interrupts::InterruptConfig;
pub use null::{
    CompletionRule, IrqMode, NullCauses, NullConfig, QueueMode, StackConfig, StackCosts,
};
pub use trace::{Event, Observer, Role, Wait};

/// A run that has not ended after ten days of its own time never does.
const LONGEST_RUN: Nanos = Nanos::from_ms(10 * 24 * 3_600_000);

/// What a run was like.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// When the last phase ended.
    pub ended: Nanos,
    /// The CPUs, and how long all of them together were busy until then.
    pub cpus: u16,
    /// In threads, switches and interrupts, whoever they were for.
    pub cpu_busy: Nanos,
    /// Of everything that happened, in order: two runs of one configuration have the same.
    pub trace_hash: u64,
    /// Causes, beside times.
    pub causes: Causes,
}

/// Why a run took as long as it did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Causes {
    /// Of the queue.
    pub queue: mq::Counters,
    /// Of a spinning disk.
    pub disk: Option<DiskCounters>,
    /// Sectors that the device was given.
    pub issued_sectors: u64,
    /// Write requests that it was given, and their sectors.
    pub write_requests: u64,
    /// Of them.
    pub write_sectors: u64,
    /// Write requests with bios of several io-contexts.
    pub mixed_write_requests: u64,
    /// Of a mapped device.
    pub crypt: Option<CryptCauses>,
    /// Of a null device.
    pub null: Option<NullCauses>,
    /// Time in which the device had nothing although bios waited: the elevator idled.
    pub idle_waiting: Nanos,
    /// Bytes that were in queue and device when a synchronous bio came, all together.
    pub bytes_ahead_of_sync: u64,
    /// Synchronous bios.
    pub sync_bios: u64,
    /// Requests that ended on another CPU than the device interrupted.
    pub ended_by_call: u64,
    /// CPUs that went over to another thread.
    pub switches: u64,
    /// Threads that were woken up.
    pub wake_ups: u64,
    /// Pages that reads found without waiting.
    pub page_hits: u64,
    /// Pages that were read.
    pub page_lookups: u64,
}

/// What a thread does with its turn.
enum Turn {
    /// It runs for so long, and then has the next turn.
    Run(Nanos),
    /// It waits.
    Block(Wait),
    /// It ends.
    Exit,
}

/// A thread is to be woken up, if it still waits for the same.
#[derive(Debug)]
struct Timer {
    thread: ThreadId,
    wait_number: u64,
}

/// The world while it runs. The flushers are the first threads, then comes the journal.
struct World<'a, T, O> {
    config: &'a Config,
    now: Nanos,
    timers: EventHeap<Timer>,
    cpus: Cpus,
    cache: PageCache,
    fs: Box<dyn FileSystem>,
    commit_interval: Nanos,
    block: BlockDevice<Box<dyn Device>>,
    mapped: Option<Mapped>,
    /// In place of queue and device.
    null: Option<Null>,
    /// What interrupts do when they have paid for it.
    interrupts: EventHeap<(CpuId, Deed)>,
    submitters: Submitters,
    threads: Vec<Thread<T>>,
    journal: Journal,
    in_flight: InFlights,
    write_backs: WriteBacks,
    /// Where the next turn of a file begins.
    cursors: BTreeMap<FileId, u64>,
    /// Foreground tasks that have not ended.
    left: usize,
    /// The CPU whose thread has its turn.
    running_on: Option<CpuId>,

    page_waiters: Vec<(ThreadId, FileId, u64)>,
    write_waiters: Vec<(ThreadId, FileId, WritesUpTo)>,
    commit_waiters: Vec<(ThreadId, u64)>,
    limit_waiters: Vec<ThreadId>,
    parked: Vec<(u64, ThreadId)>,

    trace: Trace<O>,
    causes: Causes,
    queued_bytes: u64,
    /// Requests that the device works on.
    device_has: u32,
    /// Requests that were dispatched, and have not ended for the queue.
    device_owes: u32,
    idle_since: Option<Nanos>,

    /// Emptied after each use; kept for their memory.
    done: Vec<Done>,
    ended: Vec<(u64, BlkStatus)>,
    unparked: Vec<u64>,
    issues: Vec<Issue>,
    device_ended: Vec<(Nanos, Tag)>,
    steps: Vec<Step>,
    switches: Vec<(Nanos, CpuId, ThreadId)>,
    extents: Vec<Extent>,
}

/// Runs a program from its first phase to its last.
///
/// # Errors
/// What an oracle found, in words: nothing happens any more although somebody waits, or something
/// is left when everything has ended.
pub fn run<P: Program, O: Observer>(
    config: &Config,
    program: &mut P,
    observer: O,
) -> Result<(Outcome, O), String> {
    let mut world = World::new(config, observer);
    let (mut ended, mut cpu_busy) = (Nanos(0), Nanos(0));
    while let Some(phase) = program.next_phase() {
        let started = world.now;
        let first = world.start(phase.tasks, phase.background);
        while world.left > 0 {
            world.step()?;
        }
        (ended, cpu_busy) = (world.now, world.cpus.busy(world.now));
        program.end_phase(started, ended, world.stop(first));
    }
    world.drain()?;
    Ok(world.outcome(ended, cpu_busy))
}

impl<'a, T: Task, O: Observer> World<'a, T, O> {
    fn new(config: &'a Config, observer: O) -> Self {
        let device_sectors = config.device.sectors();
        // A null device has its own queue: then this one stays empty.
        let queue = QueueConfig { hw_queues: 1, ..config.queue };
        let block = BlockDevice::new(queue, &config.elevator, config.device.build());
        let commit_interval =
            config.fs.as_ref().map_or(Nanos::from_ms(5_000), crate::fs::FsConfig::commit_interval);
        let journal_thread = ThreadId(config.write_back.flushers);
        let mapped = |mapped: &MappedConfig| {
            Mapped::new(mapped, config.topology, device_sectors, config.seed)
        };
        let mut world = Self {
            config,
            now: Nanos(0),
            timers: EventHeap::default(),
            cpus: Cpus::new(config.topology, config.costs),
            cache: PageCache::new(config.cache),
            fs: match &config.fs {
                Some(fs) => fs.build(device_sectors),
                None => Box::new(crate::fs::raw::Raw::new(device_sectors)),
            },
            commit_interval,
            block,
            mapped: config.mapped.as_ref().map(mapped),
            null: match &config.device {
                DeviceConfig::Null(null) => {
                    let stack = config.stack.as_ref();
                    Some(Null::new(null, stack, config.queue, &config.elevator))
                }
                _ => None,
            },
            interrupts: EventHeap::default(),
            submitters: Submitters::default(),
            threads: Vec::new(),
            journal: Journal::new(journal_thread, commit_interval),
            in_flight: InFlights::default(),
            write_backs: WriteBacks::default(),
            cursors: BTreeMap::new(),
            left: 0,
            running_on: None,
            page_waiters: Vec::new(),
            write_waiters: Vec::new(),
            commit_waiters: Vec::new(),
            limit_waiters: Vec::new(),
            parked: Vec::new(),
            trace: Trace::new(observer),
            causes: Causes::default(),
            queued_bytes: 0,
            device_has: 0,
            device_owes: 0,
            idle_since: None,
            done: Vec::new(),
            ended: Vec::new(),
            unparked: Vec::new(),
            issues: Vec::new(),
            device_ended: Vec::new(),
            steps: Vec::new(),
            switches: Vec::new(),
            extents: Vec::new(),
        };
        for _ in 0..config.write_back.flushers {
            world.spawn(Kind::Flusher, Priority::default(), Affinity::Any);
        }
        world.spawn(Kind::Journal, Priority::default(), Affinity::Any);
        world.spawn_mapped();
        world.spawn_null();
        world.spawn_housekeepers();
        world
    }

    fn spawn(&mut self, kind: Kind<T>, priority: Priority, affinity: Affinity) -> ThreadId {
        let thread = self.cpus.spawn(affinity);
        self.put_to_sleep(kind, thread);
        self.threads[thread.0 as usize].priority = priority;
        self.wake_from(thread, Wait::Work);
        thread
    }

    /// A new thread waits for work.
    fn put_to_sleep(&mut self, kind: Kind<T>, thread: ThreadId) {
        self.trace.event(self.now, Event::Spawn { thread, role: kind.role() });
        self.threads.push(Thread::new(kind, thread.0, Priority::default()));
        self.threads[thread.0 as usize].waits = Some(Wait::Work);
    }

    /// Starts the tasks of a phase; the number of the first thread.
    fn start(&mut self, tasks: Vec<T>, background: Vec<T>) -> usize {
        let first = self.threads.len();
        self.left = tasks.len();
        let tasks = tasks.into_iter().map(|task| (task, false));
        for (task, background) in tasks.chain(background.into_iter().map(|task| (task, true))) {
            let priority = task.priority();
            let affinity = task.socket().map_or(Affinity::Any, Affinity::Socket);
            let (status, reaped) = (Ok(()), Vec::new());
            let kind = Kind::Task { task: Some(task), status, reaped, background };
            self.spawn(kind, priority, affinity);
        }
        first
    }

    /// Ends the phase, with its tasks as they are now.
    fn stop(&mut self, first: usize) -> Vec<T> {
        (first..self.threads.len())
            .map(|at| {
                let thread = ThreadId(u32::try_from(at).expect("threads are few"));
                if !self.threads[at].is_over() {
                    self.end_thread(thread);
                    self.cpus.exit(self.now, thread);
                }
                let Kind::Task { task, .. } = &mut self.threads[at].kind else {
                    unreachable!("behind the first are only tasks");
                };
                task.take().expect("a phase ends once")
            })
            .collect()
    }

    fn end_thread(&mut self, thread: ThreadId) {
        self.threads[thread.0 as usize].over = true;
        // Pages that it was about to write back are written: nobody else would.
        match self.null {
            Some(_) => self.abandon_null(thread),
            None => self.abandon(thread),
        }
        let io_context = self.threads[thread.0 as usize].io_context;
        self.block.queue().unplug(self.now, io_context);
        self.block.queue().exit_context(self.now, io_context);
        self.run_queue(Context::Interrupt(self.cpus.last_of(thread)));
    }

    /// The next thing happens.
    fn step(&mut self) -> Result<(), String> {
        let block = self.block.next_event();
        let timer = self.timers.next_at();
        let interrupt = self.interrupts.next_at();
        let null = self.null.as_ref().and_then(Null::next_event);
        let events = block.into_iter().chain(timer).chain(interrupt).chain(null);
        let events = events.chain(self.cpus.next_event());
        let stuck = || format!("nothing happens any more: {}", self.who_waits());
        let at = events.min().ok_or_else(stuck)?;
        if at > LONGEST_RUN {
            return Err(format!("the run has not ended after ten days: {}", self.who_waits()));
        }
        self.now = at;
        if timer == Some(at) {
            self.ring();
        } else if block == Some(at) {
            self.advance_block();
        } else if interrupt == Some(at) {
            self.interrupt_ends();
        } else if null == Some(at) {
            self.advance_null();
        } else {
            while let Some((cpu, thread)) = self.cpus.take(at) {
                self.turn(cpu, thread);
            }
        }
        let mut switches = std::mem::take(&mut self.switches);
        self.cpus.take_switches(&mut switches);
        for (at, cpu, thread) in switches.drain(..) {
            self.trace.event(at, Event::Switch { cpu, thread });
        }
        self.switches = switches;
        Ok(())
    }

    fn who_waits(&self) -> String {
        let waiting = self.threads.iter().enumerate().filter(|(_, thread)| !thread.is_over());
        let who: Vec<String> = waiting
            .filter_map(|(at, thread)| thread.waits.map(|on| format!("thread {at} for {on:?}")))
            .collect();
        format!(
            "at {} ns {} tasks have not ended; waiting: {}",
            self.now.0,
            self.left,
            who.join(", ")
        )
    }

    /// A timer rings.
    fn ring(&mut self) {
        let Some((_, Timer { thread, wait_number })) = self.timers.take() else { return };
        let sleeper = &self.threads[thread.0 as usize];
        if sleeper.wait_number == wait_number
            && let Some(on) = sleeper.waits
        {
            self.wake_from(thread, on);
        }
    }

    /// Wakes the thread, which is about to wait, at a time.
    fn wake_at(&mut self, thread: ThreadId, at: Nanos) {
        let wait_number = self.threads[thread.0 as usize].wait_number + 1;
        self.timers.schedule(at, Timer { thread, wait_number });
    }

    /// A thread does something.
    fn turn(&mut self, cpu: CpuId, thread: ThreadId) {
        self.running_on = Some(cpu);
        let at = thread.0 as usize;
        let begun = match self.null {
            Some(_) if self.threads[at].outbox.is_empty() => None,
            Some(_) => Some(self.go_null(cpu, thread, Nanos(0))),
            None => self.proceed(cpu, thread),
        };
        let turn = begun.unwrap_or_else(|| match self.threads[at].kind {
            Kind::Worker(pool) => self.work(cpu, thread, pool),
            Kind::Writer => self.write_out(cpu, thread),
            Kind::Kblockd(of) => self.run_worker(of),
            Kind::Softirq(of) => self.run_softirqs(of),
            Kind::Housekeeper => self.keep_house(thread),
            Kind::Flusher => self.flush(cpu, thread),
            Kind::Journal => self.journal(cpu, thread),
            Kind::Task { .. } => self.go_on(cpu, thread),
        });
        match turn {
            Turn::Run(burst) => self.cpus.run(self.now, cpu, burst),
            Turn::Block(on) => self.block_on(cpu, thread, on),
            Turn::Exit => {
                if let Kind::Task { background: false, .. } = self.threads[at].kind {
                    self.left -= 1;
                }
                self.block_on(cpu, thread, Wait::Exit);
                self.end_thread(thread);
                self.cpus.exit(self.now, thread);
            }
        }
        self.running_on = None;
    }

    fn block_on(&mut self, cpu: CpuId, thread: ThreadId, on: Wait) {
        let sleeper = &mut self.threads[thread.0 as usize];
        sleeper.waits = Some(on);
        sleeper.wait_number += 1;
        self.trace.event(self.now, Event::Block { thread, on });
        self.cpus.block(self.now, cpu);
    }

    /// When all tasks have ended: what is under way ends too, and then nothing is left.
    fn drain(&mut self) -> Result<(), String> {
        while (self.mapped.is_some() || self.null.is_some()) && !self.in_flight.is_empty() {
            self.step()?;
        }
        if self.null.as_ref().is_some_and(|null| !null.is_idle()) {
            return Err("every bio has ended, and the null device's queue has requests".into());
        }
        if self.mapped.as_ref().is_some_and(|mapped| !mapped.is_idle()) {
            return Err("every bio has ended, and the mapped device still has parts".into());
        }
        self.release_issues();
        while !self.in_flight.is_empty() {
            let (block, interrupt) = (self.block.next_event(), self.interrupts.next_at());
            let at = block.into_iter().chain(interrupt).min().ok_or_else(|| {
                format!("{} bios never end, and nothing happens any more", self.in_flight.len())
            })?;
            self.now = self.now.max(at);
            if interrupt == Some(at) {
                self.interrupt_ends();
            } else {
                self.advance_block();
            }
        }
        if !self.block.queue().is_idle() || self.device_owes > 0 {
            return Err("every bio has ended, and the queue still has requests".into());
        }
        Ok(())
    }

    fn outcome(mut self, ended: Nanos, cpu_busy: Nanos) -> (Outcome, O) {
        let null = self.null_causes();
        let mut block = self.block;
        let cpus = self.cpus.counters();
        let causes = Causes {
            queue: self.null.as_ref().map_or(*block.queue().counters(), Null::counters),
            disk: block.device().disk_counters(),
            crypt: self.mapped.as_ref().map(Mapped::causes),
            null,
            switches: cpus.switches,
            wake_ups: cpus.wake_ups,
            ..self.causes
        };
        let (cpus, trace_hash) = (self.config.topology.cpus(), self.trace.hash());
        (Outcome { ended, cpus, cpu_busy, trace_hash, causes }, self.trace.observer)
    }
}
