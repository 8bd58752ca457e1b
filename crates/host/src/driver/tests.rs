//! A driver over a real file with direct I/O, scheduled and not.

use std::fs::File;
use std::path::Path;

use blockyard_crypt::params::{CryptFlags, CryptParams};
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::crypt::pipeline::{PRESETS, find};
use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec};

use super::*;
use crate::file::{Access, DeviceFile};
use crate::volume::{PipelineChoice, Scheduling, VolumeOptions};

const PAGES: u32 = 64;

/// Beside the test itself: what is built is rarely kept in memory, as `/tmp` may be.
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

/// An encrypted volume of 1 MiB on a file, which is made if it is not there.
fn encrypted(path: &Path, options: &VolumeOptions) -> Arc<Volume> {
    let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
    file.set_len(1 << 20).unwrap();
    let params = CryptParams {
        cipher: "aes-xts-plain64".into(),
        key: SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()),
        iv_offset_sectors: 0,
        data_offset_sectors: 0,
        len_sectors: None,
        sector_size_bytes: 4096,
        iv_large_sectors: false,
        flags: CryptFlags::default(),
    };
    let file = DeviceFile::open(path, Access::ReadWrite, options.direct).unwrap();
    Arc::new(Volume::from_crypt(file, &params, options).unwrap())
}

fn driver(volume: &Arc<Volume>) -> (Driver, Arc<Region>) {
    let region = Arc::new(Region::new(PAGES as usize * 4096).unwrap());
    let driver = Driver::new(volume, 64, vec![Arc::clone(&region)], Priority::default());
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
    assert!(driver.is_idle());
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
            // Whoever gets the freed memory now must not find the device writing into it.
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

/// Wherever the cipher runs and whoever submits, in whichever order: what was written is what is
/// read, by the same pipeline and by the default.
#[test]
fn every_pipeline_writes_the_same_ciphertext_on_every_kind_of_file() {
    let (disk, memory) = (dir_on_disk(), tempfile::tempdir_in("/dev/shm").unwrap());
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
            // Backwards, so that sorting has something to do; more than there are bounce slots.
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

/// The last user of a volume may be gone while a worker still passes its write on.
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
