use super::*;
use crate::program::{DirectOp, Reaped};

/// A world in which each operation takes a fixed time, with any number in flight.
pub(super) struct World {
    now: Nanos,
    /// Duration of a call, or of `submit`.
    call: Nanos,
    /// Duration of a reap that does not wait.
    reap: Nanos,
    /// Time from `submit` to the end of an operation.
    device: Nanos,
    /// Offset of the operation that fails.
    fails_at: Option<u64>,
    pub(super) calls: Vec<Call>,
    in_flight: Vec<(Nanos, Reaped)>,
    depth_max: usize,
}

impl World {
    pub(super) fn new(call_us: u64, device_us: u64) -> Self {
        Self {
            now: Nanos(0),
            call: Nanos(call_us * 1000),
            reap: Nanos(0),
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
            Call::Reap { at_least, at_most } => {
                assert!(at_least as usize <= self.in_flight.len(), "it would wait for ever");
                let last = self.in_flight[at_least as usize - 1].0;
                self.now = self.now.max(last) + self.reap;
                let ended = self.in_flight.partition_point(|(ended, _)| *ended <= self.now);
                let ended = ended.min(at_most as usize);
                (Ok(()), self.in_flight.drain(..ended).map(|(_, reaped)| reaped).collect())
            }
            Call::Read { offset_bytes, .. } | Call::Write { offset_bytes, .. } => {
                self.now = self.now + self.call;
                (status(offset_bytes), vec![])
            }
            Call::Sleep(pause) => {
                assert!(self.in_flight.is_empty(), "it pauses with nothing in flight");
                self.now = self.now + pause;
                (Ok(()), vec![])
            }
            Call::Fsync(_) => {
                self.now = self.now + self.call;
                (Ok(()), vec![])
            }
            _ => (Ok(()), vec![]),
        }
    }

    /// Runs the tasks one after the other.
    fn run(&mut self, fio: &mut Fio) {
        while let Some(mut phase) = fio.next_phase() {
            for task in &mut phase.tasks {
                let mut last = (Ok(()), vec![]);
                loop {
                    let returned = Returned { status: last.0, reaped: &last.1, ..Returned::OK };
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
    Job::new("a").with(|job| {
        job.shape.rw = rw;
        job.region.size_bytes = blocks * 4096;
    })
}

pub(super) fn run(world: &mut World, job: Job) -> JobResult {
    let mut fio = Fio::new(vec![job]).unwrap();
    world.run(&mut fio);
    fio.results()[0].clone()
}

/// Read blocks and written blocks, in order.
fn blocks(calls: &[Call]) -> (Vec<u64>, Vec<u64>) {
    let mut read = vec![];
    let mut written = vec![];
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
    let create = Call::Create(FileId(0));
    let open = Call::Open(FileId(0));
    let close = Call::Close(FileId(0));
    let [before, behind] = [Call::Usage; 2];
    let writes = [open, before, write(0), write(1), write(2), behind, close, Call::Exit];
    let expected = [&[create, Call::Exit][..], &writes].concat();
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
    assert!(laid_out(job(Rw::Write, 8).with(|job| job.region.overwrite = true)));
    assert!(laid_out(job(Rw::Write, 8).with(|job| job.submission.direct = true)));
    assert!(laid_out(job(Rw::RandWrite, 8)));
    assert!(laid_out(job(Rw::Read, 8)));
    assert!(laid_out(job(Rw::ReadWrite, 7).with(|job| job.region.offset_bytes = 4096)));
}

#[test]
fn random_job_touches_each_block_once_and_its_seed_says_in_which_order() {
    let order = |seed| {
        let mut world = World::new(1, 1);
        run(
            &mut world,
            job(Rw::RandRead, 100).with(|job| {
                job.shape.seed = seed;
                job.region.offset_bytes = 40_960;
            }),
        );
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
        let job = job(Rw::RandRead, 64).with(|job| {
            job.clones.numjobs = 2;
            job.region.filename = filename;
        });
        let mut fio = Fio::new(vec![job]).unwrap();
        world.run(&mut fio);
        (fio.file_lens_bytes(), blocks(&world.calls).0)
    };
    let (lens, order) = orders(None);
    assert_eq!(lens, [64 * 4096; 2]);
    assert_ne!(order[..64], order[64..]);
    assert_eq!(orders(Some("x")).0, [64 * 4096]);
}

/// The layout of the 2015 mail's heavy load: three processes on each of three sockets.
#[test]
fn clones_on_sockets_have_equal_regions_one_behind_the_other() {
    let heavy = job(Rw::Write, 40).with(|job| {
        job.clones.numjobs = 3;
        job.clones.nodes = vec![0, 1, 2];
        job.region.divide = true;
        job.region.filename = Some("disk".into());
        job.submission.direct = true;
        job.submission.iodepth = 2;
    });
    let mut fio = Fio::new(vec![heavy]).unwrap();
    assert_eq!(fio.file_lens_bytes(), [36 * 4096], "four blocks are no ninth of forty");
    assert!(matches!(fio.next_phase().unwrap().tasks[..], [FioTask::SetUp(_)]));
    let phase = fio.next_phase().unwrap();
    let sockets: Vec<_> = phase.tasks.iter().map(Task::socket).collect();
    assert_eq!(sockets, [0, 0, 0, 1, 1, 1, 2, 2, 2].map(Some));
    let mut written = Vec::new();
    for mut task in phase.tasks {
        let mut world = World::new(1, 1);
        let mut last = (Ok(()), vec![]);
        loop {
            let returned = Returned { status: last.0, reaped: &last.1, ..Returned::OK };
            let call = task.next(world.now, &returned);
            world.calls.push(call);
            if call == Call::Exit {
                break;
            }
            last = world.execute(call);
        }
        written.extend(blocks(&world.calls).1);
    }
    assert!(written.into_iter().eq(0..36), "each its own four, and in their order");
}

#[test]
fn offset_increment_sets_clones_apart() {
    let apart = job(Rw::Write, 2).with(|job| {
        job.clones.numjobs = 3;
        job.region.offset_increment_bytes = 10 * 4096;
    });
    let mut world = World::new(1, 1);
    world.run(&mut Fio::new(vec![apart]).unwrap());
    assert_eq!(blocks(&world.calls).1, [0, 1, 10, 11, 20, 21]);
}

#[test]
fn mixes_keep_their_share_and_a_sequential_one_two_places() {
    let mut world = World::new(1, 1);
    let mix = job(Rw::ReadWrite, 1000).with(|job| job.shape.read_percent = 70);
    let result = run(&mut world, mix.clone());
    assert_eq!(result.read.ios + result.write.ios, 1000);
    assert!((650..750).contains(&result.read.ios), "{}", result.read.ios);
    let (read, written) = blocks(&world.calls);
    assert!(read.iter().copied().eq(0..result.read.ios));
    assert!(written.iter().copied().eq(0..result.write.ios));

    let mut world = World::new(1, 1);
    run(&mut world, mix.with(|job| job.shape.rw = Rw::RandReadWrite));
    let (mut all, written) = blocks(&world.calls);
    all.extend(written);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..1000), "read or written, each once");
}

#[test]
fn direct_job_keeps_its_depth_and_latency_ends_at_the_reap() {
    let mut world = World::new(10, 100);
    let result = run(
        &mut world,
        job(Rw::RandRead, 20).with(|job| {
            job.submission.direct = true;
            job.submission.iodepth = 4;
        }),
    );
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
    let result = run(&mut world, job(Rw::Read, 5).with(|job| job.submission.iodepth = 4));
    assert_eq!((world.depth_max, result.read.ios, result.runtime), (0, 5, Nanos(50_000)));
}

#[test]
fn fsync_comes_before_the_write_after_every_n() {
    for direct in [false, true] {
        let mut world = World::new(10, 100);
        let fsync = job(Rw::Write, 9).with(|job| {
            job.submission.fsync_every = 3;
            job.submission.direct = direct;
            job.submission.iodepth = 8;
        });
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

#[test]
fn fsync_of_one_at_a_time_is_behind_its_write() {
    let mut world = World::new(10, 100);
    run(
        &mut world,
        job(Rw::Write, 3).with(|job| {
            job.submission.fsync_every = 1;
            job.submission.direct = true;
            job.submission.iodepth = 1;
        }),
    );
    for (before, call) in world.calls.iter().zip(&world.calls[1..]) {
        let is_reap = matches!(before, Call::Reap { .. });
        assert!(is_reap || !matches!(call, Call::Fsync(_)), "{:?}", world.calls);
    }
}

/// Seen with fio 3.33: `R W fsync R fsync W R W fsync`.
#[test]
fn fsync_of_a_mix_comes_again_after_each_read() {
    let mut world = World::new(10, 100);
    run(&mut world, job(Rw::ReadWrite, 200).with(|job| job.submission.fsync_every = 2));
    let mut writes = 0;
    let mut after = None;
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
    assert_eq!(
        run(&mut world, job(Rw::Read, 1000).with(|job| job.end.runtime = runtime)).read.ios,
        100
    );
    assert_eq!(
        run(&mut World::new(10, 0), job(Rw::Read, 30).with(|job| job.end.runtime = runtime))
            .read
            .ios,
        30
    );
    let mut world = World::new(10, 0);
    run(
        &mut world,
        job(Rw::Read, 30).with(|job| {
            job.end.runtime = runtime;
            job.end.time_based = true;
        }),
    );
    assert!(blocks(&world.calls).0.into_iter().eq((0..100).map(|op| op % 30)));
    let few = job(Rw::Read, 30).with(|job| job.end.number_ios = Some(7));
    assert_eq!(run(&mut World::new(10, 0), few).read.ios, 7);
}

#[test]
fn loops_repeat_the_pass_and_draws_without_a_map_hit_some_blocks_twice() {
    let mut world = World::new(10, 0);
    run(&mut world, job(Rw::Read, 4).with(|job| job.end.loops = 3));
    assert_eq!(blocks(&world.calls).0, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
    let mut world = World::new(10, 0);
    run(&mut world, job(Rw::RandRead, 64).with(|job| job.shape.norandommap = true));
    let mut read = blocks(&world.calls).0;
    assert!(read.len() == 64 && read.iter().all(|block| *block < 64));
    read.sort_unstable();
    read.dedup();
    assert!((30..64).contains(&read.len()), "{}", read.len());
}

#[test]
fn start_delay_is_before_everything_and_the_ramp_counts_for_nothing() {
    let mut world = World::new(1000, 0);
    let job = job(Rw::Write, 4).with(|job| {
        job.pace.start_delay = Nanos::from_ms(50);
        job.pace.ramp_time = Nanos::from_ms(10);
        job.end.runtime = Some(Nanos::from_ms(5));
        job.end.time_based = true;
    });
    let result = run(&mut world, job);
    // Blocks of a millisecond: 10 in the ramp, 5 after it.
    assert_eq!(blocks(&world.calls).1.len(), 15);
    assert_eq!((result.write.ios, result.runtime), (5, Nanos::from_ms(5)));
    assert_eq!(world.now, Nanos::from_ms(65));
    assert!(matches!(world.calls[2], Call::Sleep(Nanos(50_000_000))), "{:?}", &world.calls[..4]);
}

#[test]
fn thinktime_is_behind_so_many_blocks_with_nothing_in_flight() {
    let mut world = World::new(0, 100);
    let thinking = job(Rw::Read, 12).with(|job| {
        job.pace.thinktime = Nanos(5_000_000);
        job.pace.thinktime_blocks = 4;
    });
    let result = run(
        &mut world,
        thinking.with(|job| {
            job.submission.direct = true;
            job.submission.iodepth = 8;
        }),
    );
    let sleeps = world.calls.iter().filter(|call| matches!(call, Call::Sleep(_))).count();
    assert_eq!((sleeps, result.read.ios), (2, 12), "none is behind the last block");
    assert_eq!(world.now, Nanos(2 * 5_000_000 + 3 * 100_000));
    assert_eq!(result.read.clat.max(), Nanos(100_000), "no pause is in a latency");
}

/// Blocks start at 0, 5 and 10 ms. The ramp ends at 7 ms, and the rest of the interrupted pause
/// follows.
#[test]
fn ramp_ends_in_the_middle_of_a_pause_which_goes_on() {
    let mut world = World::new(0, 0);
    let thinktime = Nanos::from_ms(5);
    let ramp_time = Nanos::from_ms(7);
    let thinking = job(Rw::Read, 100).with(|job| {
        job.pace.thinktime = thinktime;
        job.pace.ramp_time = ramp_time;
    });
    let limited = thinking.with(|job| {
        job.end.runtime = Some(Nanos::from_ms(6));
        job.end.time_based = true;
    });
    let result = run(&mut world, limited);
    let sleeps: Vec<u64> = world.calls.iter().filter_map(slept_ms).collect();
    assert_eq!((sleeps, result.read.ios), (vec![5, 2, 3, 3], 1));
    assert_eq!(world.now, Nanos::from_ms(13));
}

fn slept_ms(call: &Call) -> Option<u64> {
    let Call::Sleep(pause) = call else { return None };
    Some(pause.0 / 1_000_000)
}

#[test]
fn rate_is_kept_by_each_direction_and_in_blocks_as_well() {
    let paced = |job: Job| {
        let mut world = World::new(10, 0);
        let result = run(&mut world, job);
        (world.now, result.read.ios, result.write.ios)
    };
    // 1 MiB/s are 256 blocks: the last of 257 starts after one second.
    let second = Nanos::from_ms(1000);
    let by_bytes = job(Rw::Write, 257).with(|job| job.pace.rate_bytes_s = [Some(1 << 20); 3]);
    assert_eq!(paced(by_bytes.clone()), (second + Nanos(10_000), 0, 257));
    let by_blocks = job(Rw::Write, 257).with(|job| job.pace.rate_iops = [Some(256); 3]);
    assert_eq!(paced(by_blocks), (second + Nanos(10_000), 0, 257));
    let (ended, reads, writes) = paced(by_bytes.with(|job| job.shape.rw = Rw::RandReadWrite));
    let most = reads.max(writes);
    assert!(ended < second && ended > Nanos::from_ms(3 * most), "{ended:?}, {most} of a direction");
}

/// A block of 4 KiB takes 10 us and is due every 100 us; a think time of 5 ms follows each 4
/// blocks.
#[test]
fn pause_for_the_rate_is_no_thinking() {
    let mut world = World::new(10, 0);
    let paced = job(Rw::Read, 9).with(|job| job.pace.rate_iops = [Some(10_000); 3]);
    run(
        &mut world,
        paced.with(|job| {
            job.pace.thinktime = Nanos(5_000_000);
            job.pace.thinktime_blocks = 4;
        }),
    );
    let thought = |call: &&Call| matches!(call, Call::Sleep(Nanos(5_000_000)));
    assert_eq!(world.calls.iter().filter(thought).count(), 2);
}

/// A block takes 10 us and is due every millisecond; a think time of 5 ms follows each 4 blocks.
#[test]
fn rate_makes_up_for_think_time_unless_rate_ignore_thinktime() {
    let ended = |rate_ignore_thinktime| {
        let mut world = World::new(10, 0);
        let paced = job(Rw::Read, 9).with(|job| {
            job.pace.rate_iops = [Some(1000); 3];
            job.pace.rate_ignore_thinktime = rate_ignore_thinktime;
        });
        run(
            &mut world,
            paced.with(|job| {
                job.pace.thinktime = Nanos(5_000_000);
                job.pace.thinktime_blocks = 4;
            }),
        );
        world.now.0 / 1_000_000
    };
    assert_eq!([ended(false), ended(true)], [13, 18]);
}

/// Written blocks are read back in fio's order: seen with fio 3.33.
#[test]
fn verify_reads_behind_a_pass_behind_a_backlog_or_in_order_of_places() {
    let verify = Verify { sum: Some(Sum::Crc32c), ..Verify::default() };
    let checked = |change: fn(&mut Job)| {
        let mut job = job(Rw::RandWrite, 8).with(|job| {
            job.verify = verify.clone();
            job.submission.direct = true;
            job.submission.iodepth = 4;
        });
        change(&mut job);
        let mut world = World::new(1, 10);
        let result = run(&mut world, job);
        let ops = world.calls.iter().filter_map(|call| match call {
            Call::Submit { op, .. } => Some(if *op == DirectOp::Read { 'r' } else { 'w' }),
            _ => None,
        });
        let (read, written) = blocks(&world.calls);
        assert_eq!((result.read.ios as usize, result.errors.ended_by), (read.len(), None));
        (ops.collect::<String>(), read, written)
    };
    let (ops, read, written) = checked(|_| ());
    assert_eq!((ops.as_str(), read), ("wwwwwwwwrrrrrrrr", written));
    let (ops, ..) = checked(|job| job.verify.backlog = Some(3));
    assert_eq!(ops, "wwwrrrwwwrrrwwrr");
    let (ops, ..) = checked(|job| job.end.loops = 2);
    assert_eq!(ops, "wwwwwwwwrrrrrrrrwwwwwwwwrrrrrrrr");
    let (ops, ..) = checked(|job| job.verify.reads_again = false);
    assert_eq!(ops, "wwwwwwww");
    let (_, read, mut written) = checked(|job| job.shape.norandommap = true);
    written.sort_unstable();
    written.dedup();
    assert_eq!(read, written);
    let (ops, only, _) = checked(|job| job.verify.only = true);
    assert_eq!((ops.as_str(), only), ("rrrrrrrr", checked(|_| ()).2));
}

#[test]
fn clone_that_is_slower_than_it_must_be_fails() {
    let slow = job(Rw::Read, 5000).with(|job| job.pace.rate_min_iops = [Some(1000); 3]);
    assert_eq!(run(&mut World::new(2000, 0), slow.clone()).errors.ended_by, Some(5));
    assert_eq!(run(&mut World::new(900, 0), slow).errors.ended_by, None);
}

#[test]
fn trimmed_blocks_are_written_and_a_leap_over_the_end_ends_the_pass() {
    let mut world = World::new(1, 1);
    let result = run(&mut world, job(Rw::RandTrimWrite, 6).with(|job| job.submission.iodepth = 1));
    assert_eq!((result.trim.ios, result.write.ios), (6, 6));
    let leaps = job(Rw::Read, 16).with(|job| job.shape.leap_bytes = 8192);
    assert_eq!(run(&mut World::new(1, 1), leaps.clone()).read.ios, 6);
    let more = leaps.with(|job| job.region.io_size_bytes = Some(16 * 4096));
    assert_eq!(run(&mut World::new(1, 1), more).read.ios, 16);
}

#[test]
fn end_fsync_is_behind_the_last_write_and_neither_twice_nor_counted() {
    let syncs = |change: fn(&mut Job)| {
        let mut world = World::new(10, 0);
        let mut job = job(Rw::Write, 5).with(|job| job.submission.end_fsync = true);
        change(&mut job);
        let counted = run(&mut world, job).sync.count();
        let calls = world.calls.iter().filter(|call| matches!(call, Call::Fsync(_)));
        (calls.count(), counted, matches!(world.calls[world.calls.len() - 4], Call::Fsync(_)))
    };
    assert_eq!(syncs(|_| ()), (1, 0, true));
    assert_eq!(syncs(|job| job.submission.fsync_every = 2), (3, 2, true));
    assert_eq!(syncs(|job| job.shape.rw = Rw::Read), (0, 0, false));
}

#[test]
fn error_ends_the_job_when_all_in_flight_have_ended() {
    for (direct, done) in [(false, 11), (true, 14)] {
        let mut world = World { fails_at: Some(10 * 4096), ..World::new(10, 100) };
        let failing = job(Rw::Read, 100).with(|job| {
            job.submission.direct = direct;
            job.submission.iodepth = 4;
        });
        let result = run(&mut world, failing);
        assert_eq!((result.errors.ended_by, result.read.ios), (Some(5), done), "direct: {direct}");
        let end = [Call::Usage, Call::Close(FileId(0)), Call::Exit];
        assert_eq!(world.calls[world.calls.len() - 3..], end);
    }
}

#[test]
fn file_that_cannot_be_made_fails_all_jobs() {
    let mut fio = Fio::new(vec![job(Rw::Read, 1), job(Rw::Read, 1)]).unwrap();
    let mut phase = fio.next_phase().unwrap();
    phase.tasks[0].next(Nanos(0), &Returned::OK);
    let full = Returned { status: Err(28), ..Returned::OK };
    assert_eq!(phase.tasks[0].next(Nanos(0), &full), Call::Exit);
    fio.end_phase(Nanos(0), Nanos(0), phase.tasks);
    assert!(fio.next_phase().is_none());
    assert!(fio.results().iter().all(|result| result.errors.ended_by == Some(28)));
}

#[test]
fn stonewall_starts_a_phase_of_its_own() {
    let walled = job(Rw::Read, 1).with(|job| job.grouping.stonewall = true);
    let jobs = vec![
        walled.clone().with(|job| job.clones.numjobs = 2),
        job(Rw::Read, 1),
        walled.with(|job| job.clones.numjobs = 3),
    ];
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
fn job_that_waits_for_another_starts_behind_it_and_the_others_with_the_first() {
    let named = |name: &str, wait_for: Option<&str>| {
        job(Rw::Read, 1).with(|job| {
            job.name = name.into();
            job.grouping.wait_for = wait_for.map(String::from);
        })
    };
    let jobs = vec![named("a", None), named("b", Some("a")), named("c", None)];
    let fio = Fio::new(jobs).unwrap();
    assert_eq!(fio.phase_of, [0, 1, 0]);
    assert_eq!(Fio::new(vec![named("a", Some("b"))]).unwrap_err().key, "wait_for");
}

/// fio 3.33's list of such jobs.
#[test]
fn clones_are_listed_one_by_one_or_a_group_as_one() {
    let named = |name: &str, numjobs, group_reporting| {
        job(Rw::Read, 2).with(|job| {
            job.name = name.into();
            job.clones.numjobs = numjobs;
            job.grouping.group_reporting = group_reporting;
        })
    };
    let listed = |is_one: bool| {
        let mut jobs = ["a", "b", "c", "d"].map(|name| named(name, 1, is_one)).to_vec();
        (jobs[0].clones.numjobs, jobs[2].grouping.new_group, jobs[3].grouping.stonewall) =
            (2, true, true);
        let mut fio = Fio::new(jobs).unwrap();
        World::new(10, 2_000).run(&mut fio);
        let of = |one: &JobResult| (one.name.clone(), one.group, one.numjobs, one.read.ios);
        fio.listed().iter().map(of).collect::<Vec<_>>()
    };
    let owned = |(name, group, numjobs, ios): (&str, _, _, _)| (name.into(), group, numjobs, ios);
    let clones = [("a", 0, 1, 2), ("a", 0, 1, 2), ("b", 0, 1, 2), ("c", 1, 1, 2), ("d", 2, 1, 2)];
    assert_eq!(listed(false), clones.map(owned));
    assert_eq!(listed(true), [("a", 0, 3, 6), ("c", 1, 1, 2), ("d", 2, 1, 2)].map(owned));
}

#[test]
fn logs_are_of_each_clone_and_have_nothing_of_the_ramp() {
    let mut logged = job(Rw::Write, 100).with(|job| {
        job.submission.direct = true;
        job.clones.numjobs = 2;
    });
    logged.set("write_lat_log", "x").unwrap();
    logged.set("ramp_time", "100us").unwrap();
    let mut fio = Fio::new(vec![logged]).unwrap();
    World::new(10, 2_000).run(&mut fio);
    let names: Vec<&str> = fio.logs().iter().map(|log| log.name.as_str()).collect();
    let own = |clone: u32| ["slat", "clat", "lat"].map(|kind| format!("x_{kind}.{clone}.log"));
    assert_eq!(names, [own(1), own(2)].concat());
    let [.., last] = fio.logs() else { panic!("six") };
    let counted: u64 = fio.results()[0].write.ios;
    assert_eq!(2 * last.text.lines().count() as u64, counted);
    assert!(counted < 200 && last.text.starts_with("2, 2000000, 1, 4096, 0\n"), "{}", last.text);
}

#[test]
fn a_job_that_ends_ends_those_that_it_says() {
    let done = |what: Option<&str>| {
        let mut jobs = vec![job(Rw::Read, 3), job(Rw::Read, 100), job(Rw::Read, 5)];
        jobs[1].grouping.new_group = what != Some("group");
        jobs[2].grouping.stonewall = true;
        if let Some(what) = what {
            jobs[0].set("exitall", "1").unwrap();
            jobs[0].set("exit_what", what).unwrap();
        }
        let mut fio = Fio::new(jobs).unwrap();
        World::new(10, 2_000).run(&mut fio);
        let results = fio.results().iter();
        results.map(|result| result.read.ios).collect::<Vec<_>>()
    };
    // Here the first task ends before the second starts.
    assert_eq!(done(None), [3, 100, 5]);
    assert_eq!(done(Some("group")), [3, 0, 5]);
    assert_eq!(done(Some("stonewall")), [3, 0, 5]);
    assert_eq!(done(Some("all")), [3, 0, 0]);
}

#[test]
fn errors_of_the_medium_are_gone_on_behind_if_that_is_wanted_and_counted() {
    for (direct, goes_on) in [(false, "read"), (true, "all"), (true, "write"), (false, "none")] {
        let mut world = World::new(10, 2_000);
        world.fails_at = Some(2 * 4096);
        let mut failing = job(Rw::Read, 8).with(|job| job.submission.direct = direct);
        failing.set("continue_on_error", goes_on).unwrap();
        let mut fio = Fio::new(vec![failing]).unwrap();
        world.run(&mut fio);
        let result = &fio.results()[0];
        let seen = (
            result.read.ios,
            result.errors.ended_by,
            result.errors.counted,
            result.errors.first_counted,
        );
        let is_taken = matches!(goes_on, "read" | "all");
        let wanted = if is_taken { (8, None, 1, Some(5)) } else { (3, Some(5), 0, None) };
        assert_eq!(seen, wanted, "{direct} {goes_on}");
        assert_eq!(result.read.bytes, (wanted.0 - 1) * 4096, "a failed request transfers nothing");
        assert_eq!(fio.print().contains("     errors    : total=1, first_error=5/<"), is_taken);
    }
}

#[test]
fn writes_have_the_pattern_that_buffers_are_given() {
    let mut filled = job(Rw::Write, 8).with(|job| job.submission.direct = true);
    assert!(Thread::new(&filled, (0, 0), FileId(0), 0).content().is_none(), "any bytes will do");
    filled.set("buffer_pattern", "0xdeadface").unwrap();
    let mut thread = Thread::new(&filled, (0, 0), FileId(0), 0);
    let id = loop {
        if let Call::Submit { id, .. } = thread.next(Nanos(0), &Returned::OK) {
            break id;
        }
    };
    let mut bytes = [0; 6];
    thread.content().expect("it has bytes").fill(id, &mut bytes);
    assert_eq!(bytes, [0xde, 0xad, 0xfa, 0xce, 0xde, 0xad]);
    filled.set("zero_buffers", "").unwrap();
    assert_eq!(filled.buffers.pattern, Some(Pattern::parse("0x00").unwrap()));
}

/// As with fio's `gtod_reduce`: figures without measurement are not listed.
#[test]
fn report_omits_latencies_with_gtod_reduce() {
    let mut reduced = job(Rw::Read, 100);
    reduced.set("gtod_reduce", "1").unwrap();
    let mut fio = Fio::new(vec![reduced]).unwrap();
    World::new(10, 2_000).run(&mut fio);
    let text = fio.print();
    assert!(text.contains("  read: IOPS=") && !text.contains("lat ("), "{text}");
}

#[test]
fn jobs_that_cannot_be_run_are_refused_with_the_option() {
    let good = job(Rw::Read, 8);
    for (bad, key) in [
        (good.clone().with(|job| job.shape.block_bytes = 0), "bs"),
        (good.clone().with(|job| job.shape.block_bytes = 513), "bs"),
        (good.clone().with(|job| job.shape.leap_bytes = 1), "rw"),
        (good.clone().with(|job| job.shape.leap_bytes = 8 * 4096), "rw"),
        (
            good.clone().with(|job| {
                job.shape.rw = Rw::RandRead;
                job.region.size_bytes = 1 << 50;
                job.shape.random_every = 2;
                job.shape.block_bytes = 512;
            }),
            "size",
        ),
        (good.clone().with(|job| job.region.size_bytes = 4095), "size"),
        (
            good.clone()
                .with(|job| job.shape.strides = Strides { is_on: true, ..Strides::default() }),
            "zonemode",
        ),
        (
            good.clone()
                .with(|job| job.shape.strides = Strides { skip_bytes: 1, ..Strides::default() }),
            "zonesize",
        ),
        (good.clone().with(|job| job.region.offset_bytes = u64::MAX - 511), "size"),
        (good.clone().with(|job| job.region.offset_bytes = 1), "offset"),
        (good.clone().with(|job| job.clones.numjobs = 0), "numjobs"),
        (
            good.clone().with(|job| {
                job.clones.numjobs = 2000;
                job.clones.nodes = vec![0, 1, 2];
            }),
            "numjobs",
        ),
        (
            good.clone().with(|job| {
                job.clones.numjobs = 9;
                job.region.divide = true;
            }),
            "size",
        ),
        (good.clone().with(|job| job.region.offset_increment_bytes = 1), "offset_increment"),
        (
            good.clone().with(|job| {
                job.region.offset_increment_bytes = 1 << 61;
                job.clones.numjobs = 8;
            }),
            "size",
        ),
        (good.clone().with(|job| job.end.time_based = true), "time_based"),
    ] {
        assert_eq!(Fio::new(vec![good.clone(), bad]).unwrap_err().key, key);
    }
}

#[test]
fn report_has_the_tools_shape() {
    let mut world = World::new(10, 2_000);
    let mixed = job(Rw::ReadWrite, 200).with(|job| {
        job.submission.direct = true;
        job.submission.fsync_every = 2;
        job.clones.numjobs = 2;
    });
    let mut fio = Fio::new(vec![mixed.with(|job| job.name = "mixed".into())]).unwrap();
    world.run(&mut fio);
    let text = fio.print();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "mixed: (groupid=0, jobs=2): err= 0");
    assert!(lines[1].starts_with("  read: IOPS=") && lines[1].ends_with("msec)"), "{text}");
    assert_eq!(lines[2], "    slat (nsec): min=10000, max=10000, avg=10000.00, stdev=0.00");
    assert_eq!(lines[3], "    clat (usec): min=1990, max=1990, avg=1990.00, stdev=0.00");
    assert_eq!(
        lines[6],
        "     |  1.00th=[ 1991],  5.00th=[ 1991], 10.00th=[ 1991], 20.00th=[ 1991],"
    );
    assert_eq!(lines[10], "     | 99.99th=[ 1991]");
    assert!(lines.iter().any(|line| line.starts_with("  write: IOPS=")), "{text}");
    assert!(lines.contains(&"  fsync:"), "{text}");
}

/// The proposal of 2023 prints a report of fio. For one process whose device finishes before
/// `submit` returns, nearly the whole report follows from the time of one write.
#[test]
fn report_of_2023_follows_from_one_number() {
    // 60001 ms for 78060 writes, of which a submission took 765.71 us.
    let mut world = World { call: Nanos(765_710), ..World::new(0, 0) };
    world.reap = Nanos(2_957);
    let crypt = job(Rw::Write, 1).with(|job| {
        job.name = "crypt".into();
        job.shape.block_bytes = 1 << 20;
        job.region.size_bytes = 1 << 30;
        job.submission.direct = true;
        job.submission.iodepth = 256; // fio's clock runs a little behind.
        job.end.runtime = Some(Nanos(60_000_700_000));
        job.end.time_based = true;
    });
    let mut fio = Fio::new(vec![crypt]).unwrap();
    world.run(&mut fio);
    let text = fio.print();
    for printed in [
        "crypt: (groupid=0, jobs=1): err= 0\n  write: IOPS=1300, BW=1301MiB/s (1364MB/s)\
         (76.2GiB/60001msec); 0 zone resets\n    slat (usec): ",
        "    clat percentiles (msec):\n     \
         |  1.00th=[  197],  5.00th=[  197], 10.00th=[  197], 20.00th=[  197],\n     \
         | 30.00th=[  197], 40.00th=[  197], 50.00th=[  197], 60.00th=[  197],\n     \
         | 70.00th=[  197], 80.00th=[  197], 90.00th=[  197], 95.00th=[  197],\n     \
         | 99.00th=[  197], 99.50th=[  197], 99.90th=[  197], 99.95th=[  197],\n     \
         | 99.99th=[  197]\n",
        // The shortest latency is 4 us there, and 2 us here.
        "  lat (msec)   : 2=0.01%, 4=0.01%, 10=0.01%, 20=0.02%, 50=0.05%\n  \
         lat (msec)   : 100=0.08%, 250=99.83%\n",
        "  IO depths    : 1=0.1%, 2=0.1%, 4=0.1%, 8=0.1%, 16=0.1%, 32=0.1%, >=64=99.9%\n     \
         submit    : 0=0.0%, 4=100.0%, 8=0.0%, 16=0.0%, 32=0.0%, 64=0.0%, >=64=0.0%\n     \
         complete  : 0=0.0%, 4=100.0%, 8=0.0%, 16=0.0%, 32=0.0%, 64=0.0%, >=64=0.1%\n     \
         issued rwts: total=0,78060,0,0 short=0,0,0,0 dropped=0,0,0,0\n     \
         latency   : target=0, window=0, percentile=100.00%, depth=256\n",
        "\nRun status group 0 (all jobs):\n  WRITE: bw=1301MiB/s (1364MB/s), \
         1301MiB/s-1301MiB/s (1364MB/s-1364MB/s), io=76.2GiB (81.9GB), run=60001-60001msec\n",
    ] {
        assert!(text.contains(printed), "{printed}\nis not in\n{text}");
    }
    // Published: 196454.90 and 6450.35; 1296.94, 46.02 and 119 samples from 800 to 1308.
    let result = &fio.results()[0].write;
    assert!((result.lat.mean_ns() / 196_454_900.0 - 1.0).abs() < 0.001, "{text}");
    assert!((result.lat.stdev_ns() / 6_450_350.0 - 1.0).abs() < 0.02, "{text}");
    let rates = result.samples.iops().unwrap();
    assert!((rates.mean / 1296.94 - 1.0).abs() < 0.001 && rates.count == 119, "{text}");
    assert!((rates.stdev / 46.02 - 1.0).abs() < 0.05, "{text}");
    assert!((rates.min / 800.0 - 1.0).abs() < 0.03 && (rates.max / 1308.0 - 1.0).abs() < 0.03);
}

/// As fio's `sum_thread_stats`: operations and bytes are added up, and the time is the longest.
#[test]
fn rates_of_clones_are_over_the_longest_time_and_their_sums_over_each_own() {
    let of_clone = |ms, ios| {
        let runtime = Nanos::from_ms(ms);
        let read = Transfers { ios, bytes: ios * 4096, ..Transfers::default() };
        let clone = CloneResult { runtime, read: (&read).into(), write: TransferTotals::default() };
        JobResult { runtime, read, clones: vec![clone], ..JobResult::default() }
    };
    let mut all = of_clone(1_000, 100);
    all.add(&of_clone(4_000, 40));
    assert_eq!((all.iops(&all.read), all.bandwidth(&all.read)), (35.0, 35.0 * 4096.0));
    assert_eq!(all.sums(|clone| clone.read), (110.0, 110.0 * 4096.0));
    assert_eq!(
        (all.shortest_runtime(), all.runtime),
        (Nanos::from_ms(1_000), Nanos::from_ms(4_000))
    );
}
