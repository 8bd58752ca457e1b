//! CPUs: the threads on each CPU, and the costs of switches, wake-ups and interrupts.
//!
//! A thread runs in *bursts*. At the end of a burst the world decides the thread's next step
//! ([`Cpus::take`]): another burst ([`Cpus::run`]) or a wait ([`Cpus::block`]).
//!
//! ```text
//!   waiting ── wake ──> run queue of a CPU ── picked, switch ──> burst ─┬─> burst …
//!      ^                      ^────── slice used up, or preempted ──────┤
//!      └───────────────────────────── block ────────────────────────────┘
//! ```
//! A thread that wakes up goes to its last CPU if that is idle, else to an idle one, first of the
//! same L3 cache, then of the socket, else to the shortest queue, within its affinity. There the
//! thread with the least run time is next (`cpu/fair.rs`), like in the kernel's fair scheduler
//! from 2.6.24 to 6.5, or the eligible one with the earliest deadline (`cpu/eevdf.rs`), like from
//! 6.6 on. A CPU without threads takes one from the longest queue, and an idle CPU takes a
//! preempted thread. An *urgent* thread (nice -20, like kblockd's workers) preempts all others at
//! once, and is never preempted by them.
//!
//! Time is conserved: the busy time of CPUs is the sum of their threads' use, the switches, and
//! interrupts without a thread.
//!
//! Two CPUs may share a core (`cpu/cores.rs`). A migration has a price (`cpu/caches.rs`). An idle
//! CPU may sleep in states with a longer exit (`cpu/idle.rs`), or be halted in a virtual machine
//! (`cpu/vm.rs`).
//!
//! Left out: weights; interrupts always run at full speed. The world defines the costs of
//! calls.

mod caches;
mod cores;
mod eevdf;
mod ends;
mod fair;
mod governor;
mod idle;
mod set;
#[cfg(test)]
mod tests;
mod topology;
mod vm;

use std::cmp::Reverse;

use blockyard_engine::time::Nanos;

pub use self::caches::Migration;
use self::ends::{Ends, NEVER};
use self::fair::{Place, RunQueue};
use self::governor::Clock;
pub use self::governor::Governor;
pub use self::idle::{Idle, IdleConfig, IdleGovernor, IdleState};
use self::idle::{Sleep, Timers};
use self::set::CpuSet;
pub use self::topology::{Affinity, Distance, SetId, Topology};
pub use self::vm::VmCosts;

/// A CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuId(pub u16);

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

/// Scheduler of the threads of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// Least virtual run time first, with a bonus after a sleep (2.6.24 to 6.5).
    #[default]
    Cfs,
    /// Earliest eligible virtual deadline first (from 6.6 on). Its slice is
    /// [`Costs::granularity`].
    Eevdf,
}

/// Costs. The first group belongs to the CPUs, the second to actions of threads.
// 20 fields: the costs of the simulated machine, its scheduler, its governors and its cores.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Switch to another thread.
    pub switch: Nanos,
    /// Wake-up of a thread, paid by the waker.
    pub wake_up: Nanos,
    /// Delay of a call to another CPU of the socket.
    pub ipi: Nanos,
    /// Delay of a call to a CPU of another socket.
    pub ipi_remote: Nanos,
    /// Exit of an idle CPU.
    pub idle: Idle,
    /// Costs of a virtual machine; `None`: the CPUs are real ones.
    pub vm: Option<VmCosts>,
    /// A thread continues on another CPU, and fetches its hot lines.
    pub migrate: Migration,
    /// Time in which a thread that stopped running is cache-hot; an idle CPU leaves it where it is
    /// (`sched_migration_cost_ns`). Zero: an idle CPU takes any thread that waits.
    pub cache_hot: Nanos,
    /// Period in which all threads of a CPU have one turn, if they are few (`sched_latency_ns`).
    pub slice: Nanos,
    /// Shortest turn, and the lead in run time at which a thread is preempted by a waking one
    /// (`sched_min_granularity_ns`, `sched_wakeup_granularity_ns`). With [`Scheduler::Eevdf`] the
    /// slice (`base_slice_ns`).
    pub granularity: Nanos,
    /// Scheduler of each CPU.
    pub scheduler: Scheduler,

    /// User time of a program before each call.
    pub user: Nanos,
    /// Entry and exit of a system call.
    pub syscall: Nanos,
    /// Copy and accounting of a page.
    pub page: Nanos,
    /// Construction and submission of a bio.
    pub submit: Nanos,
    /// Issue of a request to the device.
    pub issue: Nanos,
    /// An interrupt of a device.
    pub interrupt: Nanos,
    /// Completion of a request after the interrupt, on any CPU.
    pub complete: Nanos,
    /// Frequency governor; `None` means constant full speed.
    pub governor: Option<Governor>,
    /// Speed of each of the two CPUs of a core when both are busy, in percent; `None`: each CPU is
    /// a core.
    pub shared_core_percent: Option<u32>,
}

impl Costs {
    /// Delay of a call to another CPU.
    #[must_use]
    pub fn call(&self, distance: Distance) -> Nanos {
        match distance {
            Distance::SameCache | Distance::SameSocket => self.ipi,
            Distance::Remote => self.ipi_remote,
        }
    }
}

/// Counters of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// Switches to another thread.
    pub switches: u64,
    /// Wake-ups of threads.
    pub wake_ups: u64,
    /// Calls to another CPU.
    pub ipis: u64,
    /// Threads that continued on another CPU.
    pub migrations: u64,
    /// Time of all CPUs in threads and interrupts, including switches.
    pub busy: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Queued,
    Running,
    Gone,
}

// 13 fields: the state of a thread, and its counters.
#[derive(Clone, Debug)]
struct Thread {
    state: State,
    affinity: Affinity,
    /// Last CPU.
    last: usize,
    /// End of the waker's payment; the thread does not run before.
    ready: Nanos,
    urgent: bool,
    virtual_run: Nanos,
    /// With [`Scheduler::Eevdf`]: virtual run time at the end of its slice, and what a CPU owes it
    /// while it waits.
    deadline: Nanos,
    lag: i64,
    used: Nanos,
    /// Price of its migrations since it last ran, and the time at which it last gave up its CPU.
    refill: Nanos,
    stopped: Nanos,
    switches: u64,
    counted: Switches,
}

/// Context switches of a thread, like `getrusage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Waits (`ru_nvcsw`).
    pub voluntary: u64,
    /// Preemptions (`ru_nivcsw`).
    pub involuntary: u64,
}

impl std::ops::Add for Switches {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            voluntary: self.voluntary + other.voluntary,
            involuntary: self.involuntary + other.involuntary,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    /// Running thread.
    current: Option<ThreadId>,
    /// Last thread, to detect switches.
    last: Option<ThreadId>,
    /// Start of the current thread, with its virtual run time then.
    began: Nanos,
    since: Nanos,
    /// A thread woke up that may go first.
    reschedule: bool,
    queue: RunQueue,
    /// Work for others that the next burst pays for.
    debt: Nanos,
    /// End of the work of interrupts and for other threads.
    interrupted_until: Nanos,
    clock: Clock,
    sleep: Sleep,
}

/// The CPUs and their threads.
// 13 fields: the CPUs, sets of them for the search of an idle one, and the threads.
#[derive(Debug)]
pub struct Cpus {
    topology: Topology,
    costs: Costs,
    cpus: Vec<Cpu>,
    ends: Ends,
    /// Sets of affinities.
    sets: Vec<CpuSet>,
    /// CPUs without a running thread.
    idle: CpuSet,
    /// First CPUs of cores without a running thread; only maintained where CPUs share cores.
    idle_cores: CpuSet,
    /// CPUs with threads in their run queue.
    crowded: CpuSet,
    /// Number of threads in all run queues.
    queued: usize,
    threads: Vec<Thread>,
    /// Of threads that wait; only maintained where CPUs have idle states.
    timers: Timers,
    counters: CpuCounters,
    switched: Vec<(Nanos, CpuId, ThreadId)>,
}

impl Cpus {
    /// CPUs without threads.
    ///
    /// # Panics
    /// The topology has no CPU, or half a core, or a part of an L3 cache, or a core with shared
    /// speed 0.
    #[must_use]
    pub fn new(topology: Topology, costs: Costs) -> Self {
        assert!(topology.cpus() > 0, "there is a CPU");
        let is_divided = topology.cpus_per_socket.is_multiple_of(topology.l3_cpus());
        assert!(is_divided, "a socket has whole L3 caches");
        let is_whole = |percent: u32| percent > 0 && topology.cpus_per_socket.is_multiple_of(2);
        assert!(costs.shared_core_percent.is_none_or(is_whole), "a socket has whole cores");
        let count = usize::from(topology.cpus());
        let mut idle = CpuSet::new(count);
        (0..count).for_each(|cpu| idle.set(cpu, true));
        let mut idle_cores = CpuSet::new(count);
        (0..count).step_by(2).for_each(|cpu| idle_cores.set(cpu, true));
        let mut made = Self {
            topology,
            costs,
            cpus: vec![Cpu::default(); count],
            ends: Ends::new(count),
            sets: Vec::new(),
            idle,
            idle_cores,
            crowded: CpuSet::new(count),
            queued: 0,
            threads: Vec::new(),
            timers: Timers::default(),
            counters: CpuCounters::default(),
            switched: Vec::new(),
        };
        (0..count).for_each(|cpu| made.falls_asleep(Nanos(0), cpu));
        made
    }

    /// A new, waiting thread.
    ///
    /// # Panics
    /// The thread is bound to a CPU or socket that does not exist.
    pub fn spawn(&mut self, affinity: Affinity) -> ThreadId {
        let number = self.threads.len();
        let last = affinity.first_cpu(self.topology, &self.sets, number);
        assert!(last < self.cpus.len(), "threads are bound to existing CPUs");
        self.threads.push(Thread {
            state: State::Waiting,
            affinity,
            last,
            ready: Nanos(0),
            urgent: false,
            virtual_run: Nanos(0),
            deadline: Nanos(0),
            lag: 0,
            used: Nanos(0),
            refill: Nanos(0),
            stopped: Nanos(0),
            switches: 0,
            counted: Switches::default(),
        });
        ThreadId(u32::try_from(number).expect("threads are few"))
    }

    /// A new urgent thread.
    pub fn spawn_urgent(&mut self, affinity: Affinity) -> ThreadId {
        let thread = self.spawn(affinity);
        self.thread(thread).urgent = true;
        thread
    }

    /// Ends a thread in any state, except between [`Cpus::take`] and its answer: it must block
    /// first.
    pub fn exit(&mut self, now: Nanos, thread: ThreadId) {
        self.clear_timer(thread);
        let state = std::mem::replace(&mut self.thread(thread).state, State::Gone);
        match state {
            State::Queued => {
                let at = self.threads[thread.0 as usize].last;
                let taken = self.take_last(at, |queued| *queued == thread);
                assert!(taken.is_some(), "a queued thread is in the run queue of its last CPU");
            }
            State::Running => {
                let at = self.threads[thread.0 as usize].last;
                let (_, until) = self.leave(at);
                // The rest of the burst was counted in advance.
                let left = until.since(now.max(self.cpus[at].since));
                self.counters.busy = self.counters.busy - left;
                self.thread(thread).used = self.threads[thread.0 as usize].used - left;
                self.pick(now, at);
            }
            State::Waiting | State::Gone => {}
        }
    }

    /// Wakes a thread. `by` is the CPU of the waker, which works for `before` and pays for the
    /// wake-up before the thread can run. Returns false if the thread did not wait.
    pub fn wake(&mut self, now: Nanos, thread: ThreadId, by: CpuId, before: Nanos) -> bool {
        if self.thread(thread).state != State::Waiting {
            return false;
        }
        self.counters.wake_ups += 1;
        self.clear_timer(thread);
        let at = self.place(thread);
        let cost = self.costs.wake_up + self.cost_of_call(now, by, at);
        let ready = self.charge(now, by, cost) + before;
        match self.costs.scheduler {
            Scheduler::Cfs => {
                self.arrives(at, thread);
                let virtual_run = self.threads[thread.0 as usize].virtual_run;
                let placed = self.cpus[at].queue.waking(virtual_run, self.costs.slice);
                self.thread(thread).virtual_run = placed;
            }
            Scheduler::Eevdf => self.place_by_lag(now, at, thread),
        }
        let from = self.threads[thread.0 as usize].last;
        if from != at {
            self.migrates(thread, from, at);
        }
        let woken = self.thread(thread);
        (woken.state, woken.ready, woken.last) = (State::Queued, ready, at);
        self.queue_up(at, thread);
        if let Some(current) = self.cpus[at].current {
            let left = self.ends.of(at).since(now);
            self.cpus[at].reschedule |= self.preempts(thread, current, left);
            return true;
        }
        let by = usize::from(by.0);
        let distance = self.topology.distance_at(at, by);
        let called = if at == by { Nanos(0) } else { self.costs.call(distance) };
        self.counters.ipis += u64::from(at != by);
        if at == by {
            self.cpus[at].sleep.is_awake_for(before);
        }
        self.pick_on_idle(ready + called, at);
        true
    }

    /// A thread arrives at a CPU, possibly from another one.
    fn arrives(&mut self, at: usize, thread: ThreadId) {
        let Thread { last, virtual_run, .. } = self.threads[thread.0 as usize];
        if last != at {
            let there = self.cpus[last].queue.least();
            self.thread(thread).virtual_run = self.cpus[at].queue.arriving(virtual_run, there);
        }
    }

    fn queue_up(&mut self, at: usize, thread: ThreadId) {
        let Thread { urgent, virtual_run, deadline, .. } = self.threads[thread.0 as usize];
        self.cpus[at].queue.push(thread, !urgent, (virtual_run, deadline));
        self.crowded.set(at, true);
        self.queued += 1;
    }

    /// Takes the last fitting thread from a run queue.
    fn take_last(&mut self, at: usize, fits: impl Fn(&ThreadId) -> bool) -> Option<ThreadId> {
        let thread = self.cpus[at].queue.take_last(fits)?;
        self.leaves_queue(at);
        Some(thread)
    }

    /// Counts a thread that has left a run queue.
    fn leaves_queue(&mut self, at: usize) {
        self.queued -= 1;
        if self.cpus[at].queue.is_empty() {
            self.crowded.set(at, false);
        }
    }

    /// Whether a waking thread preempts the running one, which has `left` to run.
    fn preempts(&self, woken: ThreadId, current: ThreadId, left: Nanos) -> bool {
        let woken = &self.threads[woken.0 as usize];
        let current = &self.threads[current.0 as usize];
        match (woken.urgent, current.urgent) {
            (true, false) => true,
            (false, true) => false,
            // The end of the burst decides.
            _ if self.costs.scheduler == Scheduler::Eevdf => true,
            _ => current.virtual_run.since(left) > woken.virtual_run + self.costs.granularity,
        }
    }

    fn is_urgent(&self, thread: ThreadId) -> bool {
        self.threads[thread.0 as usize].urgent
    }

    /// The CPU of a waking thread.
    fn place(&self, thread: ThreadId) -> usize {
        let Thread { affinity, last, .. } = self.threads[thread.0 as usize];
        if let Affinity::Cpu(cpu) = affinity {
            return usize::from(cpu.0);
        }
        let near = self.start_of(affinity, last);
        if self.cpus[near].current.is_none() {
            return near;
        }
        let allowed = affinity.allowed(self.topology, last);
        let ranges =
            [self.topology.l3_neighbours(near), self.topology.neighbours(near), allowed.clone()];
        if let Some(idle) = ranges.into_iter().find_map(|range| self.idle_in(affinity, range)) {
            return idle;
        }
        let order = |at: &usize| {
            (self.cpus[*at].queue.len(), *at != near, self.topology.distance_at(near, *at), *at)
        };
        let allowed = allowed.filter(|at| affinity.allows(self.topology, &self.sets, *at));
        allowed.min_by_key(order).expect("it may run on a CPU")
    }

    /// The CPU at which the search for the CPU of a waking thread starts. A thread that is not on
    /// the CPUs that it prefers returns to an idle one of them, or to the shortest queue there.
    fn start_of(&self, affinity: Affinity, last: usize) -> usize {
        let Affinity::Near(set) = affinity else { return last };
        let set = set.of(&self.sets);
        if set.contains(last) {
            return last;
        }
        let idle = self.idle.first_of_both(set, 0..self.cpus.len());
        let shortest = || set.iter().min_by_key(|at| self.cpus[*at].queue.len());
        idle.or_else(shortest).unwrap_or(last)
    }

    /// Adds work of an interrupt or for another thread: the running thread ends later by the cost,
    /// which counts as its time, like in a kernel that counts ticks. Returns the end of the work; a
    /// CPU does one thing at a time.
    pub fn charge(&mut self, now: Nanos, cpu: CpuId, cost: Nanos) -> Nanos {
        let at = usize::from(cpu.0);
        self.counters.busy = self.counters.busy + cost;
        let Some(thread) = self.cpus[at].current else {
            return self.charge_idle(now, at, cost);
        };
        let cpu = &mut self.cpus[at];
        let Thread { used, virtual_run, .. } = &mut self.threads[thread.0 as usize];
        (*used, *virtual_run) = (*used + cost, *virtual_run + cost);
        let until = self.ends.of(at);
        if until > now {
            self.ends.set(at, until + cost);
        } else {
            cpu.debt = cpu.debt + cost;
        }
        cpu.interrupted_until = cpu.interrupted_until.max(now) + cost;
        cpu.interrupted_until
    }

    /// Adds work of an interrupt of a CPU without a thread, after its exit from its idle state.
    fn charge_idle(&mut self, now: Nanos, at: usize, cost: Nanos) -> Nanos {
        let awake = now + self.rouse(now, at);
        let cpu = &mut self.cpus[at];
        cpu.interrupted_until = cpu.interrupted_until.max(awake) + cost;
        let until = cpu.interrupted_until;
        self.falls_asleep(until, at);
        until
    }

    /// Time of the next end of a burst.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        Some(self.ends.next()).filter(|ends| *ends != NEVER)
    }

    /// A thread whose burst ends at `now` and that still has its CPU; the world decides its next
    /// step. Preemptions take place here.
    #[inline]
    pub fn take(&mut self, now: Nanos) -> Option<(CpuId, ThreadId)> {
        if self.ends.next() > now { None } else { self.take_due(now) }
    }

    fn take_due(&mut self, now: Nanos) -> Option<(CpuId, ThreadId)> {
        while let Some(at) = self.ends.first_due(now) {
            let thread = self.cpus[at].current.expect("its burst ends");
            if !self.gives_way(now, at) {
                return Some((CpuId(u16::try_from(at).expect("CPUs are few")), thread));
            }
            let is_urgent = self.cpus[at].queue.first().is_some_and(|next| !next.is_fair);
            let preempted = self.thread(thread);
            preempted.state = State::Queued;
            // A thread whose turn is over is not cache-hot: see cpu/caches.rs.
            preempted.stopped = if is_urgent { now } else { preempted.stopped };
            preempted.counted.involuntary += 1;
            self.leave(at);
            self.queue_up(at, thread);
            self.pick(now, at);
            self.call_idle(now, thread);
        }
        None
    }

    /// A preempted thread continues on an idle CPU.
    fn call_idle(&mut self, now: Nanos, thread: ThreadId) {
        let Thread { affinity, last, .. } = self.threads[thread.0 as usize];
        if let Some(idle) = self.idle_in(affinity, affinity.allowed(self.topology, last)) {
            self.pick_on_idle(now + self.costs.ipi, idle);
        }
    }

    /// Gives a thread to an idle CPU, which a call reaches at `now`.
    fn pick_on_idle(&mut self, now: Nanos, at: usize) {
        let exit = self.rouse(now, at) + self.costs.idle.of_each_wake_up();
        self.pick(now + exit, at);
    }

    fn gives_way(&mut self, now: Nanos, at: usize) -> bool {
        let cpu = &self.cpus[at];
        let Some(Place { is_fair, virtual_run, .. }) = cpu.queue.first() else { return false };
        let current = cpu.current.expect("a thread runs there");
        let ran = now.since(cpu.since);
        let threads = cpu.queue.len() as u64 + 1;
        let turn = Nanos(self.costs.slice.0 / threads).max(self.costs.granularity);
        match (is_fair, self.is_urgent(current)) {
            (false, false) => true,
            (true, true) => false,
            (false, true) => ran >= turn,
            (true, false) if self.costs.scheduler == Scheduler::Eevdf => {
                self.gives_way_to_eligible(now, at, current)
            }
            (true, false) => {
                let is_over = cpu.reschedule || ran >= turn;
                is_over && *virtual_run < self.threads[current.0 as usize].virtual_run
            }
        }
    }

    /// The taken thread runs another burst.
    pub fn run(&mut self, now: Nanos, cpu: CpuId, burst: Nanos) {
        let at = usize::from(cpu.0);
        let cpu = &mut self.cpus[at];
        let debt = std::mem::take(&mut cpu.debt);
        let mut burst = burst + debt;
        if let Some(governor) = &self.costs.governor {
            burst = cpu.clock.stretch(now, burst, governor);
        }
        let thread = cpu.current.expect("a thread was taken");
        let burst = self.shared(now, at, burst);
        self.ends.set(at, now + burst);
        // Its debt was counted on arrival.
        let burst = burst - debt;
        self.counters.busy = self.counters.busy + burst;
        let Thread { used, virtual_run, urgent, .. } = self.thread(thread);
        (*used, *virtual_run) = (*used + burst, *virtual_run + burst);
        let running = (!*urgent).then_some(*virtual_run);
        self.cpus[at].queue.advance(running);
    }

    /// End of a CPU's burst.
    #[must_use]
    pub fn burst_end(&self, cpu: CpuId) -> Nanos {
        self.ends.of(usize::from(cpu.0))
    }

    /// Moves the end of a thread's burst, which others make longer or shorter. A thread that does
    /// not run on this CPU any more is left alone.
    pub fn move_end(&mut self, cpu: CpuId, thread: ThreadId, from: Nanos, to: Nanos) {
        let at = usize::from(cpu.0);
        if self.cpus[at].current != Some(thread) {
            return;
        }
        let change = |time: Nanos| time + to - from;
        self.ends.set(at, change(self.ends.of(at)));
        self.counters.busy = change(self.counters.busy);
        let Thread { used, virtual_run, .. } = self.thread(thread);
        (*used, *virtual_run) = (change(*used), change(*virtual_run));
    }

    /// The taken thread waits; another one runs.
    pub fn block(&mut self, now: Nanos, cpu: CpuId) {
        let at = usize::from(cpu.0);
        if self.costs.scheduler == Scheduler::Eevdf {
            let thread = self.cpus[at].current.expect("a thread was taken");
            self.keep_lag(now, at, thread);
        }
        let (thread, _) = self.leave(at);
        let blocked = self.thread(thread);
        blocked.state = State::Waiting;
        blocked.stopped = now;
        blocked.counted.voluntary += 1;
        self.pick(now, at);
    }

    /// Removes the running thread; returns it with the end of its burst. The CPU is idle only if it
    /// then picks no other.
    fn leave(&mut self, at: usize) -> (ThreadId, Nanos) {
        let thread = self.cpus[at].current.take().expect("a thread runs there");
        (thread, self.ends.set(at, NEVER))
    }

    /// Gives a CPU without a thread one of its queue, or of the longest one.
    fn pick(&mut self, now: Nanos, at: usize) {
        // The debt is part of the interrupted time.
        self.cpus[at].debt = Nanos(0);
        if self.queued == 0 {
            return self.set_idle(at, true, now);
        }
        let own = match self.costs.scheduler {
            Scheduler::Cfs => self.cpus[at].queue.pop(),
            Scheduler::Eevdf => self.pop_eligible(now, at),
        };
        if own.is_some() {
            self.leaves_queue(at);
        }
        let Some(thread) = own.or_else(|| self.steal(now, at)) else {
            return self.set_idle(at, true, now);
        };
        let ready = self.threads[thread.0 as usize].ready;
        let cpu = &mut self.cpus[at];
        let now = now.max(ready).max(cpu.interrupted_until);
        let switches = cpu.last != Some(thread);
        let cost = if switches { self.costs.switch } else { Nanos(0) };
        (cpu.began, cpu.since) = (now, now + cost);
        (cpu.reschedule, cpu.last) = (false, Some(thread));
        cpu.current = Some(thread);
        let from = std::mem::replace(&mut self.thread(thread).last, at);
        if from != at {
            self.migrates(thread, from, at);
        }
        let refill = self.take_refill(now + cost, at, thread);
        self.ends.set(at, now + cost + refill);
        self.set_idle(at, false, now);
        self.counters.busy = self.counters.busy + cost + refill;
        if switches {
            self.counters.switches += 1;
            let cpu = CpuId(u16::try_from(at).expect("CPUs are few"));
            self.switched.push((now, cpu, thread));
        }
        let picked = self.thread(thread);
        picked.state = State::Running;
        picked.switches += u64::from(switches);
        picked.used = picked.used + refill;
        picked.virtual_run = picked.virtual_run + refill;
    }

    /// A thread of the longest queue: the one that would wait longest.
    fn steal(&mut self, now: Nanos, at: usize) -> Option<ThreadId> {
        let order = |from: &usize| {
            let distance = self.topology.distance_at(at, *from);
            (self.cpus[*from].queue.len(), Reverse((distance, *from)))
        };
        let Self { threads, topology, sets, .. } = &*self;
        let free = |thread: &ThreadId| {
            let allowed = threads[thread.0 as usize].affinity.allows(*topology, sets, at);
            allowed && !self.is_cache_hot(now, *thread)
        };
        let crowded = self.crowded.iter();
        let from = crowded.filter(|from| self.cpus[*from].queue.any(free)).max_by_key(order)?;
        let thread = self.cpus[from].queue.last(free)?;
        match self.costs.scheduler {
            Scheduler::Cfs => self.arrives(at, thread),
            Scheduler::Eevdf => {
                self.keep_lag(now, from, thread);
                self.place_by_lag(now, at, thread);
            }
        }
        self.take_last(from, |queued| *queued == thread);
        Some(thread)
    }

    fn thread(&mut self, thread: ThreadId) -> &mut Thread {
        &mut self.threads[thread.0 as usize]
    }

    /// Time of all CPUs until now, like [`CpuCounters::busy`], including the done part of current
    /// bursts.
    #[must_use]
    pub fn busy(&self, now: Nanos) -> Nanos {
        let ahead = |(at, cpu): (usize, &Cpu)| {
            // The exit from an idle state is idle time.
            let works_from = now.max(cpu.sleep.awake);
            match cpu.current {
                Some(_) => {
                    let before = cpu.began.min(cpu.interrupted_until).since(works_from);
                    before + self.ends.of(at).since(now.max(cpu.began)) + cpu.debt
                }
                None => cpu.interrupted_until.since(works_from),
            }
        };
        let ahead: u64 = self.cpus.iter().enumerate().map(|cpu| ahead(cpu).0).sum();
        self.counters.busy.since(Nanos(ahead))
    }

    /// CPU time of a thread, including interrupts while it ran.
    #[must_use]
    pub fn used(&self, thread: ThreadId) -> Nanos {
        self.threads[thread.0 as usize].used
    }

    /// The running thread of a CPU.
    #[must_use]
    pub fn current_of(&self, cpu: CpuId) -> Option<ThreadId> {
        self.cpus[usize::from(cpu.0)].current
    }

    /// The current or last CPU of a thread.
    #[must_use]
    pub fn last_of(&self, thread: ThreadId) -> CpuId {
        let last = self.threads[thread.0 as usize].last;
        CpuId(u16::try_from(last).expect("CPUs are few"))
    }

    /// Number of switches to a thread.
    #[must_use]
    pub fn switches_to(&self, thread: ThreadId) -> u64 {
        self.threads[thread.0 as usize].switches
    }

    /// Context switches of a thread.
    #[must_use]
    pub fn switches_of(&self, thread: ThreadId) -> Switches {
        self.threads[thread.0 as usize].counted
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> CpuCounters {
        self.counters
    }

    /// Takes the switches since the last call, in order.
    pub fn take_switches(&mut self) -> std::vec::Drain<'_, (Nanos, CpuId, ThreadId)> {
        self.switched.drain(..)
    }
}
