use blockyard_engine::mq::complete::RqAffinity;
use blockyard_engine::mq::{PlugRule, QueueConfig};
use blockyard_engine::time::Nanos;
use blockyard_workload::fio::{Fio, Job, JobResult};
use blockyard_workload::fs_mark::{self, FsMark, Timed};

use crate::cpu::Idle;
use crate::fs::FsConfig;
use crate::fs::ext3::Ext3Config;
use crate::world::tests::config;
use crate::world::{
    CompletionRule, Config, DeviceConfig, Event, IrqMode, NullConfig, Observer, QueueMode, run,
};

const IOS: u64 = 200;

/// A null device without a queue, on one CPU: all time is that of calls.
fn world(irqmode: IrqMode, queue_mode: QueueMode) -> Config {
    let mut config = config("none");
    config.fs = None;
    (config.topology.sockets, config.topology.cpus_per_socket) = (1, 1);
    let costs = &mut config.costs;
    (costs.user, costs.syscall, costs.submit) = (Nanos(0), Nanos(10_000), Nanos(0));
    (costs.issue, costs.interrupt, costs.switch) = (Nanos(0), Nanos(0), Nanos(0));
    (costs.wake_up, costs.idle) = (Nanos(0), Idle::Fixed(Nanos(0)));
    config.queue = QueueConfig {
        cpus: 1,
        hw_queues: 1,
        queue_depth: 64,
        write_cache: false,
        plug: PlugRule::Off,
        ..QueueConfig::default()
    };
    config.device = DeviceConfig::Null(NullConfig {
        sectors: 1 << 20,
        queue_mode,
        irqmode,
        completion: Nanos(100_000),
        hw_queues: 1,
        hw_queue_depth: 64,
        rq_affinity: RqAffinity::Group,
        completion_rule: CompletionRule::Inline,
        end: Nanos(0),
    });
    config
}

fn immediate() -> Config {
    world(IrqMode::None, QueueMode::Bio)
}

/// Runs a job with these options, as `key=value`.
fn job(config: &Config, options: &str) -> JobResult {
    let mut job = Job::new("job").with(|job| {
        job.submission.direct = true;
        job.region.filename = Some("null".into());
        job.region.size_bytes = 64 << 20;
        job.end.number_ios = Some(IOS);
    });
    for option in options.split(' ') {
        let (key, value) = option.split_once('=').unwrap();
        job.set(key, value).unwrap();
    }
    job.check().unwrap();
    let mut fio = Fio::new(vec![job]).unwrap();
    run(config, &mut fio, ()).unwrap();
    let result = fio.results()[0].clone();
    assert_eq!(result.errors.ended_by, None);
    result
}

/// Time of a request, in nanoseconds.
fn each(config: &Config, options: &str) -> u64 {
    job(config, options).runtime.0 / IOS
}

#[test]
fn engine_decides_how_many_calls_a_request_takes() {
    let fast = immediate();
    let aio = each(&fast, "rw=randread ioengine=libaio");
    assert_eq!(each(&fast, "rw=randread"), aio, "libaio is the usual engine of direct requests");
    assert_eq!(aio, 20_000);
    assert_eq!(each(&fast, "rw=randread ioengine=psync"), 10_000);
    assert_eq!(each(&fast, "rw=randread ioengine=io_uring"), 10_000);
    // A ring saves the call only where nothing has to be awaited.
    let slow = world(IrqMode::Timer, QueueMode::Mq);
    let waiting = |engine| {
        let used = job(&slow, &format!("rw=randread ioengine={engine}")).usage;
        (used.user + used.system).0 / IOS
    };
    assert_eq!(waiting("io_uring"), waiting("libaio"));
    assert_eq!(waiting("psync") + 10_000, waiting("libaio"));
}

#[test]
fn wait_of_a_synchronous_request_is_no_call_of_the_program() {
    let mut config = immediate();
    config.costs.user = Nanos(3_000);
    assert_eq!(each(&config, "rw=randread ioengine=psync"), 13_000);
    assert_eq!(each(&config, "rw=randread ioengine=libaio"), 26_000);
}

#[test]
fn direct_write_costs_more_than_a_read_by_its_pages() {
    let mut config = immediate();
    let both = |config: &Config, bs: &str| {
        let of = |rw: &str| each(config, &format!("rw={rw} bs={bs} ioengine=psync"));
        (of("read"), of("write"))
    };
    let (read, write) = both(&config, "4k");
    assert_eq!(read, write, "the control: without the costs there is no difference");
    config.call_costs.direct_write = Nanos(700);
    config.call_costs.direct_write_page = Nanos(50);
    assert_eq!(both(&config, "4k"), (read, read + 750));
    assert_eq!(both(&config, "64k"), (read, read + 700 + 16 * 50));
    let batched = "rw=write bs=4k iodepth=8 iodepth_batch=8 iodepth_batch_complete=8";
    assert_eq!(each(&config, batched), 20_000 / 8 + 750, "each write of a batch pays");
}

#[test]
fn verification_takes_user_time_for_each_byte_written_and_read_back() {
    let mut config = immediate();
    config.call_costs.verify_kib = Nanos(250);
    let user = |verify: &str| job(&config, &format!("rw=write bs=8k verify={verify}")).usage.user;
    // Once for the write, and once for the check.
    assert_eq!(user("crc32c"), Nanos(2 * IOS * 8 * 250));
    assert_eq!(user("crc32c do_verify=0"), Nanos(IOS * 8 * 250));
    assert_eq!(user("null"), Nanos(0), "nothing is summed up");
    config.call_costs.verify_kib = Nanos(0);
    assert_eq!(job(&config, "rw=write bs=8k verify=crc32c").usage.user, Nanos(0));
}

#[test]
fn random_offset_takes_user_time_and_the_next_one_in_order_none() {
    let mut config = immediate();
    let user = |config: &Config, rw: &str| job(config, &format!("rw={rw} bs=4k")).usage.user;
    assert_eq!(user(&config, "randread"), Nanos(0), "the control");
    config.call_costs.random_offset = Nanos(150);
    assert_eq!(user(&config, "read"), Nanos(0));
    // Two of the offsets may follow each other.
    let random = user(&config, "randread").0;
    assert!(random > (IOS - 3) * 150 && random <= IOS * 150, "{random}");
}

/// Eight at a time, of which one has a request: the submitter waits before most of them.
#[test]
fn submitter_that_waits_for_a_request_pays_for_its_user_time_too() {
    let with = |requests: u32, user_ns: u64, offset_ns: u64| {
        let mut config = world(IrqMode::Timer, QueueMode::Mq);
        (config.queue.nr_requests, config.queue.queue_depth) = (requests, requests);
        if let DeviceConfig::Null(null) = &mut config.device {
            null.hw_queue_depth = requests;
        }
        config.costs.user = Nanos(user_ns);
        config.call_costs.random_offset = Nanos(offset_ns);
        job(&config, "rw=randread bs=4k iodepth=8").usage.user.0
    };
    let random = with(1, 0, 150);
    // Those of the last calls may be unpaid.
    assert!(random > (IOS - 20) * 150 && random <= IOS * 150, "{random}");
    // As many calls as without a wait.
    assert_eq!(with(1, 150, 0), with(64, 150, 0));
}

/// A request that ends at once frees its tag while the submitter is still at work, so that a bio
/// that was to wait for one has it before the submitter sleeps.
#[test]
fn submitter_does_not_sleep_for_a_request_that_it_has() {
    for irqmode in [IrqMode::None, IrqMode::Softirq] {
        for plug in [PlugRule::Off, PlugRule::PerContext] {
            let mut config = world(irqmode, QueueMode::Mq);
            (config.queue.nr_requests, config.queue.queue_depth) = (1, 1);
            config.queue.plug = plug;
            if let DeviceConfig::Null(null) = &mut config.device {
                null.hw_queue_depth = 1;
            }
            for options in ["rw=randwrite bs=1m", "rw=randwrite bs=4k iodepth=8 iodepth_batch=4"] {
                let bytes = if options.contains("1m") { 1 << 20 } else { 4 << 10 };
                let written = job(&config, options).write.bytes;
                assert_eq!(written, (IOS * bytes).min(64 << 20), "{irqmode:?} {plug:?}");
            }
        }
    }
}

/// Commit records of a journal with barriers.
#[derive(Default)]
struct Commits(u64);

impl Observer for Commits {
    fn event(&mut self, _: Nanos, event: &Event) {
        if let Event::Submit { preflush: true, .. } = event {
            self.0 += 1;
        }
    }
}

/// Creates 64 files in all; returns the program and the number of commits.
fn create_files(threads: u32, sync_method: u8) -> (FsMark, u64) {
    let mut config = config("deadline");
    let ext3 = Ext3Config { barriers: true, ..Ext3Config::of_2009() };
    config.fs = Some(FsConfig::Ext3(ext3));
    config.queue.write_cache = true;
    config.call_costs.create = Nanos(10_000);
    let mut program = FsMark::new(fs_mark::Config {
        threads,
        files: 64 / threads,
        file_bytes: 10 << 10,
        write_bytes: 16 << 10,
        directories: 4,
        files_per_directory: 1,
        sync_method,
    });
    let commits = run(&config, &mut program, Commits::default()).unwrap().1.0;
    (program, commits)
}

/// A commit takes all files that threads have created so far, so threads that wait share one.
#[test]
fn created_files_that_are_synced_at_once_share_a_commit() {
    let (alone, commits) = create_files(1, 1);
    assert_eq!(commits, 64, "each has its own");
    let (together, shared) = create_files(8, 1);
    assert!((8..=24).contains(&shared), "{shared}");
    let rates = [&alone, &together].map(|program| program.results().files_per_s);
    assert!(rates[1] > 2.0 * rates[0], "{rates:?}");
    let fsync = together.results().calls[Timed::Fsync as usize];
    assert_eq!(fsync.count, 64);
    assert!(fsync.min > Nanos::from_ms(1), "{fsync:?}");
}

#[test]
fn sync_writes_all_files_with_one_commit_and_without_it_none_is_waited_for() {
    let (synced, commits) = create_files(1, 2);
    assert_eq!(commits, 1, "the fsync after it finds nothing new");
    let sync = synced.results().calls[Timed::Sync as usize];
    assert!(sync.count == 1 && sync.min > Nanos::from_ms(10), "{sync:?}");
    let (unsynced, commits) = create_files(1, 0);
    assert_eq!(commits, 0);
    // The bitmap that the first creation reads is all that it waits for.
    assert!(unsynced.results().longest < Nanos::from_ms(60), "{:?}", unsynced.results());
    let each = unsynced.results().calls[Timed::Create as usize];
    assert!(each.min >= Nanos(10_500) && each.min < Nanos(12_000), "{each:?}");
}
