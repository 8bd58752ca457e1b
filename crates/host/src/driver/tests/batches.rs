//! Short requests of a steady load, which go to workers in batches.

use blockyard_engine::dm::crypt::hand_over::WakeUp;

use super::*;
use crate::completions::CompletionQueue;
use crate::workers::{Busy, Job, Task};

/// A volume in memory, or cached on disk, with workers.
fn volume(path: &Path) -> Arc<Volume> {
    encrypted(path, &VolumeOptions { worker_threads: Some(2), ..VolumeOptions::default() })
}

fn in_memory() -> (tempfile::TempDir, Arc<Volume>) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let volume = volume(&dir.path().join("image"));
    (dir, volume)
}

/// Submits a request for each page together.
fn turn(driver: &mut Driver, op: Op) {
    (0..PAGES).for_each(|page| driver.submit(bio(op, page)));
}

fn batched_parts(driver: &Driver) -> u64 {
    driver.shard.decisions().fanned_out.parts
}

/// A driver whose next requests go to workers, on a machine with an idle CPU.
fn steady(volume: &Arc<Volume>) -> (Driver, Arc<Region>) {
    let (mut driver, region) = driver(volume);
    for _ in 0..2 {
        turn(&mut driver, Op::Read);
        finish(&mut driver);
    }
    assert_eq!(batched_parts(&driver), 0, "the load is not steady yet");
    volume.parts.workers.as_ref().unwrap().fall_asleep();
    (driver, region)
}

fn has_idle_cpu() -> bool {
    cpus::parallelism() > 1
}

#[test]
fn cpus_are_counted_before_a_sleep_and_by_a_submitter_that_looks_often() {
    let (_dir, volume) = in_memory();
    let (mut driver, _region) = driver(&volume);
    let workers = volume.parts.workers.as_ref().unwrap();
    let idle_cpus = || workers.load_now().idle_cpus;
    let expected = idle_cpus();
    workers.miscount_cpus();
    assert_eq!(idle_cpus(), 0);
    driver.on_sleep();
    assert_eq!(idle_cpus(), expected);
    workers.miscount_cpus();
    (0..255).for_each(|_| driver.look_at_turn());
    assert_eq!(idle_cpus(), 0);
    driver.look_at_turn();
    assert_eq!(idle_cpus(), expected);
}

#[test]
fn steady_load_is_read_and_written_by_workers() {
    let disk = dir_on_disk();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    for path in [disk.path().join("cached"), memory.path().join("memory")] {
        let volume = volume(&path);
        let (mut driver, region) = driver(&volume);
        for round in 0..40 {
            fill(&region, round);
            turn(&mut driver, Op::Write);
            finish(&mut driver);
            fill(&region, 0);
            turn(&mut driver, Op::Read);
            finish(&mut driver);
            for number in 0..PAGES {
                let expected = [round.wrapping_add(number as u8); 4096];
                assert!(page(&region, number) == expected, "{round}, page {number}");
            }
        }
        assert_eq!(batched_parts(&driver) > 0, has_idle_cpu(), "{}", path.display());
        drop((driver, volume));
        let alone = VolumeOptions { worker_threads: Some(0), ..VolumeOptions::default() };
        let (mut driver, region) = self::driver(&encrypted(&path, &alone));
        turn(&mut driver, Op::Read);
        finish(&mut driver);
        assert!(page(&region, 3) == [39 + 3; 4096], "{}", path.display());
    }
}

#[test]
fn submitter_that_sleeps_between_its_requests_wakes_no_worker() {
    let (_dir, volume) = in_memory();
    let (mut driver, _region) = steady(&volume);
    driver.on_sleep();
    turn(&mut driver, Op::Read);
    finish(&mut driver);
    assert_eq!(batched_parts(&driver), 0);
}

#[test]
fn submitter_keeps_its_requests_while_others_use_the_cpus_of_the_workers() {
    let (_dir, volume) = in_memory();
    let (mut driver, _region) = driver(&volume);
    volume.parts.workers.as_ref().unwrap().crowd();
    for _ in 0..3 {
        turn(&mut driver, Op::Read);
        finish(&mut driver);
    }
    assert_eq!(batched_parts(&driver), 0);
}

#[test]
fn submitters_that_keep_all_cpus_busy_encrypt_their_own_requests() {
    let (_dir, volume) = in_memory();
    let (mut driver, _region) = driver(&volume);
    let workers = volume.parts.workers.as_ref().unwrap();
    let others: Vec<Busy> = cpus::allowed().iter().map(|_| workers.busy()).collect();
    for _ in 0..3 {
        turn(&mut driver, Op::Write);
        finish(&mut driver);
    }
    assert_eq!(batched_parts(&driver), 0);
    drop(others);
    for _ in 0..3 {
        turn(&mut driver, Op::Write);
        finish(&mut driver);
    }
    assert_eq!(batched_parts(&driver) > 0, has_idle_cpu());
}

/// Requests that wait for the rest of their batch are in flight like others.
#[test]
fn batch_that_is_not_full_is_in_flight_and_ends_without_further_requests() {
    let (_dir, volume) = in_memory();
    let (mut driver, region) = steady(&volume);
    fill(&region, 9);
    driver.submit(bio(Op::Write, 5));
    assert!(!has_idle_cpu() || !driver.has_done() && driver.reads_client_buffer());
    assert!(!has_idle_cpu() || !driver.is_idle());
    finish_some(&mut driver, 1);
    assert!(driver.is_idle() && !driver.reads_client_buffer());
    // A driver may go away with one, too.
    driver.submit(bio(Op::Write, 6));
    drop(driver);
    let (mut driver, region) = self::driver(&volume);
    driver.submit(bio(Op::Read, 5));
    finish_some(&mut driver, 1);
    assert!(page(&region, 5) == [9 + 5; 4096]);
}

/// No worker is awake, and the batch is too small to wake one up.
#[test]
fn driver_that_goes_away_does_not_wait_for_workers_that_sleep() {
    let (_dir, volume) = in_memory();
    let (mut driver, region) = steady(&volume);
    fill(&region, 9);
    driver.submit(bio(Op::Write, 5));
    driver.unplug();
    drop(driver);
    let (mut driver, region) = self::driver(&volume);
    driver.submit(bio(Op::Read, 5));
    finish_some(&mut driver, 1);
    assert!(page(&region, 5) == [9 + 5; 4096]);
}

/// Two CPUs: the submitter's, and an idle one.
#[test]
fn long_request_of_a_steady_submitter_goes_to_the_idle_cpu() {
    let (_dir, volume) = in_memory();
    let (mut driver, _region) = steady(&volume);
    let workers = volume.parts.workers.as_ref().unwrap();
    let _others: Vec<Busy> = cpus::allowed().iter().skip(2).map(|_| workers.busy()).collect();
    let short = bio(Op::Write, 0);
    let buf = BufRef { len_bytes: PAGES * 4096, ..short.buf };
    driver.submit(Bio { len: Sector(u64::from(PAGES) * 8), buf, ..short });
    finish_some(&mut driver, 1);
    assert_eq!(batched_parts(&driver) > 0, has_idle_cpu());
}

/// A job of the volume that looks at the load, while a submitter runs it.
#[test]
fn steady_submitter_that_runs_a_job_of_its_workers_is_one_submitter() {
    let (_dir, volume) = in_memory();
    let (mut driver, _region) = steady(&volume);
    if !has_idle_cpu() {
        return;
    }
    let workers = Arc::clone(volume.parts.workers.as_ref().unwrap());
    let expected = workers.load_now().idle_cpus;
    let (saw, seen) = std::sync::mpsc::channel();
    let looks = Arc::clone(&workers);
    let run = Box::new(move |_: &mut Task| saw.send(looks.load_now().idle_cpus).unwrap());
    let job = Job::one(run, &CompletionQueue::new().unwrap(), 0);
    let job = Job { wake: WakeUp::ForMany, ..job };
    driver.executor.hand_over_of_workers().submit(job, &mut Task::new());
    driver.submit(bio(Op::Read, 5));
    driver.executor.unplug(&mut Vec::new());
    assert!(driver.help());
    assert_eq!(seen.try_recv(), Ok(expected));
    finish_some(&mut driver, 1);
}
