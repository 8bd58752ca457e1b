use std::num::NonZeroU64;

use blockyard_engine::bio::Op;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::complete::RqAffinity;
use blockyard_engine::mq::{Limits, PlugRule, QueueConfig};
use blockyard_engine::throttle;
use blockyard_workload::fio;
use blockyard_workload::fsync_tester::{self, FsyncTester};
use blockyard_workload::program::{Call, DirectOp, FileId, Phase, Returned};
use blockyard_workload::tiotest::{self, PhaseKind as TioPhase, Tiotest};

use super::*;
use crate::cache::CacheConfig;
use crate::cpu::{
    Costs, Idle, IdleConfig, IdleGovernor, IdleState, Migration, Scheduler, Topology, VmCosts,
};
use crate::device::disk::geometry::{Geometry, SeekTimes};
use crate::device::disk::{DiskConfig, Policy};
use crate::device::flash::{FlashConfig, PageTypes, Queues, Slow};
use crate::fs::FsConfig;
use crate::fs::ext3::{DataMode, Ext3Config};
use crate::fs::log::LogConfig;

pub(super) const US: u64 = 1_000;

fn costs() -> Costs {
    Costs {
        switch: Nanos(2_000),
        wake_up: Nanos(1_000),
        ipi: Nanos(1_000),
        ipi_remote: Nanos(2_000),
        idle: Idle::Fixed(Nanos(1_000)),
        vm: None,
        migrate: Migration::default(),
        cache_hot: Nanos(0),
        slice: Nanos::from_ms(10),
        granularity: Nanos::from_ms(1),
        scheduler: Scheduler::Cfs,
        user: Nanos(0),
        syscall: Nanos(500),
        page: Nanos(2_000),
        submit: Nanos(1_000),
        issue: Nanos(1_000),
        interrupt: Nanos(2_000),
        complete: Nanos(1_000),
        governor: None,
        shared_core_percent: None,
    }
}

fn disk() -> DeviceConfig {
    let seek = SeekTimes {
        track_to_track: Nanos(800 * US),
        average: Nanos(8_500 * US),
        full_stroke: Nanos(17_000 * US),
        head_switch: Nanos(700 * US),
        write_settle: Nanos(500 * US),
    };
    DeviceConfig::Disk(DiskConfig {
        geometry: Geometry::even(Nanos(8_333 * US), 4, 100_000_000, (1_000, 500), seek),
        overhead: Nanos(100 * US),
        overlaps_overhead: false,
        bus_sector: Nanos(1_700),
        queue_depth: 4,
        policy: Policy::ShortestPositioning { age_max: Nanos::from_ms(100) },
        write_cache_sectors: 0,
        destage_after: Nanos(0),
        read_ahead_sectors: 256,
    })
}

/// A disk of 2009 and 64 MiB of page cache.
pub(super) fn config(elevator: &str) -> Config {
    let elevator = ElevatorSpec::parse(elevator).unwrap();
    Config {
        topology: Topology::of(1, 2),
        costs: costs(),
        call_costs: CallCosts::default(),
        bandwidth: None,
        cache: CacheConfig {
            memory_bytes: 64 << 20,
            dirty_ratio_percent: 20,
            dirty_background_ratio_percent: 10,
            dirty_expire: Nanos::from_ms(30_000),
            write_back_interval: Nanos::from_ms(5_000),
            read_ahead_bytes: 128 << 10,
        },
        write_back: WriteBack {
            flushers: 1,
            writers_write: true,
            writer_pages: 256,
            flusher_pages: 1024,
            fsync: FsyncOrder::DataFirst,
        },
        fs: Some(FsConfig::Ext3(Ext3Config { mode: DataMode::Writeback, ..Ext3Config::of_2009() })),
        bio_sectors: 256,
        sync_flags: true,
        housekeeping: None,
        limits: throttle::Limits::default(),
        mapped: None,
        stack: None,
        queue: QueueConfig {
            queue_depth: 4,
            plug: PlugRule::PerQueue,
            limits: Limits { max_sectors: 1024, max_segments: 128 },
            ..QueueConfig::of(elevator.elevator.generation)
        },
        elevator,
        elevator_costs: ElevatorCosts::default(),
        device: disk(),
        raid: None,
        interrupts: InterruptConfig { vectors: 1, rq_affinity: RqAffinity::Group },
        seed: 1,
    }
}

fn small_tiotest() -> Tiotest {
    Tiotest::new(tiotest::Config {
        threads: 4,
        file_bytes: 8 << 20,
        block_bytes: 4096,
        random_ops: 100,
        seed: 7,
    })
}

#[test]
fn tiotest_runs_through_every_layer_and_twice_the_same() {
    for elevator in ["deadline", "deadline-prio", "cfq", "noop"] {
        let once = || {
            let mut tiotest = small_tiotest();
            let (outcome, ()) = run(&config(elevator), &mut tiotest, ()).unwrap();
            (outcome, tiotest.results().to_vec())
        };
        let (outcome, results) = once();
        assert_eq!(once(), (outcome.clone(), results.clone()), "{elevator}");
        // 32 MiB through a disk with 25 to 60 MB/s.
        let seconds = |at: usize| results[at].time.0 as f64 / 1e9;
        assert_eq!(results[0].kind, TioPhase::Write);
        assert!((0.5..8.0).contains(&seconds(0)), "{elevator}: write {} s", seconds(0));
        assert!(results.iter().all(|result| result.latency.count > 0));
        assert!(outcome.causes.queue.bios > 0 && outcome.causes.disk.is_some());
        // The file was just written and fits into memory.
        assert!(outcome.causes.page_hits > outcome.causes.page_lookups * 9 / 10, "{elevator}");
    }
}

#[test]
fn reads_that_do_not_fit_into_memory_come_from_the_disk() {
    let mut config = config("deadline");
    config.cache.memory_bytes = 8 << 20;
    let mut tiotest = small_tiotest();
    let (outcome, ()) = run(&config, &mut tiotest, ()).unwrap();
    let random = tiotest.results()[3];
    assert!(random.latency.average_ms() > 5.0, "{random:?}");
    let read_ahead_works = outcome.causes.page_hits > outcome.causes.page_lookups / 2;
    assert!(read_ahead_works, "{:?}", outcome.causes);
}

/// Median of ten `fsync` calls beside a writer, in milliseconds.
fn fsync_ms(config: &Config) -> u64 {
    let background_bytes = Some(256 << 20);
    let priority = Priority::default();
    let mut tester =
        FsyncTester::new(fsync_tester::Config { samples: 9, background_bytes, priority });
    // More than its megabyte between two checks of the limits: otherwise the tester writes its own
    // pages back asynchronously, and waits for them.
    let write_back = WriteBack { writer_pages: 1536, ..config.write_back };
    let config = Config { write_back, ..config.clone() };
    run(&config, &mut tester, ()).unwrap();
    let mut samples = tester.samples().to_vec();
    samples.sort();
    samples[4].0 / 1_000_000
}

#[test]
fn fsync_behind_a_writer_is_what_the_levels_are_for_and_the_sync_flag_makes_the_difference() {
    let deadline = fsync_ms(&config("deadline"));
    let patched = fsync_ms(&config("deadline-prio"));
    let mut unflagged = config("deadline-prio");
    unflagged.sync_flags = false;
    let unflagged = fsync_ms(&unflagged);
    assert!(patched * 3 < deadline, "{patched} and {deadline} ms");
    assert!(unflagged > patched * 2, "the control: {unflagged} and {patched} ms");
}

/// Data in flight during writes of the journal and at the return of `fsync`.
#[derive(Default)]
struct Overlap {
    journal: Option<ThreadId>,
    data: std::collections::BTreeSet<u64>,
    commits_beside_data: u64,
    returns_before_data: u64,
}

impl Observer for Overlap {
    fn event(&mut self, _: Nanos, event: &Event) {
        match event {
            Event::Spawn { thread, role: Role::Journal } => self.journal = Some(*thread),
            Event::Submit { thread, .. } if Some(*thread) == self.journal => {
                self.commits_beside_data += u64::from(!self.data.is_empty());
            }
            Event::Submit { bio, .. } => drop(self.data.insert(*bio)),
            Event::End { bio, .. } => drop(self.data.remove(bio)),
            // The program sleeps after each `fsync`.
            Event::Block { on: Wait::Sleep, .. } => {
                self.returns_before_data += u64::from(!self.data.is_empty());
            }
            _ => {}
        }
    }
}

#[test]
fn fsync_waits_for_data_and_commit_in_its_order_and_always_for_both() {
    let overlap = |fsync| {
        let mut config = config("deadline");
        config.write_back.fsync = fsync;
        let samples = 4;
        let priority = Priority::default();
        let tester = fsync_tester::Config { samples, background_bytes: None, priority };
        let mut tester = FsyncTester::new(tester);
        run(&config, &mut tester, Overlap::default()).unwrap().1
    };
    let first = overlap(FsyncOrder::DataFirst);
    let last = overlap(FsyncOrder::CommitFirst);
    assert_eq!((first.commits_beside_data, first.returns_before_data), (0, 0));
    assert_eq!(last.returns_before_data, 0);
    assert!(
        last.commits_beside_data >= 4,
        "each begins beside its data: {}",
        last.commits_beside_data
    );
}

/// Writes of the journal, by whether they are synchronous.
#[derive(Default)]
struct Commits {
    journal: Option<ThreadId>,
    sync: u64,
    not_sync: u64,
}

impl Observer for Commits {
    fn event(&mut self, _: Nanos, event: &Event) {
        match event {
            Event::Spawn { thread, role: Role::Journal } => self.journal = Some(*thread),
            Event::Submit { thread, sync, .. } if Some(*thread) == self.journal => {
                self.sync += u64::from(*sync);
                self.not_sync += u64::from(!*sync);
            }
            _ => {}
        }
    }
}

#[test]
fn commit_is_synchronous_if_fsync_asked_for_it_and_a_periodic_one_is_not() {
    let samples = 4;
    let priority = Priority::default();
    let tester = fsync_tester::Config { samples, background_bytes: None, priority };
    let mut asks = FsyncTester::new(tester);
    let (_, commits) = run(&config("deadline"), &mut asks, Commits::default()).unwrap();
    assert!(commits.sync >= 4 * 2 && commits.not_sync == 0, "{} by fsync", commits.sync);
    let job = fio::Job::new("write").with(|job| {
        job.shape.rw = fio::Rw::Write;
        job.region.size_bytes = 1 << 20;
        job.end.runtime = Some(Nanos::from_ms(12_000));
        job.end.time_based = true;
        job.pace.thinktime = Nanos::from_ms(10);
    });
    let mut never = fio::Fio::new(vec![job]).unwrap();
    let (_, commits) = run(&config("deadline"), &mut never, Commits::default()).unwrap();
    assert!(commits.not_sync >= 2 * 2 && commits.sync == 0, "{} by time", commits.not_sync);
}

fn old_cfq() -> Config {
    config("cfq,service_trees=0,low_latency=0,starved_after=0")
}

#[test]
fn cfq_of_2_6_30_does_not_idle_after_writes_of_fsync_and_their_commits() {
    let samples = 4;
    let priority = Priority::default();
    let background_bytes = Some(16 << 20);
    let tester = fsync_tester::Config { samples, background_bytes, priority };
    let (outcome, ()) = run(&old_cfq(), &mut FsyncTester::new(tester), ()).unwrap();
    // Each idling takes 8 ms.
    let idled = outcome.causes.idle_waiting;
    assert!(idled < Nanos::from_ms(1), "{idled:?}");
}

/// Reads of a program that only writes.
#[derive(Default)]
struct Reads(u64);

impl Observer for Reads {
    fn event(&mut self, _: Nanos, event: &Event) {
        if let Event::Submit { op: Op::Read, sectors, .. } = event {
            assert_eq!(*sectors, 8);
            self.0 += 1;
        }
    }
}

#[test]
fn first_allocation_in_a_group_reads_its_bitmap_and_later_ones_do_not() {
    let samples = 4;
    let priority = Priority::default();
    let reads = |read_bitmaps| {
        let ext3 = Ext3Config { read_bitmaps, ..Ext3Config::of_2009() };
        let config = Config { fs: Some(FsConfig::Ext3(ext3)), ..config("deadline") };
        // The second file is in the same group.
        let background_bytes = Some(16 << 20);
        let tester = fsync_tester::Config { samples, background_bytes, priority };
        run(&config, &mut FsyncTester::new(tester), Reads::default()).unwrap().1.0
    };
    assert_eq!((reads(true), reads(false)), (1, 0));
}

/// Waits of tasks for the journal in `write()`.
#[derive(Default)]
struct JournalWaits {
    journal: Option<ThreadId>,
    of_tasks: u64,
}

impl Observer for JournalWaits {
    fn event(&mut self, _: Nanos, event: &Event) {
        match event {
            Event::Spawn { thread, role: Role::Journal } => self.journal = Some(*thread),
            Event::Block { thread, on: Wait::Journal } if Some(*thread) != self.journal => {
                self.of_tasks += 1;
            }
            _ => {}
        }
    }
}

#[test]
fn writer_waits_while_the_journal_writes_for_another_and_not_if_that_is_off() {
    let waits = |writes_wait| {
        let ext3 = Ext3Config { writes_wait, mode: DataMode::Writeback, ..Ext3Config::of_2009() };
        let config = Config { fs: Some(FsConfig::Ext3(ext3)), ..config("deadline") };
        let job = |name: &str, fsync, pause_ms| {
            fio::Job::new(name).with(|job| {
                job.shape.rw = fio::Rw::Write;
                job.region.size_bytes = 4 << 20;
                job.end.runtime = Some(Nanos::from_ms(2_000));
                job.end.time_based = true;
                job.pace.thinktime = Nanos::from_ms(pause_ms);
                job.submission.fsync_every = fsync;
            })
        };
        let jobs = vec![job("asks", 1, 20), job("writes", 0, 1)];
        let mut program = fio::Fio::new(jobs).unwrap();
        run(&config, &mut program, JournalWaits::default()).unwrap().1.of_tasks
    };
    assert!(waits(true) >= 5);
    assert_eq!(waits(false), 0);
}

/// Writes of a log, with the flag of each.
#[derive(Default)]
struct Writes(Vec<(u64, u32, bool)>);

impl Observer for Writes {
    fn event(&mut self, _: Nanos, event: &Event) {
        if let Event::Submit { op: Op::Write, sector, sectors, sync, .. } = event {
            self.0.push((*sector, *sectors, *sync));
        }
    }
}

#[test]
fn log_marks_the_last_write_of_a_segment_and_of_a_commit_as_synchronous_and_no_other() {
    let samples = 8;
    let priority = Priority::default();
    let log = LogConfig { segment_blocks: 256, barriers: false, ..LogConfig::of_2009() };
    let mut config = Config { fs: Some(FsConfig::Log(log)), ..config("deadline") };
    let writes = |config: &Config| {
        let tester = fsync_tester::Config { samples, background_bytes: None, priority };
        run(config, &mut FsyncTester::new(tester), Writes::default()).unwrap().1.0
    };
    let marked: Vec<_> = writes(&config).into_iter().filter(|(.., sync)| *sync).collect();
    let at_end =
        |(sector, sectors, _): &&(u64, u32, bool)| (sector + u64::from(*sectors)) % 2048 == 0;
    // A sample has 256 pages, so it crosses one border and has one commit.
    let borders = marked.iter().filter(at_end).count();
    assert_eq!((borders, marked.len()), (8, 16));
    config.sync_flags = false;
    assert!(writes(&config).iter().all(|(.., sync)| !sync));
}

/// Keeps direct reads of the device in flight.
struct Direct {
    left: u32,
    in_flight: u32,
    depth: u32,
    seen: u32,
}

impl Task for Direct {
    fn next(&mut self, _: Nanos, returned: &Returned<'_>) -> Call {
        for reaped in returned.reaped {
            assert_eq!(reaped.status, Ok(()));
            self.in_flight -= 1;
            self.seen += 1;
        }
        if self.left > 0 && self.in_flight < self.depth {
            (self.left, self.in_flight) = (self.left - 1, self.in_flight + 1);
            let offset_bytes = u64::from(self.left) * 4096;
            let id = self.left;
            let op = DirectOp::Read;
            let len_bytes = 4096;
            let more = false;
            return Call::Submit { id, file: FileId(0), op, offset_bytes, len_bytes, more };
        }
        if self.in_flight > 0 { Call::Reap { at_least: 1, at_most: u32::MAX } } else { Call::Exit }
    }
}

struct Once<T>(Option<Phase<T>>, Vec<T>);

impl<T: Task + Send> Program for Once<T> {
    type Task = T;

    fn next_phase(&mut self) -> Option<Phase<T>> {
        self.0.take()
    }

    fn end_phase(&mut self, _: Nanos, _: Nanos, tasks: Vec<T>) {
        self.1 = tasks;
    }
}

#[test]
fn direct_reads_of_the_device_keep_its_depth_busy() {
    let mut config = config("none");
    config.fs = None;
    config.queue = QueueConfig { queue_depth: 32, ..QueueConfig::of(mq_generation()) };
    config.device = flash(100 * US, 8);
    let time = |depth| {
        let task = Direct { left: 1_000, in_flight: 0, depth, seen: 0 };
        let phase = Phase { tasks: vec![task], background: vec![] };
        let mut program = Once(Some(phase), vec![]);
        let (outcome, ()) = run(&config, &mut program, ()).unwrap();
        assert_eq!(program.1[0].seen, 1_000);
        outcome.ended.0 / US
    };
    let one = time(1);
    let eight = time(8);
    assert!((100_000..130_000).contains(&one), "{one} us");
    assert!((12_500..20_000).contains(&eight), "{eight} us");
}

/// Reads on one CPU; returns the time of each.
fn read_takes(depth: u32, device: u64, costs: impl Fn(&mut Costs)) -> (u64, u64) {
    let mut config = config("none");
    config.fs = None;
    config.topology.cpus_per_socket = 1;
    config.queue = QueueConfig { queue_depth: 32, ..QueueConfig::of(mq_generation()) };
    config.device = flash(device, 4_096);
    costs(&mut config.costs);
    let task = Direct { left: 1_000, in_flight: 0, depth, seen: 0 };
    let phase = Phase { tasks: vec![task], background: vec![] };
    let (outcome, ()) = run(&config, &mut Once(Some(phase), vec![]), ()).unwrap();
    (outcome.ended.0 / 1_000, outcome.causes.switches)
}

/// A lone request takes the sum of all its steps, in sequence.
#[test]
fn read_of_one_takes_call_bio_issue_device_interrupt_and_wake_up() {
    let (each, _) = read_takes(1, 100_000, |_| ());
    // The reaping call fits into the device's time.
    let sum = 500 + 1_000 + 1_000 + 100_000 + 3_000 + 1_000 + 1_000;
    assert!((sum..sum + 20).contains(&each), "{each} ns, and the parts take {sum}");
    let (longer, _) = read_takes(1, 100_000, |costs| costs.submit = Nanos(3_000));
    assert_eq!(longer - each, 2_000, "a device does not start before its request is issued");
}

/// The interrupt of a read begins with the exit of its CPU, and the wake-up pays no further one.
#[test]
fn interrupt_wakes_its_cpu_before_it_ends_a_read() {
    let (each, _) = read_takes(1, 100_000, |_| ());
    let idle = IdleConfig {
        governor: IdleGovernor::Menu,
        states: [IdleState { exit: Nanos(7_000), residency: Some(Nanos(0)) }; 3],
    };
    let (asleep, _) = read_takes(1, 100_000, |costs| costs.idle = Idle::Governed(idle));
    assert!((asleep - each).abs_diff(7_000 - 1_000) < 20, "{asleep} ns, and {each} before");
    let vm = VmCosts { exit: Nanos(1_500), vcpu_wake: Nanos(4_000) };
    let (halted, _) = read_takes(1, 100_000, |costs| costs.vm = Some(vm));
    assert!((halted - each).abs_diff(4_000) < 20, "{halted} ns, and {each} before");
}

/// A single vector interrupts CPU 0, which calls the reader's CPU. Both are halted.
#[test]
fn call_of_a_virtual_cpu_costs_the_interrupted_one_an_exit() {
    let each = |vm| {
        let mut config = config("none");
        config.fs = None;
        config.costs.vm = vm;
        config.queue = QueueConfig { queue_depth: 64, ..QueueConfig::of(mq_generation()) };
        config.device = flash(20 * US, 4_096);
        config.interrupts = InterruptConfig { vectors: 1, rq_affinity: RqAffinity::Force };
        let mut fio = readers(1, 1, &[1]);
        run(&config, &mut fio, ()).unwrap();
        let result = &fio.results()[0];
        result.runtime.0 / result.read.ios
    };
    let vm = VmCosts { exit: Nanos(1_500), vcpu_wake: Nanos(4_000) };
    let more = each(Some(vm)) - each(None);
    assert!(more.abs_diff(1_500 + 2 * 4_000) < 100, "{more} ns");
}

/// CPU time is conserved: a CPU does no more work than its time, at any depth.
#[test]
fn reads_of_one_cpu_take_at_least_what_each_of_them_costs_it() {
    let (each, _) = read_takes(32, 0, |_| ());
    assert!(each >= 500 + 1_000 + 1_000 + 3_000, "{each} ns");
}

/// The machine's busy time is that of its threads, and no CPU is busy for longer than the elapsed
/// time.
#[test]
fn machine_is_busy_with_its_threads_and_at_most_for_as_long_as_it_ran() {
    let mut config = config("none");
    (config.fs, config.costs.interrupt) = (None, Nanos(100));
    config.queue = QueueConfig { queue_depth: 64, ..QueueConfig::of(mq_generation()) };
    config.device = flash(0, 4_096);
    let mut fio = readers(4, 8, &[]);
    let (outcome, ()) = run(&config, &mut fio, ()).unwrap();
    let usage = fio.results()[0].usage;
    let used = (usage.user + usage.system).0;
    let all = outcome.ended.0 * u64::from(outcome.cpus);
    assert!(outcome.cpu_busy.0 <= all, "{} of {all} ns", outcome.cpu_busy.0);
    // Four readers on two CPUs use all of the time.
    assert!(outcome.cpu_busy.0 * 100 > all * 98, "{} of {all} ns", outcome.cpu_busy.0);
    let others = outcome.causes.switches * config.costs.switch.0;
    assert!((used + others).abs_diff(outcome.cpu_busy.0) * 100 < all, "{used} and {others} ns");
}

/// Random readers of 4 KiB for 20 ms, with this depth each, on these CPUs or all.
fn readers(numjobs: u32, iodepth: u32, cpus: &[u16]) -> fio::Fio {
    let job = fio::Job::new("read").with(|job| {
        job.shape.rw = fio::Rw::RandRead;
        job.region.filename = Some("disk".into());
        job.region.size_bytes = 64 << 20;
        job.submission.direct = true;
        job.end.runtime = Some(Nanos::from_ms(20));
        job.end.time_based = true;
        job.clones.numjobs = numjobs;
        job.clones.cpus = cpus.to_vec();
        job.submission.iodepth = iodepth;
    });
    fio::Fio::new(vec![job]).unwrap()
}

/// The readers below a limit of 2000 requests a second, on a device that could do 50 times that.
#[test]
fn limited_device_serves_the_burst_and_then_its_rate_and_keeps_every_request() {
    for depth in [1, 8] {
        let mut config = config("none");
        config.fs = None;
        config.device = flash(20 * US, 64);
        config.queue.queue_depth = 64;
        let free = {
            let mut fio = readers(2, depth, &[]);
            run(&config, &mut fio, ()).unwrap();
            fio.results()[0].clones.iter().map(|clone| clone.read.ios).sum::<u64>()
        };
        config.limits = throttle::Limits {
            iops: NonZeroU64::new(2_000),
            burst: Nanos::from_ms(5),
            ..throttle::Limits::default()
        };
        let mut fio = readers(2, depth, &[]);
        run(&config, &mut fio, ()).unwrap();
        let limited = fio.results()[0].clones.iter().map(|clone| clone.read.ios).sum::<u64>();
        // 10 of the burst, 40 in 20 ms, one into debt. At the end some wait, or are in flight.
        let most = 51 + 2 * u64::from(depth);
        assert!((45..=most).contains(&limited), "depth {depth}: {limited}");
        assert!(free > 10 * limited, "{free} without the limit");
    }
}

/// A flash device with this time per command and number of channels.
fn flash(takes_ns: u64, channels: u32) -> DeviceConfig {
    DeviceConfig::Flash(FlashConfig {
        sectors: 1 << 20,
        page_sectors: 8,
        channels,
        read_page: Nanos(takes_ns),
        program_page: Nanos(takes_ns),
        overhead: Nanos(0),
        bus_sector: Nanos(0),
        bus_write_sector: None,
        bus_command: Nanos(0),
        queue_depth: 64,
        blocks: None,
        collection: None,
        write_buffer_sectors: 0,
        queues: Queues::default(),
        page_types: PageTypes::default(),
        slow: Slow::default(),
    })
}

/// Each hardware queue of an SSD has a depth, and a vector at its first CPU.
#[test]
fn queues_of_an_ssd_add_their_depths_and_interrupt_their_own_cpus() {
    let reads = |count, rq_affinity| {
        let mut config = config("none");
        config.fs = None;
        config.topology = Topology::of(1, 4);
        let queue = QueueConfig::of(mq_generation());
        config.queue = QueueConfig { queue_depth: 1, cpus: 4, ..queue };
        let DeviceConfig::Flash(flash) = flash(100 * US, 4_096) else { unreachable!("it is") };
        let queues = Queues { count, working_max: 0 };
        config.device = DeviceConfig::Flash(FlashConfig { queue_depth: 1, queues, ..flash });
        config.interrupts = InterruptConfig { vectors: count, rq_affinity };
        let mut fio = readers(4, 1, &[]);
        let (outcome, ()) = run(&config, &mut fio, ()).unwrap();
        let clones = fio.results()[0].clones.iter();
        let ios: u64 = clones.map(|clone| clone.read.ios).sum();
        (ios, outcome.causes.ended_by_call)
    };
    let (one, _) = reads(1, RqAffinity::Off);
    let (two, calls) = reads(2, RqAffinity::Off);
    let (four, _) = reads(4, RqAffinity::Off);
    assert_eq!(calls, 0);
    let times = [two as f64 / one as f64, four as f64 / one as f64];
    assert!((1.8..2.05).contains(&times[0]) && (3.5..4.1).contains(&times[1]), "{times:?}");
    // Two CPUs share a queue, whose interrupts are the first one's.
    let (two, calls) = reads(2, RqAffinity::Force);
    assert!((calls * 2).abs_diff(two) * 20 < two, "{calls} of {two}");
    assert_eq!(reads(4, RqAffinity::Force).1, 0);
}

/// Reads complete on the submitter's CPU if the device has a vector for each CPU or `rq_affinity`
/// requires it, otherwise on the interrupted CPU.
#[test]
fn interrupts_are_the_submitters_where_the_device_has_a_vector_for_it() {
    let reads = |vectors, rq_affinity| {
        let mut config = config("none");
        config.fs = None;
        config.topology = Topology::of(2, 2);
        let queue = QueueConfig::of(mq_generation());
        config.queue = QueueConfig { queue_depth: 64, cpus: 4, ..queue };
        config.device = flash(20 * US, 4_096);
        config.interrupts = InterruptConfig { vectors, rq_affinity };
        let mut fio = readers(4, 1, &[]);
        let (outcome, ()) = run(&config, &mut fio, ()).unwrap();
        let ios: Vec<u64> = fio.results()[0].clones.iter().map(|clone| clone.read.ios).collect();
        (ios, outcome.causes.ended_by_call)
    };
    let sum = |ios: &[u64]| ios.iter().sum::<u64>();
    // One vector per CPU: no CPU works for another, and all are equal.
    let (own, calls) = reads(4, RqAffinity::Group);
    assert_eq!(calls, 0);
    assert!(own.iter().max().unwrap() - own.iter().min().unwrap() <= 2, "{own:?}");
    // One vector on CPU 0; then calls for the other socket, then for three CPUs.
    let (one, calls) = reads(1, RqAffinity::Off);
    assert!(calls == 0 && sum(&one) < sum(&own), "{one:?} {own:?}");
    let (near, calls) = reads(1, RqAffinity::Group);
    assert!((calls * 2).abs_diff(sum(&near)) * 20 < sum(&near), "{calls} {near:?}");
    let (very, calls) = reads(1, RqAffinity::Force);
    assert!((calls * 4).abs_diff(sum(&very) * 3) * 20 < sum(&very), "{calls} {very:?}");
}

/// A RAM disk has no interrupts: the submitter copies, and its read is the sum of its parts.
/// Readers on separate CPUs do not wait for each other.
#[test]
fn memory_is_copied_by_who_submits_and_ends_without_an_interrupt() {
    let reads = |interrupt| {
        let mut config = config("none");
        config.fs = None;
        config.topology.cpus_per_socket = 4;
        let queue = QueueConfig::of(mq_generation());
        config.queue = QueueConfig { queue_depth: 64, cpus: 4, ..queue };
        (config.costs.interrupt, config.costs.complete) = (Nanos(interrupt), Nanos(interrupt));
        let command = Nanos(300);
        let sector = Nanos(50);
        config.device = DeviceConfig::Memory(RamConfig { sectors: 1 << 20, command, sector });
        let mut fio = readers(4, 1, &[]);
        let (outcome, ()) = run(&config, &mut fio, ()).unwrap();
        assert_eq!(fio.results()[0].usage.voluntary, 0, "nobody waits");
        let all = outcome.ended.0 * 4;
        assert!(outcome.cpu_busy.0 * 100 > all * 99, "{} of {all}", outcome.cpu_busy.0);
        fio.results()[0].clones.iter().map(|clone| clone.read.ios).collect::<Vec<_>>()
    };
    let ios = reads(1_000_000);
    assert_eq!(ios, reads(0));
    // Two calls, a bio, its request and the copy.
    let each = 2 * 500 + 1_000 + 1_000 + 300 + 8 * 50;
    let expected = 20_000_000 / each;
    assert!(ios.iter().all(|ios| ios.abs_diff(expected) <= 5), "{ios:?}, {expected} expected");
}

fn mq_generation() -> blockyard_engine::elevator::Generation {
    blockyard_engine::elevator::Generation::Multi
}

/// Counts events.
#[derive(Default)]
struct Seen {
    submitted: u64,
    ended: u64,
    issued: u64,
    completed: u64,
    deepest: u32,
}

impl Observer for Seen {
    fn event(&mut self, _: Nanos, event: &Event) {
        match event {
            Event::Submit { .. } => self.submitted += 1,
            Event::End { .. } => self.ended += 1,
            Event::Issue { in_flight, .. } => {
                self.issued += 1;
                self.deepest = self.deepest.max(*in_flight);
            }
            Event::Complete { .. } => self.completed += 1,
            _ => {}
        }
    }
}

#[test]
fn observer_sees_every_bio_and_every_request_once() {
    let (outcome, seen) = run(&config("deadline"), &mut small_tiotest(), Seen::default()).unwrap();
    assert_eq!((seen.submitted, seen.issued), (seen.ended, seen.completed));
    assert_eq!(seen.submitted, outcome.causes.queue.bios);
    assert_eq!(seen.deepest, 4, "the depth of the disk is four");
}

/// Waits for an event that never occurs.
struct Forever;

impl Task for Forever {
    fn next(&mut self, _: Nanos, _: &Returned<'_>) -> Call {
        Call::Sleep(Nanos::from_ms(3_600_000))
    }
}

#[test]
fn run_that_never_ends_is_an_error_that_names_the_blocked_tasks() {
    let phase = Phase { tasks: vec![Forever], background: vec![] };
    let error = run(&config("noop"), &mut Once(Some(phase), vec![]), ()).unwrap_err();
    assert!(error.contains("ten days") && error.contains("Sleep"), "{error}");
}
