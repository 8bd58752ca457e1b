//! Stages on real volumes: they add up to the client's times, and each path to the disk shows its
//! time in the right stage.

use std::sync::Arc;
use std::time::Instant;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::Op;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::Stage::{Cipher, CipherWait, Device, Queue};
use super::{KindTimes, RequestKind, Span, Stage, StageTimes, Threads, Work, attribute};
use crate::file::{Access, DeviceFile};
use crate::local::{Client, Request};
use crate::volume::{PipelineChoice, Scheduling, Volume, VolumeOptions};

fn every() -> VolumeOptions {
    VolumeOptions { sample_every: Some(1), ..VolumeOptions::default() }
}

/// Runs `count` requests one at a time; returns the client's time and the sum of stages of each.
fn run(volume: &Arc<Volume>, op: Op, count: u64, len_bytes: u64) -> Vec<(f64, f64)> {
    let mut client = Client::new(volume, Priority::default()).unwrap();
    let mut done = Vec::new();
    let one = |user| {
        let request = Request { user, op, offset_bytes: user * len_bytes, len_bytes, sync: false };
        let before = sum_ns(volume);
        let begun = Instant::now();
        client.submit(request);
        client.wait(1, &mut done);
        let took = begun.elapsed().as_nanos() as f64;
        (took, (sum_ns(volume) - before) as f64)
    };
    (0..count).map(one).collect()
}

fn sum_ns(volume: &Volume) -> u128 {
    let of_kind = |kind: &KindTimes| kind.stages.iter().map(|stage| stage.sum_ns()).sum::<u128>();
    volume.stage_times().kinds.iter().map(of_kind).sum()
}

/// Asserts that the stages of most requests add up to the client's time. Some may not: the test may
/// lose its CPU outside a request, and the first request allocates its buffer.
fn assert_adds_up(times: &StageTimes, kind: RequestKind, requests: &[(f64, f64)]) {
    let of_kind = &times.kinds[kind as usize];
    assert_eq!(of_kind.total.count(), requests.len() as u64);
    let sum: u128 = of_kind.stages.iter().map(|stage| stage.sum_ns()).sum();
    assert_eq!(sum, of_kind.total.sum_ns(), "{kind:?}");
    let mut shares: Vec<f64> = requests.iter().map(|(took, stages)| stages / took).collect();
    shares.sort_unstable_by(f64::total_cmp);
    let median = shares[shares.len() / 2];
    assert!((0.98..=1.0).contains(&median), "{kind:?}: {requests:?}");
}

fn mean_us(times: &StageTimes, kind: RequestKind, stage: Stage) -> f64 {
    times.kinds[kind as usize].stages[stage as usize].mean_ns() / 1e3
}

fn table(text: &str, options: &VolumeOptions) -> Arc<Volume> {
    let text = SecretBytes::copy_of(text.as_bytes());
    Arc::new(Volume::from_table(&text, options).unwrap())
}

fn crypt(path: &std::path::Path, direct: bool, options: &VolumeOptions) -> Arc<Volume> {
    let params =
        CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()));
    let file = DeviceFile::open(path, Access::ReadWrite, direct).unwrap();
    Arc::new(Volume::from_crypt(file, &params, options).unwrap())
}

fn image(dir: &std::path::Path, len_bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(dir).unwrap();
    file.as_file().set_len(len_bytes).unwrap();
    file
}

#[test]
fn slow_device_has_the_time_and_all_stages_are_the_whole() {
    let file = image(std::path::Path::new("/dev/shm"), 1 << 20);
    let path = file.path().display();
    let volume = table(&format!("0 2048 delay {path} 0 10"), &every());
    let requests = run(&volume, Op::Read, 5, 4096);
    let times = volume.stage_times();
    assert_adds_up(&times, RequestKind::Read, &requests);
    assert!(mean_us(&times, RequestKind::Read, Device) > 10_000.0);
}

#[test]
fn worker_has_the_cipher_and_what_waits_for_it_is_in_front() {
    let file = image(std::path::Path::new("/dev/shm"), 32 << 20);
    for pipeline in ["E", "G"] {
        let pipeline = PipelineChoice::parse(pipeline).unwrap();
        let options = VolumeOptions { worker_threads: Some(1), pipeline, ..every() };
        let volume = crypt(file.path(), false, &options);
        let requests = run(&volume, Op::Write, 15, 1 << 20);
        let times = volume.stage_times();
        assert_adds_up(&times, RequestKind::Write, &requests);
        assert!(mean_us(&times, RequestKind::Write, Cipher) > 20.0);
        assert!(mean_us(&times, RequestKind::Write, CipherWait) > 0.0);
    }
}

/// The pieces of a request are copied into the page cache in one go, and count as the device
/// meanwhile.
#[test]
fn copy_of_a_long_write_is_the_device() {
    let here = std::env::current_exe().unwrap();
    let file = image(here.parent().unwrap(), 16 << 20);
    let volume = crypt(file.path(), false, &VolumeOptions { worker_threads: Some(0), ..every() });
    let requests = run(&volume, Op::Write, 15, 1 << 20);
    let times = volume.stage_times();
    assert_adds_up(&times, RequestKind::Write, &requests);
    for stage in [Cipher, Device] {
        assert!(mean_us(&times, RequestKind::Write, stage) > 0.0, "{stage:?}");
    }
}

/// Beside the test binary, which is rarely in memory.
#[test]
fn elevator_and_its_thread_are_the_queue_and_the_disk_behind_them_the_device() {
    let here = std::env::current_exe().unwrap();
    let file = image(here.parent().unwrap(), 8 << 20);
    let elevator = Some(ElevatorSpec::parse("mq-deadline").unwrap());
    let scheduling = Scheduling { elevator, ..Scheduling::default() };
    for (pipeline, worker_threads) in [("inline", 0), ("E", 1), ("G", 1)] {
        let pipeline = PipelineChoice::parse(pipeline).unwrap();
        let worker_threads = Some(worker_threads);
        let scheduling = scheduling.clone();
        let options = VolumeOptions { worker_threads, pipeline, scheduling, ..every() };
        let volume = crypt(file.path(), true, &options);
        let requests = run(&volume, Op::Write, 15, 64 << 10);
        let times = volume.stage_times();
        assert_adds_up(&times, RequestKind::Write, &requests);
        for stage in [Queue, Cipher, Device, Stage::Completion] {
            assert!(mean_us(&times, RequestKind::Write, stage) > 0.0, "{stage:?}");
        }
        let threads = volume.threads();
        let works: Vec<Work> = threads.iter().map(|of| of.work).collect();
        let workers = works_of(worker_threads);
        assert_eq!(works, [&[Work::Connections][..], workers, &[Work::Disks]].concat());
        // A waiting thread helps, so the worker may not have started at the end.
        let begun = |of: &&Threads| of.work != Work::Workers || of.threads > 0;
        assert!(
            threads.iter().filter(begun).all(|of| of.usage.cpu.0 > 0 && of.usage.voluntary > 0),
            "{threads:?}"
        );
    }
}

fn works_of(worker_threads: Option<usize>) -> &'static [Work] {
    if worker_threads == Some(0) { &[] } else { &[Work::Workers] }
}

#[test]
fn one_of_so_many_is_sampled_and_every_kind_has_its_own() {
    let options = VolumeOptions { sample_every: Some(8), ..VolumeOptions::default() };
    let volume = table("0 2048 zero", &options);
    run(&volume, Op::Read, 400, 512);
    run(&volume, Op::Flush, 400, 0);
    let times = volume.stage_times();
    let counts = times.kinds.each_ref().map(|kind| kind.total.count());
    assert!(
        counts[..3].iter().zip([40..60, 0..1, 40..60]).all(|(n, of)| of.contains(n)),
        "{counts:?}"
    );
    assert_eq!((times.every, counts[3]), (8, 0));
    let none = table("0 2048 zero", &VolumeOptions { sample_every: Some(0), ..options });
    run(&none, Op::Read, 10, 512);
    assert_eq!(none.stage_times().kinds[0].total.count(), 0);
}

/// A failed request has no meaningful time.
#[test]
fn failed_request_is_not_in_the_table_and_its_place_is_free_again() {
    let volume = table("0 2048 error", &every());
    run(&volume, Op::Write, 200, 512);
    assert_eq!(volume.stage_times().kinds[RequestKind::Write as usize].total.count(), 0);
}

fn stages(from: u64, to: u64, spans: &[(Stage, u64, u64)]) -> [u64; 6] {
    let span = |&(stage, from, to): &_| Span { stage, from: Nanos(from), to: Nanos(to) };
    let mut spans: Vec<Span> = spans.iter().map(span).collect();
    let [throttle, stages @ ..] = attribute(Nanos(from), Nanos(to), &mut spans);
    assert_eq!(throttle, 0);
    stages
}

#[test]
fn write_through_a_worker_and_an_elevator_is_cut_without_a_gap() {
    let spans = [(CipherWait, 110, 150), (Cipher, 150, 200), (Queue, 230, 300), (Device, 300, 700)];
    let backwards: Vec<_> = spans.iter().rev().copied().collect();
    for spans in [&spans[..], &backwards[..]] {
        assert_eq!(stages(100, 720, spans), [10 + 70, 40, 50, 30, 400, 20]);
    }
}

#[test]
fn read_waits_for_its_cipher_behind_the_device() {
    let spans = [(Device, 0, 100), (Cipher, 130, 180)];
    assert_eq!(stages(0, 190, &spans), [0, 30, 50, 0, 100, 10]);
}

#[test]
fn parts_at_the_same_time_share_it() {
    // One part is at the device; the other first waits for a worker, then is in the cipher.
    let spans = [(Device, 0, 100), (CipherWait, 0, 40), (Cipher, 40, 100)];
    assert_eq!(stages(0, 100, &spans), [0, 20, 30, 0, 50, 0]);
}

#[test]
fn one_span_and_none_follow_the_same_rules() {
    assert_eq!(stages(5, 50, &[(Cipher, 10, 40)]), [5, 0, 30, 0, 0, 10]);
    assert_eq!(stages(5, 50, &[(Device, 0, 60)]), [0, 0, 0, 0, 45, 0]);
    assert_eq!(stages(5, 50, &[]), [0, 0, 0, 0, 0, 45]);
}

#[test]
fn clocks_of_threads_that_disagree_lose_nothing() {
    let spans = [(Device, 0, 30), (Cipher, 25, 90), (Device, 200, 300)];
    assert_eq!(stages(10, 60, &spans).iter().sum::<u64>(), 50);
    assert_eq!(stages(10, 250, &spans).iter().sum::<u64>(), 240);
}
