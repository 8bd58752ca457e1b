//! A driver over a real file with direct I/O, with and without an elevator.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::crypt::pipeline::{PRESETS, find};
use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec};
use blockyard_engine::pages::ALLOCATORS;

mod batches;
mod suspend;

use super::*;
use crate::cpus;
use crate::file::{Access, DeviceFile};
use crate::pages::BounceChoice;
use crate::volume::{PipelineChoice, Scheduling, Volume, VolumeOptions};

const PAGES: u32 = 64;

/// A folder beside the test binary, because `/tmp` may be in memory.
fn dir_on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

fn volume(dir: &Path, elevator: ElevatorSpec) -> Arc<Volume> {
    let path = dir.join(elevator.elevator.name);
    let scheduling = Scheduling { elevator: Some(elevator), ..Scheduling::default() };
    let options = VolumeOptions {
        worker_threads: Some(0),
        direct: true,
        scheduling,
        ..VolumeOptions::default()
    };
    encrypted(&path, &options)
}

/// An encrypted volume of 1 MiB on a file; creates the file if it is missing.
fn encrypted(path: &Path, options: &VolumeOptions) -> Arc<Volume> {
    let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
    file.set_len(1 << 20).unwrap();
    let params = CryptParams {
        sector_size_bytes: 4096,
        ..CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()))
    };
    let file = DeviceFile::open(path, Access::ReadWrite, options.direct).unwrap();
    Arc::new(Volume::from_crypt(file, &params, options).unwrap())
}

fn driver(volume: &Arc<Volume>) -> (Driver, Arc<Region>) {
    driver_with(volume, 64)
}

fn driver_with(volume: &Arc<Volume>, slots: usize) -> (Driver, Arc<Region>) {
    let region = Arc::new(Region::new(PAGES as usize * 4096).unwrap());
    let world = vec![Arc::clone(&region)];
    let driver = Driver::new(&volume.parts, slots, world, Priority::default(), Instant::now());
    (driver.unwrap(), region)
}

fn bio(op: Op, page: u32) -> Bio {
    let slot = BufRef::FIRST_WORLD_SLOT;
    let buf = BufRef { slot, offset_bytes: page * 4096, len_bytes: 4096 };
    Bio::new(op, Sector(u64::from(page) * 8), Sector(8), buf, u64::from(page))
}

fn finish(driver: &mut Driver) {
    finish_some(driver, PAGES as usize);
}

fn finish_some(driver: &mut Driver, count: usize) {
    let mut done = Vec::new();
    while done.len() < count {
        driver.wait();
        driver.take_done(&mut done);
    }
    // A worker that passed its operation on to a disk may report after the disk's completion.
    while !driver.is_idle() {
        driver.sleep();
    }
    assert!(done.iter().all(|done| done.status == BlkStatus::Ok));
}

fn fill(region: &Region, first: u8) {
    for page in 0..PAGES {
        let base = region.at(page as usize * 4096, 4096);
        // SAFETY: the page is inside of the region, and no operation uses it.
        unsafe { base.write_bytes(first.wrapping_add(page as u8), 4096) };
    }
}

fn page(region: &Region, page: u32) -> &[u8] {
    let base = region.at(page as usize * 4096, 4096);
    // SAFETY: the page is inside of the region, and no operation uses it.
    unsafe { std::slice::from_raw_parts(base, 4096) }
}

#[test]
fn driver_that_goes_away_waits_for_what_the_device_has() {
    let dir = dir_on_disk();
    for elevator in ELEVATORS {
        let volume = volume(dir.path(), ElevatorSpec::of(elevator));
        let (mut writer, region) = driver(&volume);
        fill(&region, 1);
        (0..PAGES).for_each(|page| writer.submit(bio(Op::Write, page)));
        finish(&mut writer);
        for _ in 0..20 {
            let (mut dying, region) = driver(&volume);
            fill(&region, 1);
            (0..PAGES / 2).for_each(|page| dying.submit(bio(Op::Write, page)));
            (PAGES / 2..PAGES).for_each(|page| dying.submit(bio(Op::Read, page)));
            dying.unplug();
            drop(dying);
            drop(region);
            // The device must not write into the freed memory, which a new region may reuse.
            let after = Region::new(PAGES as usize * 4096).unwrap();
            assert!((0..PAGES).all(|number| page(&after, number) == [0; 4096]));
        }
        fill(&region, 0);
        (0..PAGES).for_each(|page| writer.submit(bio(Op::Read, page)));
        finish(&mut writer);
        for number in 0..PAGES {
            let expected = [1 + number as u8; 4096];
            assert!(page(&region, number) == expected, "{}: page {number}", elevator.name);
        }
    }
}

#[test]
fn waiting_for_one_bio_ends_while_others_lie_finished() {
    let dir = dir_on_disk();
    for elevator in ELEVATORS {
        let volume = volume(dir.path(), ElevatorSpec::of(elevator));
        let (mut driver, region) = driver(&volume);
        fill(&region, 1);
        (1..PAGES).for_each(|page| driver.submit(bio(Op::Write, page)));
        driver.wait();
        assert!(driver.has_done());
        assert_eq!(driver.submit_and_wait(bio(Op::Write, 0)), BlkStatus::Ok);
        finish_some(&mut driver, PAGES as usize - 1);
    }
}

#[test]
fn sequential_writes_without_an_elevator_are_merged_in_the_connections_own_queue() {
    let dir = dir_on_disk();
    let volume = volume(dir.path(), ElevatorSpec::parse("none").unwrap());
    let (mut driver, region) = driver(&volume);
    fill(&region, 1);
    (0..PAGES).for_each(|page| driver.submit(bio(Op::Write, page)));
    finish(&mut driver);
    let counters = driver.executor.counters(0).expect("a queue of its own");
    assert_eq!(counters.bios, u64::from(PAGES));
    assert!(counters.issued <= 4, "{counters:?}");
}

/// Every placement, submitter and order writes data that the same pipeline and the default pipeline
/// read back.
#[test]
fn every_pipeline_writes_the_same_ciphertext_on_every_kind_of_file() {
    let disk = dir_on_disk();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let elevator = |name: &str| Some(ElevatorSpec::parse(name).unwrap());
    let places = [
        (disk.path().join("cached"), false, None),
        (disk.path().join("direct"), true, elevator("none")),
        (disk.path().join("shared"), true, elevator("cfq")),
        (memory.path().join("memory"), false, None),
    ];
    let usual = memory.path().join("usual");
    for (path, direct, elevator) in places {
        for preset in PRESETS {
            let scheduling = Scheduling { elevator: elevator.clone(), ..Scheduling::default() };
            let options = VolumeOptions {
                direct,
                scheduling,
                pipeline: PipelineChoice::Fixed(preset.pipeline),
                worker_threads: Some(2),
                ..VolumeOptions::default()
            };
            let volume = encrypted(&path, &options);
            let (mut driver, region) = driver(&volume);
            fill(&region, preset.name.len() as u8);
            // Backwards, so that sorting has work; more writes than bounce slots.
            (0..PAGES).rev().for_each(|page| driver.submit(bio(Op::Write, page)));
            finish(&mut driver);
            let flush = Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 1);
            assert_eq!(driver.submit_and_wait(flush), BlkStatus::Ok);
            fill(&region, 0);
            (0..PAGES).for_each(|page| driver.submit(bio(Op::Read, page)));
            finish(&mut driver);
            let what = format!("{} {}", preset.name, path.display());
            for number in 0..PAGES {
                let expected = [(preset.name.len() + number as usize) as u8; 4096];
                assert!(page(&region, number) == expected, "{what}: page {number}");
            }
            drop((driver, volume));
            std::fs::copy(&path, &usual).unwrap();
            let volume = encrypted(&usual, &VolumeOptions::default());
            let (mut driver, region) = self::driver(&volume);
            driver.submit(bio(Op::Read, 3));
            finish_some(&mut driver, 1);
            assert!(page(&region, 3) == [(preset.name.len() + 3) as u8; 4096], "{what}");
        }
    }
}

/// A write split into slots goes to a worker, to the writing thread and to the file as one; awaited
/// or not, longer than all slots, with and without workers.
#[test]
fn default_pipeline_writes_long_requests_as_it_reads_them() {
    let disk = dir_on_disk();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let places = [
        (disk.path().join("cached"), false),
        (disk.path().join("direct"), true),
        (memory.path().join("memory"), false),
    ];
    for (path, direct) in places {
        for (threads, slots, awaited) in
            [(0, 64, false), (2, 64, false), (2, 64, true), (2, 2, false)]
        {
            let options =
                VolumeOptions { direct, worker_threads: Some(threads), ..VolumeOptions::default() };
            let volume = encrypted(&path, &options);
            let (mut driver, region) = driver_with(&volume, slots);
            fill(&region, 1 + threads as u8);
            let len = Sector(u64::from(PAGES) * 8);
            let buf = BufRef { len_bytes: PAGES * 4096, ..bio(Op::Write, 0).buf };
            let long = |op| Bio { len, buf, ..bio(op, 0) };
            for op in [Op::Write, Op::Read] {
                if awaited {
                    assert_eq!(driver.submit_and_wait(long(op)), BlkStatus::Ok);
                } else {
                    driver.submit(long(op));
                    finish_some(&mut driver, 1);
                }
                if op == Op::Write {
                    fill(&region, 0);
                }
            }
            let what = format!("{threads} {slots} {awaited} {}", path.display());
            for number in 0..PAGES {
                let expected = [1 + threads as u8 + number as u8; 4096];
                assert!(page(&region, number) == expected, "{what}: page {number}");
            }
            let decisions = driver.shard.decisions();
            if !direct {
                assert_eq!(decisions.sorted.parts, 0, "{what}: a copy moves no head");
            }
            if !awaited {
                let expected = threads > 0 && cpus::allowed().len() > 1;
                assert_eq!(decisions.fanned_out.parts > 0, expected, "{what}: {decisions:?}");
            }
        }
    }
}

/// The last user of a volume may be dropped while a worker still passes its write on.
#[test]
fn driver_that_goes_away_waits_for_what_workers_have() {
    let dir = dir_on_disk();
    for (name, preset) in [("none", "E"), ("deadline", "E"), ("deadline", "A"), ("cfq", "G")] {
        for _ in 0..20 {
            let elevator = Some(ElevatorSpec::parse(name).unwrap());
            let scheduling = Scheduling { elevator, ..Scheduling::default() };
            let pipeline = PipelineChoice::Fixed(find(preset).unwrap().pipeline);
            let options =
                VolumeOptions { direct: true, scheduling, pipeline, ..VolumeOptions::default() };
            let volume = encrypted(&dir.path().join("image"), &options);
            let (mut dying, region) = driver(&volume);
            fill(&region, 1);
            (0..PAGES).for_each(|page| dying.submit(bio(Op::Write, page)));
            drop(volume);
            drop(dying);
        }
    }
}

/// Writes of one page to fourteen, more than the reserve has. Other clients that hold pages end, so
/// without a share of the budget the client lives from its reserve.
#[test]
fn every_allocator_writes_the_same_ciphertext_by_every_pipeline_on_every_kind_of_file() {
    let disk = dir_on_disk();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let elevator = |name: &str| Some(ElevatorSpec::parse(name).unwrap());
    let places = [
        (disk.path().join("cached"), false, None),
        (disk.path().join("direct"), true, elevator("none")),
        (disk.path().join("shared"), true, elevator("cfq")),
        (memory.path().join("memory"), false, None),
    ];
    let usual = memory.path().join("usual");
    let names = ALLOCATORS.iter().map(|allocator| allocator.name).chain(["slots"]);
    for (number, name) in names.enumerate() {
        for (path, direct, elevator) in places.clone() {
            for preset in ["A", "E", "F", "G", "inline"] {
                let options = VolumeOptions {
                    direct,
                    scheduling: Scheduling { elevator: elevator.clone(), ..Scheduling::default() },
                    pipeline: PipelineChoice::Fixed(find(preset).unwrap().pipeline),
                    worker_threads: Some(2),
                    bounce: BounceChoice::parse(name).unwrap(),
                    ..VolumeOptions::default()
                };
                let what = format!("{name} {preset} {}", path.display());
                let volume = encrypted(&path, &options);
                let (mut writer, region) = driver_with(&volume, 1);
                fill(&region, number as u8);
                volume.parts.bounce.clients.store(1 << 20, Ordering::Relaxed);
                let writes = write_all_pages(&mut writer);
                let parked = writer.shard.parked();
                assert!(parked > 0 || preset == "inline", "{what}: the reserve is small");
                finish_some(&mut writer, writes);
                assert!(writer.shard.is_idle(), "{what}");
                volume.parts.bounce.clients.store(1, Ordering::Relaxed);
                drop((writer, volume));
                std::fs::copy(&path, &usual).unwrap();
                let volume = encrypted(&usual, &VolumeOptions::default());
                let (mut reader, region) = driver(&volume);
                (0..PAGES).for_each(|page| reader.submit(bio(Op::Read, page)));
                finish(&mut reader);
                for page in 0..PAGES {
                    let expected = [(number as u32 + page) as u8; 4096];
                    assert!(self::page(&region, page) == expected, "{what}: page {page}");
                }
            }
        }
    }
}

/// Writes all pages, with growing length; returns the number of writes.
fn write_all_pages(driver: &mut Driver) -> usize {
    let mut first = 0;
    let mut count = 0;
    while first < PAGES {
        let pages = (1 + count).min(PAGES - first);
        let buf = BufRef { len_bytes: pages * 4096, ..bio(Op::Write, first).buf };
        driver.submit(Bio { len: Sector(u64::from(pages) * 8), buf, ..bio(Op::Write, first) });
        first += pages;
        count += 1;
    }
    count as usize
}

#[test]
fn clients_of_a_volume_share_its_pages_and_get_more_when_others_go() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options =
        VolumeOptions { bounce: BounceChoice::parse("single").unwrap(), ..Default::default() };
    let volume = encrypted(&memory.path().join("image"), &options);
    let limit = |driver: &mut Driver| {
        assert_eq!(driver.submit_and_wait(bio(Op::Write, 0)), BlkStatus::Ok);
        driver.shard.page_allocators().next().unwrap().limit_pages()
    };
    let (mut first, _region) = driver(&volume);
    assert_eq!(limit(&mut first), 8192);
    let (mut second, _other) = driver(&volume);
    assert_eq!((limit(&mut first), limit(&mut second)), (4096, 4096));
    drop(second);
    assert_eq!(limit(&mut first), 8192);
}
