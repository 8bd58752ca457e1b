//! The places of `fsync` calls.

use super::*;

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
