//! Speed of the simulator: simulated requests per second on one core, in timing mode.
//!
//! *Queue and device*: random 4 KiB reads, 32 in flight, through the engine's queue to a null
//! device. *World*: the same reads by a task, with system calls, CPUs and the trace hash.
//! *tiotest*: buffered calls through page cache and file system to a disk; most never leave memory.
//! The result is the fastest of several rounds, because other load only adds time. `--json` for
//! programs; a word selects cases by name.

use std::time::Instant;

use blockyard_engine::bio::{Bio, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::mq::complete::RqAffinity;
use blockyard_engine::time::Nanos;
use blockyard_sim::block::BlockDevice;
use blockyard_sim::cache::CacheConfig;
use blockyard_sim::cpu::{Costs, Idle, Migration, Scheduler, Topology};
use blockyard_sim::device::disk::geometry::{Geometry, SeekTimes};
use blockyard_sim::device::disk::{DiskConfig, Policy};
use blockyard_sim::device::flash::{FlashConfig, PageTypes, Queues, Slow};
use blockyard_sim::device::memory::{Memory, MemoryConfig};
use blockyard_sim::fs::FsConfig;
use blockyard_sim::fs::ext3::Ext3Config;
use blockyard_sim::world::{
    self, CallCosts, Config, DeviceConfig, ElevatorCosts, FsyncOrder, InterruptConfig, WriteBack,
};
use blockyard_workload::program::{Call, DirectOp, FileId, Phase, Program, Returned, Task};
use blockyard_workload::random::Random;
use blockyard_workload::tiotest::{self, Tiotest};

/// Many short rounds, so that one of them has the CPU to itself.
const ROUNDS: u32 = 100;
const REQUESTS: u64 = 10_000;
const DEPTH: u32 = 32;
const SECTORS: u64 = 1 << 24;
const US: u64 = 1_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let only = arguments.iter().find(|argument| !argument.starts_with("--"));
    let print = |case: &str, what: &str, round: &dyn Fn() -> u64| {
        if only.is_some_and(|only| !case.contains(only.as_str())) {
            return;
        }
        let rate = best(round);
        if json {
            println!("{{\"bench\": \"sim\", \"case\": \"{case}\", \"per_second\": {rate:.0}}}");
        } else {
            println!("{case:<32} {:6.2} million {what} a second and core", rate / 1e6);
        }
    };
    for elevator in ["none", "deadline", "cfq"] {
        let case = format!("queue and device, {elevator}");
        print(&case, "requests", &|| queue_and_device(elevator));
    }
    for elevator in ["none", "deadline"] {
        print(&format!("world, {elevator}"), "requests", &|| in_world(elevator));
    }
    print("tiotest, deadline, disk", "calls", &buffered);
}

/// The best rate of all rounds; a round returns its number of operations.
fn best(round: &dyn Fn() -> u64) -> f64 {
    let rate = |_| {
        let start = Instant::now();
        let done = round();
        done as f64 / start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(rate).fold(0.0, f64::max)
}

fn null() -> MemoryConfig {
    MemoryConfig { sectors: SECTORS, command: Nanos(10 * US), sector: Nanos(0), lanes: DEPTH }
}

fn queue_config(elevator: &ElevatorSpec) -> QueueConfig {
    QueueConfig { queue_depth: DEPTH, ..QueueConfig::of(elevator.elevator.generation) }
}

fn queue_and_device(elevator: &str) -> u64 {
    let spec = ElevatorSpec::parse(elevator).expect("the name is known");
    let mut block = BlockDevice::new(queue_config(&spec), &spec, Memory::new(null()));
    let mut random = Random::new(1, 0);
    let mut read = |user| {
        let sector = Sector(random.below(SECTORS / 8) * 8);
        Bio::new(Op::Read, sector, Sector(8), BufRef::zeros(4096), user)
    };
    for user in 0..u64::from(DEPTH) {
        block.submit(Nanos(0), read(user));
    }
    block.run(Nanos(0));
    let mut ended = 0;
    let mut done = Vec::new();
    while ended < REQUESTS {
        let now = block.next_event().expect("reads are in flight");
        block.advance(now, &mut done);
        for read_before in done.drain(..) {
            ended += 1;
            block.submit(now, read(read_before.user));
        }
        block.run(now);
    }
    ended
}

/// Keeps reads in flight.
struct Reader {
    left: u64,
    free: Vec<u32>,
    random: Random,
}

impl Task for Reader {
    fn next(&mut self, _: Nanos, returned: &Returned<'_>) -> Call {
        self.free.extend(returned.reaped.iter().map(|reaped| reaped.id));
        if self.left > 0
            && let Some(id) = self.free.pop()
        {
            self.left -= 1;
            let offset_bytes = self.random.below(SECTORS / 8) * 4096;
            let op = DirectOp::Read;
            let len_bytes = 4096;
            let more = false;
            return Call::Submit { id, file: FileId(0), op, offset_bytes, len_bytes, more };
        }
        if self.free.len() < DEPTH as usize {
            Call::Reap { at_least: 1, at_most: u32::MAX }
        } else {
            Call::Exit
        }
    }
}

struct Reads(Option<Phase<Reader>>);

impl Program for Reads {
    type Task = Reader;

    fn next_phase(&mut self) -> Option<Phase<Reader>> {
        self.0.take()
    }

    fn end_phase(&mut self, _: Nanos, _: Nanos, _: Vec<Reader>) {}
}

fn in_world(elevator: &str) -> u64 {
    let mut config = world(elevator);
    config.fs = None;
    config.device = DeviceConfig::Flash(FlashConfig {
        sectors: SECTORS,
        page_sectors: 8,
        channels: DEPTH,
        read_page: Nanos(10 * US),
        program_page: Nanos(10 * US),
        overhead: Nanos(0),
        bus_sector: Nanos(0),
        bus_write_sector: None,
        bus_command: Nanos(0),
        queue_depth: DEPTH,
        blocks: None,
        collection: None,
        write_buffer_sectors: 0,
        queues: Queues::default(),
        page_types: PageTypes::default(),
        slow: Slow::default(),
    });
    let free = (0..DEPTH).collect();
    let reader = Reader { left: REQUESTS, free, random: Random::new(1, 0) };
    let mut reads = Reads(Some(Phase { tasks: vec![reader], background: Vec::new() }));
    let (outcome, ()) = world::run(&config, &mut reads, ()).expect("the run ends");
    outcome.causes.queue.issued
}

fn buffered() -> u64 {
    let mut tiotest = Tiotest::new(tiotest::Config {
        threads: 16,
        file_bytes: 4 << 20,
        block_bytes: 4096,
        random_ops: 100,
        seed: 1,
    });
    world::run(&world("deadline"), &mut tiotest, ()).expect("the run ends");
    tiotest.results().iter().map(|phase| phase.latency.count).sum()
}

/// Costs of a machine, in which a migration is free.
fn costs() -> Costs {
    Costs {
        switch: Nanos(1_500),
        wake_up: Nanos(800),
        ipi: Nanos(800),
        ipi_remote: Nanos(1_500),
        idle: Idle::Fixed(Nanos(800)),
        vm: None,
        migrate: Migration::default(),
        cache_hot: Nanos(0),
        slice: Nanos::from_ms(10),
        granularity: Nanos::from_ms(1),
        scheduler: Scheduler::Cfs,
        user: Nanos(0),
        syscall: Nanos(300),
        page: Nanos(1_000),
        submit: Nanos(800),
        issue: Nanos(500),
        interrupt: Nanos(1_000),
        complete: Nanos(500),
        governor: None,
        shared_core_percent: None,
    }
}

/// A machine with a disk.
fn world(elevator: &str) -> Config {
    let elevator = ElevatorSpec::parse(elevator).expect("the name is known");
    let seek = SeekTimes {
        track_to_track: Nanos(800 * US),
        average: Nanos(8_500 * US),
        full_stroke: Nanos(17_000 * US),
        head_switch: Nanos(700 * US),
        write_settle: Nanos(500 * US),
    };
    Config {
        topology: Topology::of(1, 2),
        costs: costs(),
        call_costs: CallCosts::default(),
        bandwidth: None,
        cache: CacheConfig {
            memory_bytes: 32 << 20,
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
        fs: Some(FsConfig::Ext3(Ext3Config::of_2009())),
        bio_sectors: 256,
        sync_flags: true,
        housekeeping: None,
        limits: blockyard_engine::throttle::Limits::default(),
        mapped: None,
        stack: None,
        queue: queue_config(&elevator),
        elevator,
        elevator_costs: ElevatorCosts::default(),
        device: DeviceConfig::Disk(DiskConfig {
            geometry: Geometry::even(Nanos(8_333 * US), 4, 100_000_000, (1_000, 500), seek),
            overhead: Nanos(100 * US),
            overlaps_overhead: false,
            bus_sector: Nanos(1_700),
            queue_depth: DEPTH,
            policy: Policy::ShortestPositioning { age_max: Nanos::from_ms(100) },
            write_cache_sectors: 16_384,
            destage_after: Nanos::from_ms(20),
            read_ahead_sectors: 256,
        }),
        raid: None,
        interrupts: InterruptConfig { vectors: 1, rq_affinity: RqAffinity::Group },
        seed: 1,
    }
}
