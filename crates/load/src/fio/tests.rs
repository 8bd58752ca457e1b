use super::*;
use crate::program::{DirectOp, Reaped};

/// A world in which everything takes a fixed time, many operations at once.
struct World {
    now: Nanos,
    /// Of a call, or of `submit`.
    call: Nanos,
    /// From `submit` to the end of an operation.
    device: Nanos,
    /// The operation with this offset fails.
    fails_at: Option<u64>,
    calls: Vec<Call>,
    in_flight: Vec<(Nanos, Reaped)>,
    depth_max: usize,
}

impl World {
    fn new(call_us: u64, device_us: u64) -> Self {
        Self {
            now: Nanos(0),
            call: Nanos(call_us * 1000),
            device: Nanos(device_us * 1000),
            fails_at: None,
            calls: Vec::new(),
            in_flight: Vec::new(),
            depth_max: 0,
        }
    }

    fn execute(&mut self, call: Call) -> (Result<(), i32>, Vec<Reaped>) {
        let status = |offset| if Some(offset) == self.fails_at { Err(5) } else { Ok(()) };
        match call {
            Call::Submit { id, offset_bytes, .. } => {
                let ended = self.now + self.device;
                let reaped = Reaped { id, status: status(offset_bytes), ended };
                self.in_flight.push((ended, reaped));
                self.depth_max = self.depth_max.max(self.in_flight.len());
                self.now = self.now + self.call;
                (Ok(()), vec![])
            }
            Call::Reap { at_least } => {
                assert!(at_least as usize <= self.in_flight.len(), "it would wait for ever");
                let last = self.in_flight[at_least as usize - 1].0;
                self.now = self.now.max(last);
                let ended = self.in_flight.partition_point(|(ended, _)| *ended <= self.now);
                (Ok(()), self.in_flight.drain(..ended).map(|(_, reaped)| reaped).collect())
            }
            Call::Read { offset_bytes, .. } | Call::Write { offset_bytes, .. } => {
                self.now = self.now + self.call;
                (status(offset_bytes), vec![])
            }
            Call::Fsync(_) => {
                self.now = self.now + self.call;
                (Ok(()), vec![])
            }
            _ => (Ok(()), vec![]),
        }
    }

    /// One task after the other.
    fn run(&mut self, fio: &mut Fio) {
        while let Some(mut phase) = fio.next_phase() {
            for task in &mut phase.tasks {
                let mut last = (Ok(()), vec![]);
                loop {
                    let returned = Returned { status: last.0, reaped: &last.1 };
                    let call = task.next(self.now, &returned);
                    self.calls.push(call);
                    if call == Call::Exit {
                        break;
                    }
                    last = self.execute(call);
                }
                assert!(self.in_flight.is_empty(), "a task ends with nothing in flight");
            }
            fio.end_phase(Nanos(0), self.now, phase.tasks);
        }
    }
}

fn job(rw: Rw, blocks: u64) -> Job {
    Job { rw, size_bytes: blocks * 4096, ..Job::new("a") }
}

fn run(world: &mut World, job: Job) -> JobResult {
    let mut fio = Fio::new(vec![job]).unwrap();
    world.run(&mut fio);
    fio.results()[0].clone()
}

/// Blocks that were read, and that were written, in order.
fn blocks(calls: &[Call]) -> (Vec<u64>, Vec<u64>) {
    let (mut read, mut written) = (vec![], vec![]);
    for call in calls {
        match *call {
            Call::Read { offset_bytes, .. }
            | Call::Submit { op: DirectOp::Read, offset_bytes, .. } => {
                read.push(offset_bytes / 4096);
            }
            Call::Write { offset_bytes, .. } | Call::Submit { offset_bytes, .. } => {
                written.push(offset_bytes / 4096);
            }
            _ => {}
        }
    }
    (read, written)
}

#[test]
fn sequential_write_makes_its_file_and_is_timed_without_open_and_close() {
    let mut world = World::new(10, 0);
    let result = run(&mut world, job(Rw::Write, 3));
    let write =
        |block: u64| Call::Write { file: FileId(0), offset_bytes: block * 4096, len_bytes: 4096 };
    let (create, open) = (Call::Create(FileId(0)), Call::Open(FileId(0)));
    let close = Call::Close(FileId(0));
    let expected = [create, Call::Exit, open, write(0), write(1), write(2), close, Call::Exit];
    assert_eq!(world.calls, expected);
    assert_eq!((result.write.ios, result.write.bytes), (3, 12_288));
    assert_eq!(result.runtime, Nanos(30_000));
    assert!((result.iops(&result.write) - 100_000.0).abs() < 1e-6);
    assert!((result.bandwidth(&result.write) - 409_600_000.0).abs() < 1e-3);
    assert_eq!(result.write.clat, result.write.lat);
    assert_eq!((result.write.slat.count(), result.read.ios), (0, 0));
}

#[test]
fn files_that_are_read_overwritten_random_or_direct_are_there_before() {
    let laid_out = |job: Job| {
        let mut world = World::new(1, 1);
        run(&mut world, job);
        matches!(world.calls[0], Call::Layout { file: FileId(0), len_bytes: 32_768 })
    };
    assert!(!laid_out(job(Rw::Write, 8)));
    assert!(laid_out(Job { overwrite: true, ..job(Rw::Write, 8) }));
    assert!(laid_out(Job { direct: true, ..job(Rw::Write, 8) }));
    assert!(laid_out(job(Rw::RandWrite, 8)));
    assert!(laid_out(job(Rw::Read, 8)));
    assert!(laid_out(Job { offset_bytes: 4096, ..job(Rw::ReadWrite, 7) }));
}

#[test]
fn random_job_touches_each_block_once_and_its_seed_says_in_which_order() {
    let order = |seed| {
        let mut world = World::new(1, 1);
        run(&mut world, Job { seed, offset_bytes: 40_960, ..job(Rw::RandRead, 100) });
        blocks(&world.calls).0
    };
    let mut sorted = order(1);
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(10..110));
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn clones_draw_differently_and_share_a_file_only_by_name() {
    let orders = |filename: Option<&str>| {
        let mut world = World::new(1, 1);
        let filename = filename.map(String::from);
        let job = Job { numjobs: 2, filename, ..job(Rw::RandRead, 64) };
        let mut fio = Fio::new(vec![job]).unwrap();
        world.run(&mut fio);
        (fio.file_lens_bytes(), blocks(&world.calls).0)
    };
    let (lens, order) = orders(None);
    assert_eq!(lens, [64 * 4096; 2]);
    assert_ne!(order[..64], order[64..]);
    assert_eq!(orders(Some("x")).0, [64 * 4096]);
}

#[test]
fn mixes_keep_their_share_and_a_sequential_one_two_places() {
    let mut world = World::new(1, 1);
    let mix = Job { read_percent: 70, ..job(Rw::ReadWrite, 1000) };
    let result = run(&mut world, mix.clone());
    assert_eq!(result.read.ios + result.write.ios, 1000);
    assert!((650..750).contains(&result.read.ios), "{}", result.read.ios);
    let (read, written) = blocks(&world.calls);
    assert!(read.iter().copied().eq(0..result.read.ios));
    assert!(written.iter().copied().eq(0..result.write.ios));

    let mut world = World::new(1, 1);
    run(&mut world, Job { rw: Rw::RandReadWrite, ..mix });
    let (mut all, written) = blocks(&world.calls);
    all.extend(written);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..1000), "read or written, each once");
}

#[test]
fn direct_job_keeps_its_depth_and_latency_ends_at_the_reap() {
    let mut world = World::new(10, 100);
    let result = run(&mut world, Job { direct: true, iodepth: 4, ..job(Rw::RandRead, 20) });
    assert_eq!((world.depth_max, result.read.ios), (4, 20));
    let Transfers { slat, clat, lat, .. } = &result.read;
    assert_eq!((slat.min(), slat.max()), (Nanos(10_000), Nanos(10_000)));
    assert_eq!(lat.count(), 20);
    assert_eq!(lat.max(), Nanos(130_000), "the last four are reaped when the fourth has ended");
    assert_eq!(clat.max(), Nanos(120_000));
    assert_eq!(clat.min(), Nanos(90_000));
    assert_eq!(result.runtime, world.now);
}

#[test]
fn buffered_job_has_one_block_at_a_time_whatever_its_depth() {
    let mut world = World::new(10, 100);
    let result = run(&mut world, Job { iodepth: 4, ..job(Rw::Read, 5) });
    assert_eq!((world.depth_max, result.read.ios, result.runtime), (0, 5, Nanos(50_000)));
}

#[test]
fn fsync_comes_before_the_write_after_every_n() {
    for direct in [false, true] {
        let mut world = World::new(10, 100);
        let fsync = Job { fsync_every: 3, direct, iodepth: 8, ..job(Rw::Write, 9) };
        let result = run(&mut world, fsync);
        let mut writes = 0;
        let mut at = Vec::new();
        for call in &world.calls {
            writes += u64::from(matches!(call, Call::Write { .. } | Call::Submit { .. }));
            if matches!(call, Call::Fsync(_)) {
                at.push(writes);
            }
        }
        assert_eq!(at, [3, 6]);
        assert_eq!((result.sync.count(), result.sync.max()), (2, Nanos(10_000)));
    }
}

/// Seen with fio 3.33: `R W fsync R fsync W R W fsync`.
#[test]
fn fsync_of_a_mix_comes_again_after_each_read() {
    let mut world = World::new(10, 100);
    run(&mut world, Job { fsync_every: 2, ..job(Rw::ReadWrite, 200) });
    let (mut writes, mut after) = (0, None);
    for call in world.calls.iter().skip_while(|call| !matches!(call, Call::Open(_))) {
        match call {
            Call::Fsync(_) => assert!(after == Some(false) && writes > 0 && writes % 2 == 0),
            Call::Read { .. } | Call::Write { .. } => {
                assert!(after != Some(false) || writes == 0 || writes % 2 == 1);
                writes += u64::from(matches!(call, Call::Write { .. }));
            }
            _ => continue,
        }
        after = Some(matches!(call, Call::Fsync(_)));
    }
    assert!(writes > 80);
}

#[test]
fn runtime_ends_a_job_early_and_time_based_goes_round() {
    let runtime = Some(Nanos::from_ms(1));
    let mut world = World::new(10, 0);
    assert_eq!(run(&mut world, Job { runtime, ..job(Rw::Read, 1000) }).read.ios, 100);
    assert_eq!(run(&mut World::new(10, 0), Job { runtime, ..job(Rw::Read, 30) }).read.ios, 30);
    let mut world = World::new(10, 0);
    run(&mut world, Job { runtime, time_based: true, ..job(Rw::Read, 30) });
    assert!(blocks(&world.calls).0.into_iter().eq((0..100).map(|op| op % 30)));
    let few = Job { number_ios: Some(7), ..job(Rw::Read, 30) };
    assert_eq!(run(&mut World::new(10, 0), few).read.ios, 7);
}

#[test]
fn error_ends_the_job_when_all_in_flight_have_ended() {
    for (direct, done) in [(false, 10), (true, 13)] {
        let mut world = World { fails_at: Some(10 * 4096), ..World::new(10, 100) };
        let failing = Job { direct, iodepth: 4, ..job(Rw::Read, 100) };
        let result = run(&mut world, failing);
        assert_eq!((result.error, result.read.ios), (Some(5), done), "direct: {direct}");
        assert_eq!(world.calls[world.calls.len() - 2..], [Call::Close(FileId(0)), Call::Exit]);
    }
}

#[test]
fn file_that_cannot_be_made_fails_all_jobs() {
    let mut fio = Fio::new(vec![job(Rw::Read, 1), job(Rw::Read, 1)]).unwrap();
    let mut phase = fio.next_phase().unwrap();
    phase.tasks[0].next(Nanos(0), &Returned::OK);
    let full = Returned { status: Err(28), reaped: &[] };
    assert_eq!(phase.tasks[0].next(Nanos(0), &full), Call::Exit);
    fio.end_phase(Nanos(0), Nanos(0), phase.tasks);
    assert!(fio.next_phase().is_none());
    assert!(fio.results().iter().all(|result| result.error == Some(28)));
}

#[test]
fn stonewall_starts_a_phase_of_its_own() {
    let walled = Job { stonewall: true, ..job(Rw::Read, 1) };
    let jobs =
        vec![Job { numjobs: 2, ..walled.clone() }, job(Rw::Read, 1), Job { numjobs: 3, ..walled }];
    let mut fio = Fio::new(jobs).unwrap();
    let mut tasks = Vec::new();
    while let Some(phase) = fio.next_phase() {
        tasks.push(phase.tasks.len());
    }
    assert_eq!(tasks, [1, 3, 3], "set-up, and two groups");
    let groups: Vec<u32> = fio.results().iter().map(|result| result.group).collect();
    assert_eq!(groups, [0, 0, 1]);
}

#[test]
fn jobs_that_cannot_be_run_are_refused_with_the_option() {
    let good = job(Rw::Read, 8);
    for (bad, key) in [
        (Job { block_bytes: 0, ..good.clone() }, "bs"),
        (Job { block_bytes: 513, ..good.clone() }, "bs"),
        (Job { size_bytes: 4095, ..good.clone() }, "size"),
        (Job { offset_bytes: u64::MAX - 511, ..good.clone() }, "size"),
        (Job { offset_bytes: 1, ..good.clone() }, "offset"),
        (Job { numjobs: 0, ..good.clone() }, "numjobs"),
        (Job { time_based: true, ..good.clone() }, "time_based"),
    ] {
        assert_eq!(Fio::new(vec![good.clone(), bad]).unwrap_err().key, key);
    }
}

#[test]
fn report_has_the_tools_shape() {
    let mut world = World::new(10, 2_000);
    let mixed = Job { direct: true, fsync_every: 2, numjobs: 2, ..job(Rw::ReadWrite, 200) };
    let mut fio = Fio::new(vec![Job { name: "mixed".into(), ..mixed }]).unwrap();
    world.run(&mut fio);
    let text = fio.print();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "mixed: (groupid=0, jobs=2): err= 0");
    assert!(lines[1].starts_with("  read: IOPS=") && lines[1].ends_with("msec)"), "{text}");
    assert_eq!(lines[2], "    slat (nsec): min=10000, max=10000, avg=10000.00, stdev=0.00");
    assert_eq!(lines[3], "    clat (usec): min=1990, max=1990, avg=1990.00, stdev=0.00");
    assert_eq!(lines[6], "     | 50.00th=[ 1991], 99.00th=[ 1991], 99.90th=[ 1991]");
    assert!(lines.iter().any(|line| line.starts_with("  write: IOPS=")), "{text}");
    assert!(lines.contains(&"  fsync:"), "{text}");
}
