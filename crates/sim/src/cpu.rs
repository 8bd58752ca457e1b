//! CPUs: who runs where, and what switching, waking and interrupting cost.
//!
//! A thread runs in *bursts*. When a burst is over, the world is asked what the thread does next
//! ([`Cpus::take`]), and answers with another burst ([`Cpus::run`]) or that it waits
//! ([`Cpus::block`]).
//!
//! ```text
//!   waiting ── wake ──> run queue of a CPU ── picked, switch ──> burst ─┬─> burst …
//!      ^                      ^────── slice used up, or preempted ──────┤
//!      └───────────────────────────── block ────────────────────────────┘
//! ```
//! A thread that wakes up goes to the CPU it ran on last, if that is idle, else to an idle one, of
//! the same socket first, else to the shortest queue, as far as its affinity allows. There, the one
//! that has run least is next (`cpu/fair.rs`), as in the kernel's fair scheduler from 2.6.24 to
//! 6.5. A CPU that has nothing takes a thread from the longest queue, and one that is idle what had
//! to give way elsewhere. An *urgent* thread (a nice value of -20, as kblockd's workers have) goes
//! before all that are not, at once, and gives way to none of them.
//!
//! Time is conserved: what the CPUs were busy with is what their threads have used, the switches,
//! and interrupts that hit no thread.
//!
//! What it leaves out: weights, caches, hyper-threads; interrupts always run at full speed. Left to
//! the world: what a call costs.

mod fair;
mod governor;
#[cfg(test)]
mod tests;

use blockyard_engine::time::Nanos;

use self::fair::{Place, RunQueue};
use self::governor::Clock;
pub use self::governor::Governor;

/// A CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuId(pub u16);

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

/// How many CPUs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Sockets.
    pub sockets: u16,
    /// CPUs of each.
    pub cpus_per_socket: u16,
}

impl Topology {
    /// All CPUs.
    #[must_use]
    pub fn cpus(&self) -> u16 {
        self.sockets * self.cpus_per_socket
    }

    fn socket(&self, cpu: usize) -> usize {
        cpu / usize::from(self.cpus_per_socket)
    }

    /// The socket of a CPU.
    #[must_use]
    pub fn socket_of(&self, cpu: CpuId) -> u16 {
        cpu.0 / self.cpus_per_socket
    }
}

/// Where a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// Everywhere.
    Any,
    /// On this CPU.
    Cpu(CpuId),
    /// On the CPUs of this socket.
    Socket(u16),
}

impl Affinity {
    fn allows(self, topology: Topology, at: usize) -> bool {
        match self {
            Self::Any => true,
            Self::Cpu(cpu) => usize::from(cpu.0) == at,
            Self::Socket(socket) => usize::from(socket) == topology.socket(at),
        }
    }
}

/// What things cost. The first group is of the CPUs themselves, the second of what threads do.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// To go over to another thread.
    pub switch: Nanos,
    /// To wake a thread up, for who does it.
    pub wake_up: Nanos,
    /// Until a CPU that another one called starts, within a socket.
    pub ipi: Nanos,
    /// The same from another socket.
    pub ipi_remote: Nanos,
    /// Until an idle CPU starts.
    pub idle_exit: Nanos,
    /// The time in which all threads of a CPU have had a turn, if they are few
    /// (`sched_latency_ns`).
    pub slice: Nanos,
    /// The shortest turn, and by how much more one has to have run to give way to one that wakes up
    /// (`sched_min_granularity_ns`, `sched_wakeup_granularity_ns`).
    pub granularity: Nanos,

    /// What a program does itself before each call: its user time.
    pub user: Nanos,
    /// To enter and leave a system call.
    pub syscall: Nanos,
    /// To copy a page and account for it.
    pub page: Nanos,
    /// To make and submit a bio.
    pub submit: Nanos,
    /// To give a request to the device.
    pub issue: Nanos,
    /// An interrupt of a device.
    pub interrupt: Nanos,
    /// To end a request, behind that, there or on another CPU.
    pub complete: Nanos,
    /// Who decides how fast CPUs run; nobody: at full speed, always.
    pub governor: Option<Governor>,
}

/// What CPUs have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// A CPU went over to another thread.
    pub switches: u64,
    /// A thread was woken up.
    pub wake_ups: u64,
    /// One CPU called another.
    pub ipis: u64,
    /// A thread went on on another CPU.
    pub migrations: u64,
    /// Time of all CPUs in threads and interrupts, switches included.
    pub busy: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Queued,
    Running,
    Gone,
}

#[derive(Clone, Debug)]
struct Thread {
    state: State,
    affinity: Affinity,
    /// Where it ran last.
    last: usize,
    /// Who woke it up has paid for that by then; it does not run before.
    ready: Nanos,
    urgent: bool,
    virtual_run: Nanos,
    used: Nanos,
    switches: u64,
    counted: Switches,
}

/// How often a thread gave its CPU up, as `getrusage` counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// It waited (`ru_nvcsw`).
    pub voluntary: u64,
    /// Another one took its place (`ru_nivcsw`).
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
    /// Who runs.
    current: Option<ThreadId>,
    /// Who ran last, to see whether a switch is one.
    last: Option<ThreadId>,
    /// When it went over to the current thread, and when that ran.
    began: Nanos,
    since: Nanos,
    /// A thread woke up that may go first.
    reschedule: bool,
    queue: RunQueue,
    /// Work done for others that the next burst pays for.
    debt: Nanos,
    /// When it has done all that interrupts, or threads for others, have had it do.
    interrupted_until: Nanos,
    clock: Clock,
}

/// On a CPU without a thread no burst ends.
const NEVER: Nanos = Nanos(u64::MAX);

/// The CPUs and who runs on them.
#[derive(Debug)]
pub struct Cpus {
    topology: Topology,
    costs: Costs,
    cpus: Vec<Cpu>,
    /// When the burst of each CPU's thread ends, or [`NEVER`]. Apart, as it is looked through for
    /// every event.
    ends: Vec<Nanos>,
    /// Threads in all run queues.
    queued: usize,
    threads: Vec<Thread>,
    counters: CpuCounters,
    switched: Vec<(Nanos, CpuId, ThreadId)>,
}

impl Cpus {
    /// CPUs without threads.
    ///
    /// # Panics
    /// When there is no CPU.
    #[must_use]
    pub fn new(topology: Topology, costs: Costs) -> Self {
        assert!(topology.cpus() > 0, "there is a CPU");
        let cpus = vec![Cpu::default(); usize::from(topology.cpus())];
        let ends = vec![NEVER; cpus.len()];
        let (threads, switched) = (Vec::new(), Vec::new());
        let counters = CpuCounters::default();
        Self { topology, costs, cpus, ends, queued: 0, threads, counters, switched }
    }

    /// A new thread, which waits.
    ///
    /// # Panics
    /// When the machine lacks the CPU or the socket that it is bound to.
    pub fn spawn(&mut self, affinity: Affinity) -> ThreadId {
        let number = self.threads.len();
        let per_socket = usize::from(self.topology.cpus_per_socket);
        let last = match affinity {
            Affinity::Any => number % self.cpus.len(),
            Affinity::Cpu(cpu) => usize::from(cpu.0),
            Affinity::Socket(socket) => usize::from(socket) * per_socket + number % per_socket,
        };
        assert!(last < self.cpus.len(), "threads are bound to CPUs that there are");
        self.threads.push(Thread {
            state: State::Waiting,
            affinity,
            last,
            ready: Nanos(0),
            urgent: false,
            virtual_run: Nanos(0),
            used: Nanos(0),
            switches: 0,
            counted: Switches::default(),
        });
        ThreadId(u32::try_from(number).expect("threads are few"))
    }

    /// A new thread that goes before all others of its CPU.
    pub fn spawn_urgent(&mut self, cpu: CpuId) -> ThreadId {
        let thread = self.spawn(Affinity::Cpu(cpu));
        self.thread(thread).urgent = true;
        thread
    }

    /// A thread ends, wherever it is. It must not be the one that [`Cpus::take`] gave last and that
    /// has not been answered: that one blocks first.
    pub fn exit(&mut self, now: Nanos, thread: ThreadId) {
        let state = std::mem::replace(&mut self.thread(thread).state, State::Gone);
        match state {
            State::Queued => {
                for cpu in &mut self.cpus {
                    let taken = cpu.queue.take_last(|queued| *queued == thread);
                    self.queued -= usize::from(taken.is_some());
                }
            }
            State::Running => {
                let at = self.threads[thread.0 as usize].last;
                let (_, until) = self.leave(at);
                // The burst that is cut off was counted whole.
                let left = until.since(now.max(self.cpus[at].since));
                self.counters.busy = self.counters.busy - left;
                self.thread(thread).used = self.threads[thread.0 as usize].used - left;
                self.pick(now, at);
            }
            State::Waiting | State::Gone => {}
        }
    }

    /// A thread can go on. `by` is the CPU that found out, and that has to work for `before` and to
    /// pay for the wake-up until the thread can. False if it did not wait.
    pub fn wake(&mut self, now: Nanos, thread: ThreadId, by: CpuId, before: Nanos) -> bool {
        if self.thread(thread).state != State::Waiting {
            return false;
        }
        self.counters.wake_ups += 1;
        let at = self.place(thread);
        let ready = self.charge(now, by, self.costs.wake_up) + before;
        self.arrives(at, thread);
        let period = self.costs.slice;
        let woken = &mut self.threads[thread.0 as usize];
        self.counters.migrations += u64::from(woken.last != at);
        woken.virtual_run = self.cpus[at].queue.waking(woken.virtual_run, period);
        (woken.state, woken.ready, woken.last) = (State::Queued, ready, at);
        self.queue_up(at, thread);
        if let Some(current) = self.cpus[at].current {
            let left = self.ends[at].since(now);
            self.cpus[at].reschedule |= self.preempts(thread, current, left);
            return true;
        }
        let by = usize::from(by.0);
        let called = match (at == by, self.topology.socket(at) == self.topology.socket(by)) {
            (true, _) => Nanos(0),
            (false, true) => self.costs.ipi,
            (false, false) => self.costs.ipi_remote,
        };
        self.counters.ipis += u64::from(at != by);
        self.pick(ready + called + self.costs.idle_exit, at);
        true
    }

    /// A thread comes to a CPU, perhaps from another one.
    fn arrives(&mut self, at: usize, thread: ThreadId) {
        let Thread { last, virtual_run, .. } = self.threads[thread.0 as usize];
        if last != at {
            let there = self.cpus[last].queue.least();
            self.thread(thread).virtual_run = self.cpus[at].queue.arriving(virtual_run, there);
        }
    }

    fn queue_up(&mut self, at: usize, thread: ThreadId) {
        let Thread { urgent, virtual_run, .. } = self.threads[thread.0 as usize];
        self.cpus[at].queue.push(thread, !urgent, virtual_run);
        self.queued += 1;
    }

    /// Whether the one that wakes up goes before the one that runs, and has still so long to.
    fn preempts(&self, woken: ThreadId, current: ThreadId, left: Nanos) -> bool {
        let (woken, current) = (&self.threads[woken.0 as usize], &self.threads[current.0 as usize]);
        match (woken.urgent, current.urgent) {
            (true, false) => true,
            (false, true) => false,
            _ => current.virtual_run.since(left) > woken.virtual_run + self.costs.granularity,
        }
    }

    fn is_urgent(&self, thread: ThreadId) -> bool {
        self.threads[thread.0 as usize].urgent
    }

    /// Where a thread that wakes up goes.
    fn place(&self, thread: ThreadId) -> usize {
        let Thread { affinity, last, .. } = self.threads[thread.0 as usize];
        if let Affinity::Cpu(cpu) = affinity {
            return usize::from(cpu.0);
        }
        let socket = self.topology.socket(last);
        let order = |at: &usize| {
            let cpu = &self.cpus[*at];
            let waiting = cpu.queue.len() + usize::from(cpu.current.is_some());
            (waiting, *at != last, self.topology.socket(*at) != socket, *at)
        };
        if self.cpus[last].current.is_none() && self.cpus[last].queue.is_empty() {
            return last;
        }
        let allowed = |at: &usize| affinity.allows(self.topology, *at);
        (0..self.cpus.len()).filter(allowed).min_by_key(order).expect("it may run on a CPU")
    }

    /// Work of an interrupt, or for another thread: who runs there ends so much later, and it is
    /// counted as that thread's, as a kernel does that counts in ticks. When it is done: a CPU does
    /// one thing after the other.
    pub fn charge(&mut self, now: Nanos, cpu: CpuId, cost: Nanos) -> Nanos {
        let at = usize::from(cpu.0);
        let (cpu, until) = (&mut self.cpus[at], &mut self.ends[at]);
        self.counters.busy = self.counters.busy + cost;
        if let Some(thread) = cpu.current {
            let Thread { used, virtual_run, .. } = &mut self.threads[thread.0 as usize];
            (*used, *virtual_run) = (*used + cost, *virtual_run + cost);
            match *until > now {
                true => *until = *until + cost,
                false => cpu.debt = cpu.debt + cost,
            }
        }
        cpu.interrupted_until = cpu.interrupted_until.max(now) + cost;
        cpu.interrupted_until
    }

    /// When a burst ends next.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        self.ends.iter().copied().min().filter(|ends| *ends != NEVER)
    }

    /// A thread whose burst is over at `now`, and that still has its CPU: the world says next what
    /// it does. Threads that have to give way do so here.
    pub fn take(&mut self, now: Nanos) -> Option<(CpuId, ThreadId)> {
        for at in 0..self.cpus.len() {
            if self.ends[at] > now {
                continue;
            }
            let thread = self.cpus[at].current.expect("its burst ends");
            if self.gives_way(now, at) {
                self.threads[thread.0 as usize].state = State::Queued;
                self.leave(at);
                self.queue_up(at, thread);
                self.threads[thread.0 as usize].counted.involuntary += 1;
                self.pick(now, at);
                self.call_idle(now, thread);
                continue;
            }
            return Some((CpuId(u16::try_from(at).expect("CPUs are few")), thread));
        }
        None
    }

    /// A thread that had to give way goes on where nobody runs.
    fn call_idle(&mut self, now: Nanos, thread: ThreadId) {
        let affinity = self.threads[thread.0 as usize].affinity;
        let is_idle =
            |at: &usize| self.cpus[*at].current.is_none() && affinity.allows(self.topology, *at);
        if let Some(idle) = (0..self.cpus.len()).find(is_idle) {
            self.pick(now + self.costs.ipi + self.costs.idle_exit, idle);
        }
    }

    fn gives_way(&self, now: Nanos, at: usize) -> bool {
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
            (true, false) => {
                let is_over = cpu.reschedule || ran >= turn;
                is_over && *virtual_run < self.threads[current.0 as usize].virtual_run
            }
        }
    }

    /// The thread that was taken goes on for so long.
    pub fn run(&mut self, now: Nanos, cpu: CpuId, burst: Nanos) {
        let at = usize::from(cpu.0);
        let cpu = &mut self.cpus[at];
        let debt = std::mem::take(&mut cpu.debt);
        let mut burst = burst + debt;
        if let Some(governor) = &self.costs.governor {
            burst = cpu.clock.stretch(now, burst, governor);
        }
        let thread = cpu.current.expect("a thread was taken");
        self.ends[at] = now + burst;
        // What it owed was counted when it came.
        let burst = burst - debt;
        self.counters.busy = self.counters.busy + burst;
        let Thread { used, virtual_run, urgent, .. } = self.thread(thread);
        (*used, *virtual_run) = (*used + burst, *virtual_run + burst);
        let running = (!*urgent).then_some(*virtual_run);
        self.cpus[at].queue.advance(running);
    }

    /// The thread that was taken waits; another one runs.
    pub fn block(&mut self, now: Nanos, cpu: CpuId) {
        let at = usize::from(cpu.0);
        let (thread, _) = self.leave(at);
        self.thread(thread).state = State::Waiting;
        self.thread(thread).counted.voluntary += 1;
        self.pick(now, at);
    }

    /// Who runs does so no more; when its burst would have ended.
    fn leave(&mut self, at: usize) -> (ThreadId, Nanos) {
        let thread = self.cpus[at].current.take().expect("a thread runs there");
        (thread, std::mem::replace(&mut self.ends[at], NEVER))
    }

    /// Gives an empty CPU a thread of its queue, or of the longest one.
    fn pick(&mut self, now: Nanos, at: usize) {
        // What it owes is in the time until which it is interrupted.
        self.cpus[at].debt = Nanos(0);
        if self.queued == 0 {
            return;
        }
        let own = self.cpus[at].queue.pop();
        let Some(thread) = own.or_else(|| self.steal(at)) else { return };
        self.queued -= 1;
        let ready = self.threads[thread.0 as usize].ready;
        let cpu = &mut self.cpus[at];
        let now = now.max(ready).max(cpu.interrupted_until);
        let switches = cpu.last != Some(thread);
        let cost = if switches { self.costs.switch } else { Nanos(0) };
        (cpu.began, cpu.since) = (now, now + cost);
        (cpu.reschedule, cpu.last) = (false, Some(thread));
        (cpu.current, self.ends[at]) = (Some(thread), now + cost);
        self.counters.busy = self.counters.busy + cost;
        if switches {
            self.counters.switches += 1;
            let cpu = CpuId(u16::try_from(at).expect("CPUs are few"));
            self.switched.push((now, cpu, thread));
        }
        let picked = self.thread(thread);
        let moved = std::mem::replace(&mut picked.last, at) != at;
        picked.state = State::Running;
        picked.switches += u64::from(switches);
        self.counters.migrations += u64::from(moved);
    }

    /// A thread of the longest queue, the one that would have waited longest.
    fn steal(&mut self, at: usize) -> Option<ThreadId> {
        let socket = self.topology.socket(at);
        let order = |from: &usize| {
            let near = self.topology.socket(*from) == socket;
            (self.cpus[*from].queue.len(), near, std::cmp::Reverse(*from))
        };
        let (threads, topology) = (&self.threads, self.topology);
        let free = |thread: &ThreadId| threads[thread.0 as usize].affinity.allows(topology, at);
        let from = (0..self.cpus.len())
            .filter(|from| self.cpus[*from].queue.has(free))
            .max_by_key(order)?;
        let thread = self.cpus[from].queue.take_last(free)?;
        self.arrives(at, thread);
        Some(thread)
    }

    fn thread(&mut self, thread: ThreadId) -> &mut Thread {
        &mut self.threads[thread.0 as usize]
    }

    /// Time of all CPUs until now, as [`CpuCounters::busy`]: of what they are at, what is done.
    #[must_use]
    pub fn busy(&self, now: Nanos) -> Nanos {
        let ahead = |(cpu, until): (&Cpu, &Nanos)| match cpu.current {
            Some(_) => {
                let before = cpu.began.min(cpu.interrupted_until).since(now);
                before + until.since(now.max(cpu.began)) + cpu.debt
            }
            None => cpu.interrupted_until.since(now),
        };
        let ahead: u64 = self.cpus.iter().zip(&self.ends).map(|cpu| ahead(cpu).0).sum();
        self.counters.busy.since(Nanos(ahead))
    }

    /// CPU time of a thread, with that of interrupts while it ran.
    #[must_use]
    pub fn used(&self, thread: ThreadId) -> Nanos {
        self.threads[thread.0 as usize].used
    }

    /// Where a thread runs, or ran last.
    #[must_use]
    pub fn last_of(&self, thread: ThreadId) -> CpuId {
        let last = self.threads[thread.0 as usize].last;
        CpuId(u16::try_from(last).expect("CPUs are few"))
    }

    /// How often a CPU went over to a thread.
    #[must_use]
    pub fn switches_to(&self, thread: ThreadId) -> u64 {
        self.threads[thread.0 as usize].switches
    }

    /// How often it gave its CPU up.
    #[must_use]
    pub fn switches_of(&self, thread: ThreadId) -> Switches {
        self.threads[thread.0 as usize].counted
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> CpuCounters {
        self.counters
    }

    /// The switches since the last time, in order.
    pub fn take_switches(&mut self, out: &mut Vec<(Nanos, CpuId, ThreadId)>) {
        out.append(&mut self.switched);
    }
}
