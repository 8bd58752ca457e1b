//! A driver over a real file with direct I/O, scheduled and not.

use std::fs::File;
use std::path::Path;

use blockyard_crypt::params::{CryptFlags, CryptParams};
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec};

use super::*;
use crate::file::{Access, DeviceFile};
use crate::volume::{Scheduling, VolumeOptions};

const PAGES: u32 = 64;

/// Beside the test itself: what is built is rarely kept in memory, as `/tmp` may be.
fn dir_on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

fn volume(dir: &Path, elevator: ElevatorSpec) -> Arc<Volume> {
    let path = dir.join(elevator.elevator.name);
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
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
    let scheduling = Scheduling { elevator: Some(elevator), ..Scheduling::default() };
    let options = VolumeOptions { worker_threads: Some(0), scheduling, ..VolumeOptions::default() };
    let file = DeviceFile::open(&path, Access::ReadWrite, true).unwrap();
    Arc::new(Volume::from_crypt(file, &params, &options).unwrap())
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
