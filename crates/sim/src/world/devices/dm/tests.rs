mod adaptive;

use std::num::NonZeroU64;

use blockyard_engine::dm::crypt::pipeline::{self, Choice};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::{PlugRule, QueueConfig};
use blockyard_engine::pages::{AllocatorSpec, Sizes};
use blockyard_engine::throttle::Limits;
use blockyard_engine::time::Nanos;
use blockyard_workload::fio;
use blockyard_workload::program::{Call, DirectOp, FileId, Phase, Program, Returned, Task};
use blockyard_workload::random::Random;

use crate::cpu::{Idle, IdleConfig, IdleGovernor, IdleState, Topology, VmCosts};
use crate::memory::MemoryConfig;
use crate::world::tests::{US, config as world};
use crate::world::{
    ActiveLimit, BandwidthConfig, Below, Config, CryptCauses, Cryptd, ElevatorCosts,
    ElevatorCounters, MappedConfig, MappedCosts, Outcome, PagesConfig, Scope, Workqueue, run,
};

const KIB: u64 = 1024;

/// Random operations of one length, some of them reads, at a given depth.
struct Job {
    random: Random,
    left: u32,
    depth: u32,
    in_flight: u32,
    len_bytes: u64,
    reads_percent: u64,
    socket: Option<u16>,
    failed: u32,
}

impl Task for Job {
    fn next(&mut self, _: Nanos, returned: &Returned<'_>) -> Call {
        self.in_flight -= u32::try_from(returned.reaped.len()).unwrap();
        self.failed += returned.reaped.iter().filter(|op| op.status.is_err()).count() as u32;
        if self.left > 0 && self.in_flight < self.depth {
            self.left -= 1;
            self.in_flight += 1;
            let read = self.random.below(100) < self.reads_percent;
            let op = if read { DirectOp::Read } else { DirectOp::Write };
            let offset_bytes = self.random.below((64 << 20) / self.len_bytes) * self.len_bytes;
            let len_bytes = self.len_bytes;
            let id = self.left;
            let more = false;
            return Call::Submit { id, file: FileId(0), op, offset_bytes, len_bytes, more };
        }
        if self.in_flight == 0 { Call::Exit } else { Call::Reap { at_least: 1, at_most: u32::MAX } }
    }

    fn socket(&self) -> Option<u16> {
        self.socket
    }
}

struct Jobs(Option<Phase<Job>>, u32);

impl Program for Jobs {
    type Task = Job;

    fn next_phase(&mut self) -> Option<Phase<Job>> {
        self.0.take()
    }

    fn end_phase(&mut self, _: Nanos, _: Nanos, tasks: Vec<Job>) {
        self.1 = tasks.iter().map(|task| task.failed + task.left + task.in_flight).sum();
    }
}

#[derive(Clone, Copy)]
struct Load {
    jobs: u64,
    each: u32,
    depth: u32,
    kib: u64,
    reads_percent: u64,
}

const MIXED: Load = Load { jobs: 3, each: 40, depth: 4, kib: 256, reads_percent: 50 };
const WRITES: Load = Load { reads_percent: 0, ..MIXED };

fn costs() -> MappedCosts {
    MappedCosts {
        encrypt_kib: Nanos(2_000),
        decrypt_kib: Nanos(2_000),
        jitter_percent: 10,
        remote_percent: 20,
        other_l3_percent: 0,
        sector: Nanos(0),
        fpu: Nanos(0),
        part: Nanos(500),
        end: Nanos(0),
        end_page: Nanos(0),
        queue_work: Nanos(300),
        queue_lines: Nanos(0),
        batch: Nanos(200),
        sort: Nanos(100),
    }
}

fn config(preset: &str, elevator: &str, below: Below) -> Config {
    let spec = ElevatorSpec::parse(elevator).unwrap();
    let queue = QueueConfig {
        queue_depth: 4,
        plug: PlugRule::PerContext,
        ..QueueConfig::of(spec.elevator.generation)
    };
    let topology = Topology::of(2, 4);
    let mapped = MappedConfig {
        pipeline: Choice::Fixed(pipeline::find(preset).unwrap().pipeline),
        bio_sectors: Some(8),
        keeps_context: true,
        hand_over: Nanos(16_000),
        high_priority: false,
        workqueue: Workqueue::default(),
        sector_bytes: 512,
        cryptd: Cryptd::Never,
        below,
        pages: None,
        costs: costs(),
    };
    let queue = QueueConfig { cpus: topology.cpus(), ..queue };
    Config { fs: None, topology, queue, mapped: Some(mapped), bio_sectors: 512, ..world(elevator) }
}

fn outcome(config: &Config, load: Load) -> Outcome {
    let job = |number| Job {
        random: Random::new(7, number),
        left: load.each,
        depth: load.depth,
        in_flight: 0,
        len_bytes: load.kib * KIB,
        reads_percent: load.reads_percent,
        socket: Some(u16::try_from(number).unwrap() % config.topology.sockets),
        failed: 0,
    };
    let phase = Phase { tasks: (0..load.jobs).map(job).collect(), background: vec![] };
    let mut jobs = Jobs(Some(phase), 0);
    let (outcome, ()) = run(config, &mut jobs, ()).unwrap();
    assert_eq!(jobs.1, 0, "every operation has ended well");
    outcome
}

fn crypt(outcome: &Outcome) -> &CryptCauses {
    outcome.causes.crypt.as_ref().unwrap()
}

#[test]
fn every_pipeline_carries_every_byte_over_every_elevator_and_twice_the_same() {
    for preset in pipeline::PRESETS {
        for (elevator, below) in [
            ("cfq", Below::Queue),
            ("deadline", Below::Queue),
            ("mq-deadline", Below::Queue),
            ("none", Below::Memory { ns_per_kib: 50 }),
        ] {
            let config = config(preset.name, elevator, below);
            let first = outcome(&config, MIXED);
            let bytes = MIXED.jobs * u64::from(MIXED.each) * MIXED.kib * KIB;
            assert_eq!(crypt(&first).cipher_bytes, bytes, "{} {elevator}", preset.name);
            assert_eq!(outcome(&config, MIXED), first, "{} {elevator}", preset.name);
        }
    }
}

#[test]
fn who_encrypts_and_who_submits_is_what_the_pipeline_says() {
    let of = |preset| {
        let outcome = outcome(&config(preset, "cfq", Below::Queue), WRITES);
        crypt(&outcome).clone()
    };
    let [bound, unbound, fifo, sorted, inline] = ["A", "E", "F", "G", "inline"].map(of);
    // Tasks are bound to sockets of four CPUs, and migrate within them.
    assert!(unbound.workers_per_write.median() >= 3, "{:?}", unbound.workers_per_write);
    assert!(unbound.workers_per_write.mean() > bound.workers_per_write.mean() + 1.0);
    assert_eq!((fifo.submitting_threads.len(), sorted.submitting_threads.len()), (1, 1));
    assert!(unbound.submitting_threads.len() > 4, "{:?}", unbound.submitting_threads);
    assert!(fifo.unsorted_batches > 0 && sorted.batches > 0, "{fifo:?}");
    assert_eq!(sorted.unsorted_batches, 0);
    assert!(unbound.out_of_order > 0, "many workers pass each other");
    assert_eq!((inline.hand_overs, inline.batches, inline.out_of_order), (0, 0, 0));
    assert_eq!(inline.submitting_threads.len(), 3, "each task for itself");
}

/// The answer to the mail of 2013, and its condition.
#[test]
fn name_of_the_submitter_survives_where_the_pipeline_and_the_split_keep_it() {
    let contexts = |preset, keeps_context| {
        let mut config = config(preset, "cfq", Below::Queue);
        config.mapped.as_mut().unwrap().keeps_context = keeps_context;
        let outcome = outcome(&config, WRITES);
        (crypt(&outcome).contexts_per_write.median(), crypt(&outcome).write_contexts.len())
    };
    assert!(contexts("2013-2", true).0 >= 3);
    assert_eq!(contexts("2013-reply", true), (1, 3));
    assert!(contexts("2013-reply", false).0 >= 3, "lost at the split");
    assert_eq!(contexts("2013-3", true), (1, 1), "the thread's own");
}

#[test]
fn bound_queue_encrypts_a_write_on_one_cpu_and_an_unbound_one_on_all_of_the_socket() {
    let load = Load { jobs: 1, depth: 1, ..WRITES };
    let workers = |preset| {
        let outcome = outcome(&config(preset, "none", Below::Memory { ns_per_kib: 0 }), load);
        crypt(&outcome).workers_per_write.median()
    };
    assert_eq!((workers("A"), workers("E")), (1, 4));
}

/// Bound workers encrypt where the job submits, so they show where it runs.
#[test]
fn job_runs_on_its_allowed_cpus_and_a_clone_of_split_ones_on_one() {
    let cpus_of_clones = |cpus: &[u16], splits_cpus| {
        let mut config = config("A", "none", Below::Memory { ns_per_kib: 0 });
        config.topology = Topology::of(1, 8);
        config.queue.cpus = 8;
        let job = fio::Job::new("write").with(|job| {
            job.shape.rw = fio::Rw::Write;
            job.region.filename = Some("disk".into());
            job.region.size_bytes = 4 << 20;
            job.submission.direct = true;
            job.submission.iodepth = 8;
            job.clones =
                fio::Clones { numjobs: 2, nodes: vec![], cpus: cpus.to_vec(), splits_cpus };
        });
        let mut fio = fio::Fio::new(vec![job]).unwrap();
        let (outcome, ()) = run(&config, &mut fio, ()).unwrap();
        let of = crypt(&outcome).cpus_of_writer.values();
        of.map(|cpus| cpus.iter().map(|cpu| cpu.0).collect()).collect::<Vec<Vec<u16>>>()
    };
    let shared = cpus_of_clones(&[2, 5], false);
    assert!(shared.iter().flatten().all(|cpu| [2, 5].contains(cpu)), "{shared:?}");
    let mut split = cpus_of_clones(&[2, 5], true);
    split.sort();
    assert_eq!(split, [[2], [5]]);
    let free = cpus_of_clones(&[], false);
    assert!(free.iter().flatten().any(|cpu| ![2, 5].contains(cpu)), "{free:?}");
}

/// A sleeper's read takes the sum of all hops: its own work does not overlap with the work of
/// others for it.
#[test]
fn reader_over_a_workqueue_sleeps_and_its_read_takes_the_sum_of_all_hops() {
    let vm = VmCosts { exit: Nanos(1_200), vcpu_wake: Nanos(7_000) };
    let state = IdleState { exit: Nanos(2_000), residency: Some(Nanos(0)) };
    let governor = IdleGovernor::HaltPoll { poll_max: Nanos::from_ms(1) };
    let polls = Idle::Governed(IdleConfig { governor, states: [state; 3] });
    let fixed = Idle::Fixed(Nanos(1_000));
    // The exit from idle, of a real and of a virtual machine.
    assert_reads_take_the_sum_with(1_000, (fixed, None));
    assert_reads_take_the_sum_with(1_000 + 1_200 + 7_000, (fixed, Some(vm)));
    assert_reads_take_the_sum_with(0, (polls, Some(vm)));
}

fn assert_reads_take_the_sum_with(idle_exit: u64, (idle, vm): (Idle, Option<VmCosts>)) {
    let mut config = config("E", "none", Below::Memory { ns_per_kib: 50 });
    config.topology = Topology::of(1, 4);
    config.queue.cpus = 4;
    config.mapped.as_mut().unwrap().costs.jitter_percent = 0;
    (config.costs.idle, config.costs.vm) = (idle, vm);
    let job = fio::Job::new("read").with(|job| {
        job.shape.rw = fio::Rw::RandRead;
        job.region.filename = Some("disk".into());
        job.region.size_bytes = 64 << 20;
        job.submission.direct = true;
        job.end.runtime = Some(Nanos::from_ms(20));
        job.end.time_based = true;
    });
    let mut fio = fio::Fio::new(vec![job]).unwrap();
    let (_, ()) = run(&config, &mut fio, ()).unwrap();
    let result = &fio.results()[0];
    // A call and its bio, the target's bio and its copy, the work item.
    let submits = 500 + 1_000 + 1_000 + 4 * 50 + 300;
    // The waker's work, the call to another CPU, its exit from idle; the thread was the last one
    // there.
    let hop = 1_000 + 1_000 + idle_exit;
    let ciphers = 500 + 4 * 2_000;
    let each = result.runtime.0 / result.read.ios;
    let sum = submits + hop + ciphers + hop;
    // The first read finds other threads on the CPUs: two switches, in a thousand reads.
    // The first CPU to poll halts first.
    assert!((sum..sum + 40).contains(&each), "{each} ns, and the hops take {sum}");
    let waits = result.usage.voluntary;
    assert!(waits.abs_diff(result.read.ios) < 5, "{waits} for {} reads", result.read.ios);
}

#[test]
fn memory_below_knows_no_elevator() {
    let of = |elevator| outcome(&config("G", elevator, Below::Memory { ns_per_kib: 0 }), MIXED);
    let first = of("cfq");
    assert_eq!(first.causes.queue.bios, 0);
    for elevator in ["deadline", "noop"] {
        assert_eq!(of(elevator), first, "{elevator}");
    }
}

#[test]
fn cipher_inline_takes_the_time_of_one_cpu_and_workers_share_it() {
    let load = Load { jobs: 1, each: 64, depth: 64, ..WRITES };
    let time = |preset| {
        let mut config = config(preset, "none", Below::Memory { ns_per_kib: 0 });
        config.mapped.as_mut().unwrap().costs.jitter_percent = 0;
        outcome(&config, load).ended.0 / US
    };
    // 16 MiB at 2 us a KiB are 32.8 ms.
    let inline = time("inline");
    let any = time("E");
    assert!((32_700..60_000).contains(&inline), "{inline} us");
    assert!(any * 2 < inline, "{any} us on four CPUs, {inline} us on one");
}

/// 1 MiB writes, encrypted inline, into memory.
fn allocating(allocator: &str, usable_pages: Option<u32>) -> CryptCauses {
    let mut config = config("inline", "none", Below::Memory { ns_per_kib: 50 });
    let mapped = config.mapped.as_mut().unwrap();
    let memory = MemoryConfig { cpus: 8, ..MemoryConfig::of_pages(1 << 14) };
    mapped.bio_sectors = None;
    mapped.pages = Some(PagesConfig {
        allocator: AllocatorSpec::parse(allocator).unwrap(),
        sizes: Sizes { reserve_pages: 256, limit_pages: 1024 },
        memory,
        fragmented: None,
        usable_pages,
    });
    config.bio_sectors = 2048;
    let load = Load { jobs: 2, each: 20, depth: 4, kib: 1024, reads_percent: 0 };
    crypt(&outcome(&config, load)).clone()
}

#[test]
fn pages_are_allocated_as_the_allocator_does_and_its_time_is_paid() {
    let single = allocating("single", None);
    let bulk = allocating("bulk-callback", None);
    let calls = |causes: &CryptCauses| {
        let pages = causes.pages.as_ref().unwrap();
        (pages.bios, pages.single_calls, pages.bulk_calls)
    };
    assert_eq!((calls(&single), calls(&bulk)), ((40, 40 * 256, 0), (40, 0, 40)));
    assert!(bulk.allocation_busy < single.allocation_busy);
    let short = allocating("single", Some(64));
    assert!(short.pages.as_ref().unwrap().reserve_pages > 0, "{:?}", short.pages);
}

#[test]
fn writes_wait_for_a_request_and_go_on() {
    let mut config = config("E", "deadline", Below::Queue);
    config.queue.nr_requests = 4;
    let outcome = outcome(&config, MIXED);
    assert!(outcome.causes.queue.parked > 100, "{:?}", outcome.causes.queue);
}

/// 160 writes of 64 KiB at 64 MiB/s, with and without a worker and a writing thread.
#[test]
fn limited_mapped_device_writes_at_its_rate() {
    let load = Load { jobs: 2, each: 80, depth: 4, kib: 64, reads_percent: 0 };
    for preset in ["inline", "E", "G"] {
        let mut config = config(preset, "deadline", Below::Memory { ns_per_kib: 0 });
        let free = outcome(&config, load).ended;
        config.limits =
            Limits { bytes_per_s: NonZeroU64::new(64 << 20), burst: Nanos(0), ..Limits::default() };
        let limited = outcome(&config, load).ended;
        let paid = Nanos(159 * 1_000_000_000 / 1024);
        assert!(limited >= paid, "{preset}: {limited:?}");
        assert!(limited < paid + free + free, "{preset}: {limited:?}, {free:?} without the limit");
    }
}

/// The bios of a device with a limit start on a timer. Their ciphers are work of their submitters'
/// CPUs: no job is slowed down by those of others.
#[test]
fn limited_bios_are_encrypted_on_the_cpus_of_their_submitters() {
    let load = Load { jobs: 2, each: 100, depth: 1, kib: 4, reads_percent: 0 };
    let mut config = config("inline", "none", Below::Memory { ns_per_kib: 0 });
    config.limits = Limits { iops: NonZeroU64::new(10_000), burst: Nanos(0), ..Limits::default() };
    let outcome = outcome(&config, load);
    let cpus = &crypt(&outcome).cpus_of_writer;
    // Each job has a socket of four CPUs.
    let sockets = cpus.values().map(|cpus| cpus.iter().map(|cpu| cpu.0 / 4).collect());
    let mut sockets: Vec<Vec<u16>> = sockets.collect();
    sockets.iter_mut().for_each(Vec::dedup);
    assert_eq!(sockets, [[0], [1]]);
}

/// The queue may give a request to a waiting bio before its thread sleeps.
#[test]
fn writing_thread_with_few_requests_sleeps_for_none_that_it_has() {
    for elevator in ["noop", "deadline", "cfq"] {
        for nr_requests in 2..12 {
            let mut config = config("2013-3", elevator, Below::Queue);
            config.queue.nr_requests = nr_requests;
            outcome(&config, Load { kib: 1024, depth: 1, ..MIXED });
        }
    }
}

/// One write at a time over memory: the end of each is paid once, by its length, and its submitter
/// waits for it.
#[test]
fn end_of_a_write_costs_its_context_a_fixed_part_and_each_page() {
    let end = Nanos(1_500);
    let end_page = Nanos(150);
    let load = Load { jobs: 1, each: 40, depth: 1, kib: 256, reads_percent: 0 };
    let of = |preset, below, costs: MappedCosts| {
        let mut config = config(preset, "deadline", below);
        let mapped = config.mapped.as_mut().unwrap();
        (mapped.costs, mapped.bio_sectors) = (costs, None);
        outcome(&config, load)
    };
    let free = MappedCosts { jitter_percent: 0, ..costs() };
    let paid = MappedCosts { end, end_page, ..free };
    let each = end.0 + 64 * end_page.0;
    for preset in ["inline", "A"] {
        let before = of(preset, Below::Memory { ns_per_kib: 0 }, free);
        let after = of(preset, Below::Memory { ns_per_kib: 0 }, paid);
        assert_eq!(after.cpu_busy.0 - before.cpu_busy.0, 40 * each, "{preset}");
        assert_eq!(after.ended.0 - before.ended.0, 40 * each, "{preset}");
    }
    let before = of("inline", Below::Queue, free);
    let after = of("inline", Below::Queue, paid);
    assert_eq!(after.cpu_busy.0 - before.cpu_busy.0, 40 * each, "an interrupt ends them");
}

#[test]
fn end_of_a_read_is_paid_after_its_cipher() {
    let load = Load { jobs: 1, each: 40, depth: 1, kib: 256, reads_percent: 100 };
    let busy = |end| {
        let mut config = config("A", "none", Below::Memory { ns_per_kib: 0 });
        let mapped = config.mapped.as_mut().unwrap();
        mapped.bio_sectors = None;
        mapped.costs = MappedCosts { jitter_percent: 0, end: Nanos(end), ..costs() };
        outcome(&config, load).cpu_busy.0
    };
    assert_eq!(busy(1_500) - busy(0), 40 * 1_500);
}

/// A worker with a nice value of -20 runs as soon as it is woken, in place of the submitter.
#[test]
fn worker_of_high_priority_preempts_the_submitter() {
    let switches = |high_priority| {
        let mut config = config("E", "none", Below::Memory { ns_per_kib: 50 });
        config.topology = Topology::of(1, 1);
        config.queue.cpus = 1;
        config.mapped.as_mut().unwrap().high_priority = high_priority;
        let load = Load { jobs: 1, each: 40, depth: 8, kib: 4, reads_percent: 0 };
        outcome(&config, load).causes.switches
    };
    let fair = switches(false);
    let high = switches(true);
    // Eight writes are submitted before the first is encrypted, or each is encrypted at once.
    assert!(high > 2 * fair, "{high} and {fair} switches");
}

/// A single operation at a time over memory, with a cipher that always takes the same time.
fn alone(kib: u64, reads_percent: u64, change: impl FnOnce(&mut MappedConfig)) -> Outcome {
    let mut config = config("inline", "none", Below::Memory { ns_per_kib: 0 });
    let mapped = config.mapped.as_mut().unwrap();
    mapped.bio_sectors = None;
    mapped.costs = MappedCosts { jitter_percent: 0, ..costs() };
    change(mapped);
    outcome(&config, Load { jobs: 1, each: 40, depth: 1, kib, reads_percent })
}

#[test]
fn each_sector_is_a_request_to_the_cipher_and_a_larger_one_saves_requests() {
    let cost = |kib, sector_bytes| {
        let busy = |sector, fpu| {
            let outcome = alone(kib, 50, |mapped| {
                mapped.sector_bytes = sector_bytes;
                (mapped.costs.sector, mapped.costs.fpu) = (Nanos(sector), Nanos(fpu));
            });
            (outcome.cpu_busy.0, crypt(&outcome).cipher_busy.0)
        };
        let free = busy(0, 0);
        let paid = busy(100, 30);
        let cost = paid.0 - free.0;
        assert_eq!(cost, paid.1 - free.1, "all of it is time of the cipher");
        cost
    };
    assert_eq!(cost(128, 512), 40 * 256 * 130);
    assert_eq!(cost(256, 512), 2 * cost(128, 512));
    assert_eq!(cost(256, 4096), cost(256, 512) / 8);
}

#[test]
fn decryption_has_a_time_of_its_own() {
    let busy = |reads_percent, decrypt| {
        let outcome = alone(256, reads_percent, |mapped| {
            mapped.costs.decrypt_kib = Nanos(decrypt);
        });
        crypt(&outcome).cipher_busy.0
    };
    assert_eq!(busy(100, 2_000), busy(0, 2_000), "the control: both take the same time");
    assert_eq!(busy(100, 500) * 4, busy(100, 2_000));
    assert_eq!(busy(0, 500), busy(0, 2_000));
}

#[test]
fn asynchronous_cipher_runs_in_cryptd_and_takes_the_same_time_there() {
    let of = |cryptd| alone(256, 50, |mapped| mapped.cryptd = cryptd);
    let own = of(Cryptd::Never);
    let other = of(Cryptd::Always);
    assert_eq!((crypt(&own).by_cryptd, crypt(&own).parts), (0, 40));
    assert_eq!(crypt(&other).by_cryptd, 40);
    assert_eq!(crypt(&own).cipher_busy, crypt(&other).cipher_busy);
    assert!(other.causes.switches > own.causes.switches + 40, "each waits for the thread");
    // The submitter hands over each of 512 sectors.
    assert!(other.cpu_busy.0 - own.cpu_busy.0 > 40 * 512 * costs().queue_work.0);
    let behind_workers = |cryptd| {
        let mut config = config("E", "none", Below::Queue);
        config.mapped.as_mut().unwrap().cryptd = cryptd;
        crypt(&outcome(&config, MIXED)).clone()
    };
    let always = behind_workers(Cryptd::Always);
    assert_eq!(always.by_cryptd, always.parts, "those of workers too");
    assert_eq!(behind_workers(Cryptd::Busy).by_cryptd, 0, "no interrupt has a cipher");
}

/// An interrupt decrypts itself, unless it has interrupted a thread that encrypts.
#[test]
fn interrupt_that_finds_a_cipher_leaves_its_own_to_cryptd() {
    let by_cryptd = |reads_percent, cryptd| {
        let mut config = config("inline", "none", Below::Queue);
        config.topology = Topology::of(1, 1);
        config.queue.cpus = 1;
        let mapped = config.mapped.as_mut().unwrap();
        (mapped.cryptd, mapped.bio_sectors) = (cryptd, None);
        // The disk is faster than encryption, so its interrupts often find it.
        mapped.costs.encrypt_kib = Nanos(100_000);
        let load = Load { jobs: 1, each: 200, depth: 8, kib: 64, reads_percent };
        crypt(&outcome(&config, load)).by_cryptd
    };
    let some = by_cryptd(50, Cryptd::Busy);
    assert!((10..110).contains(&some), "{some} of about 100 reads");
    assert_eq!(by_cryptd(100, Cryptd::Busy), 0, "nothing to find without writes");
    assert_eq!(by_cryptd(50, Cryptd::Never), 0, "the control");
}

/// The CPUs are busy for the elevator's work, and for nothing else in addition.
#[test]
fn work_of_an_elevator_is_busy_time_of_threads_and_interrupts() {
    let of = |elevator: &str, step| {
        let mut config = config("A", elevator, Below::Queue);
        config.mapped = None;
        config.elevator_costs = ElevatorCosts { step: Nanos(step), ..config.elevator_costs };
        outcome(&config, Load { jobs: 1, each: 40, depth: 1, kib: 4, reads_percent: 50 })
    };
    let mut before = Nanos(0);
    for elevator in ["none", "noop", "deadline", "cfq"] {
        let free = of(elevator, 0);
        let paid = of(elevator, 30);
        let work = paid.causes.elevator.busy;
        assert_eq!(free.causes.elevator, ElevatorCounters::default(), "the control: {elevator}");
        // A few steps, of the exit of the thread, follow the end of the program.
        let after_end = work.0 - (paid.cpu_busy.0 - free.cpu_busy.0);
        assert!(after_end <= 10 * 30, "{elevator}: {after_end} ns after the end");
        assert!(work > before, "{elevator}: {work:?} over {before:?}");
        let twice = of(elevator, 60).causes.elevator.busy.0;
        assert!(twice.abs_diff(2 * work.0) * 50 <= twice, "{elevator}: {twice} and {work:?}");
        before = work;
    }
}

/// The utilisation law: eight CPUs that encrypt are as fast as the memory of their sockets.
#[test]
fn memory_limits_the_rate_of_many_ciphers_and_is_shared_by_their_sockets() {
    let rate = |memory_mib: u64| {
        let mut config = config("inline", "none", Below::Memory { ns_per_kib: 0 });
        config.bandwidth = (memory_mib > 0).then_some(BandwidthConfig {
            memory_bytes_per_s: memory_mib << 20,
            link_bytes_per_s: None,
            cipher_percent: 200,
            copy_percent: 200,
            dma_percent: 100,
            device_socket: 0,
        });
        let load = Load { jobs: 8, each: 100, depth: 1, kib: 64, reads_percent: 50 };
        let outcome = outcome(&config, load);
        let bytes = load.jobs * u64::from(load.each) * load.kib * KIB;
        if let Some(memory) = outcome.causes.memory {
            assert_eq!(memory.bytes, 2 * bytes, "each byte is read and written");
        }
        (bytes as f64 / outcome.ended.0 as f64 * 1e9 / f64::from(1 << 20), outcome)
    };
    let (free, unlimited) = rate(0);
    let (wide, same) = rate(1 << 20);
    assert!((wide / free - 1.0).abs() < 0.01, "a wide memory: {wide} and {free} MiB/s");
    assert!(same.causes.memory.is_some() && unlimited.causes.memory.is_none());
    // Two sockets with 1000 MiB/s each; a byte in the cipher is two in memory.
    let (narrow, waits) = rate(1_000);
    assert!(free > 2_000.0, "the control: {free} MiB/s");
    assert!((900.0..=1_001.0).contains(&narrow), "{narrow} MiB/s");
    assert!(waits.causes.memory.unwrap().waited > Nanos::from_ms(1));
    assert_eq!(rate(1_000).1, waits, "twice the same");
}

/// A writer on CPU 0 of two sockets with two caches of four CPUs each, two CPUs a core. Returns
/// the CPUs of its ciphers, and the time of the run.
fn with_workqueue(workqueue: Workqueue) -> (Vec<u16>, Nanos) {
    let mut config = config("E", "none", Below::Memory { ns_per_kib: 0 });
    config.topology = Topology { cpus_per_l3: Some(4), ..Topology::of(2, 8) };
    config.queue.cpus = 16;
    config.costs.shared_core_percent = Some(100);
    let mapped = config.mapped.as_mut().unwrap();
    (mapped.workqueue, mapped.bio_sectors) = (workqueue, None);
    mapped.costs = MappedCosts { jitter_percent: 0, remote_percent: 0, ..costs() };
    let job = fio::Job::new("write").with(|job| {
        job.shape.rw = fio::Rw::Write;
        job.region.filename = Some("disk".into());
        job.region.size_bytes = 64 << 20;
        job.shape.block_bytes = 64 << 10;
        job.submission.direct = true;
        job.submission.iodepth = 64;
        job.clones = fio::Clones { numjobs: 1, nodes: vec![], cpus: vec![0], splits_cpus: false };
    });
    let mut fio = fio::Fio::new(vec![job]).unwrap();
    let (outcome, ()) = run(&config, &mut fio, ()).unwrap();
    let cpus = crypt(&outcome).cpus_of_writer.values().next().unwrap();
    (cpus.iter().map(|cpu| cpu.0).collect(), outcome.ended)
}

#[test]
fn workers_stay_in_the_pod_of_the_submitter_if_they_must_and_else_use_all_cpus() {
    let of = |scope, is_strict| {
        with_workqueue(Workqueue { scope, is_strict, max_active: Some(32), ..Workqueue::default() })
    };
    let strict = |scope| of(scope, true).0;
    assert_eq!(strict(Scope::Cpu), [0]);
    assert_eq!(strict(Scope::Smt), [0, 1]);
    assert_eq!(strict(Scope::CacheShard { cores: 1 }), [0, 1]);
    assert_eq!(strict(Scope::Cache), [0, 1, 2, 3]);
    assert_eq!(strict(Scope::Numa), (0..8).collect::<Vec<_>>());
    let all: Vec<_> = (0..16).collect();
    assert_eq!(strict(Scope::System), all);
    // The kernel's page finds the strict cache slower for few submitters, too.
    let (cpus, free) = of(Scope::Cache, false);
    let (_, bound) = of(Scope::Cache, true);
    assert_eq!(cpus, all);
    assert!(bound.0 > 3 * free.0, "{bound:?} on four CPUs, {free:?} on sixteen");
}

/// Ciphers of 131 us, which so many workers run at once.
#[test]
fn items_in_work_are_limited_by_socket_or_by_pod() {
    let time = |scope, max_active, limit| {
        let max_active = Some(max_active);
        with_workqueue(Workqueue { scope, is_strict: false, max_active, limit }).1.0
    };
    let near = |time: u64, expected: u64| time.abs_diff(expected) < expected / 10;
    let alone = time(Scope::System, 1, ActiveLimit::Socket);
    for at_once in [2, 4] {
        let shared = time(Scope::System, at_once, ActiveLimit::Socket);
        assert!(near(shared, alone / u64::from(at_once)), "{shared} ns, and {alone} alone");
    }
    // A socket has half of 24, a pod all; nine are busy with all of them, and the submitter.
    let of_socket = time(Scope::Cache, 24, ActiveLimit::Socket);
    let of_pod = time(Scope::Cache, 24, ActiveLimit::Pod);
    assert!(near(of_socket, alone / 12), "{of_socket} ns, and {alone} alone");
    assert!(of_pod < of_socket, "{of_pod} and {of_socket} ns");
}
