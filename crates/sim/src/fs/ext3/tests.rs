//! Allocation and commits of ext3.

use super::*;
use crate::fs::{BLOCK_SECTORS, CommitStep};

/// 10 GiB: 80 groups.
const DEVICE_SECTORS: u64 = 10 << 21;

fn config() -> Ext3Config {
    Ext3Config { start_places: 1, ..Ext3Config::of_2009() }
}

fn ext3(config: Ext3Config) -> Ext3 {
    config.capacity_bytes(DEVICE_SECTORS).expect("valid parameters");
    Ext3::new(config, DEVICE_SECTORS)
}

/// Blocks of the first pages of a file.
fn blocks(fs: &Ext3, file: u32) -> Vec<u32> {
    fs.files[&FileId(file)].pointers.pages().to_vec()
}

/// Appends page by page, like `write()` calls.
fn append(fs: &mut Ext3, file: u32, pages: Range<u64>) {
    pages.for_each(|page| fs.write(FileId(file), page..page + 1));
}

#[test]
fn a_file_written_alone_is_contiguous_but_for_its_pointers() {
    let mut fs = ext3(config());
    fs.create(FileId(0));
    append(&mut fs, 0, 0..5000);
    let blocks = blocks(&fs, 0);
    let gaps: Vec<(usize, u32)> = (1..blocks.len())
        .map(|page| (page, blocks[page] - blocks[page - 1] - 1))
        .filter(|(_, gap)| *gap > 0)
        .collect();
    // One indirect block; the double indirect block with its first; then one for each 1,024 pages.
    assert_eq!(gaps, [(12, 1), (1036, 2), (2060, 1), (3084, 1), (4108, 1)]);
    // After the tables of group 0 and the directory.
    assert_eq!(blocks[0], fs.directory + 1);
    assert_eq!(fs.directory, 1 + 1 + 2 + 512);
}

#[test]
fn beyond_four_gigabytes_there_is_a_triple_indirect_block() {
    let page = 12 + 1024 + 1024 * 1024;
    let path: Vec<_> = Pointers::path(page).collect();
    use pointers::Node::{Double, Indirect, Triple};
    assert_eq!(path, [Triple, Double(1), Indirect(1025)]);
    assert_eq!(Pointers::path(page - 1).collect::<Vec<_>>(), [Double(0), Indirect(1024)]);
    assert_eq!(Pointers::path(11).count(), 0);
}

#[test]
fn files_written_side_by_side_interleave_in_windows_that_grow_to_the_limit() {
    let mut fs = ext3(config());
    let files = 32;
    for page in 0..20_480 {
        (0..files).for_each(|file| append(&mut fs, file, page..page + 1));
    }
    // Runs of blocks of one file, including pointer blocks, in device order.
    let mut owner = BTreeMap::new();
    for (id, file) in &fs.files {
        let pages = file.pointers.pages().iter().copied();
        owner.extend(pages.chain(file.pointers.nodes()).map(|block| (block, id.0)));
    }
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for (block, file) in owner {
        match runs.last_mut() {
            Some((of, start, len)) if *of == file && *start + *len == block => *len += 1,
            _ => runs.push((file, block, 1)),
        }
    }
    let first: Vec<_> = runs[..96].iter().map(|(file, _, len)| (*file, *len)).collect();
    let expected = [8, 16, 32].into_iter().flat_map(|len| (0..files).map(move |file| (file, len)));
    assert_eq!(first, expected.collect::<Vec<_>>());
    let full = runs.iter().filter(|(_, _, len)| *len == 1027).count();
    // 17 per file, less some that are cut off at the end of a group.
    assert!((530..=544).contains(&full), "{full} runs have the limit's length");
    // After a window cut off by the tables of a group, the file's next one may follow.
    let cut = |start: &u32| *start == fs.groups.group_data(fs.groups.of(*start));
    assert!(runs.iter().all(|(_, start, len)| *len <= 1027 || cut(start)));
}

#[test]
fn files_start_at_sixteen_places_of_the_group() {
    let mut fs = ext3(Ext3Config::of_2009());
    (0..18).for_each(|file| append(&mut fs, file, 0..1));
    let starts: Vec<u32> = (0..18).map(|file| blocks(&fs, file)[0]).collect();
    assert_eq!(starts[1..16], (1..16).map(|n| n * 2048).collect::<Vec<u32>>());
    // The next two start after the windows of the first two.
    assert_eq!(starts[16..], [starts[0] + 8, 2048 + 8]);
}

#[test]
fn a_file_goes_on_in_the_next_group_when_one_is_full() {
    let mut fs = ext3(config());
    fs.layout(FileId(0), 40_000);
    let blocks = blocks(&fs, 0);
    let jump = (1..blocks.len()).find(|page| blocks[*page] > blocks[page - 1] + 3);
    let jump = jump.expect("group 0 has 32,768 blocks");
    assert_eq!((blocks[jump - 1], blocks[jump]), (32_767, 32_768 + 514));
    // New files start in a group with room.
    append(&mut fs, 1, 0..1);
    assert_eq!(fs.groups.of(self::blocks(&fs, 1)[0]), 1);
    assert_eq!(fs.groups.of(fs.files[&FileId(1)].inode), 1);
}

#[test]
fn a_hole_filled_later_lies_near_the_page_before_it() {
    let mut fs = ext3(config());
    append(&mut fs, 0, 0..4);
    append(&mut fs, 0, 2000..2001);
    append(&mut fs, 1, 0..1);
    append(&mut fs, 0, 4..5);
    let blocks = blocks(&fs, 0);
    let mut out = Vec::new();
    fs.map(FileId(0), 0..3000, &mut out);
    let pages: Vec<_> = out.iter().map(|extent| (extent.page, extent.pages)).collect();
    assert_eq!(pages, [(0, 4), (4, 1), (2000, 1)]);
    // The double indirect block, the indirect block and page 2000 are in between, in the same
    // window.
    assert_eq!(blocks[4], blocks[3] + 4);
}

const S: u64 = 1_000_000_000;

#[test]
fn write_waits_for_the_copies_of_a_block_it_changes_first_in_its_transaction() {
    let mut fs = ext3(Ext3Config { read_bitmaps: false, ..config() });
    let write =
        |fs: &mut Ext3, at, file, page| fs.try_write(Nanos(at), FileId(file), page..page + 1);
    for file in 0..2 {
        assert_eq!(write(&mut fs, S, file, 0), Ok(()));
    }
    fs.commit();
    // Copies in memory are made until the journal writes.
    assert_eq!(write(&mut fs, S, 0, 1), Ok(()));
    fs.copies(false);
    assert_eq!(write(&mut fs, S, 0, 2), Ok(()));
    fs.copies(true);
    fs.commit();
    fs.copies(false);
    assert_eq!(write(&mut fs, S, 0, 0), Ok(()), "nothing but the page changes");
    assert_eq!(write(&mut fs, S, 0, 3), Err(Needs::Copies), "an allocation");
    // The two inodes are in one block.
    assert_eq!(write(&mut fs, 2 * S, 1, 0), Err(Needs::Copies), "another second");
    fs.copies(true);
    assert_eq!(write(&mut fs, S, 0, 3), Ok(()));
    let mut fs = ext3(Ext3Config { writes_wait: false, read_bitmaps: false, ..config() });
    assert_eq!(write(&mut fs, S, 0, 0), Ok(()));
    fs.commit();
    fs.copies(false);
    assert_eq!(write(&mut fs, S, 0, 1), Ok(()), "the control");
}

/// Length of a step's writes in blocks.
fn len_blocks(step: &CommitStep) -> u32 {
    step.writes.iter().map(|(_, sectors)| sectors / 8).sum()
}

#[test]
fn overwriting_keeps_blocks_and_dirties_the_inode_alone() {
    let mut fs = ext3(config());
    append(&mut fs, 0, 0..100);
    fs.commit();
    let before = blocks(&fs, 0);
    fs.write(FileId(0), 10..60);
    assert_eq!(blocks(&fs, 0), before);
    let commit = fs.commit().expect("the inode is dirty");
    assert_eq!(commit.data_first, []);
    // Descriptor and inode, then the record.
    assert_eq!(commit.steps.iter().map(len_blocks).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(fs.commit(), None);
}

#[test]
fn a_commit_has_each_changed_block_once() {
    let mut fs = ext3(config());
    append(&mut fs, 0, 0..1);
    fs.commit();
    append(&mut fs, 0, 1..200);
    let commit = fs.commit().expect("it grew");
    // Inode, bitmap, group descriptor, indirect block, and the journal's own descriptor.
    assert_eq!(commit.steps.iter().map(len_blocks).collect::<Vec<_>>(), [4 + 1, 1]);
    let middle = u64::from(fs.groups.start(40)) * BLOCK_SECTORS;
    let place = commit.steps[0].writes[0].0;
    assert!((middle..middle + (32_768 + 600) * BLOCK_SECTORS).contains(&place));
}

#[test]
fn creating_dirties_inode_its_bitmap_the_descriptor_and_the_directory() {
    let mut fs = ext3(config());
    fs.create(FileId(0));
    // The first inodes share a block with the directory's own.
    let descriptor = fs.groups.descriptor(0);
    let bitmap = fs.groups.inode_bitmap(0);
    let expected = [descriptor, bitmap, fs.groups.inode(0, 0), fs.directory];
    assert_eq!(fs.running.metadata, BTreeSet::from(expected));
}

#[test]
fn ordered_names_exactly_the_files_that_grew_and_writeback_none() {
    for mode in [DataMode::Ordered, DataMode::Writeback] {
        let mut fs = ext3(Ext3Config { mode, ..config() });
        (0..4).for_each(|file| append(&mut fs, file, 0..10));
        fs.commit();
        append(&mut fs, 3, 10..11);
        append(&mut fs, 1, 5..12);
        append(&mut fs, 2, 0..10);
        fs.create(FileId(0));
        let commit = fs.commit().expect("much has changed");
        let expected =
            if mode == DataMode::Ordered { vec![FileId(1), FileId(3)] } else { Vec::new() };
        assert_eq!(commit.data_first, expected);
    }
}

#[test]
fn blocks_given_up_are_not_used_before_the_commit() {
    let mut fs = ext3(config());
    append(&mut fs, 0, 0..100);
    fs.commit();
    let before = blocks(&fs, 0);
    fs.create(FileId(0));
    append(&mut fs, 0, 0..100);
    let between = blocks(&fs, 0);
    assert!(before.iter().all(|block| !between.contains(block)));
    fs.commit();
    fs.create(FileId(0));
    fs.commit();
    append(&mut fs, 0, 0..100);
    assert_eq!(blocks(&fs, 0), before);
}

#[test]
fn blocks_given_up_are_used_before_the_commit_when_others_run_out() {
    let config = Ext3Config { journal_blocks: 1024, ..config() };
    let device_sectors = 256 << 11;
    let pages = config.capacity_bytes(device_sectors).expect("valid parameters") / BLOCK_BYTES;
    let mut fs = Ext3::new(config, device_sectors);
    fs.write(FileId(0), 0..pages);
    fs.create(FileId(0));
    fs.write(FileId(0), 0..pages);
    assert_eq!(fs.file_pages(FileId(0)), pages);
}

#[test]
fn pointers_of_a_truncated_file_are_not_journalled() {
    let mut fs = ext3(config());
    append(&mut fs, 0, 0..100);
    let node = fs.files[&FileId(0)].pointers.nodes().next().expect("an indirect block");
    assert!(fs.running.metadata.contains(&node));
    fs.create(FileId(0));
    assert!(!fs.running.metadata.contains(&node));
}

/// Metadata blocks of the next commit.
fn committed(fs: &mut Ext3) -> BTreeSet<u32> {
    fs.commit();
    let blocks = fs.committed.clone();
    fs.copies(true);
    blocks
}

/// Creates a file after the reads that it needs; returns their number.
fn create_in(fs: &mut Ext3, file: u32, directory: u32) -> u32 {
    let mut reads = 0;
    while let Err(needs) = fs.try_create(FileId(file), directory) {
        let Needs::Metadata(sector) = needs else { panic!("nothing is copied") };
        fs.metadata_read(sector);
        reads += 1;
    }
    reads
}

#[test]
fn created_file_dirties_its_inode_the_entry_and_what_counts_them() {
    let mut fs = ext3(config());
    fs.make_directories(2);
    assert!(fs.commit().is_none(), "they were there before");
    assert_eq!(create_in(&mut fs, 0, 1), 1, "the inode bitmap");
    assert_eq!(create_in(&mut fs, 1, 1), 0);
    let groups = fs.groups;
    let directory = &fs.files[&FileId(u32::MAX - 1)];
    let inode = fs.files[&FileId(0)].inode;
    let entry = directory.pointers.pages()[0];
    let counts = [groups.inode_bitmap(0), groups.descriptor(0)];
    let expected = [inode, directory.inode, entry, counts[0], counts[1]];
    assert_eq!(committed(&mut fs), BTreeSet::from(expected));
}

/// A creation costs a share of a block: 16 inodes, and 85 entries, share one.
#[test]
fn metadata_of_many_files_is_that_of_their_inodes_and_entries() {
    let mut fs = ext3(config());
    fs.make_directories(1);
    for file in 0..1_600 {
        create_in(&mut fs, file, 0);
    }
    let blocks = committed(&mut fs);
    let directory = &fs.files[&FileId(u32::MAX)];
    let entries: Vec<u32> =
        directory.pointers.pages().iter().copied().filter(|at| blocks.contains(at)).collect();
    assert_eq!(entries.len(), 1 + (1_600usize - 84).div_ceil(85));
    assert!(directory.pointers.nodes().all(|node| blocks.contains(&node)));
    let inodes: BTreeSet<u32> = (0..1_600).map(|file| fs.files[&FileId(file)].inode).collect();
    assert!((100..=102).contains(&inodes.len()) && inodes.is_subset(&blocks), "{}", inodes.len());
    // Both bitmaps, the descriptor, the pointers, and the directory's inode, which shares a block
    // with the first files' ones.
    let others = blocks.len() - entries.len() - inodes.len();
    assert_eq!(others, 4);
    assert!(fs.running.grown.is_empty());
}

#[test]
fn creation_waits_for_the_copies_of_a_commit_and_not_if_that_is_off() {
    for writes_wait in [true, false] {
        let mut fs = ext3(Ext3Config { writes_wait, read_bitmaps: false, ..config() });
        fs.make_directories(1);
        fs.try_create(FileId(0), 0).unwrap();
        fs.commit();
        fs.copies(false);
        let waits = fs.try_create(FileId(1), 0) == Err(Needs::Copies);
        assert_eq!(waits, writes_wait);
        fs.copies(true);
        assert_eq!(fs.try_create(FileId(1), 0), Ok(()));
    }
}

#[test]
fn small_files_of_a_directory_follow_each_other_once_they_are_closed() {
    let gap = |closes: bool| {
        let mut fs = ext3(config());
        fs.make_directories(1);
        for file in 0..3 {
            create_in(&mut fs, file, 0);
            append(&mut fs, file, 0..2);
            if closes {
                fs.close(FileId(file));
            }
        }
        blocks(&fs, 1)[0] - blocks(&fs, 0)[1] - 1
    };
    assert_eq!((gap(true), gap(false)), (0, 6), "the rest of a window of 8 blocks");
}

#[test]
fn more_files_than_inodes_are_refused() {
    let config = Ext3Config { group_inodes: 64, ..config() };
    let check = |files| config.check_files(DEVICE_SECTORS, files, 1);
    assert_eq!(check(80 * 64 - 12), Ok(()));
    assert!(check(80 * 64 - 11).unwrap_err().contains("5109 inodes"));
}
