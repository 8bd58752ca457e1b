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
//! What it leaves out: weights, caches, hyper-threads; interrupts always run at full speed. Left to
//! the world: what a call costs.

mod fair;
mod governor;

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
    /// Interrupt and completion of a request.
    pub interrupt: Nanos,
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
    /// Who runs, and when its burst ends.
    current: Option<(ThreadId, Nanos)>,
    /// Who ran last, to see whether a switch is one.
    last: Option<ThreadId>,
    /// When the current thread was picked.
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

/// The CPUs and who runs on them.
#[derive(Debug)]
pub struct Cpus {
    topology: Topology,
    costs: Costs,
    cpus: Vec<Cpu>,
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
        let counters = CpuCounters::default();
        Self { topology, costs, cpus, threads: Vec::new(), counters, switched: Vec::new() }
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
                self.cpus.iter_mut().for_each(|cpu| {
                    cpu.queue.take_last(|queued| *queued == thread);
                });
            }
            State::Running => {
                let at = self.threads[thread.0 as usize].last;
                let (_, until) = self.cpus[at].current.take().expect("it runs there");
                // The burst that is cut off was counted whole.
                self.counters.busy = self.counters.busy - until.since(now);
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
        if let Some((current, until)) = self.cpus[at].current {
            self.cpus[at].reschedule |= self.preempts(thread, current, until.since(now));
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

    /// Work of an interrupt, or for another thread: who runs there ends so much later. When it is
    /// done: a CPU does one thing after the other.
    pub fn charge(&mut self, now: Nanos, cpu: CpuId, cost: Nanos) -> Nanos {
        let cpu = &mut self.cpus[usize::from(cpu.0)];
        self.counters.busy = self.counters.busy + cost;
        match &mut cpu.current {
            Some((_, until)) if *until > now => *until = *until + cost,
            Some(_) => cpu.debt = cpu.debt + cost,
            None => {}
        }
        cpu.interrupted_until = cpu.interrupted_until.max(now) + cost;
        cpu.interrupted_until
    }

    /// When a burst ends next.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        self.cpus.iter().filter_map(|cpu| cpu.current.map(|(_, until)| until)).min()
    }

    /// A thread whose burst is over at `now`, and that still has its CPU: the world says next what
    /// it does. Threads that have to give way do so here.
    pub fn take(&mut self, now: Nanos) -> Option<(CpuId, ThreadId)> {
        for at in 0..self.cpus.len() {
            let Some((thread, until)) = self.cpus[at].current else { continue };
            if until > now {
                continue;
            }
            if self.gives_way(now, at) {
                self.threads[thread.0 as usize].state = State::Queued;
                self.cpus[at].current = None;
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
        let current = cpu.current.expect("a thread runs there").0;
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
        let mut burst = burst + std::mem::take(&mut cpu.debt);
        if let Some(governor) = &self.costs.governor {
            burst = cpu.clock.stretch(now, burst, governor);
        }
        let (thread, until) = cpu.current.as_mut().expect("a thread was taken");
        *until = now + burst;
        self.counters.busy = self.counters.busy + burst;
        let thread = *thread;
        let Thread { used, virtual_run, urgent, .. } = self.thread(thread);
        (*used, *virtual_run) = (*used + burst, *virtual_run + burst);
        let running = (!*urgent).then_some(*virtual_run);
        self.cpus[at].queue.advance(running);
    }

    /// The thread that was taken waits; another one runs.
    pub fn block(&mut self, now: Nanos, cpu: CpuId) {
        let at = usize::from(cpu.0);
        let (thread, _) = self.cpus[at].current.take().expect("a thread was taken");
        self.thread(thread).state = State::Waiting;
        self.thread(thread).counted.voluntary += 1;
        self.pick(now, at);
    }

    /// Gives an empty CPU a thread of its queue, or of the longest one.
    fn pick(&mut self, now: Nanos, at: usize) {
        // What it owes is in the time until which it is interrupted.
        self.cpus[at].debt = Nanos(0);
        let own = self.cpus[at].queue.pop();
        let Some(thread) = own.or_else(|| self.steal(at)) else { return };
        let ready = self.threads[thread.0 as usize].ready;
        let cpu = &mut self.cpus[at];
        let now = now.max(ready).max(cpu.interrupted_until);
        let switches = cpu.last != Some(thread);
        let cost = if switches { self.costs.switch } else { Nanos(0) };
        (cpu.since, cpu.reschedule, cpu.last) = (now + cost, false, Some(thread));
        cpu.current = Some((thread, now + cost));
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

    /// CPU time of a thread.
    #[must_use]
    pub fn used(&self, thread: ThreadId) -> Nanos {
        self.threads[thread.0 as usize].used
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

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        switch: Nanos(100),
        wake_up: Nanos(10),
        ipi: Nanos(30),
        ipi_remote: Nanos(70),
        idle_exit: Nanos(5),
        slice: Nanos(10_000),
        granularity: Nanos(1_000),
        user: Nanos(0),
        syscall: Nanos(0),
        page: Nanos(0),
        submit: Nanos(0),
        issue: Nanos(0),
        interrupt: Nanos(0),
        governor: None,
    };
    const CPU0: CpuId = CpuId(0);

    fn cpus(sockets: u16, cpus_per_socket: u16) -> Cpus {
        Cpus::new(Topology { sockets, cpus_per_socket }, COSTS)
    }

    /// Lets every thread run bursts of `burst` until `end`; how often each was asked.
    fn turns(cpus: &mut Cpus, burst: u64, end: u64) -> Vec<u64> {
        let mut turns = vec![0; cpus.threads.len()];
        while let Some(now) = cpus.next_event().filter(|now| now.0 < end) {
            while let Some((cpu, thread)) = cpus.take(now) {
                turns[thread.0 as usize] += 1;
                cpus.run(now, cpu, Nanos(burst));
            }
        }
        turns
    }

    #[test]
    fn wake_up_of_an_idle_cpu_costs_the_wake_up_call_exit_and_switch() {
        let start = |sockets, cpus_per_socket, on, by| {
            let mut cpus = cpus(sockets, cpus_per_socket);
            let thread = cpus.spawn(Affinity::Cpu(CpuId(on)));
            assert!(cpus.wake(Nanos(1_000), thread, CpuId(by), Nanos(0)));
            assert!(!cpus.wake(Nanos(1_000), thread, CpuId(by), Nanos(0)), "it is awake");
            (cpus.next_event().unwrap().0 - 1_000, cpus.counters().ipis)
        };
        assert_eq!(start(1, 2, 0, 0), (115, 0));
        assert_eq!(start(1, 2, 1, 0), (145, 1));
        assert_eq!(start(2, 1, 1, 0), (185, 1));
    }

    #[test]
    fn threads_share_a_cpu_by_slices() {
        let mut cpus = cpus(1, 1);
        for _ in 0..3 {
            let thread = cpus.spawn(Affinity::Any);
            cpus.wake(Nanos(0), thread, CPU0, Nanos(0));
        }
        let turns = turns(&mut cpus, 1_000, 3_000_000);
        assert!(turns.iter().all(|turns| (900..1_050).contains(turns)), "{turns:?}");
        // A third of the period is four bursts: about 3 ms / 4.1 us.
        assert!((700..740).contains(&cpus.counters().switches), "{:?}", cpus.counters());
    }

    #[test]
    fn idle_cpus_take_what_others_queue_but_not_what_is_bound() {
        let mut cpus = cpus(1, 2);
        let bound: Vec<_> = (0..2).map(|_| cpus.spawn(Affinity::Cpu(CPU0))).collect();
        bound.iter().for_each(|thread| assert!(cpus.wake(Nanos(0), *thread, CPU0, Nanos(0))));
        let turns_bound = turns(&mut cpus, 1_000, 1_000_000);
        assert!(turns_bound.iter().all(|turns| *turns < 600), "one CPU for both: {turns_bound:?}");
        let mut free = self::cpus(1, 2);
        let threads: Vec<_> = (0..2).map(|_| free.spawn(Affinity::Any)).collect();
        threads.iter().for_each(|thread| assert!(free.wake(Nanos(0), *thread, CPU0, Nanos(0))));
        let turns_free = turns(&mut free, 1_000, 1_000_000);
        assert!(turns_free.iter().all(|turns| *turns > 900), "one each: {turns_free:?}");
    }

    #[test]
    fn sleeper_goes_first_where_the_other_has_run_more_by_the_granularity() {
        // How many bursts of 400 the other one has had, and whether the sleeper goes next.
        for (bursts, goes_first) in [(2, false), (4, true)] {
            let mut cpus = cpus(1, 1);
            let (hog, sleeper) = (cpus.spawn(Affinity::Any), cpus.spawn(Affinity::Any));
            cpus.wake(Nanos(0), hog, CPU0, Nanos(0));
            for _ in 0..bursts {
                let now = cpus.next_event().unwrap();
                assert_eq!(cpus.take(now).unwrap().1, hog);
                cpus.run(now, CPU0, Nanos(400));
            }
            let now = cpus.next_event().unwrap();
            cpus.wake(now, sleeper, CPU0, Nanos(0));
            let next = cpus.take(now).or_else(|| cpus.take(cpus.next_event().unwrap()));
            assert_eq!(next.unwrap().1 == sleeper, goes_first, "{bursts}");
        }
    }

    /// What a thread of a random world does next.
    struct Habit {
        burst: u64,
        bursts_left: u64,
        sleep: u64,
        ready_since: Option<u64>,
    }

    /// Threads that run and sleep as chance will have it; the longest that one waited, and how long
    /// each ran.
    fn random_world(threads: u32, topology: (u16, u16), seed: u64, until: u64) -> (u64, Vec<u64>) {
        let mut cpus = cpus(topology.0, topology.1);
        let mut random = blockyard_workload::random::Random::new(seed, 0);
        let mut habits: Vec<Habit> = Vec::new();
        let mut sleepers = std::collections::BTreeSet::new();
        for number in 0..threads {
            let affinity = match random.below(4) {
                0 => Affinity::Cpu(CpuId(random.below(u64::from(cpus.topology.cpus())) as u16)),
                _ => Affinity::Any,
            };
            cpus.spawn(affinity);
            let (burst, sleep) = (1 + random.below(900), 1 + random.below(20_000));
            habits.push(Habit { burst, bursts_left: 0, sleep, ready_since: None });
            sleepers.insert((u64::from(number), number));
        }
        let mut longest = 0;
        loop {
            let wakes = sleepers.first().map(|(at, _)| *at);
            let now = wakes.into_iter().chain(cpus.next_event().map(|at| at.0)).min().unwrap();
            if now > until {
                let used = (0..threads).map(|number| cpus.used(ThreadId(number)).0).collect();
                return (longest, used);
            }
            while let Some((_, number)) = sleepers.first().copied().filter(|(at, _)| *at <= now) {
                sleepers.pop_first();
                cpus.wake(Nanos(now), ThreadId(number), CPU0, Nanos(0));
                habits[number as usize].ready_since = Some(now);
                habits[number as usize].bursts_left = 1 + random.below(30);
            }
            while let Some((cpu, thread)) = cpus.take(Nanos(now)) {
                let habit = &mut habits[thread.0 as usize];
                if let Some(since) = habit.ready_since.take() {
                    longest = longest.max(now - since);
                }
                if habit.bursts_left == 0 {
                    cpus.block(Nanos(now), cpu);
                    sleepers.insert((now + habit.sleep, thread.0));
                } else {
                    habit.bursts_left -= 1;
                    cpus.run(Nanos(now), cpu, Nanos(habit.burst));
                }
            }
            assert_work_is_conserved(&cpus);
        }
    }

    /// No CPU is idle while a thread waits that may run there.
    fn assert_work_is_conserved(cpus: &Cpus) {
        for at in 0..cpus.cpus.len() {
            let may = |thread: &ThreadId| {
                cpus.threads[thread.0 as usize].affinity.allows(cpus.topology, at)
            };
            let waits = cpus.cpus.iter().any(|cpu| cpu.queue.has(may));
            assert!(!waits || cpus.cpus[at].current.is_some(), "CPU {at} is idle");
        }
    }

    #[test]
    fn no_cpu_idles_while_a_thread_waits_that_may_run_there() {
        for seed in 0..20 {
            random_world(12, (2, 2), seed, 400_000);
        }
    }

    /// 2 n (bonus + turn + longest burst + switch), of n threads.
    #[test]
    fn no_thread_waits_for_longer_than_the_stated_bound_however_many_wake_up() {
        for (threads, seed) in [(2, 1), (8, 2), (32, 3), (128, 4)] {
            let (longest, used) = random_world(threads, (1, 1), seed, 20_000_000);
            let bonus = COSTS.slice.0 / 2;
            let turn = COSTS.granularity.0.max(COSTS.slice.0 / u64::from(threads));
            let bound = 2 * u64::from(threads) * (bonus + turn + 900 + COSTS.switch.0);
            assert!(longest <= bound, "{longest} of {threads} threads, bound {bound}");
            assert!(used.iter().all(|used| *used > 0), "{used:?}");
        }
    }

    /// Who never sleeps has its share beside many who do.
    #[test]
    fn thread_that_never_sleeps_has_an_equal_share_beside_sleepers() {
        let mut cpus = cpus(1, 1);
        let hog = cpus.spawn(Affinity::Any);
        let sleepers: Vec<ThreadId> = (0..31).map(|_| cpus.spawn(Affinity::Any)).collect();
        let all = || sleepers.iter().chain([&hog]);
        all().for_each(|thread| assert!(cpus.wake(Nanos(0), *thread, CPU0, Nanos(0))));
        let mut has_run = [false; 32];
        while let Some(now) = cpus.next_event().filter(|now| now.0 < 10_000_000) {
            while let Some((cpu, thread)) = cpus.take(now) {
                let has_run = &mut has_run[thread.0 as usize];
                if thread == hog || !std::mem::replace(has_run, true) {
                    cpus.run(now, cpu, Nanos(500));
                } else {
                    // It sleeps, and wakes up at once.
                    *has_run = false;
                    cpus.block(now, cpu);
                    cpus.wake(now, thread, CPU0, Nanos(0));
                }
            }
        }
        let others: u64 = sleepers.iter().map(|thread| cpus.used(*thread).0).sum();
        let (hog, mean) = (cpus.used(hog).0, others / 31);
        assert!(hog.abs_diff(mean) < mean / 10, "{hog} ns, and {mean} of the others");
    }

    #[test]
    fn urgent_thread_takes_the_cpu_at_once_and_gives_it_to_nobody_else() {
        let mut cpus = cpus(1, 1);
        let (job, other) = (cpus.spawn(Affinity::Any), cpus.spawn(Affinity::Any));
        let urgent = cpus.spawn_urgent(CPU0);
        cpus.wake(Nanos(0), job, CPU0, Nanos(0));
        let mut now = cpus.next_event().unwrap();
        let mut asked = Vec::new();
        while asked.len() < 8 {
            let Some((cpu, thread)) = cpus.take(now) else {
                now = cpus.next_event().unwrap();
                continue;
            };
            asked.push(thread);
            if thread == urgent && asked.len() == 7 {
                cpus.block(now, cpu);
            } else {
                cpus.run(now, cpu, Nanos(400));
            }
            match asked.len() {
                1 => assert!(cpus.wake(now, urgent, CPU0, Nanos(0))),
                // It runs longer than the granularity, and the other one waits all the same.
                2 => assert!(cpus.wake(now, other, CPU0, Nanos(0))),
                _ => {}
            }
            now = cpus.next_event().unwrap();
        }
        assert_eq!(asked, [job, urgent, urgent, urgent, urgent, urgent, urgent, other]);
        let count = |voluntary, involuntary| Switches { voluntary, involuntary };
        assert_eq!(cpus.switches_of(job), count(0, 1));
        assert_eq!(cpus.switches_of(urgent), count(1, 0));
    }

    #[test]
    fn interrupt_makes_the_running_burst_longer_and_an_idle_cpu_only_busy() {
        let mut cpus = cpus(1, 1);
        cpus.charge(Nanos(0), CPU0, Nanos(50));
        let thread = cpus.spawn(Affinity::Any);
        cpus.wake(Nanos(0), thread, CPU0, Nanos(0));
        let now = cpus.next_event().unwrap();
        let (cpu, _) = cpus.take(now).unwrap();
        cpus.run(now, cpu, Nanos(1_000));
        cpus.charge(now + Nanos(500), CPU0, Nanos(70));
        assert_eq!(cpus.next_event().unwrap(), now + Nanos(1_070));
        assert_eq!(cpus.used(thread), Nanos(1_000), "stolen time is not the thread's");
    }

    /// Time is conserved: what a CPU does for interrupts it does one after the other, also where it
    /// was idle, and a thread starts behind all of it.
    #[test]
    fn cpu_does_one_thing_after_the_other() {
        let mut cpus = cpus(1, 1);
        assert_eq!(cpus.charge(Nanos(0), CPU0, Nanos(50)), Nanos(50));
        assert_eq!(cpus.charge(Nanos(20), CPU0, Nanos(50)), Nanos(100));
        let thread = cpus.spawn(Affinity::Any);
        cpus.wake(Nanos(30), thread, CPU0, Nanos(0));
        // Two interrupts, the wake-up, the exit from idle, the switch.
        assert_eq!(cpus.next_event(), Some(Nanos(100 + 10 + 5 + 100)));
        assert_eq!(cpus.charge(Nanos(60), CPU0, Nanos(50)), Nanos(160));
        let now = cpus.next_event().unwrap();
        assert_eq!(now, Nanos(265), "it is not late for what waits for nobody");
        let (cpu, _) = cpus.take(now).unwrap();
        cpus.run(now, cpu, Nanos(1_000));
        assert!(cpus.counters().busy <= cpus.next_event().unwrap());
    }

    /// Who wakes somebody on another CPU has paid for that, and for what it did before, by the time
    /// that the other one starts.
    #[test]
    fn thread_runs_when_its_waker_has_paid_for_it() {
        for busy in [false, true] {
            let mut cpus = cpus(1, 2);
            let other = cpus.spawn(Affinity::Cpu(CpuId(1)));
            let thread = cpus.spawn(Affinity::Cpu(CpuId(1)));
            if busy {
                cpus.wake(Nanos(0), other, CpuId(1), Nanos(0));
                let now = cpus.next_event().unwrap();
                assert_eq!(cpus.take(now).unwrap().1, other);
                cpus.run(now, CpuId(1), Nanos(10));
            }
            cpus.wake(Nanos(120), thread, CPU0, Nanos(700));
            if busy {
                let now = cpus.next_event().unwrap();
                let (cpu, _) = cpus.take(now).unwrap();
                cpus.block(now, cpu);
            }
            let starts = 120 + 700 + 10 + if busy { 0 } else { 30 + 5 };
            assert_eq!(cpus.next_event(), Some(Nanos(starts + 100)));
        }
    }

    #[test]
    fn thread_that_ends_is_never_asked_again() {
        let mut cpus = cpus(1, 1);
        let threads: Vec<_> = (0..3).map(|_| cpus.spawn(Affinity::Any)).collect();
        threads.iter().for_each(|thread| assert!(cpus.wake(Nanos(0), *thread, CPU0, Nanos(0))));
        let now = cpus.next_event().unwrap();
        // The first woken runs, the others are queued.
        cpus.exit(now, threads[0]);
        cpus.exit(now, threads[1]);
        let turns = turns(&mut cpus, 1_000, 100_000);
        assert_eq!((turns[0], turns[1]), (0, 0));
        assert!(turns[2] > 90);
    }
}
