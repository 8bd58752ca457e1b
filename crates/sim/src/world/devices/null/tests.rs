use blockyard_engine::dm::multipath::stacked::{CloneInsert, CompleteBy, RunBy, Stacking};
use blockyard_engine::elevator::{ElevatorSpec, Generation};
use blockyard_engine::mq::complete::RqAffinity;
use blockyard_engine::mq::{PlugRule, QueueConfig};
use blockyard_workload::fio::{Batching, Fio, Job, Rw};

use super::*;
use crate::world::tests::config;
use crate::world::{
    CompletionRule, Config, DeviceConfig, ElevatorCosts, ElevatorCounters, ElevatorLock,
    Housekeeping, IrqMode, Outcome, run,
};

const SECTORS: u64 = 1 << 20;

fn device(queue_mode: QueueMode, irqmode: IrqMode, hw_queues: u16) -> NullConfig {
    NullConfig {
        sectors: SECTORS,
        queue_mode,
        irqmode,
        completion: Nanos(100_000),
        hw_queues,
        hw_queue_depth: 64,
        rq_affinity: RqAffinity::Group,
        completion_rule: CompletionRule::Inline,
        end: Nanos(300),
    }
}

/// Four CPUs, with the costs of calls and requests of 2016.
fn world(null: NullConfig, stacking: Option<Stacking>) -> Config {
    let mut config = config("none");
    config.fs = None;
    (config.topology.sockets, config.topology.cpus_per_socket) = (1, 4);
    let costs = &mut config.costs;
    (costs.user, costs.syscall, costs.submit) = (Nanos(250), Nanos(100), Nanos(500));
    (costs.issue, costs.switch, costs.wake_up) = (Nanos(450), Nanos(1_500), Nanos(1_000));
    config.queue = QueueConfig {
        cpus: 4,
        hw_queues: null.hw_queues,
        queue_depth: null.hw_queue_depth,
        write_cache: false,
        plug: PlugRule::Off,
        ..QueueConfig::default()
    };
    config.device = DeviceConfig::Null(null);
    config.stack = stacking.map(|stacking| StackConfig {
        upper: QueueConfig { queue_depth: 2048, nr_requests: 256, ..config.queue },
        stacking,
        run_looks_first: true,
        costs: StackCosts {
            request: Nanos(600),
            clone: Nanos(300),
            path_lock: Nanos(100),
            end: Nanos(200),
            queue_work: Nanos(100),
        },
    });
    config
}

/// Four readers for 20 ms; returns the outcome, their reads, and their context switches.
fn read(config: &Config) -> (Outcome, u64, u64) {
    read_in_batches(config, Batching::default())
}

fn read_in_batches(config: &Config, batching: Batching) -> (Outcome, u64, u64) {
    let job = Job::new("read").with(|job| {
        job.shape.rw = Rw::RandRead;
        job.region.filename = Some("null".into());
        job.region.size_bytes = SECTORS * 512;
        job.submission.direct = true;
        job.submission.iodepth = 16;
        job.submission.batching = batching;
        job.clones.numjobs = 4;
        job.end.runtime = Some(Nanos::from_ms(20));
        job.end.time_based = true;
    });
    let mut fio = Fio::new(vec![job]).unwrap();
    let (outcome, ()) = run(config, &mut fio, ()).unwrap();
    let result = &fio.results()[0];
    assert_eq!(result.errors.ended_by, None);
    (outcome, result.read.ios, result.usage.voluntary + result.usage.involuntary)
}

fn causes(outcome: &Outcome) -> NullCauses {
    outcome.causes.null.unwrap()
}

#[test]
fn null_device_ends_requests_where_its_modes_say() {
    use IrqMode::{None, Softirq, Timer};
    use QueueMode::{Bio, Mq, Rq};
    let with = |mode, irq| read(&world(device(mode, irq, 1), Option::None));
    // Inline: no switches and no waits.
    for (mode, irq) in [(Mq, Softirq), (Mq, None), (Bio, Softirq), (Rq, None)] {
        let (outcome, _, switches) = with(mode, irq);
        let causes = causes(&outcome);
        assert_eq!((switches, causes.softirqs), (0, 0), "{mode:?} {irq:?}");
        assert_eq!(causes.softirq_threads, crate::cpu::Switches::default());
    }
    // `blk_complete_request`: the submitting thread raises a softirq for each.
    let (outcome, ios, switches) = with(Rq, Softirq);
    assert_eq!(causes(&outcome).softirqs, ios);
    assert!(switches * 40 > ios && causes(&outcome).softirq_threads.voluntary > 100);
    // An interrupt ends it; readers wait for it.
    let (outcome, ios, switches) = with(Mq, Timer);
    assert_eq!(causes(&outcome).softirqs, 0);
    assert!(ios > 1_000 && switches > 100, "{ios} {switches}");
    // Bios are faster, because no requests are needed.
    assert!(with(Bio, Softirq).1 > with(Mq, Softirq).1);
}

#[test]
fn single_queue_takes_the_softirq_since_2018_only() {
    let rule = |completion_rule, hw_queues| {
        let null =
            NullConfig { completion_rule, ..device(QueueMode::Mq, IrqMode::Softirq, hw_queues) };
        let (outcome, ios, _) = read(&world(null, None));
        causes(&outcome).softirqs == ios
    };
    assert!(rule(CompletionRule::SoftirqIfSingle, 1));
    assert!(!rule(CompletionRule::SoftirqIfSingle, 4));
    assert!(!rule(CompletionRule::Inline, 1));
}

#[test]
fn before_the_patch_workers_issue_all_and_after_it_none() {
    let null = device(QueueMode::Mq, IrqMode::Softirq, 1);
    let (raw, raw_ios, _) = read(&world(null, None));
    let (before, before_ios, before_switches) = read(&world(null, Some(Stacking::BEFORE)));
    let (after, after_ios, after_switches) = read(&world(null, Some(Stacking::AFTER)));
    let raw = causes(&raw);
    let before = causes(&before);
    let after = causes(&after);
    assert_eq!(raw.issued_by_workers, 0);
    assert_eq!((before.issued_by_workers, before.clones), (before.issued, before.issued));
    assert_eq!((after.issued_by_workers, after.softirqs, after_switches), (0, 0, 0));
    assert!(before_switches * 50 > before_ios, "{before_switches} in {before_ios}");
    assert!(before.workers.voluntary > 0 && before.softirq_threads.voluntary > 0);
    assert!(before_ios < after_ios && after_ios < raw_ios, "{before_ios} {after_ios} {raw_ios}");
}

#[test]
fn originals_that_end_in_a_softirq_cost_a_thread_even_if_nothing_else_does() {
    let null = device(QueueMode::Mq, IrqMode::Softirq, 1);
    let insert = CloneInsert::Queued(RunBy::Caller);
    let stacking = Stacking { insert, complete_by: CompleteBy::Softirq, ..Stacking::AFTER };
    let (outcome, ios, switches) = read(&world(null, Some(stacking)));
    let causes = causes(&outcome);
    assert!(causes.softirqs >= ios && causes.softirq_threads.voluntary > 100);
    assert!(switches * 100 > ios, "readers wait for it: {switches} in {ios}");
}

#[test]
fn bio_of_another_socket_ends_there() {
    let mut config = world(device(QueueMode::Mq, IrqMode::Softirq, 1), Some(Stacking::BEFORE));
    let elsewhere = |config: &Config| causes(&read(config).0).ended_elsewhere;
    assert!(elsewhere(&config) > 0, "CPUs of a socket share a cache");
    (config.topology.sockets, config.topology.cpus_per_socket) = (4, 1);
    assert_eq!(elsewhere(&config), 0);
    config.device = DeviceConfig::Null(NullConfig {
        rq_affinity: RqAffinity::Off,
        ..device(QueueMode::Mq, IrqMode::Softirq, 1)
    });
    assert!(elsewhere(&config) > 0);
}

#[test]
fn clones_cross_where_the_levels_have_different_queues() {
    let crossed = |above, below| {
        let null = device(QueueMode::Mq, IrqMode::Softirq, below);
        let mut config = world(null, Some(Stacking::BEFORE));
        config.stack.as_mut().unwrap().upper.hw_queues = above;
        let causes = causes(&read(&config).0);
        causes.crossed * 100 / causes.issued
    };
    assert_eq!((crossed(1, 1), crossed(4, 4)), (0, 0));
    assert!((65..85).contains(&crossed(1, 4)), "three of four: {}", crossed(1, 4));
}

#[test]
fn lock_of_the_paths_is_waited_for_by_who_comes_second() {
    let lock = |path_lock| {
        let null = device(QueueMode::Mq, IrqMode::Softirq, 1);
        let mut config = world(null, Some(Stacking::AFTER));
        let costs = &mut config.stack.as_mut().unwrap().costs;
        (costs.clone, costs.path_lock) = (Nanos(1_000), Nanos(path_lock));
        let (outcome, ios, _) = read(&config);
        (causes(&outcome).lock_waits_ns, ios)
    };
    let (free, many) = lock(0);
    let (waits, few) = lock(1_000);
    assert_eq!(free, 0);
    assert!(waits > 1_000_000 && few < many, "{waits} {few} {many}");
    assert!(few <= 20_000 + 64, "one at a time: {few} in 20 ms");
}

#[test]
fn housekeeping_puts_readers_aside_and_nothing_else_does() {
    let mut config = world(device(QueueMode::Mq, IrqMode::Softirq, 1), None);
    let every = Nanos::from_ms(5);
    let takes = Nanos(2_000);
    config.housekeeping = Some(Housekeeping { every, takes });
    let (_, _, switches) = read(&config);
    // Every 5 ms for 20 ms on four CPUs.
    assert!((12..=16).contains(&switches), "{switches}");
}

/// A batch of reads is one system call, and one plug: its worker is called once.
#[test]
fn batch_has_one_call_and_one_plug() {
    let batching = Batching { submit: 8, reap_min: 8, ..Batching::default() };
    let mut raw = world(device(QueueMode::Mq, IrqMode::Softirq, 1), None);
    raw.costs.syscall = Nanos(20_000);
    let (_, alone, _) = read(&raw);
    let (_, batched, _) = read_in_batches(&raw, batching);
    assert!(batched > 6 * alone, "{alone} and {batched} reads");

    let calls = |plug| {
        let null = device(QueueMode::Mq, IrqMode::Softirq, 1);
        let mut config = world(null, Some(Stacking::BEFORE));
        (config.queue.plug, config.stack.as_mut().unwrap().upper.plug) = (plug, plug);
        let causes = causes(&read_in_batches(&config, batching).0);
        causes.calls * 1000 / causes.issued
    };
    let unplugged = calls(PlugRule::Off);
    let plugged = calls(PlugRule::PerContext);
    assert!(plugged * 3 < unplugged * 2, "{plugged} and {unplugged} calls of 1000 reads");
}

/// Readers under an elevator, with steps of 30 ns; returns its times too.
fn read_under(elevator: &str, hw_queues: u16, costs: ElevatorCosts) -> (u64, ElevatorCounters) {
    let spec = ElevatorSpec::parse(elevator).unwrap();
    let generation = spec.elevator.generation;
    let mode = if generation == Generation::Single { QueueMode::Rq } else { QueueMode::Mq };
    let mut config = world(device(mode, IrqMode::None, hw_queues), None);
    config.queue.generation = generation;
    (config.elevator, config.elevator_costs) = (spec, costs);
    let (outcome, ios, _) = read(&config);
    (ios, outcome.causes.elevator)
}

#[test]
fn elevators_cost_what_they_do_and_the_lock_lets_one_cpu_in_at_a_time() {
    let step = Nanos(30);
    let lock = ElevatorLock::Queue;
    let free = ElevatorCosts::default();
    let alone = ElevatorCosts { step, ..free };
    let ios = |elevator, costs| read_under(elevator, 1, costs).0;
    let all = ["noop", "deadline", "cfq"];
    assert_eq!(ios("noop", free), ios("deadline", free), "the control: no cost, no difference");
    let [noop, deadline, cfq] = all.map(|elevator| ios(elevator, alone));
    assert!(noop > deadline && deadline > cfq, "{noop} {deadline} {cfq} reads");
    assert!(noop * 10 > ios("noop", free) * 9, "noop costs almost nothing");

    let elapsed = Nanos::from_ms(20);
    let contended = Nanos(200);
    for elevator in ["mq-deadline", "bfq"] {
        let (unlocked, without) = read_under(elevator, 1, alone);
        let (locked, with) = read_under(elevator, 1, ElevatorCosts { step, lock, ..free });
        assert_eq!((without.lock_waits, without.waiters), (Nanos(0), 0));
        assert!(with.waiters > 0 && locked < unlocked, "{elevator}: {with:?}, {locked} reads");
        assert!(with.busy < elapsed + Nanos(100_000), "{elevator}: one CPU at a time, {with:?}");
        let slow = ElevatorCosts { step, lock, contended };
        assert!(read_under(elevator, 1, slow).0 < locked, "{elevator}");
        // Four CPUs with a hardware queue and a lock each.
        let each = ElevatorCosts { step, lock: ElevatorLock::HardwareQueue, contended };
        assert_eq!(read_under(elevator, 4, each).1.waiters, 0, "{elevator}");
    }
}

#[test]
fn under_a_deferred_lock_cpus_wait_for_the_list_only_and_all_reads_end() {
    let costs = |lock| ElevatorCosts { step: Nanos(30), lock, contended: Nanos(200) };
    for elevator in ["mq-deadline", "bfq"] {
        let (locked, with) = read_under(elevator, 1, costs(ElevatorLock::Queue));
        let (deferred, without) = read_under(elevator, 1, costs(ElevatorLock::Deferred));
        assert!(deferred * 4 > locked * 5, "{elevator}: {deferred} and {locked} reads");
        assert!(without.lock_waits.0 * 3 < with.lock_waits.0, "{elevator}: {without:?} {with:?}");
    }
}

/// The plug of the queue ends while another CPU dispatches.
#[test]
fn timer_of_a_queue_waits_for_a_deferred_lock() {
    let mut config = world(device(QueueMode::Mq, IrqMode::Softirq, 1), None);
    (config.queue.plug, config.queue.rotational) = (PlugRule::PerQueue, true);
    config.elevator = ElevatorSpec::parse("mq-deadline").unwrap();
    let lock = ElevatorLock::Deferred;
    config.elevator_costs = ElevatorCosts { step: Nanos(40_000), lock, contended: Nanos(300) };
    let job = |rw, think_us: u64, clones| {
        Job::new("job").with(|job| {
            job.shape.rw = rw;
            job.region.filename = Some("null".into());
            job.region.size_bytes = 64 << 20;
            job.submission.direct = true;
            job.pace.thinktime = Nanos(think_us * 1000);
            job.clones.numjobs = clones;
            job.end.runtime = Some(Nanos::from_ms(200));
            job.end.time_based = true;
        })
    };
    let jobs = vec![job(Rw::Read, 100, 4), job(Rw::RandRead, 0, 3), job(Rw::Write, 50, 2)];
    let mut fio = Fio::new(jobs).unwrap();
    run(&config, &mut fio, ()).expect("time passes");
    assert!(fio.results().iter().all(|result| result.read.ios + result.write.ios > 0));
}

#[test]
fn same_seed_gives_the_same_trace() {
    let config = world(device(QueueMode::Mq, IrqMode::Softirq, 4), Some(Stacking::BEFORE));
    assert_eq!(read(&config).0, read(&config).0);
}
