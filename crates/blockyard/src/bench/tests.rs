use std::path::Path;

use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::priority::Priority;
use blockyard_workload::fio::{Batching, Fio, Job, Rw};
use blockyard_workload::fsync_tester::{self, FsyncTester};
use blockyard_workload::program::{Call, Content, DirectOp, FileId, Returned};
use blockyard_workload::replay::{self, Pace, Replay};
use blockyard_workload::tiotest::{self, PhaseKind, Tiotest};
use blockyard_workload::trace::iolog;

use super::target::{available_bytes, check_available};
use super::*;

fn target(place: Place, elevator: &str) -> Target {
    let elevator = Some(ElevatorSpec::parse(elevator).unwrap());
    let scheduling = Scheduling { elevator, ..Scheduling::default() };
    Target { place, may_destroy: false, scheduling, pipeline: None }
}

fn memory(elevator: &str) -> Target {
    target(Place::Memory { len_bytes: None }, elevator)
}

/// Beside the test binary, because `/tmp` may be in memory.
fn dir_on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

/// Runs tiotest with two threads and files of 16 blocks.
fn tiny_tiotest(target: &Target) -> Result<Tiotest, Error> {
    let threads = 2;
    let file_bytes = 64 << 10;
    let block_bytes = 4096;
    let random_ops = 10;
    let config = tiotest::Config { threads, file_bytes, block_bytes, random_ops, seed: 1 };
    let mut program = Tiotest::new(config);
    target.run(&[file_bytes; 2], &mut program).map(|_| program)
}

#[test]
fn tiotest_runs_its_four_phases_under_any_elevator() {
    for elevator in ["none", "deadline-prio", "cfq"] {
        let program = tiny_tiotest(&memory(elevator)).unwrap();
        let [write, random_write, read, random_read] = program.results() else { panic!("four") };
        for (phase, kind, calls) in [
            (write, PhaseKind::Write, 32),
            (random_write, PhaseKind::RandomWrite, 20),
            (read, PhaseKind::Read, 32),
            (random_read, PhaseKind::RandomRead, 20),
        ] {
            assert_eq!((phase.kind, phase.latency.count), (kind, calls), "{elevator}");
            let thread = Nanos(phase.latency.sum.0 / 2);
            assert!(phase.time >= thread, "two threads side by side: {phase:?}");
            assert!(phase.latency.max > Nanos(0));
        }
    }
}

#[test]
fn replay_goes_on_where_bios_fail_and_counts_them() {
    let log = "fio version 3 iolog\n0 f add\n0 f write 0 4096\n1 f write 524288 4096\n\
               2 f read 520192 8192\n3 f write 4096 4096\n";
    let trace = iolog::read(log.as_bytes()).unwrap();
    let table = "0 1024 null 0\n1024 1024 error";
    let volume = target::of_table(table, &VolumeOptions::default()).unwrap();
    let target = replay::Target { len_bytes: 1 << 20, sector_bytes: 512, wrap: false };
    let pace = Pace::Fastest { depth: Some(1) };
    let mut replay = Replay::new(&trace, pace, target).unwrap();
    run(&volume, &mut replay, &Tally::default()).unwrap();
    assert!(replay.is_complete());
    let errors: Vec<(&str, u64, u64)> = replay
        .counted()
        .iter()
        .map(|(op, counted)| (*op, counted.out_bios, counted.errors))
        .collect();
    assert_eq!(errors, [("read", 1, 1), ("write", 3, 1)]);
    let first = replay.first_failed().unwrap();
    assert_eq!((first.op, first.offset_bytes, first.error), ("write", 524_288, 5));
}

/// Memory can always be written: only a check of ours protects it.
#[test]
fn workload_that_writes_to_a_read_only_volume_fails_and_changes_nothing() {
    let settings = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let volume = target::of_table("0 2048 ram", &settings).unwrap();
    for direct in [false, true] {
        let job = Job::new("writes").with(|job| {
            job.shape.rw = Rw::Write;
            job.submission.direct = direct;
            job.region.size_bytes = 64 << 10;
        });
        let mut fio = Fio::new(vec![job]).unwrap();
        let error = run(&volume, &mut fio, &Tally::default()).unwrap_err().to_string();
        assert!(error.contains("Read-only file system"), "{error}");
    }
    let mut data = [7; 64 << 10];
    volume.read_exact_at(&mut data, 0).unwrap();
    assert!(data.iter().all(|byte| *byte == 0));
}

#[test]
fn fio_jobs_add_up_on_memory_and_on_a_file() {
    let dir = dir_on_disk();
    let file = || Place::Path(dir.path().join("image"));
    for target in [memory("none"), memory("deadline-prio"), target(file(), "mq-deadline")] {
        let direct = Job::new("direct").with(|job| {
            job.shape.rw = Rw::RandReadWrite;
            job.submission.direct = true;
            job.submission.iodepth = 8;
            job.submission.batching = Batching { submit: 4, reap_min: 4, ..Batching::default() };
            job.clones.numjobs = 2;
            job.region.size_bytes = 1 << 20;
            job.submission.priority = Some(Priority::real_time(1));
        });
        let buffered = Job::new("buffered").with(|job| {
            job.shape.rw = Rw::Write;
            job.submission.fsync_every = 4;
            job.region.size_bytes = 64 << 10;
            job.shape.block_bytes = 2048;
            job.grouping.stonewall = true;
        });
        let mut fio = Fio::new(vec![direct, buffered]).unwrap();
        let lens = fio.file_lens_bytes();
        let outcome = target.run(&lens, &mut fio).unwrap();
        let elevator = target.scheduling.elevator.as_ref().unwrap();
        assert_eq!(outcome.elevator, elevator.to_string());
        let [direct, buffered] = fio.results() else { panic!("two jobs") };
        assert_eq!((direct.errors.ended_by, direct.read.ios + direct.write.ios), (None, 512));
        assert_eq!(direct.read.slat.count(), direct.read.ios);
        let (_, of_two_or_three) = direct.queueing.depths.shares()[1];
        assert_eq!(of_two_or_three, 0.0, "a batch has four");
        assert_eq!((buffered.write.bytes, buffered.sync.count()), (64 << 10, 7));
        assert!(outcome.ended >= direct.runtime + buffered.runtime);
    }
    assert!(!dir.path().join("image").exists(), "a created file is removed");
}

#[test]
fn encrypted_target_has_ciphertext_below_whatever_the_pipeline() {
    let dir = dir_on_disk();
    let path = dir.path().join("image");
    for pipeline in ["inline", "D", "E", "G", "adaptive"] {
        std::fs::write(&path, vec![0; 128 << 10]).unwrap();
        let plain = Target { may_destroy: true, ..target(Place::Path(path.clone()), "deadline") };
        let encrypted =
            Target { pipeline: Some(PipelineChoice::parse(pipeline).unwrap()), ..plain.clone() };
        for (target, is_changed) in [(plain, false), (encrypted, true)] {
            let write = Job::new("w").with(|job| {
                job.shape.rw = Rw::Write;
                job.submission.direct = true;
                job.submission.iodepth = 4;
                job.region.size_bytes = 128 << 10;
            });
            let mut fio = Fio::new(vec![write]).unwrap();
            let lens = fio.file_lens_bytes();
            target.run(&lens, &mut fio).unwrap();
            assert_eq!(fio.results()[0].write.ios, 32, "{pipeline}");
            let below = std::fs::read(&path).unwrap();
            // Equal plaintext of a reused buffer becomes different ciphertext.
            let blocks: std::collections::BTreeSet<&[u8]> = below.chunks(4096).collect();
            assert_eq!(blocks.len() == 32, is_changed, "{pipeline}: {}", blocks.len());
        }
    }
}

#[test]
fn background_writer_stops_with_its_phase() {
    let samples = 1;
    let background_bytes = Some(4 << 20);
    let priority = Priority::default();
    let config = fsync_tester::Config { samples, background_bytes, priority };
    let mut program = FsyncTester::new(config);
    let lens = [fsync_tester::BUFFER_BYTES, 4 << 20];
    let outcome = memory("deadline-prio").run(&lens, &mut program).unwrap();
    assert_eq!(program.samples().len(), 1);
    assert!(outcome.ended >= Nanos::from_ms(1000), "it sleeps for a second");
}

/// A task with these calls, and another task that sleeps.
struct Calls {
    calls: Option<Vec<Call>>,
}

struct Caller(Vec<Call>);

impl Task for Caller {
    fn next(&mut self, _: Nanos, returned: &Returned<'_>) -> Call {
        if returned.status.is_err() { Call::Exit } else { self.0.pop().unwrap_or(Call::Exit) }
    }
}

impl Program for Calls {
    type Task = Caller;

    fn next_phase(&mut self) -> Option<Phase<Caller>> {
        let tasks = vec![Caller(self.calls.take()?)];
        Some(Phase { tasks, background: vec![Caller(vec![Call::Sleep(Nanos(u64::MAX))])] })
    }

    fn end_phase(&mut self, _: Nanos, _: Nanos, _: Vec<Caller>) {}
}

/// A task that verifies its reads, for a number of calls.
struct Verifier {
    calls: Vec<Call>,
    checked: Checked,
}

/// Ids of the checked reads.
#[derive(Default)]
struct Checked(Vec<u32>);

impl Content for Checked {
    fn fill(&mut self, _: u32, _: &mut [u8]) {}

    fn check(&mut self, id: u32, _: &[u8]) {
        self.0.push(id);
    }
}

impl Task for Verifier {
    fn next(&mut self, _: Nanos, returned: &Returned<'_>) -> Call {
        assert_eq!(returned.status, Ok(()));
        self.calls.pop().unwrap_or(Call::Exit)
    }

    fn content(&mut self) -> Option<&mut dyn Content> {
        Some(&mut self.checked)
    }
}

struct Verifying {
    calls: Option<Vec<Call>>,
    checked: Vec<u32>,
}

impl Program for Verifying {
    type Task = Verifier;

    fn next_phase(&mut self) -> Option<Phase<Verifier>> {
        let tasks = vec![Verifier { calls: self.calls.take()?, checked: Checked::default() }];
        Some(Phase { tasks, background: Vec::new() })
    }

    fn end_phase(&mut self, _: Nanos, _: Nanos, tasks: Vec<Verifier>) {
        self.checked = tasks.into_iter().flat_map(|task| task.checked.0).collect();
    }
}

#[test]
fn read_is_verified_whatever_call_it_ends_in() {
    let file = FileId(0);
    let read = |id| Call::Submit {
        id,
        file,
        op: DirectOp::Read,
        offset_bytes: 4096 * u64::from(id),
        len_bytes: 4096,
        more: false,
    };
    let reap = Call::Reap { at_least: 2, at_most: u32::MAX };
    let write = Call::Write { file, offset_bytes: 0, len_bytes: 4096 };
    for between in [
        Call::Fsync(file),
        write,
        Call::Read { file, offset_bytes: 0, len_bytes: 4096 },
        Call::Layout { file, len_bytes: 4096 },
        Call::ReapBefore(Nanos(u64::MAX)),
    ] {
        let mut calls = vec![read(0), read(1), between, reap];
        calls.reverse();
        let mut program = Verifying { calls: Some(calls), checked: Vec::new() };
        memory("none").run(&[1 << 20], &mut program).unwrap();
        program.checked.sort_unstable();
        assert_eq!(program.checked, [0, 1], "{between:?}");
    }
}

#[test]
fn call_behind_the_end_of_its_file_fails_the_run() {
    let read = |file, offset_bytes| Call::Read { file: FileId(file), offset_bytes, len_bytes: 10 };
    let run = |calls| memory("none").run(&[4096; 2], &mut Calls { calls: Some(calls) });
    run(vec![read(0, 0), read(0, 4086), read(1, 4086)]).unwrap();
    for (call, reason) in [
        (read(0, 4087), "No space left"),
        (read(0, u64::MAX - 5), "No space left"),
        (read(2, 0), "Invalid argument"),
    ] {
        let failure = run(vec![call]).unwrap_err();
        let message = failure.to_string();
        assert!(message.contains("a call failed (Read") && message.contains(reason), "{message}");
    }
}

#[test]
fn target_that_is_too_small_says_how_much_is_needed() {
    let dir = dir_on_disk();
    let path = dir.path().join("image");
    std::fs::write(&path, [7; 8192]).unwrap();
    let file = Target { may_destroy: true, ..target(Place::Path(path), "none") };
    for target in [target(Place::Memory { len_bytes: Some(8192) }, "none"), file] {
        let failure = tiny_tiotest(&target).unwrap_err();
        assert!(matches!(failure, Error::Place { .. }), "{failure:?}");
        let message = failure.to_string();
        assert!(message.contains("8192 bytes"), "{message}");
        assert!(message.contains("need 128 KiB (131072 bytes)"), "{message}");
    }
    let failure = memory("none").run(&[u64::MAX, 1], &mut Calls { calls: None }).unwrap_err();
    assert!(failure.to_string().contains("longer than any disk"), "{failure}");
}

#[test]
fn file_with_something_in_it_is_overwritten_only_if_it_may_be() {
    let dir = dir_on_disk();
    let path = dir.path().join("image");
    let full = |path: &Path| std::fs::read(path).unwrap().iter().all(|byte| *byte == 7);
    std::fs::write(&path, vec![7; 256 << 10]).unwrap();
    let mut target = target(Place::Path(path.clone()), "none");
    let failure = tiny_tiotest(&target).unwrap_err();
    assert!(matches!(failure, Error::WouldOverwrite { .. }), "{failure:?}");
    assert!(full(&path));

    target.may_destroy = true;
    tiny_tiotest(&target).unwrap();
    assert!(!full(&path));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 256 << 10, "its length stays");
}

#[test]
fn memory_that_is_not_there_is_refused() {
    check_available(1 << 30, Some(1 << 30)).unwrap();
    check_available(u64::MAX, None).unwrap();
    let failure = check_available((1 << 30) + 1, Some(1 << 30)).unwrap_err();
    assert!(failure.to_string().contains("1 GiB are available"), "{failure}");
    assert!(available_bytes().is_none_or(|bytes| bytes > 1 << 20));
}

#[test]
fn file_that_is_made_has_no_name_while_it_is_used() {
    let dir = dir_on_disk();
    let path = dir.path().join("image");
    let opened = target(Place::Path(path.clone()), "none").open(&[1 << 20]).unwrap();
    assert!(!path.exists(), "Ctrl-C would leave it behind");
    assert_eq!(opened.files.regions.len(), 1);
}

#[test]
fn empty_file_is_empty_again_afterwards() {
    let dir = dir_on_disk();
    let path = dir.path().join("image");
    std::fs::write(&path, []).unwrap();
    tiny_tiotest(&target(Place::Path(path.clone()), "deadline")).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    let failure = tiny_tiotest(&target(Place::Path(dir.path().into()), "none")).unwrap_err();
    assert!(failure.to_string().contains("neither a file nor a block device"), "{failure}");
}
