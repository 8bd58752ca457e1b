//! Batches of submissions and reaps: the calls that `strace` shows of fio 3.33. Only the last reap
//! differs: ours takes all, fio's first takes the usual number.

use super::*;

/// The calls of a job in short: `w` a write that waits for more, `W` one that is submitted with all
/// that wait, `C` a commit, `f` a flush, and the numbers of a reap.
fn calls(blocks: u64, options: &str) -> (String, JobResult) {
    let mut job = job(Rw::Write, blocks).with(|job| job.submission.direct = true);
    for option in options.split_whitespace() {
        let (key, value) = option.split_once('=').unwrap();
        job.set(key, value).unwrap();
    }
    let mut world = World::new(1, 10);
    let result = run(&mut world, job);
    let short = world.calls.iter().map(|call| match call {
        Call::Submit { more: true, .. } => "w".into(),
        Call::Submit { more: false, .. } => "W".into(),
        Call::Commit => "C".into(),
        Call::Fsync(_) => "f".into(),
        Call::Reap { at_least, at_most } => format!("({at_least},{at_most})"),
        _ => String::new(),
    });
    (short.collect(), result)
}

#[test]
fn batch_is_submitted_in_one_call_when_it_is_full() {
    let (calls, result) = calls(6, "iodepth=4 iodepth_batch=2");
    assert_eq!(calls, "wWwW(1,1)W(1,1)W(4,4)");
    assert_eq!(result.write.ios, 6);
}

#[test]
fn reap_takes_between_the_least_and_the_greatest_number() {
    let (of_both, _) = calls(8, "iodepth=4 iodepth_batch_complete=2 iodepth_batch_complete_max=3");
    assert_eq!(of_both, "WWWW(2,3)WW(2,3)WW(4,4)");
    let (min, _) = calls(8, "iodepth=4 iodepth_batch=4 iodepth_batch_complete=4");
    assert_eq!(min, "wwwW(4,4)wwwW(4,4)");
    let (polls, _) = calls(3, "iodepth=4 iodepth_batch_complete=0");
    assert_eq!(polls, "W(1,1)W(1,1)W(1,1)", "0 and 0: each ends before the next");
}

#[test]
fn full_depth_sinks_to_the_low_mark() {
    let (calls, _) = calls(8, "iodepth=4 iodepth_low=2");
    assert_eq!(calls, "WWWW(1,1)(1,1)WW(1,1)(1,1)WW(4,4)");
}

#[test]
fn blocks_that_wait_are_submitted_before_any_other_call() {
    let (of_fsync, _) = calls(3, "iodepth=8 iodepth_batch=8 fsync=2");
    assert_eq!(of_fsync, "wwC(1,1)fwC(2,2)");
    let (of_end, result) = calls(3, "iodepth=8 iodepth_batch=2");
    assert_eq!(of_end, "wWwC(3,3)");
    assert_eq!(result.queueing.depths.shares()[1].1, 100.0, "at depths of 2 and 3");
}

/// fio's submission latency of a batch ends for all its blocks when the call returns.
#[test]
fn submission_latency_of_a_batch_lasts_until_its_call_returns() {
    let (_, result) = calls(4, "iodepth=4 iodepth_batch=4");
    let slat = &result.write.slat;
    assert_eq!((slat.min(), slat.max()), (Nanos(1000), Nanos(1000)));
}
