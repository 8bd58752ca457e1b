//! Guarantees of both file systems.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_workload::random::Random;

use super::ext3::{DataMode, JournalPlace};
use super::*;

const MIB_SECTORS: u64 = 2048;

fn ext3() -> FsConfig {
    FsConfig::Ext3(Ext3Config {
        group_blocks: 2048,
        group_inodes: 128,
        journal_blocks: 1024,
        window_blocks_max: 100,
        ..Ext3Config::of_2009()
    })
}

fn log() -> FsConfig {
    FsConfig::Log(LogConfig { segment_blocks: 64, ..LogConfig::of_2009() })
}

/// Blocks of all pages of a file.
fn pages(fs: &dyn FileSystem, file: FileId) -> BTreeMap<u64, u64> {
    let mut out = Vec::new();
    fs.map(file, 0..fs.file_pages(file), &mut out);
    let each = |extent: Extent| {
        (0..extent.pages).map(move |n| (extent.page + n, extent.sector / BLOCK_SECTORS + n))
    };
    out.into_iter().flat_map(each).collect()
}

/// Asserts that no block belongs to two pages or is outside the device.
fn assert_no_block_twice(fs: &dyn FileSystem, files: u32, device_sectors: u64) -> BTreeSet<u64> {
    let mut owned = BTreeSet::new();
    for file in (0..files).map(FileId) {
        for (page, block) in pages(fs, file) {
            assert!(owned.insert(block), "block {block}: page {page} of {file:?} is not alone");
            assert!((block + 1) * BLOCK_SECTORS <= device_sectors);
        }
    }
    owned
}

fn blocks_of(step: &CommitStep) -> impl Iterator<Item = u64> {
    let each = |write: &(u64, u32)| {
        write.0 / BLOCK_SECTORS..(write.0 + u64::from(write.1)) / BLOCK_SECTORS
    };
    step.writes.iter().flat_map(each)
}

#[test]
fn no_block_is_ever_in_two_hands() {
    let device_sectors = 64 * MIB_SECTORS;
    for (config, seed) in [ext3(), log()].into_iter().flat_map(|c| (0..4).map(move |n| (c, n))) {
        let mut fs = config.build(device_sectors);
        let files = 6;
        let mut random = Random::new(seed, 0);
        // The full capacity, or a third of it.
        let share = if seed % 2 == 0 { 1 } else { 3 };
        let fits = |pages: &u64| config.check(device_sectors, pages * files * 4096).is_ok();
        let len = (1..16_384).rev().find(fits).expect("one page each fits") / share;
        for _ in 0..600 {
            let file = FileId(random.below(files) as u32);
            let start = random.below(len);
            let end = (start + 1 + random.below(200)).min(len);
            match random.below(20) {
                0 => fs.create(file),
                1 => fs.layout(file, end),
                2..4 => {
                    // Of a commit's writes, only copies of the log's cleaner contain pages.
                    let commit = fs.commit();
                    let owned = assert_no_block_twice(&*fs, files as u32, device_sectors);
                    let steps = commit.iter().flat_map(|commit| &commit.steps);
                    for block in steps.flat_map(blocks_of) {
                        let data = owned.contains(&block);
                        assert!(!data || matches!(config, FsConfig::Log(_)), "block {block}");
                    }
                }
                _ => {
                    fs.write(file, start..end);
                    let mut out = Vec::new();
                    fs.place(file, start..end, &mut out);
                    assert_eq!(out.iter().map(|extent| extent.pages).sum::<u64>(), end - start);
                }
            }
        }
        assert_no_block_twice(&*fs, files as u32, device_sectors);
    }
}

#[test]
fn accepted_file_sizes_can_be_written_and_overwritten() {
    let device_sectors = 40 * MIB_SECTORS;
    for config in [ext3(), log()] {
        let fits = |pages: &u64| config.check(device_sectors, pages * 4096).is_ok();
        let len = (1..16_384).rev().find(fits).expect("one page fits");
        assert!(len * 4096 > device_sectors * 512 / 2, "most of the device is for files: {len}");
        let mut fs = config.build(device_sectors);
        let mut random = Random::new(1, 0);
        fs.write(FileId(0), 0..len);
        fs.place(FileId(0), 0..len, &mut Vec::new());
        for _ in 0..3 * len {
            let page = random.below(len);
            fs.write(FileId(0), page..page + 1);
            fs.place(FileId(0), page..page + 1, &mut Vec::new());
            if random.below(100) == 0 {
                fs.commit();
            }
        }
        assert_eq!(pages(&*fs, FileId(0)).len() as u64, len);
    }
}

#[test]
fn with_nothing_to_do_there_is_no_commit() {
    for config in [ext3(), log()] {
        let mut fs = config.build(64 * MIB_SECTORS);
        assert_eq!(fs.commit(), None);
        fs.create(FileId(0));
        assert!(fs.commit().is_some());
        assert_eq!(fs.commit(), None);
        fs.write(FileId(0), 0..1);
        assert!(fs.commit().is_some());
        assert_eq!(fs.commit(), None);
    }
}

#[test]
fn a_file_that_was_there_has_its_length_and_leaves_nothing_dirty() {
    for config in [ext3(), log()] {
        let mut fs = config.build(64 * MIB_SECTORS);
        fs.layout(FileId(3), 500);
        fs.layout(FileId(3), 300);
        assert_eq!(fs.file_pages(FileId(3)), 300);
        assert_eq!(pages(&*fs, FileId(3)).len(), 300);
        assert_eq!(fs.commit(), None);
        // It does not hide earlier dirty metadata either.
        fs.write(FileId(4), 0..1);
        fs.layout(FileId(3), 10);
        assert!(fs.commit().is_some());
    }
}

#[test]
fn a_created_file_is_empty_and_knows_no_places() {
    for config in [ext3(), log()] {
        let mut fs = config.build(64 * MIB_SECTORS);
        fs.layout(FileId(0), 10);
        fs.create(FileId(0));
        assert_eq!((fs.file_pages(FileId(0)), pages(&*fs, FileId(0)).len()), (0, 0));
        let mut out = Vec::new();
        fs.map(FileId(9), 0..5, &mut out);
        assert_eq!(out, []);
    }
}

#[test]
#[should_panic(expected = "the device is full: file 0 needs a block of 4096 bytes")]
fn ext3_says_when_the_device_is_full() {
    let mut fs = ext3().build(40 * MIB_SECTORS);
    fs.write(FileId(0), 0..40 * 256);
}

#[test]
#[should_panic(expected = "the device is full: the log needs a block of 4096 bytes")]
fn the_log_says_when_the_device_is_full() {
    let mut fs = log().build(40 * MIB_SECTORS);
    fs.write(FileId(0), 0..39 * 256);
    fs.place(FileId(0), 0..39 * 256, &mut Vec::new());
}

#[test]
#[should_panic(expected = "pages 3..6 of file 0 are written back, but 2 of them were ever written")]
fn write_back_of_a_clean_page_panics() {
    let mut fs = ext3().build(40 * MIB_SECTORS);
    fs.write(FileId(0), 0..5);
    fs.place(FileId(0), 3..6, &mut Vec::new());
}

#[test]
fn bad_parameters_are_named_with_what_is_allowed() {
    let good = Ext3Config::of_2009();
    let device_sectors = 1024 * MIB_SECTORS;
    let with = |config| FsConfig::Ext3(config).check(device_sectors, 0).expect_err("it is bad");
    let cases = [
        (with(Ext3Config { group_blocks: 40_000, ..good }), "group_blocks is 40000: it has to be"),
        (with(Ext3Config { group_inodes: 0, ..good }), "group_inodes is 0: it has to be from 16"),
        (with(Ext3Config { group_blocks: 100, ..good }), "bitmaps and inode table have 514 blocks"),
        (
            with(Ext3Config { directory_group: 8, ..good }),
            "directory_group is 8: it has to be from 0 to 7",
        ),
        (with(Ext3Config { start_places: 0, ..good }), "start_places is 0"),
        (
            with(Ext3Config { window_blocks_min: 2000, ..good }),
            "window_blocks_min is 2000: it has to be from 1 to 1027",
        ),
        (with(Ext3Config { window_blocks_max: 0, ..good }), "window_blocks_max is 0"),
        (
            with(Ext3Config { journal_blocks: 1000, ..good }),
            "journal_blocks is 1000: it has to be from 1024",
        ),
        (
            with(Ext3Config { journal_blocks: 1 << 18, ..good }),
            "too small for ext3 with a journal of 262144 blocks",
        ),
    ];
    for (error, part) in cases {
        assert!(error.contains(part), "{error}");
    }
    let log = LogConfig::of_2009();
    let with = |config| FsConfig::Log(config).check(device_sectors, 0).expect_err("it is bad");
    let cases = [
        (with(LogConfig { segment_blocks: 2, ..log }), "segment_blocks is 2: it has to be from 16"),
        (
            with(LogConfig { metadata_blocks_per_commit: 0, ..log }),
            "metadata_blocks_per_commit is 0",
        ),
        (with(LogConfig { segment_blocks: 1 << 17, ..log }), "it needs 5 segments"),
    ];
    for (error, part) in cases {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_device_too_small_or_too_large_is_refused() {
    for config in [FsConfig::Ext3(Ext3Config::of_2009()), FsConfig::Log(LogConfig::of_2009())] {
        for (sectors, part) in [(0, "too small"), (100, "too small"), (u64::MAX, "too large")] {
            let error = config.check(sectors, 0).expect_err("it cannot be");
            assert!(error.contains(part) && error.contains(&sectors.to_string()), "{error}");
        }
        config.check(1024 * MIB_SECTORS, 512 << 20).expect("half of it fits");
        let error = config.check(1024 * MIB_SECTORS, 2 << 30).expect_err("twice as much");
        assert!(error.starts_with("the files need 2147483648 bytes, but the "), "{error}");
        assert_eq!(config.commit_interval(), Nanos::from_ms(5000));
    }
}

#[test]
fn the_journal_is_where_it_was_put() {
    for (place, share) in [(JournalPlace::Start, 0), (JournalPlace::Middle, 1)] {
        let config = Ext3Config {
            mode: DataMode::Writeback,
            journal_place: place,
            journal_blocks: 1024,
            ..Ext3Config::of_2009()
        };
        let device_sectors = 1024 * MIB_SECTORS;
        let mut fs = FsConfig::Ext3(config).build(device_sectors);
        fs.create(FileId(0));
        let sector = fs.commit().expect("a file is new").steps[0].writes[0].0;
        assert_eq!(sector / (device_sectors / 2), share);
    }
}
