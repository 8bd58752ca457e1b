//! The threads and the CPUs: waits and wake-ups, with their times.

use std::ops::{Index, IndexMut};

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::bandwidth::{Bandwidth, Burst, FlowId, Moved, Traffic};
use super::causes::MemoryCauses;
use super::clock::{Clock, Timer};
use super::observers::Observers;
use super::thread::{Doing, Kind, Thread};
use super::trace::{Event, Observer, Wait};
use crate::cache::PAGE_BYTES;
use crate::cpu::{Affinity, Costs, CpuId, Cpus, ThreadId, Topology};

/// The clock, the CPUs, their threads, and the observers.
pub(super) struct Threads<'a> {
    pub(super) clock: Clock,
    pub(super) cpus: Cpus,
    all: Vec<Thread>,
    /// The CPU of the current turn.
    pub(super) running_on: Option<CpuId>,
    /// Costs of the current context, for which its CPU has not been charged.
    spent: Nanos,
    pub(super) observers: Observers<'a>,
    /// `None`: the rate of memory has no limit.
    pub(super) bandwidth: Option<Bandwidth>,
    topology: Topology,
}

impl<'a> Threads<'a> {
    pub(super) fn new(topology: Topology, costs: Costs, observer: &'a mut dyn Observer) -> Self {
        Self {
            clock: Clock::default(),
            cpus: Cpus::new(topology, costs),
            all: Vec::new(),
            running_on: None,
            spent: Nanos(0),
            observers: Observers::new(observer),
            bandwidth: None,
            topology,
        }
    }

    pub(super) fn now(&self) -> Nanos {
        self.clock.now
    }

    /// The numbers of all threads.
    pub(super) fn ids(&self) -> impl Iterator<Item = ThreadId> + use<> {
        (0..u32::try_from(self.all.len()).expect("threads are few")).map(ThreadId)
    }

    pub(super) fn event(&mut self, event: Event) {
        self.observers.event(self.clock.now, event);
    }

    /// Spawns a runnable thread.
    pub(super) fn spawn(&mut self, kind: Kind, priority: Priority, affinity: Affinity) -> ThreadId {
        let thread = self.spawn_asleep(kind, affinity);
        self[thread].priority = priority;
        self.wake_from(thread, Wait::Work);
        thread
    }

    /// Spawns a thread that waits for work.
    pub(super) fn spawn_asleep(&mut self, kind: Kind, affinity: Affinity) -> ThreadId {
        let thread = self.cpus.spawn(affinity);
        self.put_to_sleep(kind, thread);
        thread
    }

    /// Spawns a thread that waits for work and precedes others on its CPU.
    pub(super) fn spawn_urgent(&mut self, kind: Kind, affinity: Affinity) -> ThreadId {
        let thread = self.cpus.spawn_urgent(affinity);
        self.put_to_sleep(kind, thread);
        thread
    }

    fn put_to_sleep(&mut self, kind: Kind, thread: ThreadId) {
        self.event(Event::Spawn { thread, role: kind.role() });
        self.all.push(Thread::new(kind, thread.0, Priority::default()));
        self[thread].waits = Some(Wait::Work);
    }

    pub(super) fn set(&mut self, thread: ThreadId, doing: Doing) {
        self[thread].doing = doing;
    }

    /// Wakes a thread if it waits for `from`.
    pub(super) fn wake_from(&mut self, thread: ThreadId, from: Wait) {
        let sleeper = &mut self[thread];
        if sleeper.waits == Some(from) && !sleeper.is_over() {
            sleeper.waits = None;
            self.event(Event::Wake { thread });
            // The CPU of the sleeping thread keeps its timer.
            let by = self.running_on.unwrap_or_else(|| self.cpus.last_of(thread));
            // The context pays its costs before it wakes others.
            self.cpus.wake(self.clock.now, thread, by, self.spent);
        }
    }

    /// Sets a timer for a thread that is about to wait.
    pub(super) fn wake_at(&mut self, thread: ThreadId, at: Nanos) {
        let wait_number = self[thread].wait_number + 1;
        self.clock.timers.schedule(at, Timer { thread, wait_number });
        self.cpus.set_timer(thread, at);
    }

    /// Sets a timer for a waiting thread.
    pub(super) fn wake_sleeper_at(&mut self, thread: ThreadId, at: Nanos) {
        let wait_number = self[thread].wait_number;
        self.clock.timers.schedule(at, Timer { thread, wait_number });
        self.cpus.set_timer(thread, at);
    }

    /// Handles a timer.
    pub(super) fn ring(&mut self) {
        let Some((_, Timer { thread, wait_number })) = self.clock.timers.take() else { return };
        let sleeper = &self[thread];
        if sleeper.wait_number == wait_number
            && let Some(on) = sleeper.waits
        {
            self.wake_from(thread, on);
        }
    }

    pub(super) fn block_on(&mut self, cpu: CpuId, thread: ThreadId, on: Wait) {
        let sleeper = &mut self[thread];
        sleeper.waits = Some(on);
        sleeper.wait_number += 1;
        self.event(Event::Block { thread, on });
        self.cpus.block(self.clock.now, cpu);
    }

    /// Reports the switches to the observers.
    #[inline]
    pub(super) fn note_switches(&mut self) {
        for (at, cpu, thread) in self.cpus.take_switches() {
            self.observers.event(at, Event::Switch { cpu, thread });
        }
    }

    /// Adds a cost of the current context.
    pub(super) fn spend(&mut self, cost: Nanos) {
        self.spent = self.spent + cost;
    }

    /// Costs of the current context so far.
    pub(super) fn spent(&self) -> Nanos {
        self.spent
    }

    /// Takes the costs of a context, at its end.
    pub(super) fn take_spent(&mut self) -> Nanos {
        std::mem::take(&mut self.spent)
    }

    /// Charges a CPU for the costs of a context, at its end.
    pub(super) fn charge_spent(&mut self, cpu: CpuId) {
        let spent = self.take_spent();
        self.charge(cpu, spent);
    }

    /// Charges a CPU for an interrupt; returns the end of the interrupt.
    pub(super) fn charge(&mut self, cpu: CpuId, cost: Nanos) -> Nanos {
        self.cpus.charge(self.clock.now, cpu, cost)
    }

    /// Cost of the copy of pages, which is traffic of the thread's next burst.
    pub(super) fn copy_pages(
        &mut self,
        cpu: CpuId,
        thread: ThreadId,
        page: Nanos,
        count: u64,
    ) -> Nanos {
        if let Some(bandwidth) = &self.bandwidth {
            let percent = u64::from(bandwidth.config().copy_percent);
            let home = self.topology.socket_of(cpu);
            self.adds(thread, Traffic { bytes: count * PAGE_BYTES * percent / 100, home });
        }
        Nanos(page.0 * count)
    }

    /// Adds to the traffic of the thread's next burst.
    pub(super) fn adds(&mut self, thread: ThreadId, Traffic { bytes, home }: Traffic) {
        let sum = &mut self[thread].traffic;
        *sum = Traffic { bytes: sum.bytes + bytes, home };
    }

    /// The traffic of the burst that has begun.
    pub(super) fn draw(&mut self, cpu: CpuId, thread: ThreadId) {
        let Some(bandwidth) = &mut self.bandwidth else { return };
        let traffic = std::mem::take(&mut self.all[thread.0 as usize].traffic);
        if traffic.bytes == 0 {
            return;
        }
        let now = self.clock.now;
        let works_until = self.cpus.burst_end(cpu);
        let socket = self.topology.socket_of(cpu);
        bandwidth.begin_burst(now, traffic, socket, Burst { cpu, thread, works_until });
        self.move_ends();
    }

    /// Begins a flow without a thread, which takes at least this time; `None` without a limit.
    pub(super) fn begin_flow(
        &mut self,
        traffic: Traffic,
        socket: u16,
        least: Nanos,
    ) -> Option<FlowId> {
        let bandwidth = self.bandwidth.as_mut().filter(|_| traffic.bytes > 0)?;
        let id = bandwidth.begin(self.clock.now, traffic, socket, least);
        self.move_ends();
        Some(id)
    }

    /// End of a flow if nothing else changes; `None` if it has ended.
    pub(super) fn flow_end(&self, id: FlowId) -> Option<Nanos> {
        self.bandwidth.as_ref().and_then(|bandwidth| bandwidth.end_of(id))
    }

    pub(super) fn next_flow_end(&self) -> Option<Nanos> {
        self.bandwidth.as_ref().and_then(Bandwidth::next_event)
    }

    /// Ends the flows that are due.
    pub(super) fn end_flows(&mut self) {
        if let Some(bandwidth) = &mut self.bandwidth {
            bandwidth.advance(self.clock.now);
        }
        self.move_ends();
    }

    fn move_ends(&mut self) {
        let moved = self.bandwidth.as_mut().map(Bandwidth::take_moved);
        for Moved { burst, from, to } in moved.into_iter().flatten() {
            self.cpus.move_end(burst.cpu, burst.thread, from, to);
        }
    }

    pub(super) fn memory_causes(&self) -> Option<MemoryCauses> {
        let bandwidth = self.bandwidth.as_ref()?;
        Some(MemoryCauses { bytes: bandwidth.moved_bytes(), waited: bandwidth.waited() })
    }

    /// The waiting threads, as text.
    pub(super) fn waiting(&self) -> String {
        let waiting = self.all.iter().enumerate().filter(|(_, thread)| !thread.is_over());
        let who: Vec<String> = waiting
            .filter_map(|(at, thread)| thread.waits.map(|on| format!("thread {at} for {on:?}")))
            .collect();
        who.join(", ")
    }
}

impl Index<ThreadId> for Threads<'_> {
    type Output = Thread;

    fn index(&self, thread: ThreadId) -> &Thread {
        &self.all[thread.0 as usize]
    }
}

impl IndexMut<ThreadId> for Threads<'_> {
    fn index_mut(&mut self, thread: ThreadId) -> &mut Thread {
        &mut self.all[thread.0 as usize]
    }
}
