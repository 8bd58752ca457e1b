//! Guarantees of schedulers, and conservation of time.

use super::*;

/// Exit of an idle CPU.
pub(super) const IDLE_EXIT: Nanos = Nanos(5);
pub(super) const COSTS: Costs = Costs {
    switch: Nanos(100),
    wake_up: Nanos(10),
    ipi: Nanos(30),
    ipi_remote: Nanos(70),
    idle: Idle::Fixed(IDLE_EXIT),
    vm: None,
    migrate: Migration { same_l3: Nanos(0), other_l3: Nanos(0), remote: Nanos(0) },
    cache_hot: Nanos(0),
    slice: Nanos(10_000),
    granularity: Nanos(1_000),
    scheduler: Scheduler::Cfs,
    user: Nanos(0),
    syscall: Nanos(0),
    page: Nanos(0),
    submit: Nanos(0),
    issue: Nanos(0),
    interrupt: Nanos(0),
    complete: Nanos(0),
    governor: None,
    shared_core_percent: None,
};
pub(super) const CPU0: CpuId = CpuId(0);

const fn state(exit_us: u64, residency_us: u64) -> IdleState {
    IdleState { exit: Nanos(exit_us * 1_000), residency: Some(Nanos(residency_us * 1_000)) }
}

/// The states of a Skylake server.
pub(super) const MENU: IdleConfig = IdleConfig {
    governor: IdleGovernor::Menu,
    states: [state(2, 0), state(10, 20), state(133, 600)],
};
pub(super) const HALT_POLL: IdleConfig =
    IdleConfig { governor: IdleGovernor::HaltPoll { poll_max: Nanos(200_000) }, ..MENU };

const SCHEDULERS: [Scheduler; 2] = [Scheduler::Cfs, Scheduler::Eevdf];

fn cpus(sockets: u16, cpus_per_socket: u16) -> Cpus {
    cpus_under(Scheduler::Cfs, (sockets, cpus_per_socket))
}

fn cpus_under(scheduler: Scheduler, (sockets, cpus_per_socket): (u16, u16)) -> Cpus {
    Cpus::new(Topology::of(sockets, cpus_per_socket), Costs { scheduler, ..COSTS })
}

/// CPUs of which each two are a core, with the speed of two busy ones.
fn siblings(shared_core_percent: u32, cpus_per_socket: u16) -> Cpus {
    let shared_core_percent = Some(shared_core_percent);
    let topology = Topology::of(1, cpus_per_socket);
    Cpus::new(topology, Costs { shared_core_percent, ..COSTS })
}

/// Lets every thread run bursts of `burst` until `end`; returns the number of turns of each.
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
    // Number of bursts of 400 of the other thread, and whether the sleeper is next.
    for (bursts, goes_first) in [(2, false), (4, true)] {
        let mut cpus = cpus(1, 1);
        let hog = cpus.spawn(Affinity::Any);
        let sleeper = cpus.spawn(Affinity::Any);
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

/// Behaviour of a thread in a random world.
struct Habit {
    burst: u64,
    bursts_left: u64,
    sleep: u64,
    ready_since: Option<u64>,
}

/// Threads that run and sleep at random; returns the longest wait, and the run time of each.
fn random_world(mut cpus: Cpus, threads: u32, seed: u64, until: u64) -> (u64, Vec<u64>) {
    let mut random = blockyard_workload::random::Random::new(seed, 0);
    let mut habits: Vec<Habit> = Vec::new();
    let mut sleepers = std::collections::BTreeSet::new();
    for number in 0..threads {
        let any = |random: &mut blockyard_workload::random::Random, cpus: &Cpus| {
            random.below(u64::from(cpus.topology.cpus())) as u16
        };
        let affinity = match random.below(5) {
            0 => Affinity::Cpu(CpuId(any(&mut random, &cpus))),
            1 => {
                let set = [any(&mut random, &cpus), any(&mut random, &cpus)];
                cpus.set_of(&set)
            }
            _ => Affinity::Any,
        };
        cpus.spawn(affinity);
        let burst = 1 + random.below(900);
        let sleep = 1 + random.below(20_000);
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

/// Asserts that no CPU is idle while a thread waits that may run there.
fn assert_work_is_conserved(cpus: &Cpus) {
    for at in 0..cpus.cpus.len() {
        let may = |thread: &ThreadId| {
            cpus.threads[thread.0 as usize].affinity.allows(cpus.topology, &cpus.sets, at)
        };
        let waits = cpus.cpus.iter().any(|cpu| cpu.queue.any(may));
        assert!(!waits || cpus.cpus[at].current.is_some(), "CPU {at} is idle");
    }
}

#[test]
fn no_cpu_idles_while_a_thread_waits_that_may_run_there() {
    for seed in 0..20 {
        for scheduler in SCHEDULERS {
            random_world(cpus_under(scheduler, (2, 2)), 12, seed, 400_000);
        }
        random_world(siblings(60, 6), 12, seed, 400_000);
    }
}

/// 2 n (bonus + turn + longest burst + switch), with n threads.
#[test]
fn no_thread_waits_for_longer_than_the_stated_bound_however_many_wake_up() {
    for (threads, seed) in [(2, 1), (8, 2), (32, 3), (128, 4)] {
        let (longest, used) = random_world(cpus(1, 1), threads, seed, 20_000_000);
        let bonus = COSTS.slice.0 / 2;
        let turn = COSTS.granularity.0.max(COSTS.slice.0 / u64::from(threads));
        let bound = 2 * u64::from(threads) * (bonus + turn + 900 + COSTS.switch.0);
        assert!(longest <= bound, "{longest} of {threads} threads, bound {bound}");
        assert!(used.iter().all(|used| *used > 0), "{used:?}");
    }
}

/// 2 n (two slices + longest burst + switch), with n threads.
#[test]
fn no_thread_under_eevdf_waits_for_longer_than_the_stated_bound() {
    for (threads, seed) in [(2, 1), (8, 2), (32, 3), (128, 4)] {
        let cpus = cpus_under(Scheduler::Eevdf, (1, 1));
        let (longest, used) = random_world(cpus, threads, seed, 20_000_000);
        let slices = 2 * COSTS.granularity.0;
        let bound = 2 * u64::from(threads) * (slices + 900 + COSTS.switch.0);
        assert!(longest <= bound, "{longest} of {threads} threads, bound {bound}");
        assert!(used.iter().all(|used| *used > 0), "{used:?}");
    }
}

/// Runs the thread with this burst, which its CPU must choose next; returns the end of the burst.
fn runs(cpus: &mut Cpus, thread: ThreadId, burst: u64) -> Nanos {
    let now = cpus.next_event().unwrap();
    assert_eq!(cpus.take(now), Some((CPU0, thread)));
    cpus.run(now, CPU0, Nanos(burst));
    cpus.next_event().unwrap()
}

/// Lets the threads run bursts of 100 from `now` on while `may_run` holds for the chosen one;
/// returns the time of the first other choice.
fn runs_while(cpus: &mut Cpus, mut now: Nanos, may_run: impl Fn(ThreadId) -> bool) -> Nanos {
    loop {
        if let Some((cpu, thread)) = cpus.take(now) {
            if !may_run(thread) {
                return now;
            }
            cpus.run(now, cpu, Nanos(100));
        }
        now = cpus.next_event().unwrap();
    }
}

/// CFS places a sleeper half a period before the others, EEVDF at their mean.
#[test]
fn sleep_earns_a_bonus_under_cfs_and_none_under_eevdf() {
    let time_of_sleeper = |scheduler| {
        let mut cpus = cpus_under(scheduler, (1, 1));
        let hog = cpus.spawn(Affinity::Any);
        let sleeper = cpus.spawn(Affinity::Any);
        cpus.wake(Nanos(0), hog, CPU0, Nanos(0));
        let mut now = Nanos(0);
        for _ in 0..100 {
            now = runs(&mut cpus, hog, 100);
        }
        assert!(cpus.wake(now, sleeper, CPU0, Nanos(0)));
        let begins = runs_while(&mut cpus, now, |thread| thread == hog);
        assert!(begins.since(now) < Nanos(400), "it is eligible at once");
        runs_while(&mut cpus, begins, |thread| thread == sleeper).since(begins)
    };
    let bonus = Nanos(COSTS.slice.0 / 2);
    let cfs = time_of_sleeper(Scheduler::Cfs);
    let eevdf = time_of_sleeper(Scheduler::Eevdf);
    assert!(cfs > Nanos(bonus.0 * 3 / 4), "{cfs:?}");
    assert!(eevdf <= COSTS.granularity + Nanos(100) + COSTS.switch, "{eevdf:?}");
}

/// A thread that took almost a slice while the other one waited owes it after a sleep, however
/// short.
#[test]
fn sleep_clears_no_debt_under_eevdf() {
    let mut cpus = cpus_under(Scheduler::Eevdf, (1, 1));
    let other = cpus.spawn(Affinity::Any);
    let greedy = cpus.spawn(Affinity::Any);
    cpus.wake(Nanos(0), other, CPU0, Nanos(0));
    runs(&mut cpus, other, 100);
    cpus.wake(cpus.next_event().unwrap() - Nanos(50), greedy, CPU0, Nanos(0));
    let now = cpus.next_event().unwrap();
    assert_eq!(cpus.take(now), None, "the greedy one is next, after the switch");
    let now = runs(&mut cpus, greedy, 900);
    assert_eq!(cpus.take(now), Some((CPU0, greedy)), "its slice is not used up");
    cpus.block(now, CPU0);
    assert!(cpus.wake(now, greedy, CPU0, Nanos(0)));
    let next = runs_while(&mut cpus, now, |thread| thread == other);
    assert!(next.since(now) > Nanos(600), "{:?}", next.since(now));
}

/// A thread without sleeps has its share beside many sleepers.
#[test]
fn thread_that_never_sleeps_has_an_equal_share_beside_sleepers() {
    SCHEDULERS.into_iter().for_each(hog_has_an_equal_share);
}

fn hog_has_an_equal_share(scheduler: Scheduler) {
    let mut cpus = cpus_under(scheduler, (1, 1));
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
    let hog = cpus.used(hog).0;
    let mean = others / 31;
    assert!(hog.abs_diff(mean) < mean / 10, "{hog} ns, and {mean} of the others");
}

#[test]
fn urgent_thread_takes_the_cpu_at_once_and_gives_it_to_nobody_else() {
    let mut cpus = cpus(1, 1);
    let job = cpus.spawn(Affinity::Any);
    let other = cpus.spawn(Affinity::Any);
    let urgent = cpus.spawn_urgent(Affinity::Cpu(CPU0));
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
            // It runs longer than the granularity, but the other thread still waits.
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
    assert_eq!(cpus.used(thread), Nanos(1_070), "the interrupt is counted as the thread's");
}

/// Time is conserved: a CPU handles interrupts one after the other, also from idle, and a thread
/// starts after all of them.
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
    assert_eq!(now, Nanos(265), "the burst is on time");
    let (cpu, _) = cpus.take(now).unwrap();
    cpus.run(now, cpu, Nanos(1_000));
    assert!(cpus.counters().busy <= cpus.next_event().unwrap());
}

/// A thread on another CPU starts after its waker has paid for the wake-up and for its earlier
/// work.
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
    // The first woken thread runs, the others are queued.
    cpus.exit(now, threads[0]);
    cpus.exit(now, threads[1]);
    let turns = turns(&mut cpus, 1_000, 100_000);
    assert_eq!((turns[0], turns[1]), (0, 0));
    assert!(turns[2] > 90);
}

/// Time without a thread: interrupts of idle CPUs.
#[derive(Default)]
struct OfNobody(Nanos);

impl OfNobody {
    fn before(&mut self, cpus: &Cpus, cpu: CpuId, cost: Nanos) {
        if cpus.cpus[usize::from(cpu.0)].current.is_none() {
            self.0 = self.0 + cost;
        }
    }
}

/// Conservation of CPU time: the busy time of CPUs is the sum of threads, switches and interrupts
/// without a thread. No CPU is busy for longer than the elapsed time.
#[test]
fn cpu_time_is_that_of_threads_and_switches_and_interrupts_and_no_more_than_there_is() {
    for (seed, shared_core_percent) in
        (0..40).map(|seed| (seed, [None, Some(60)][seed as usize % 2]))
    {
        let mut random = blockyard_workload::random::Random::new(seed, 0);
        let topology = Topology::of(2, 2);
        let idle = [COSTS.idle, Idle::Governed(MENU)][seed as usize / 2 % 2];
        let mut cpus = Cpus::new(topology, Costs { shared_core_percent, idle, ..COSTS });
        let threads: Vec<ThreadId> = (0..9).map(|_| cpus.spawn(Affinity::Any)).collect();
        let mut nobody = OfNobody::default();
        let mut now = Nanos(0);
        while now.0 < 500_000 {
            let thread = threads[random.below(9) as usize];
            let by = CpuId(random.below(4) as u16);
            let cost = Nanos(random.below(300));
            if random.below(3) == 0 {
                nobody.before(&cpus, by, cost);
                cpus.charge(now, by, cost);
            } else if cpus.threads[thread.0 as usize].state == State::Waiting {
                nobody.before(&cpus, by, COSTS.wake_up);
                cpus.wake(now, thread, by, Nanos(0));
            }
            now = cpus.next_event().unwrap_or(now).max(now) + Nanos(random.below(400));
            while let Some(at) = cpus.next_event().filter(|at| *at <= now) {
                while let Some((cpu, _)) = cpus.take(at) {
                    // Half of the turns start with work for others.
                    if random.below(2) == 0 {
                        cpus.charge(at, cpu, Nanos(random.below(200)));
                    }
                    match random.below(4) {
                        0 => cpus.block(at, cpu),
                        _ => cpus.run(at, cpu, Nanos(1 + random.below(3_000))),
                    }
                }
            }
            assert!(cpus.busy(now).0 <= 4 * now.0, "{:?} in {now:?}", cpus.busy(now));
        }
        let used: u64 = threads.iter().map(|thread| cpus.used(*thread).0).sum();
        let CpuCounters { switches, busy, .. } = cpus.counters();
        assert_eq!(busy.0, used + switches * COSTS.switch.0 + nobody.0.0, "seed {seed}");
    }
}

/// A CPU with permanent work is busy all the time, regardless of interrupts.
#[test]
fn busy_cpu_is_busy_for_exactly_as_long_as_time_passes() {
    let mut cpus = cpus(1, 1);
    for _ in 0..3 {
        let thread = cpus.spawn(Affinity::Any);
        cpus.wake(Nanos(0), thread, CPU0, Nanos(0));
    }
    // The exit from idle follows the first wake-up.
    let idle = IDLE_EXIT;
    let mut random = blockyard_workload::random::Random::new(1, 0);
    while let Some(now) = cpus.next_event().filter(|now| now.0 < 1_000_000) {
        while let Some((cpu, _)) = cpus.take(now) {
            assert_eq!(cpus.busy(now) + idle, now);
            cpus.charge(now, cpu, Nanos(random.below(100)));
            cpus.run(now, cpu, Nanos(1 + random.below(2_000)));
            cpus.charge(now, cpu, Nanos(random.below(100)));
        }
    }
}

/// Wakes a thread on an idle CPU; returns the start of its first burst, of this length.
fn begins(cpus: &mut Cpus, now: u64, on: u16, burst: u64) -> (ThreadId, u64) {
    let thread = cpus.spawn(Affinity::Cpu(CpuId(on)));
    assert!(cpus.wake(Nanos(now), thread, CpuId(on), Nanos(0)));
    let start = cpus.ends.of(usize::from(on));
    assert_eq!(cpus.take(start), Some((CpuId(on), thread)));
    cpus.run(start, CpuId(on), Nanos(burst));
    (thread, start.0)
}

/// The rest of a burst takes longer from the moment at which the sibling has a thread, and is
/// short again when that one has ended. The time counts as the thread's.
#[test]
fn burst_is_stretched_while_the_sibling_is_busy() {
    let mut cpus = siblings(50, 2);
    let (first, start) = begins(&mut cpus, 0, 0, 100_000);
    assert_eq!(cpus.next_event(), Some(Nanos(start + 100_000)));
    let (second, began) = begins(&mut cpus, 40_000, 1, 100_000);
    // The switch of the sibling is work of the core as well.
    let shared_from = began - COSTS.switch.0;
    let left = start + 100_000 - shared_from;
    assert_eq!(cpus.next_event(), Some(Nanos(shared_from + 2 * left)));
    cpus.exit(Nanos(shared_from + 20_000), second);
    let end = shared_from + 20_000 + (left - 10_000);
    assert_eq!(cpus.next_event(), Some(Nanos(end)));
    assert_eq!(cpus.used(first), Nanos(end - start), "10 us more than its work");
    assert_eq!(end - start, 110_000);
}

/// A burst that ends before the sibling begins ends when it did.
#[test]
fn burst_that_ends_before_the_sibling_begins_keeps_its_end() {
    let mut cpus = siblings(50, 2);
    let (_, start) = begins(&mut cpus, 0, 0, 10_000);
    let other = cpus.spawn(Affinity::Cpu(CpuId(1)));
    // Its waker has work to do before.
    assert!(cpus.wake(Nanos(start + 1_000), other, CpuId(1), Nanos(50_000)));
    assert_eq!(cpus.next_event(), Some(Nanos(start + 10_000)));
}

/// Two busy siblings do twice the shared speed, and two cores twice the full speed.
#[test]
fn core_does_twice_the_shared_speed_and_no_more() {
    // Thread n was last on CPU n, modulo the number of CPUs.
    let work = |percent, cpus_per_socket, awake: [usize; 2]| {
        let mut cpus = siblings(percent, cpus_per_socket);
        let threads: Vec<ThreadId> = (0..=awake[1]).map(|_| cpus.spawn(Affinity::Any)).collect();
        awake.iter().for_each(|at| {
            cpus.wake(Nanos(0), threads[*at], CPU0, Nanos(0));
        });
        turns(&mut cpus, 1_000, 6_000_000).iter().sum::<u64>()
    };
    let near = |turns: u64, expected: u64| turns.abs_diff(expected) <= expected / 100;
    for percent in [50, 60, 100] {
        let one_core = work(percent, 2, [0, 1]);
        assert!(near(one_core, 6_000 * 2 * u64::from(percent) / 100), "{one_core} at {percent} %");
        let two_cores = work(percent, 4, [0, 4]);
        assert!(near(two_cores, 12_000), "{two_cores}: it wakes up on the idle core");
    }
}

/// Threads of a set run on its CPUs only, on each of them, and as long as they have work.
#[test]
fn threads_of_a_set_share_its_cpus_and_no_others() {
    let mut cpus = cpus(2, 2);
    let set = cpus.set_of(&[1, 2]);
    let threads: Vec<ThreadId> = (0..4).map(|_| cpus.spawn(set)).collect();
    threads.iter().for_each(|thread| assert!(cpus.wake(Nanos(0), *thread, CPU0, Nanos(0))));
    let mut turns = [0; 4];
    while let Some(now) = cpus.next_event().filter(|now| now.0 < 1_000_000) {
        while let Some((cpu, _)) = cpus.take(now) {
            turns[usize::from(cpu.0)] += 1;
            cpus.run(now, cpu, Nanos(1_000));
        }
    }
    assert_eq!((turns[0], turns[3]), (0, 0));
    assert!(turns[1] > 900 && turns[2] > 900, "{turns:?}");
}

#[test]
fn thread_that_continues_on_another_cpu_first_fetches_its_lines() {
    // Busy CPUs when the thread wakes up again; the thread ran on CPU 0 before.
    let first_work = |busy: &[u16]| {
        let migrate = Migration { same_l3: Nanos(40), other_l3: Nanos(40), remote: Nanos(90) };
        let costs = Costs { migrate, ..COSTS };
        let mut cpus = Cpus::new(Topology::of(2, 2), costs);
        let thread = cpus.spawn(Affinity::Any);
        cpus.wake(Nanos(0), thread, CPU0, Nanos(0));
        let began = cpus.next_event().unwrap();
        assert_eq!(began, Nanos(115), "a thread that has not run has no lines");
        assert_eq!(cpus.take(began), Some((CPU0, thread)));
        cpus.run(began, CPU0, Nanos(1_000));
        let ended = cpus.next_event().unwrap();
        assert_eq!(cpus.take(ended), Some((CPU0, thread)));
        cpus.block(ended, CPU0);
        for cpu in busy {
            let other = cpus.spawn(Affinity::Cpu(CpuId(*cpu)));
            cpus.wake(ended, other, CpuId(*cpu), Nanos(0));
        }
        let at = Nanos(1_000_000);
        while let Some(next) = cpus.next_event().filter(|next| *next < at) {
            while let Some((cpu, _)) = cpus.take(next) {
                cpus.run(next, cpu, Nanos(10_000_000));
            }
        }
        let used = cpus.used(thread);
        cpus.wake(at, thread, CPU0, Nanos(0));
        let begins = cpus.next_event().unwrap();
        let (cpu, next) = cpus.take(begins).unwrap();
        assert_eq!(next, thread);
        (cpu.0, (begins - at).0, (cpus.used(thread) - used).0)
    };
    // Wake-up, call, exit from idle, switch unless it ran there last; then the price.
    assert_eq!(first_work(&[]), (0, 10 + 5, 0));
    assert_eq!(first_work(&[0]), (1, 10 + 30 + 5 + 100 + 40, 40));
    assert_eq!(first_work(&[0, 1]), (2, 10 + 70 + 5 + 100 + 90, 90));
}

#[test]
fn idle_cpu_takes_no_thread_that_ran_a_short_time_ago() {
    // A thread runs on CPU 0 and waits; wakes up `later` behind another one; CPU 1 becomes idle.
    let taken = |cache_hot: u64, later: u64| {
        let topology = Topology::of(1, 2);
        let mut cpus = Cpus::new(topology, Costs { cache_hot: Nanos(cache_hot), ..COSTS });
        let thread = cpus.spawn(Affinity::Any);
        let bound = [0, 1].map(|cpu| cpus.spawn(Affinity::Cpu(CpuId(cpu))));
        let first_end = |cpus: &mut Cpus| {
            let at = cpus.next_event().unwrap();
            (at, cpus.take(at).unwrap().0)
        };
        cpus.wake(Nanos(0), thread, CPU0, Nanos(0));
        let (at, cpu) = first_end(&mut cpus);
        cpus.run(at, cpu, Nanos(500));
        let (ran, cpu) = first_end(&mut cpus);
        cpus.block(ran, cpu);
        for (other, burst) in bound.into_iter().zip([1_000_000, later + 1_000]) {
            let by = cpus.last_of(other);
            cpus.wake(ran, other, by, Nanos(0));
            let (at, cpu) = first_end(&mut cpus);
            cpus.run(at, cpu, Nanos(burst));
        }
        cpus.wake(ran + Nanos(later), thread, CPU0, Nanos(0));
        let (at, cpu) = first_end(&mut cpus);
        assert_eq!(cpu, CpuId(1));
        cpus.block(at, cpu);
        cpus.last_of(thread) == cpu
    };
    assert!(taken(0, 2_000));
    assert!(!taken(50_000, 2_000));
    assert!(taken(50_000, 60_000));
}

#[test]
fn thread_that_an_urgent_one_preempts_waits_for_it_although_another_cpu_is_idle() {
    let continues_on = |cache_hot: u64| {
        let topology = Topology::of(1, 2);
        let mut cpus = Cpus::new(topology, Costs { cache_hot: Nanos(cache_hot), ..COSTS });
        let thread = cpus.spawn(Affinity::Any);
        let urgent = cpus.spawn_urgent(Affinity::Cpu(CPU0));
        // Long after the thread was spawned.
        cpus.wake(Nanos(1_000_000), thread, CPU0, Nanos(0));
        let at = cpus.next_event().unwrap();
        assert_eq!(cpus.take(at), Some((CPU0, thread)));
        cpus.run(at, CPU0, Nanos(500));
        cpus.wake(at, urgent, CPU0, Nanos(0));
        loop {
            let at = cpus.next_event().unwrap();
            match cpus.take(at) {
                Some((cpu, next)) if next == urgent => {
                    cpus.run(at, cpu, Nanos(500));
                    let ends = cpus.next_event().unwrap();
                    if let Some((cpu, next)) = cpus.take(ends) {
                        if next == thread {
                            return cpu;
                        }
                        cpus.block(ends, cpu);
                    }
                }
                Some((cpu, _)) => return cpu,
                None => {}
            }
        }
    };
    assert_eq!(continues_on(0), CpuId(1));
    assert_eq!(continues_on(500_000), CPU0);
}

#[test]
fn two_busy_threads_of_one_cpu_soon_have_two_cpus_although_they_are_cache_hot() {
    let topology = Topology::of(1, 2);
    let mut cpus = Cpus::new(topology, Costs { cache_hot: Nanos(500_000), ..COSTS });
    // CPU 1 becomes idle after 200 us, in which the others took turns of 5 us on CPU 0.
    let bound = cpus.spawn(Affinity::Cpu(CpuId(1)));
    let busy = [0, 0].map(|_| cpus.spawn(Affinity::Any));
    cpus.wake(Nanos(0), bound, CpuId(1), Nanos(0));
    for thread in busy {
        assert!(cpus.wake(Nanos(0), thread, CPU0, Nanos(0)));
    }
    while let Some(now) = cpus.next_event().filter(|now| now.0 < 10_000_000) {
        while let Some((cpu, thread)) = cpus.take(now) {
            let runs = if thread == bound { 200_000 } else { 1_000 };
            if thread == bound && now.0 > 100_000 {
                cpus.block(now, cpu);
            } else {
                cpus.run(now, cpu, Nanos(runs));
            }
        }
    }
    let used = busy.map(|thread| cpus.used(thread).0);
    assert!(used.iter().all(|used| *used > 9_000_000), "{used:?}");
}
