//! Idle states of a CPU, and the governor that selects them (`drivers/cpuidle`).
//!
//! A CPU without a thread sleeps in an idle state. A deeper one has a longer exit, and is worth it
//! if the CPU sleeps for its *residency* at least. The exit of its state precedes whatever wakes
//! the CPU: a thread, or an interrupt. That time is idle time.
//!
//! * `menu` predicts the length of a sleep: the mean of the last eight, if these are alike without
//!   one or two long ones, but at most the time until the next timer of a thread of the CPU. It
//!   takes the deepest state whose residency is not longer.
//! * `haltpoll`, of virtual machines, polls before it halts. A poll ends at once. Its length grows
//!   after a halt that a longer poll had avoided, and shrinks after a long halt.
//!
//! Left out: the tick of the scheduler, which lets a CPU select again; factors that correct the
//! times of timers; sleeps of a whole package; energy.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_engine::time::Nanos;

use super::{Costs, Cpus, ThreadId};

/// Sleeps that `menu` remembers (`INTERVALS`).
const INTERVALS: usize = 8;
/// First length of a poll (`guest_halt_poll_grow_start`).
const POLL_START: Nanos = Nanos(50_000);

/// Exit of an idle CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Equal for each wake-up of a thread; an interrupt pays none.
    Fixed(Nanos),
    /// That of its idle state.
    Governed(IdleConfig),
}

/// Idle states and their governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleConfig {
    /// Governor.
    pub governor: IdleGovernor,
    /// States, the deepest last.
    pub states: [IdleState; 3],
}

/// An idle state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// Exit latency.
    pub exit: Nanos,
    /// Shortest sleep for which a governor selects it; `None`: it does not.
    pub residency: Option<Nanos>,
}

/// A governor of idle states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleGovernor {
    /// By the last sleeps and the next timer (`governors/menu.c`).
    Menu,
    /// Poll, then the first state (`governors/haltpoll.c`).
    HaltPoll {
        /// Longest poll (`guest_halt_poll_ns`).
        poll_max: Nanos,
    },
}

/// Sleep of a CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Sleep {
    /// Its begin: after the work of an interrupt that is under way.
    since: Nanos,
    /// End of the exit from the last one.
    pub(super) awake: Nanos,
    /// Its idle state.
    state: usize,
    /// Last sleeps in microseconds, and the place of the next one.
    intervals: [u64; INTERVALS],
    next: usize,
    /// Length of a poll.
    poll: Nanos,
}

/// The next timer of each thread that waits for one.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_cpu: BTreeSet<(usize, Nanos, ThreadId)>,
    of: BTreeMap<ThreadId, (usize, Nanos)>,
}

impl Timers {
    fn remove(&mut self, thread: ThreadId) {
        if let Some((cpu, at)) = self.of.remove(&thread) {
            self.by_cpu.remove(&(cpu, at, thread));
        }
    }

    fn next(&self, cpu: usize) -> Option<Nanos> {
        let (first, at, _) = self.by_cpu.range((cpu, Nanos(0), ThreadId(0))..).next()?;
        (*first == cpu).then_some(*at)
    }
}

impl Cpus {
    /// A thread is about to wait until this time, or for less long.
    pub fn set_timer(&mut self, thread: ThreadId, at: Nanos) {
        if self.costs.idle.governed().is_some() {
            self.clear_timer(thread);
            let cpu = self.threads[thread.0 as usize].last;
            self.timers.by_cpu.insert((cpu, at, thread));
            self.timers.of.insert(thread, (cpu, at));
        }
    }

    pub(super) fn clear_timer(&mut self, thread: ThreadId) {
        if self.costs.idle.governed().is_some() {
            self.timers.remove(thread);
        }
    }

    /// A CPU has no thread from `from` on.
    pub(super) fn falls_asleep(&mut self, from: Nanos, at: usize) {
        if !self.sleeps() {
            return;
        }
        self.cpus[at].sleep.since = from;
        let Some(config) =
            self.costs.idle.governed().filter(|idle| idle.governor == IdleGovernor::Menu)
        else {
            return;
        };
        let timer = self.timers.next(at).map_or(Nanos(u64::MAX), |timer| timer.since(from));
        let sleep = &mut self.cpus[at].sleep;
        let typical = typical(&sleep.intervals).map_or(Nanos(u64::MAX), |us| Nanos(us * 1_000));
        sleep.state = config.deepest(typical.min(timer));
    }

    /// Whether sleeps are followed.
    fn sleeps(&self) -> bool {
        self.costs.idle.governed().is_some() || self.costs.vm.is_some()
    }

    /// Something calls a CPU without a thread. Returns the time of its exit from its idle state and
    /// from a halt, after which it sleeps again, unless it has work.
    pub(super) fn rouse(&mut self, now: Nanos, at: usize) -> Nanos {
        let slept = now.since(self.cpus[at].sleep.since);
        if !self.sleeps() || slept == Nanos(0) {
            return Nanos(0);
        }
        let Costs { idle, vm, .. } = self.costs;
        let idle = idle.governed();
        let sleep = &mut self.cpus[at].sleep;
        let halted = sleep.halted(now, idle);
        let exit = idle.map_or(Nanos(0), |config| sleep.ends(&config, slept, halted));
        let exit = exit + vm.map_or(Nanos(0), |vm| vm.wakes_after(halted));
        sleep.awake = now + exit;
        self.falls_asleep(now + exit, at);
        exit
    }
}

impl Idle {
    pub(super) fn governed(self) -> Option<IdleConfig> {
        match self {
            Self::Fixed(_) => None,
            Self::Governed(config) => Some(config),
        }
    }

    /// Exit that does not depend on the sleep.
    pub(super) fn of_each_wake_up(self) -> Nanos {
        match self {
            Self::Fixed(exit) => exit,
            Self::Governed(_) => Nanos(0),
        }
    }
}

impl IdleConfig {
    /// The deepest state for a sleep of this length.
    fn deepest(&self, sleep: Nanos) -> usize {
        let fits = |state: &IdleState| state.residency.is_some_and(|least| least <= sleep);
        self.states.iter().rposition(fits).unwrap_or(0)
    }
}

impl Sleep {
    /// The CPU works for this long, in an interrupt, before it sleeps on.
    pub(super) fn is_awake_for(&mut self, time: Nanos) {
        self.since = self.since + time;
    }

    /// Time since the begin of the halt, after a poll.
    pub(super) fn halted(&self, now: Nanos, idle: Option<IdleConfig>) -> Nanos {
        let polls = idle.is_some_and(|idle| matches!(idle.governor, IdleGovernor::HaltPoll { .. }));
        let poll = if polls { self.poll } else { Nanos(0) };
        now.since(self.since + poll)
    }

    /// The sleep ends; returns the exit latency of its state.
    fn ends(&mut self, config: &IdleConfig, slept: Nanos, halted: Nanos) -> Nanos {
        match config.governor {
            IdleGovernor::Menu => {
                self.note(slept);
                config.states[self.state].exit
            }
            IdleGovernor::HaltPoll { .. } if halted == Nanos(0) => Nanos(0),
            IdleGovernor::HaltPoll { poll_max } => {
                self.adjust_poll(halted, poll_max);
                config.states[0].exit
            }
        }
    }

    fn note(&mut self, slept: Nanos) {
        self.intervals[self.next] = slept.0 / 1_000;
        self.next = (self.next + 1) % INTERVALS;
    }

    /// After a halt (`adjust_poll_limit`).
    fn adjust_poll(&mut self, halted: Nanos, poll_max: Nanos) {
        if halted > poll_max {
            self.poll = Nanos(self.poll.0 / 2);
        } else if halted > self.poll {
            self.poll = Nanos(self.poll.0 * 2).max(POLL_START).min(poll_max);
        }
    }
}

/// The typical one of some intervals, in microseconds; `None` if they differ, even without the
/// longest ones (`get_typical_interval`).
fn typical(intervals: &[u64; INTERVALS]) -> Option<u64> {
    let mut sorted = *intervals;
    sorted.sort_unstable();
    let mut left = &sorted[..];
    loop {
        let count = left.len() as u64;
        let longest = *left.last().filter(|longest| **longest > 0)?;
        let mean = left.iter().sum::<u64>() / count;
        let squares: u128 = left.iter().map(|interval| u128::from(*interval).pow(2)).sum();
        let square = u128::from(mean).pow(2);
        let variance = (squares / u128::from(count)).saturating_sub(square);
        let is_most = left.len() * 4 >= INTERVALS * 3;
        if (square > variance * 36 && is_most) || variance <= 400 {
            return Some(mean);
        }
        if left.len() * 4 <= INTERVALS * 3 {
            return None;
        }
        left = &left[..left.partition_point(|interval| *interval < longest)];
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{COSTS, CPU0, HALT_POLL, IDLE_EXIT, MENU};
    use super::super::{Affinity, Costs, CpuId, Topology};
    use super::*;

    /// A wake-up by the own CPU, without a switch.
    const WAKE_UP: u64 = COSTS.wake_up.0;

    /// A thread of one CPU that sleeps for these times in microseconds, and wakes up by another
    /// event or by its timer. Returns the delays of its wake-ups.
    fn delays(idle: Option<IdleConfig>, sleeps_us: &[u64], by_timer: bool) -> Vec<u64> {
        let idle = idle.map_or(COSTS.idle, Idle::Governed);
        let mut cpus = Cpus::new(Topology::of(1, 1), Costs { idle, ..COSTS });
        let thread = cpus.spawn(Affinity::Any);
        let mut now = Nanos(0);
        cpus.wake(now, thread, CPU0, Nanos(0));
        let mut delays = Vec::new();
        for sleep in sleeps_us {
            now = cpus.next_event().unwrap();
            assert_eq!(cpus.take(now), Some((CPU0, thread)));
            let wakes = now + Nanos(sleep * 1_000);
            if by_timer {
                cpus.set_timer(thread, wakes);
            }
            cpus.block(now, CPU0);
            cpus.wake(wakes, thread, CPU0, Nanos(0));
            delays.push((cpus.next_event().unwrap() - wakes).0);
        }
        delays
    }

    #[test]
    fn cpu_that_sleeps_for_like_times_pays_the_exit_of_the_state_for_them() {
        let last = |idle, sleep_us| *delays(idle, &[sleep_us; 10], false).last().unwrap();
        assert_eq!(last(Some(MENU), 10), 2_000 + WAKE_UP);
        assert_eq!(last(Some(MENU), 100), 10_000 + WAKE_UP);
        assert_eq!(last(Some(MENU), 1_000), 133_000 + WAKE_UP);
        let shallow =
            [MENU.states[0], MENU.states[1], IdleState { residency: None, ..MENU.states[2] }];
        assert_eq!(last(Some(IdleConfig { states: shallow, ..MENU }), 1_000), 10_000 + WAKE_UP);
        for sleep_us in [10, 1_000] {
            assert_eq!(last(None, sleep_us), IDLE_EXIT.0 + WAKE_UP, "the control");
        }
    }

    #[test]
    fn next_timer_limits_the_predicted_sleep() {
        let first = |sleep_us, by_timer| delays(Some(MENU), &[sleep_us], by_timer)[0];
        assert_eq!(first(10, false), 133_000 + WAKE_UP, "nothing is known");
        assert_eq!(first(10, true), 2_000 + WAKE_UP);
        assert_eq!(first(100, true), 10_000 + WAKE_UP);
    }

    #[test]
    fn a_long_sleep_among_like_ones_is_an_outlier() {
        assert_eq!(typical(&[50, 50, 50, 50, 50, 50, 50, 9_000]), Some(50));
        assert_eq!(typical(&[50, 50, 50, 50, 50, 50, 7_000, 9_000]), Some(50));
        assert_eq!(typical(&[50, 50, 50, 50, 50, 5_000, 7_000, 9_000]), None);
        assert_eq!(typical(&[90, 100, 110, 100, 90, 110, 100, 100]), Some(100));
        assert_eq!(typical(&[0; 8]), None);
    }

    /// The first sleep halts, and makes the poll longer than the others. The long one halves it.
    #[test]
    fn poll_avoids_the_halt_of_a_short_sleep_and_adapts_to_the_sleeps() {
        let sleeps = [30, 30, 45, 5_000, 30, 24];
        let halt = 2_000 + WAKE_UP;
        let expected = [halt, WAKE_UP, WAKE_UP, halt, halt, WAKE_UP];
        assert_eq!(delays(Some(HALT_POLL), &sleeps, false), expected);
        let never =
            IdleConfig { governor: IdleGovernor::HaltPoll { poll_max: Nanos(0) }, ..HALT_POLL };
        assert_eq!(delays(Some(never), &sleeps, false), [halt; 6]);
    }

    #[test]
    fn interrupt_of_an_idle_cpu_ends_after_the_exit_which_is_no_busy_time() {
        let idle = Idle::Governed(MENU);
        let mut cpus = Cpus::new(Topology::of(1, 2), Costs { idle, ..COSTS });
        let began = Nanos(5_000_000);
        let ended = cpus.charge(began, CpuId(1), Nanos(700));
        assert_eq!(ended, began + Nanos(133_700));
        assert_eq!(cpus.busy(began + Nanos(133_000)), Nanos(0));
        assert_eq!(cpus.charge(ended, CpuId(1), Nanos(700)), ended + Nanos(700), "it is awake");
        assert_eq!(cpus.busy(ended + Nanos(700)), Nanos(1_400));
    }
}
