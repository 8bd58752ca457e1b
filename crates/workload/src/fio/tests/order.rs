//! The order of the requests of a job, and their files.

use super::*;

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
