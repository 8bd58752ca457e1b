use blockyard_engine::bio::BlkStatus;

use super::*;
use crate::program::Reaped;
use crate::trace::{Completion, End, Header};

fn bio(start: u64, submitter: u32, sector: u64, latency: u64) -> TracedBio {
    TracedBio {
        start: Nanos(start),
        op: Op::Write,
        fua: true,
        preflush: false,
        sync: true,
        sector,
        sectors: 8,
        submitter,
        priority: Priority::default(),
        completion: Some(Completion { latency: Nanos(latency), status: BlkStatus::Ok }),
    }
}

fn trace(bios: Vec<TracedBio>) -> Trace {
    Trace::of(Header::default(), bios, End::default())
}

const TARGET: Target = Target { len_bytes: 1 << 20, sector_bytes: 512, wrap: false };

/// Plays one task in a world in which every operation takes `takes`. Returns time and offset of
/// each submission.
fn play(player: &mut Player, takes: u64) -> Vec<(u64, u64)> {
    let mut now = Nanos(1000);
    let mut in_flight: Vec<(Nanos, u32)> = Vec::new();
    let mut reaped: Vec<Reaped> = Vec::new();
    let mut submitted = Vec::new();
    loop {
        let call = player.next(now, &Returned { reaped: &reaped, ..Returned::OK });
        reaped.clear();
        let mut take = |count: usize, in_flight: &mut Vec<(Nanos, u32)>| {
            let ended = in_flight.drain(..count);
            reaped.extend(ended.map(|(ended, id)| Reaped { id, status: Ok(()), ended }));
        };
        match call {
            Call::Submit { id, offset_bytes, .. } => {
                submitted.push((now.0 - 1000, offset_bytes));
                in_flight.push((now + Nanos(takes), id));
            }
            Call::Reap { at_least, .. } => {
                now = now.max(in_flight[at_least as usize - 1].0);
                take(at_least as usize, &mut in_flight);
            }
            Call::ReapBefore(until) => match in_flight.first() {
                Some((ended, _)) if *ended < until => {
                    now = now.max(*ended);
                    take(1, &mut in_flight);
                }
                _ => now = until,
            },
            Call::Exit => break,
            other => panic!("{other:?}"),
        }
    }
    submitted
}

fn played(trace: &Trace, pace: Pace, takes: u64) -> (Vec<(u64, u64)>, Replay) {
    let mut replay = Replay::new(trace, pace, TARGET).unwrap();
    let mut tasks = replay.next_phase().unwrap().tasks;
    let submitted = tasks.iter_mut().flat_map(|task| play(task, takes)).collect();
    replay.end_phase(Nanos(0), Nanos(5000), tasks);
    assert!(replay.next_phase().is_none());
    (submitted, replay)
}

#[test]
fn bios_come_when_they_came_or_faster() {
    let trace = trace(vec![bio(0, 0, 8, 10), bio(100, 0, 80, 500), bio(140, 0, 0, 10)]);
    let timed = |speed_permille| played(&trace, Pace::Timed { speed_permille }, 60).0;
    assert_eq!(timed(1000), [(0, 4096), (100, 40960), (140, 0)]);
    assert_eq!(timed(2000), [(0, 4096), (50, 40960), (70, 0)]);
    let (_, replay) = played(&trace, Pace::Timed { speed_permille: 1000 }, 60);
    assert!(replay.is_complete());
    let write = &replay.counted()["write"];
    assert_eq!((write.in_bios, write.out_bios, write.out_bytes), (3, 3, 3 * 4096));
    assert_eq!(write.latency.max(), Nanos(60));
    assert_eq!((replay.late().count(), replay.late().max()), (3, Nanos(0)));
}

#[test]
fn bio_that_fails_is_counted_and_the_rest_is_played() {
    let trace = trace(vec![bio(0, 0, 8, 10), bio(1, 0, 16, 10), bio(2, 0, 24, 10)]);
    let pace = Pace::Fastest { depth: Some(1) };
    let mut replay = Replay::new(&trace, pace, TARGET).unwrap();
    let mut tasks = replay.next_phase().unwrap().tasks;
    let task = &mut tasks[0];
    assert!(task.counts_errors());
    let mut next = |now, status, reaped: &[(u32, Result<(), i32>)]| {
        let reaped = reaped.iter().map(|(id, status)| Reaped {
            id: *id,
            status: *status,
            ended: Nanos(now),
        });
        let reaped: Vec<Reaped> = reaped.collect();
        task.next(Nanos(now), &Returned { status, reaped: &reaped, ..Returned::OK })
    };
    let submitted = |call| matches!(call, Call::Submit { .. });
    assert!(submitted(next(0, Ok(()), &[])));
    // The first is refused, the second fails, the third succeeds.
    assert!(submitted(next(5, Err(28), &[])));
    assert!(matches!(next(6, Ok(()), &[]), Call::Reap { .. }));
    assert!(submitted(next(7, Ok(()), &[(1, Err(5))])));
    assert!(matches!(next(8, Ok(()), &[]), Call::Reap { .. }));
    assert_eq!(next(9, Ok(()), &[(2, Ok(()))]), Call::Exit);
    replay.end_phase(Nanos(0), Nanos(9), tasks);
    assert!(replay.is_complete());
    assert_eq!((replay.errors(), replay.counted()["write"].latency.count()), (2, 1));
    let first = replay.first_failed().unwrap();
    assert_eq!((first.error, first.op, first.offset_bytes), (28, "write", 8 * 512));
}

#[test]
fn fastest_keeps_as_many_in_flight_as_there_were() {
    // The second bio came when the first had ended, the third while the second was in flight.
    let trace = trace(vec![bio(0, 0, 8, 100), bio(100, 0, 80, 500), bio(140, 0, 0, 10)]);
    let times = |depth| {
        let (submitted, replay) = played(&trace, Pace::Fastest { depth }, 60);
        assert!(replay.is_complete());
        submitted.into_iter().map(|(at, _)| at).collect::<Vec<u64>>()
    };
    assert_eq!(times(None), [0, 60, 60]);
    assert_eq!(times(Some(1)), [0, 60, 120]);
    assert_eq!(times(Some(8)), [0, 0, 0]);
}

#[test]
fn every_submitter_is_a_task_and_too_many_share() {
    let urgent = TracedBio { priority: Priority::real_time(0), ..bio(7, 1, 0, 1) };
    let two = trace(vec![bio(0, 1, 0, 1), urgent]);
    let mut replay = Replay::new(&two, Pace::Fastest { depth: None }, TARGET).unwrap();
    let tasks = replay.next_phase().unwrap().tasks;
    let priorities: Vec<Priority> = tasks.iter().map(Player::priority).collect();
    assert_eq!(priorities, [Priority::real_time(0), Priority::default()]);
    let crowd = trace((0..600).map(|number| bio(1000 - u64::from(number), number, 0, 1)).collect());
    let mut replay = Replay::new(&crowd, Pace::Fastest { depth: Some(1) }, TARGET).unwrap();
    assert_eq!(replay.submitters(), (600, TASKS_MAX));
    let tasks = replay.next_phase().unwrap().tasks;
    assert_eq!(tasks.iter().map(|task| task.steps.len()).sum::<usize>(), 600);
    assert!(tasks.iter().all(|task| task.steps.is_sorted_by_key(|step| step.start)));
}

#[test]
fn bio_that_does_not_fit_is_named_or_wrapped() {
    let far = trace(vec![bio(0, 0, 0, 1), bio(5, 0, 2048 * 3 + 16, 1), bio(9, 0, 2044, 1)]);
    let misfit = Replay::new(&far, Pace::Fastest { depth: None }, TARGET).unwrap_err();
    assert_eq!(misfit.bio, 2);
    let said = misfit.to_string();
    assert!(said.contains("1048576 bytes") && said.contains("--wrap"), "{said}");
    let wrapping = Target { wrap: true, ..TARGET };
    let replay = Replay::new(&far, Pace::Fastest { depth: None }, wrapping).unwrap();
    let places: Vec<u64> = replay.players[0].steps.iter().map(|step| step.offset_bytes).collect();
    assert_eq!(places, [0, 16 * 512, (2048 - 8) * 512]);
    assert_eq!(replay.end_bytes(), 1 << 20);
    let short = Target { len_bytes: 2048, ..wrapping };
    assert!(Replay::new(&far, Pace::Fastest { depth: None }, short).is_err());
    let large = Target { sector_bytes: 4096, ..TARGET };
    let odd = trace(vec![bio(0, 0, 4, 1)]);
    let said = Replay::new(&odd, Pace::Fastest { depth: None }, large).unwrap_err().to_string();
    assert!(said.contains("whole sectors"), "{said}");
}
