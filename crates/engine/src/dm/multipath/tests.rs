use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;

use proptest::prelude::*;

use super::check::CHECK_AFTER;
use super::status::failed_paths;
use super::*;
use crate::dm::control::MessageError;

const NOW: Nanos = Nanos(0);

fn spec(text: &str) -> MultipathSpec {
    line::parse(&text.split_ascii_whitespace().collect::<Vec<_>>()).unwrap()
}

fn multipath(text: &str) -> Multipath {
    Multipath::new(spec(text))
}

/// Paths 0 and 1 in group 1, path 2 in group 2, path 3 in group 3.
fn three_groups() -> Multipath {
    multipath("0 0 3 1 round-robin 0 2 0 /a /b round-robin 0 1 0 /c service-time 0 1 2 /d 1 5")
}

/// Path of the next I/O, which ends at once.
fn next(multipath: &mut Multipath) -> u16 {
    match multipath.choose(NOW, 0, 4096) {
        Choice::Path(path) => path.0,
        other => panic!("{other:?}"),
    }
}

fn fail(multipath: &mut Multipath, path: u16) {
    multipath.fail_path(NOW, PathId(path), FailedBy::Error);
}

/// Ends an I/O on its path with this status.
fn end_with(multipath: &mut Multipath, status: BlkStatus) -> Ended {
    let Choice::Path(path) = multipath.choose(NOW, 0, 512) else { panic!("no path") };
    let io = multipath.started(NOW, path, 512);
    multipath.ended(NOW, io, status)
}

fn refusal(multipath: &mut Multipath, message: &str) -> String {
    multipath.message(NOW, message).unwrap_err().to_string()
}

#[test]
fn group_is_kept_while_it_has_a_path_then_the_next_takes_over() {
    let mut multipath = three_groups();
    assert_eq!([0; 3].map(|_| next(&mut multipath)), [0, 1, 0]);
    fail(&mut multipath, 0);
    assert_eq!([0; 2].map(|_| next(&mut multipath)), [1, 1]);
    fail(&mut multipath, 1);
    assert_eq!(next(&mut multipath), 2);
    multipath.reinstate_path(NOW, PathId(0));
    assert_eq!(next(&mut multipath), 2, "it comes back after a check, not at once");
    fail(&mut multipath, 2);
    assert_eq!(next(&mut multipath), 0);
}

#[test]
fn lines_initial_group_is_first() {
    let mut multipath = multipath("0 0 2 2 round-robin 0 1 0 /a round-robin 0 1 0 /b");
    assert_eq!(next(&mut multipath), 1);
    fail(&mut multipath, 1);
    assert_eq!(next(&mut multipath), 0);
}

#[test]
fn disabled_group_is_the_last_resort() {
    let mut multipath = three_groups();
    assert_eq!(next(&mut multipath), 0);
    multipath.message(NOW, "disable_group 1").unwrap();
    multipath.message(NOW, "disable_group 2").unwrap();
    assert_eq!(next(&mut multipath), 3);
    fail(&mut multipath, 3);
    assert_eq!(next(&mut multipath), 1, "of the disabled ones, the first");
    multipath.message(NOW, "enable_group 2").unwrap();
    assert_eq!(next(&mut multipath), 2);
    multipath.message(NOW, "enable_group 1").unwrap();
    assert_eq!(next(&mut multipath), 0);
}

#[test]
fn switched_group_is_used_and_no_group_stays_disabled() {
    let mut multipath = three_groups();
    multipath.message(NOW, "disable_group 1").unwrap();
    multipath.message(NOW, "switch_group 3").unwrap();
    assert_eq!([0; 2].map(|_| next(&mut multipath)), [3, 3]);
    fail(&mut multipath, 3);
    assert_eq!(next(&mut multipath), 0);
}

#[test]
fn only_errors_of_the_path_fail_it() {
    use BlkStatus::{Invalid, IoError, Medium, NoSpace, NotSupported, Ok, Transport};
    for status in [Ok, NotSupported, NoSpace, Medium, Invalid] {
        let mut multipath = three_groups();
        assert_eq!(end_with(&mut multipath, status), Ended::Up, "{status}");
        assert!(!multipath.is_failed(PathId(0)), "{status}");
    }
    for status in [Transport, IoError] {
        let mut multipath = three_groups();
        assert_eq!(end_with(&mut multipath, status), Ended::Again, "{status}");
        assert!(multipath.is_failed(PathId(0)) && multipath.has_path());
        assert_eq!(next(&mut multipath), 1);
    }
}

#[test]
fn error_of_the_last_path_goes_up_unless_io_is_to_wait() {
    let mut multipath = multipath("0 0 1 1 queue-length 0 1 0 /a");
    let late = multipath.started(NOW, PathId(0), 512);
    assert_eq!(end_with(&mut multipath, BlkStatus::Transport), Ended::Up);
    assert_eq!(multipath.choose(NOW, 0, 512), Choice::Fail);
    multipath.message(NOW, "queue_if_no_path").unwrap();
    assert_eq!(multipath.choose(NOW, 0, 512), Choice::Queue);
    assert_eq!(multipath.ended(NOW, late, BlkStatus::Transport), Ended::Again);
    assert!(multipath.info().contains("/a F 1 0 "), "failed once: {}", multipath.info());
    multipath.message(NOW, "fail_if_no_path").unwrap();
    assert_eq!(multipath.choose(NOW, 0, 512), Choice::Fail);
}

#[test]
fn suspending_ends_the_waiting_and_resuming_restores_it() {
    let line = "0 1 1 queue-length 0 1 0 /a";
    let mut queues = multipath(&format!("1 queue_if_no_path {line}"));
    fail(&mut queues, 0);
    queues.suspend(Suspend::Flush);
    assert_eq!(queues.choose(NOW, 0, 0), Choice::Fail);
    assert!(queues.table().starts_with("0 0 1 "), "as the kernel shows it meanwhile");
    queues.suspend(Suspend::Flush);
    queues.resume();
    assert_eq!(queues.choose(NOW, 0, 0), Choice::Queue);
    queues.suspend(Suspend::NoFlush);
    assert_eq!(queues.choose(NOW, 0, 0), Choice::Queue, "pushed back");
    queues.resume();
    let mut fails = multipath(&format!("0 {line}"));
    fail(&mut fails, 0);
    fails.suspend(Suspend::NoFlush);
    assert_eq!(fails.choose(NOW, 0, 0), Choice::Fail);
    fails.resume();
    assert_eq!(fails.choose(NOW, 0, 0), Choice::Fail);
}

#[test]
fn path_messages_are_for_all_paths_with_the_name() {
    let mut multipath = multipath("0 0 2 1 queue-length 0 2 0 /a /b round-robin 0 1 0 /a");
    multipath.message(NOW, "FAIL_PATH /a").unwrap();
    assert_eq!([0, 1, 2].map(|path| multipath.is_failed(PathId(path))), [true, false, true]);
    multipath.message(NOW, "fail_path /a").unwrap();
    assert_eq!(multipath.events(), 2, "what has failed does not fail again");
    multipath.message(NOW, "reinstate_path /a").unwrap();
    multipath.message(NOW, "reinstate_path /b").unwrap();
    assert_eq!(multipath.events(), 4);
    assert!(multipath.paths().all(|path| !multipath.is_failed(path)));
}

#[test]
fn wrong_messages_are_refused_and_change_nothing() {
    let mut multipath = three_groups();
    let before = (multipath.info(), multipath.table());
    for (message, expected) in [
        ("", "the message is empty; there are queue_if_no_path"),
        ("fail", "message `fail` is unknown; there are queue_if_no_path, fail_if_no_path, switch"),
        ("queue_if_no_path 1", "message queue_if_no_path takes no argument, but has 1"),
        ("switch_group", "message switch_group takes the number of a group, but has 0"),
        ("switch_group 0", "group `0` is not one of 1 to 3"),
        ("switch_group 4", "group `4` is not one of 1 to 3"),
        ("disable_group 1x", "group `1x` is not one of 1 to 3"),
        ("enable_group 1 2", "takes the number of a group, but has 2"),
        ("fail_path", "message fail_path takes the name of a device, but has 0"),
        ("fail_path /e", "no path is named `/e`"),
        ("reinstate_path /e", "no path is named `/e`"),
    ] {
        let problem = refusal(&mut multipath, message);
        assert!(problem.contains(expected), "{message}: {problem}");
    }
    multipath.suspend(Suspend::Flush);
    let busy = multipath.message(NOW, "queue_if_no_path");
    assert_eq!(busy, Err(MessageError::Suspended));
    multipath.resume();
    assert_eq!((multipath.info(), multipath.table(), multipath.events()), (before.0, before.1, 0));
}

#[test]
fn status_is_the_kernels() {
    let mut multipath = three_groups();
    assert_eq!(
        multipath.info(),
        "2 0 0 0 3 1 E 0 2 0 /a A 0 /b A 0 E 0 1 0 /c A 0 E 0 1 2 /d A 0 0 5 "
    );
    next(&mut multipath);
    fail(&mut multipath, 0);
    multipath.message(NOW, "disable_group 2").unwrap();
    multipath.message(NOW, "switch_group 3").unwrap();
    multipath.message(NOW, "disable_group 2").unwrap();
    let Choice::Path(path) = multipath.choose(NOW, 0, 8192) else { panic!("live") };
    let _ = multipath.started(NOW, path, 8192);
    assert_eq!(
        multipath.info(),
        "2 0 0 0 3 3 E 0 2 0 /a F 1 /b A 0 D 0 1 0 /c A 0 A 0 1 2 /d A 0 8192 5 "
    );
    multipath.message(NOW, "queue_if_no_path").unwrap();
    assert_eq!(
        multipath.table(),
        "1 queue_if_no_path 0 3 3 round-robin 0 2 1 /a 1 /b 1 round-robin 0 1 1 /c 1 \
         service-time 0 1 2 /d 1 5 "
    );
}

#[test]
fn status_has_the_words_of_each_selector() {
    for (group, info) in [
        ("queue-length 0 1 0 /a", "E 0 1 1 /a A 0 0 "),
        ("historical-service-time 1 900 1 0 /a", "E 2 900 0 1 3 /a A 0 1024 0 0 "),
        ("io-affinity 0 1 1 /a ff", "E 0 1 1 /a A 0 0 "),
    ] {
        let multipath = multipath(&format!("0 0 1 1 {group}"));
        assert_eq!(multipath.info(), format!("2 0 0 0 1 1 {info}"));
    }
    assert_eq!(multipath("0 0 0 0").info(), "2 0 0 0 0 0 ");
    assert_eq!(multipath("0 0 0 0").choose(NOW, 0, 0), Choice::Fail);
}

/// Start of the next check, which ends at once with this status.
fn check(multipath: &mut Multipath, status: BlkStatus) -> u64 {
    let at = multipath.next_check().expect("a check is planned");
    assert_eq!(multipath.take_check(Nanos(at.0 - 1)), None, "not before its time");
    let path = multipath.take_check(at).unwrap();
    multipath.checked(at, path, status);
    at.0 / 1_000_000_000
}

#[test]
fn failed_path_is_tried_less_and_less_often_until_it_is_back() {
    let mut multipath = multipath("0 0 1 1 round-robin 0 2 0 /a /b");
    assert_eq!(multipath.next_check(), None);
    fail(&mut multipath, 0);
    let bad = [0; 9].map(|_| check(&mut multipath, BlkStatus::Transport));
    assert_eq!(bad, [1, 3, 7, 15, 31, 63, 123, 183, 243]);
    assert_eq!(check(&mut multipath, BlkStatus::Medium), 303, "an answer is an answer");
    assert!(!multipath.is_failed(PathId(0)));
    assert_eq!(multipath.next_check(), None, "its group is the one in use");
    multipath.fail_path(Nanos::from_ms(400_000), PathId(0), FailedBy::Error);
    assert_eq!(check(&mut multipath, BlkStatus::Ok), 401, "it begins anew");
}

#[test]
fn path_that_the_operator_failed_is_not_tried() {
    let mut multipath = multipath("0 0 1 1 round-robin 0 1 0 /a");
    multipath.message(NOW, "fail_path /a").unwrap();
    assert_eq!(multipath.next_check(), None);
    multipath.message(NOW, "reinstate_path /a").unwrap();
    fail(&mut multipath, 0);
    let path = multipath.take_check(CHECK_AFTER).unwrap();
    multipath.message(NOW, "fail_path /a").unwrap();
    multipath.checked(CHECK_AFTER, path, BlkStatus::Ok);
    assert!(multipath.is_failed(PathId(0)), "though a check under way ended well");
    assert_eq!(multipath.next_check(), None);
}

#[test]
fn better_group_takes_over_after_one_check_more() {
    let mut multipath = three_groups();
    next(&mut multipath);
    [0, 1, 2].into_iter().for_each(|path| fail(&mut multipath, path));
    assert_eq!(next(&mut multipath), 3);
    for _ in 0..3 {
        assert_eq!(check(&mut multipath, BlkStatus::Ok), 1);
    }
    assert_eq!(next(&mut multipath), 3, "not yet");
    assert_eq!(check(&mut multipath, BlkStatus::Ok), 2);
    assert_eq!(next(&mut multipath), 1, "the one that came back last");
    check(&mut multipath, BlkStatus::Ok);
    assert_eq!(check(&mut multipath, BlkStatus::Ok), 2, "group 2 was tried too");
    assert_eq!(next(&mut multipath), 0, "but is not better than group 1");
    assert_eq!(multipath.next_check(), None);
}

#[test]
fn second_check_that_fails_fails_the_path() {
    let mut multipath = three_groups();
    [0, 1].into_iter().for_each(|path| fail(&mut multipath, path));
    assert_eq!(next(&mut multipath), 2);
    multipath.reinstate_path(NOW, PathId(0));
    assert_eq!(check(&mut multipath, BlkStatus::Transport), 1);
    assert!(multipath.is_failed(PathId(0)));
    assert_eq!(next(&mut multipath), 2);
}

#[test]
fn operators_group_is_the_one_to_come_back_to() {
    let mut multipath = three_groups();
    multipath.message(NOW, "switch_group 3").unwrap();
    assert_eq!(next(&mut multipath), 3);
    fail(&mut multipath, 3);
    assert_eq!(next(&mut multipath), 0);
    check(&mut multipath, BlkStatus::Ok);
    check(&mut multipath, BlkStatus::Ok);
    assert_eq!(next(&mut multipath), 3);
    fail(&mut multipath, 0);
    check(&mut multipath, BlkStatus::Ok);
    assert_eq!(multipath.next_check(), None, "group 1 does not take over");
}

#[test]
fn disabled_group_does_not_take_over() {
    let mut multipath = three_groups();
    [0, 1].into_iter().for_each(|path| fail(&mut multipath, path));
    multipath.message(NOW, "disable_group 1").unwrap();
    assert_eq!(next(&mut multipath), 2);
    check(&mut multipath, BlkStatus::Ok);
    check(&mut multipath, BlkStatus::Ok);
    assert_eq!(multipath.next_check(), None);
    assert_eq!(next(&mut multipath), 2);
}

/// A possible next event.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        cpu: u16,
        len_bytes: u64,
    },
    /// Index of an I/O in flight, and its status.
    End(prop::sample::Index, BlkStatus),
    Fail(prop::sample::Index),
    Reinstate(prop::sample::Index),
    Message(&'static str),
    Check(BlkStatus),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let status = || {
        use BlkStatus::{IoError, Medium, Ok, Transport};
        prop::sample::select(vec![Ok, Ok, Ok, Ok, Medium, Transport, IoError])
    };
    let messages = vec![
        "queue_if_no_path",
        "fail_if_no_path",
        "switch_group 1",
        "switch_group 2",
        "disable_group 1",
        "enable_group 1",
        "disable_group 2",
        "enable_group 2",
        "fail_path /a",
        "reinstate_path /a",
        "reinstate_path /b",
        "reinstate_path /c",
    ];
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0_u16..6, prop::sample::select(vec![0_u64, 512, 4096, 1 << 20]))
            .prop_map(|(cpu, len_bytes)| Step::Submit { cpu, len_bytes }),
        6 => (index(), status()).prop_map(|(which, status)| Step::End(which, status)),
        1 => index().prop_map(Step::Fail),
        1 => index().prop_map(Step::Reinstate),
        1 => prop::sample::select(messages).prop_map(Step::Message),
        2 => status().prop_map(Step::Check),
        2 => (0_u64..100_000_000).prop_map(Step::Wait),
    ]
}

fn line_text() -> impl Strategy<Value = String> {
    let groups = || {
        prop::sample::select(vec![
            "round-robin 0 2 0 /a /b",
            "queue-length 0 3 0 /a /b /c",
            "service-time 0 3 2 /a 1 0 /b 1 1 /c 1 50",
            "historical-service-time 0 3 0 /a /b /c",
            "historical-service-time 2 0 3 2 0 /a /b",
            "io-affinity 0 2 1 /a 3 /b c",
        ])
    };
    (groups(), groups(), 1_usize..3).prop_map(|(a, b, init)| format!("0 0 2 {init} {a} {b}"))
}

proptest! {
    #[test]
    fn whatever_happens_no_failed_path_is_chosen_and_nothing_is_lost(
        line in line_text(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut multipath = multipath(&line);
        let mut now = NOW;
        let mut in_flight = Vec::new();
        for step in steps {
            match step {
                Step::Submit { cpu, len_bytes } => match multipath.choose(now, cpu, len_bytes) {
                    Choice::Path(path) => {
                        prop_assert!(!multipath.is_failed(path));
                        in_flight.push(multipath.started(now, path, len_bytes));
                    }
                    none => {
                        prop_assert!(!multipath.has_path());
                        let waits = multipath.queues();
                        prop_assert_eq!(none, if waits { Choice::Queue } else { Choice::Fail });
                    }
                },
                Step::End(_, _) if in_flight.is_empty() => {}
                Step::End(which, status) => {
                    let io = in_flight.swap_remove(which.index(in_flight.len()));
                    let ended = multipath.ended(now, io, status);
                    prop_assert!(!is_path_error(status) || multipath.is_failed(io.path));
                    let goes_on = multipath.has_path() || multipath.queues();
                    prop_assert_eq!(ended == Ended::Again, is_path_error(status) && goes_on);
                }
                Step::Fail(which) => {
                    let path = PathId(which.index(multipath.paths.len()) as u16);
                    multipath.fail_path(now, path, FailedBy::Error);
                }
                Step::Reinstate(which) => {
                    let path = PathId(which.index(multipath.paths.len()) as u16);
                    multipath.reinstate_path(now, path);
                }
                Step::Message(message) => drop(multipath.message(now, message)),
                Step::Check(status) => {
                    if let Some(at) = multipath.next_check() {
                        now = now.max(at);
                        let path = multipath.take_check(now).unwrap();
                        multipath.checked(now, path, status);
                    }
                }
                Step::Wait(ns) => now = now + Nanos(ns),
            }
            let failed = multipath.paths.iter().filter(|path| path.failed.is_some()).count();
            prop_assert_eq!(multipath.live + failed, multipath.paths.len());
            prop_assert_eq!(failed_paths(&multipath.info()), failed);
        }
        for io in in_flight.drain(..) {
            multipath.ended(now, io, BlkStatus::Ok);
        }
        prop_assert!(multipath.paths.iter().all(|path| path.in_flight == 0));
        let idle = Multipath::new(multipath.spec.clone());
        for (path, fresh) in multipath.paths.iter().zip(&idle.paths) {
            let words = |multipath: &Multipath, path: &Path| {
                let mut out = String::new();
                multipath.groups[path.group].selector.info(path.place, &mut out);
                let words: Vec<_> = out.split(' ').map(ToString::to_string).collect();
                match multipath.spec.groups[path.group].selector.name() {
                    "historical-service-time" => words[1].clone(),
                    "io-affinity" => String::new(),
                    _ => out,
                }
            };
            prop_assert_eq!(words(&multipath, path), words(&idle, fresh), "in flight");
        }
    }

    #[test]
    fn no_live_path_starves_under_round_robin(
        count in 1_usize..9,
        down in prop::collection::vec(any::<bool>(), 8),
        warm_up in 0_usize..20,
    ) {
        let paths: String = (0..count).map(|path| format!(" /{path}")).collect();
        let mut multipath = multipath(&format!("0 0 1 1 round-robin 0 {count} 0{paths}"));
        for _ in 0..warm_up {
            next(&mut multipath);
        }
        let live: Vec<u16> = (0..count as u16).filter(|path| !down[usize::from(*path)]).collect();
        prop_assume!(!live.is_empty());
        for path in (0..count as u16).filter(|path| down[usize::from(*path)]) {
            fail(&mut multipath, path);
        }
        let mut chosen: Vec<u16> = live.iter().map(|_| next(&mut multipath)).collect();
        chosen.sort_unstable();
        prop_assert_eq!(chosen, live);
    }
}
