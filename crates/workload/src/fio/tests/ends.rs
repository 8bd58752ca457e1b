//! Ends of jobs, errors, and jobs that start behind others.

use super::*;

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
