//! Small cases, followed by hand: the path of each clone, its answer, and the ended bios.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::*;
use crate::bio::Op;
use crate::buf::BufRef;
use crate::dm::control::Suspend;
use crate::dm::multipath::check::CHECK_AFTER;
use crate::dm::multipath::line::parse;
use crate::mq::{Limits, PlugRule, QueueConfig};

const MS: fn(u64) -> Nanos = Nanos::from_ms;

/// Two paths, round-robin.
const TWO: &str = "0 0 1 1 round-robin 0 2 0 /a /b";
/// Two paths, round-robin; I/O waits when both have failed.
const TWO_QUEUEING: &str = "1 queue_if_no_path 0 1 1 round-robin 0 2 0 /a /b";

fn multipath(text: &str) -> Multipath {
    Multipath::new(parse(&text.split_ascii_whitespace().collect::<Vec<_>>()).unwrap())
}

fn config() -> StackedConfig {
    let upper = QueueConfig { queue_depth: 8, plug: PlugRule::Off, ..QueueConfig::default() };
    let elevator = ElevatorSpec::parse("mq-deadline").unwrap();
    StackedConfig { upper, elevator, lower: upper, stacking: Stacking::TODAY }
}

/// A queue over one or more paths, and the clones at their devices.
struct Bench {
    queue: StackedQueue,
    now: Nanos,
    /// Clones at the devices, the oldest first.
    flying: Vec<(PathId, Issue)>,
}

impl Bench {
    fn new(line: &str, config: StackedConfig) -> Self {
        let queue = StackedQueue::new(config, multipath(line));
        Self { queue, now: Nanos(0), flying: Vec::new() }
    }

    /// Submits a write at `sector`.
    fn write(&mut self, sector: u64, len: u64, user: u64) {
        let len_bytes = u32::try_from(len * 512).unwrap();
        let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes };
        self.submit(Bio::new(Op::Write, Sector(sector), Sector(len), buf, user));
    }

    fn submit(&mut self, bio: Bio) {
        self.queue.submit_bio(self.now, bio);
    }

    /// Dispatches; one word per clone: `a:Write 0+8`.
    fn dispatch(&mut self) -> String {
        let mut out = Vec::new();
        self.queue.dispatch(self.now, 0, &mut out);
        self.took(&out)
    }

    /// Runs a hardware queue in a worker.
    fn work(&mut self, path: u16, hctx: u16) -> String {
        let mut out = Vec::new();
        self.queue.run_path(self.now, PathId(path), hctx, &mut out);
        self.took(&out)
    }

    fn took(&mut self, out: &[Dispatched]) -> String {
        let word = |dispatched: &Dispatched| match *dispatched {
            Dispatched::Issue { path, issue } => {
                let Issue { op, sector, len, fua, .. } = issue;
                let fua = if fua { " fua" } else { "" };
                format!("{}:{op:?} {}+{}{fua}", name(path), sector.0, len.0)
            }
            Dispatched::Run { path, hctx } => format!("{}:run {hctx}", name(path)),
        };
        let words: Vec<String> = out.iter().map(word).collect();
        for dispatched in out {
            if let Dispatched::Issue { path, issue } = *dispatched {
                self.flying.push((path, issue));
            }
        }
        words.join(", ")
    }

    /// Answers the oldest clone at the devices; returns the ended bios: `1 ok, 2 I/O error`.
    fn answer(&mut self, status: BlkStatus, done: u64) -> String {
        let (path, issue) = self.flying.remove(0);
        let answer = Answer { status, done_bytes: done * 512 };
        self.queue.complete(self.now, path, issue.tag, answer);
        self.ended()
    }

    /// Completes the oldest clone.
    fn done(&mut self) -> String {
        let len = self.flying[0].1.len.0;
        self.answer(BlkStatus::Ok, len)
    }

    /// Refuses the oldest clone as busy.
    fn busy(&mut self) {
        let (path, issue) = self.flying.remove(0);
        self.queue.busy(self.now, path, issue.tag);
    }

    fn ended(&mut self) -> String {
        let mut done = Vec::new();
        self.queue.take_done(&mut done);
        let words: Vec<String> =
            done.iter().map(|done| format!("{} {}", done.user, done.status)).collect();
        words.join(", ")
    }

    /// The bios of the oldest clone: `user sector+len at offset`.
    fn bios(&self) -> Vec<(u64, u64, u64, u32)> {
        let (path, issue) = self.flying[0];
        let bios = self.queue.bios(path, issue.tag);
        bios.map(|bio| (bio.user, bio.sector.0, bio.len.0, bio.buf.offset_bytes)).collect()
    }

    fn is_failed(&self, path: u16) -> bool {
        self.queue.multipath().is_failed(PathId(path))
    }
}

fn name(path: PathId) -> char {
    char::from(b'a' + u8::try_from(path.0).unwrap())
}

#[test]
fn merged_request_goes_to_a_path_as_one_clone_and_its_bios_end_with_it() {
    let mut bench = Bench::new(TWO, config());
    bench.write(0, 8, 1);
    bench.write(8, 8, 2);
    bench.write(100, 8, 3);
    assert_eq!(bench.dispatch(), "a:Write 0+16, b:Write 100+8");
    assert_eq!(bench.bios(), [(1, 0, 8, 0), (2, 8, 8, 0)]);
    assert_eq!(bench.done(), "1 ok, 2 ok");
    assert_eq!(bench.done(), "3 ok");
    assert!(bench.queue.is_idle());
    let lower = bench.queue.lower(PathId(0)).counters();
    assert_eq!((lower.issued, lower.back_merges), (1, 0), "below nothing is merged");
    assert_eq!(bench.queue.counters().clones, 2);
}

/// Pitfalls 36 and 37.
#[test]
fn request_that_its_path_has_no_tag_for_stays_above_and_its_neighbours_merge() {
    let lower = QueueConfig { queue_depth: 1, ..config().lower };
    let mut bench = Bench::new("0 0 1 1 round-robin 0 1 0 /a", StackedConfig { lower, ..config() });
    bench.write(0, 8, 1);
    bench.write(100, 8, 2);
    bench.write(200, 8, 3);
    assert_eq!(bench.dispatch(), "a:Write 0+8");
    bench.now = MS(1);
    bench.write(208, 8, 4);
    assert_eq!(bench.dispatch(), "");
    assert_eq!(bench.done(), "1 ok");
    assert_eq!(bench.dispatch(), "a:Write 100+8");
    assert_eq!(bench.done(), "2 ok");
    assert_eq!(bench.dispatch(), "a:Write 200+16");
    assert_eq!(bench.done(), "3 ok, 4 ok");
    assert!(bench.queue.is_idle());
}

#[test]
fn request_that_a_device_is_too_busy_for_goes_back_above_and_may_take_another_path() {
    let mut bench = Bench::new(TWO, config());
    bench.write(0, 8, 1);
    assert_eq!(bench.dispatch(), "a:Write 0+8");
    bench.busy();
    assert!(bench.queue.lower(PathId(0)).is_idle(), "nothing is left below");
    assert_eq!(bench.dispatch(), "", "it rests");
    assert_eq!(bench.queue.wake_at(), Some(MS(3)));
    bench.now = MS(3);
    assert_eq!(bench.dispatch(), "b:Write 0+8");
    assert_eq!(bench.done(), "1 ok");
    assert_eq!((bench.queue.counters().busy, bench.queue.counters().clones), (1, 2));
}

#[test]
fn first_part_that_a_dying_path_did_ends_and_the_rest_takes_another_path() {
    let mut bench = Bench::new(TWO, config());
    (0..3).for_each(|bio| bench.write(bio * 8, 8, bio + 1));
    assert_eq!(bench.dispatch(), "a:Write 0+24");
    assert_eq!(bench.answer(BlkStatus::Transport, 12), "1 ok");
    assert!(bench.is_failed(0));
    assert_eq!(bench.dispatch(), "b:Write 12+12");
    assert_eq!(bench.bios(), [(2, 12, 4, 4 * 512), (3, 16, 8, 0)]);
    assert_eq!(bench.done(), "2 ok, 3 ok");
    assert!(bench.queue.is_idle());
}

#[test]
fn error_of_the_disk_ends_the_rest_and_not_the_part_before_it() {
    let mut bench = Bench::new(TWO, config());
    (0..3).for_each(|bio| bench.write(bio * 8, 8, bio + 1));
    bench.dispatch();
    let ended = bench.answer(BlkStatus::Medium, 8);
    assert_eq!(ended, "1 ok, 2 the device's medium failed, 3 the device's medium failed");
    assert!(!bench.is_failed(0) && bench.queue.is_idle());
}

#[test]
fn path_that_stops_early_is_asked_for_the_rest_and_one_that_did_nothing_has_failed() {
    let mut bench = Bench::new(TWO, config());
    bench.write(0, 8, 1);
    bench.dispatch();
    assert_eq!(bench.answer(BlkStatus::Ok, 3), "");
    assert_eq!(bench.dispatch(), "b:Write 3+5");
    assert_eq!(bench.answer(BlkStatus::Ok, 0), "");
    assert!(bench.is_failed(1) && !bench.is_failed(0));
    assert_eq!(bench.dispatch(), "a:Write 3+5");
    // Fully completed but failed: the answer is corrected.
    assert_eq!(bench.answer(BlkStatus::Medium, 5), "1 the device's medium failed");
}

#[test]
fn without_a_path_requests_wait_above_and_merge_until_one_is_back() {
    let mut bench = Bench::new(TWO_QUEUEING, config());
    bench.write(0, 8, 1);
    bench.dispatch();
    bench.answer(BlkStatus::Transport, 0);
    bench.dispatch();
    assert_eq!(bench.answer(BlkStatus::Transport, 4), "");
    bench.write(100, 8, 2);
    assert_eq!(bench.dispatch(), "");
    bench.write(108, 8, 3);
    assert_eq!(bench.queue.wake_at(), Some(CHECK_AFTER), "only a check can help");
    bench.now = CHECK_AFTER;
    let path = bench.queue.take_check(bench.now).unwrap();
    bench.queue.checked(bench.now, path, BlkStatus::Ok);
    assert_eq!(bench.dispatch(), "a:Write 4+4, a:Write 100+16");
    assert_eq!((bench.done(), bench.done()), ("1 ok".into(), "2 ok, 3 ok".into()));
    assert!(bench.queue.is_idle());
}

#[test]
fn without_a_path_requests_fail_if_the_line_or_the_operator_says_so() {
    let mut bench = Bench::new(TWO_QUEUEING, config());
    bench.queue.message(bench.now, "fail_path /a").unwrap();
    bench.queue.message(bench.now, "fail_path /b").unwrap();
    bench.write(0, 8, 1);
    assert_eq!(bench.dispatch(), "");
    bench.queue.message(bench.now, "fail_if_no_path").unwrap();
    assert_eq!(bench.dispatch(), "");
    assert_eq!(bench.ended(), "1 I/O error");
    assert_eq!(bench.queue.counters().no_path, 1);
    // The last path fails while I/O does not wait: the error goes up unchanged.
    bench.queue.message(bench.now, "reinstate_path /a").unwrap();
    bench.write(0, 8, 2);
    assert_eq!(bench.dispatch(), "a:Write 0+8");
    assert_eq!(bench.answer(BlkStatus::Transport, 0), "2 connection to the device lost");
}

#[test]
fn suspended_queue_fails_or_keeps_requests_without_a_path() {
    for (how, ended) in [(Suspend::Flush, "1 I/O error"), (Suspend::NoFlush, "")] {
        let mut bench = Bench::new(TWO_QUEUEING, config());
        bench.queue.message(bench.now, "fail_path /a").unwrap();
        bench.queue.message(bench.now, "fail_path /b").unwrap();
        bench.write(0, 8, 1);
        assert_eq!(bench.dispatch(), "");
        bench.queue.suspend(how);
        assert_eq!(bench.dispatch(), "");
        assert_eq!(bench.ended(), ended);
        bench.queue.resume();
        assert!(bench.queue.table().starts_with("1 queue_if_no_path "));
    }
}

/// The disk has no FUA: preflush, data in two parts on two paths, flush; the bio ends once.
#[test]
fn data_of_a_flush_sequence_in_two_parts_is_flushed_after_the_second() {
    let mut bench = Bench::new(TWO, config());
    let buf = BufRef::zeros(4096);
    let bio = Bio::new(Op::Write, Sector(0), Sector(8), buf, 1);
    bench.submit(Bio { preflush: true, fua: true, ..bio });
    assert_eq!(bench.dispatch(), "a:Flush 0+0");
    assert_eq!(bench.answer(BlkStatus::Transport, 0), "", "which flushes again");
    assert_eq!(bench.dispatch(), "b:Flush 0+0");
    assert_eq!(bench.done(), "");
    bench.queue.message(bench.now, "reinstate_path /a").unwrap();
    assert_eq!(bench.dispatch(), "a:Write 0+8");
    assert_eq!(bench.answer(BlkStatus::Transport, 5), "");
    assert_eq!(bench.dispatch(), "b:Write 5+3");
    assert_eq!(bench.done(), "");
    assert_eq!(bench.dispatch(), "b:Flush 0+0");
    assert_eq!(bench.done(), "1 ok");
    assert!(bench.queue.is_idle());
}

#[test]
fn rest_of_a_fua_write_is_fua_too() {
    let mut config = config();
    (config.upper.fua, config.lower.fua) = (true, true);
    let mut bench = Bench::new(TWO, config);
    let bio = Bio::new(Op::Write, Sector(0), Sector(8), BufRef::zeros(4096), 1);
    bench.submit(Bio { fua: true, ..bio });
    assert_eq!(bench.dispatch(), "a:Write 0+8 fua");
    bench.answer(BlkStatus::Transport, 5);
    assert_eq!(bench.dispatch(), "b:Write 5+3 fua");
    assert_eq!(bench.done(), "1 ok");
}

#[test]
fn long_bio_that_was_split_ends_once_when_its_last_part_is_done() {
    let mut config = config();
    let limits = Limits { max_sectors: 8, max_segments: 8 };
    (config.upper.limits, config.lower.limits) = (limits, limits);
    let mut bench = Bench::new(TWO, config);
    bench.write(0, 20, 1);
    assert_eq!(bench.dispatch(), "a:Write 0+8, b:Write 8+8, a:Write 16+4");
    assert_eq!(bench.answer(BlkStatus::Transport, 2), "");
    assert_eq!((bench.done(), bench.done()), (String::new(), String::new()));
    assert_eq!(bench.dispatch(), "b:Write 2+6");
    assert_eq!(bench.bios(), [(1, 2, 6, 1024)]);
    assert_eq!(bench.done(), "1 ok");
}

#[test]
fn before_the_mail_a_worker_issues_clones_and_is_woken_for_each_completion() {
    let upper = QueueConfig { hw_queues: 1, cpus: 4, ..config().upper };
    let lower = QueueConfig { hw_queues: 2, ..upper };
    let stacking = Stacking::BEFORE;
    let config = StackedConfig { upper, lower, stacking, ..config() };
    let mut bench = Bench::new("0 0 1 1 round-robin 0 1 0 /a", config);
    bench.write(0, 8, 1);
    bench.write(100, 8, 2);
    assert_eq!(bench.dispatch(), "a:run 0", "one worker for both");
    assert_eq!(bench.dispatch(), "");
    // A clone belongs to the dispatching CPU, not to the submitting one.
    bench.write(200, 8, 3);
    let mut out = Vec::new();
    bench.queue.dispatch(bench.now, 3, &mut out);
    assert_eq!(bench.took(&out), "a:run 1");
    assert_eq!(bench.work(0, 0), "a:Write 0+8, a:Write 100+8");
    assert_eq!(bench.work(0, 1), "a:Write 200+8");
    assert_eq!(bench.work(0, 1), "");
    for _ in 0..3 {
        let (path, issue) = bench.flying.remove(0);
        let completed = bench.queue.complete(bench.now, path, issue.tag, Answer::done(&issue));
        assert_eq!(completed, Completed { original: Original::Ended, run: true });
    }
    assert_eq!(bench.ended(), "1 ok, 2 ok, 3 ok");
    assert_eq!(bench.queue.counters().runs, 2);
}

#[test]
fn after_the_mail_the_caller_issues_and_nobody_is_woken_unless_something_waits() {
    for stacking in [Stacking::AFTER, Stacking::TODAY] {
        let lower = QueueConfig { queue_depth: 1, ..config().lower };
        let config = StackedConfig { stacking, lower, ..config() };
        let mut bench = Bench::new("0 0 1 1 round-robin 0 1 0 /a", config);
        bench.write(0, 8, 1);
        assert_eq!(bench.dispatch(), "a:Write 0+8");
        bench.write(100, 8, 2);
        assert_eq!(bench.dispatch(), "");
        for (waits, ended) in [(true, "1 ok"), (false, "2 ok")] {
            let (path, issue) = bench.flying.remove(0);
            let completed = bench.queue.complete(bench.now, path, issue.tag, Answer::done(&issue));
            assert_eq!(completed, Completed { original: Original::Ended, run: waits });
            assert_eq!(bench.ended(), ended);
            bench.dispatch();
        }
    }
}

/// The subject of commit 396eaf21ee17.
#[test]
fn clone_that_was_queued_stays_below_when_the_device_is_busy() {
    let config = StackedConfig { stacking: Stacking::BEFORE, ..config() };
    let mut bench = Bench::new(TWO, config);
    bench.write(0, 8, 1);
    assert_eq!((bench.dispatch(), bench.work(0, 0)), ("a:run 0".into(), "a:Write 0+8".into()));
    bench.busy();
    assert!(!bench.queue.lower(PathId(0)).is_idle());
    assert_eq!((bench.dispatch(), bench.work(0, 0)), (String::new(), String::new()));
    assert_eq!(bench.queue.wake_at(), Some(MS(3)));
    bench.now = MS(3);
    assert_eq!((bench.dispatch(), bench.work(0, 0)), ("a:run 0".into(), "a:Write 0+8".into()));
    assert_eq!(bench.done(), "1 ok");
}

#[test]
fn late_clone_is_named_with_its_path() {
    let mut config = config();
    config.lower.timeout = Some(MS(30));
    let mut bench = Bench::new(TWO, config);
    bench.write(0, 8, 1);
    bench.write(100, 8, 2);
    bench.dispatch();
    bench.done();
    assert_eq!(bench.queue.wake_at(), Some(MS(30)));
    let mut late = Vec::new();
    bench.queue.timed_out(MS(30), &mut late);
    assert_eq!(late, vec![(PathId(1), bench.flying[0].1.tag)]);
}

#[test]
#[should_panic(expected = "a clone is as long")]
fn paths_that_take_less_than_the_upper_queue_gives_are_refused() {
    let mut config = config();
    config.lower.limits.max_sectors = 8;
    let _ = StackedQueue::new(config, multipath(TWO));
}
