//! Pauses and rates.

use super::*;

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
