use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::thread;

use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{BlkStatus, Done, Op};
use blockyard_engine::priority::Priority;
use tempfile::{NamedTempFile, TempDir};

use super::*;
use crate::file::{Access, DeviceFile};
use crate::local::{Bytes, Client, Part, Request};
use crate::volume::{Volume, VolumeOptions};

const BLOCK: u64 = 4096;
const SIZE: u64 = 1 << 20;

fn options(folder: &TempDir) -> DirtyBitmapOptions {
    let options = DirtyBitmapOptions::new("daily", folder.path().join("bitmap"));
    options.granularity(Some(BLOCK as u32)).identity("luks:1")
}

fn open(options: &DirtyBitmapOptions, size_bytes: u64) -> Result<DirtyBitmap, Error> {
    DirtyBitmap::open(options, tracked(size_bytes))
}

fn tracked(size_bytes: u64) -> Tracked {
    Tracked { size_bytes, ranges: None, durability: Arc::default(), content: Vec::new() }
}

/// Ends the backup that runs.
fn end(bitmap: &DirtyBitmap, step: fn(BackupId) -> BackupStep) {
    bitmap.step(step(bitmap.status().backup.unwrap().id)).unwrap();
}

/// A bitmap without a dirty block.
fn clean(options: &DirtyBitmapOptions, size_bytes: u64) -> DirtyBitmap {
    let bitmap = open(options, size_bytes).unwrap();
    bitmap.step(BackupStep::Freeze).unwrap();
    end(&bitmap, BackupStep::Done);
    bitmap
}

fn dirty(bitmap: &DirtyBitmap) -> Vec<(u64, u64)> {
    let mut at = 0;
    let runs = bitmap.runs(0, bitmap.header.size_bytes, usize::MAX).into_iter();
    let ranges = runs.map(|(len, is_dirty)| {
        at += len;
        (at - len, len, is_dirty)
    });
    ranges.filter(|run| run.2).map(|(start, len, _)| (start, len)).collect()
}

/// Leaves the file as a killed server does.
fn kill(bitmap: DirtyBitmap, folder: &TempDir) {
    let path = folder.path().join("bitmap");
    let before = fs::read(&path).unwrap();
    drop(bitmap);
    fs::write(path, before).unwrap();
}

#[test]
fn new_bitmap_is_dirty_as_a_whole_and_a_backup_cleans_it() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let bitmap = open(&options(&folder), SIZE + 512).unwrap();
    assert_eq!(dirty(&bitmap), [(0, SIZE + 512)]);
    assert_eq!(bitmap.status().dirty_bytes, SIZE + 512);
    bitmap.step(BackupStep::Freeze).unwrap();
    assert_eq!(dirty(&bitmap), [(0, SIZE + 512)], "the backup has to copy it");
    end(&bitmap, BackupStep::Done);
    assert_eq!(dirty(&bitmap), []);
}

#[test]
fn marks_cover_all_bytes_and_no_other_block() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let bitmap = clean(&options(&folder), SIZE);
    for (start, len, blocks) in [
        (0, 1, (0, BLOCK)),
        (2 * BLOCK - 1, 2, (BLOCK, 2 * BLOCK)),
        (62 * BLOCK, 4 * BLOCK, (62 * BLOCK, 4 * BLOCK)),
        (10 * BLOCK, 200 * BLOCK, (10 * BLOCK, 200 * BLOCK)),
        (SIZE - 512, 512, (SIZE - BLOCK, BLOCK)),
        (SIZE - 512, u64::MAX, (SIZE - BLOCK, BLOCK)),
    ] {
        bitmap.mark(start, len);
        assert_eq!(dirty(&bitmap), [blocks], "{start} {len}");
        bitmap.step(BackupStep::Freeze).unwrap();
        end(&bitmap, BackupStep::Done);
    }
    bitmap.mark(0, 0);
    assert_eq!(dirty(&bitmap), []);
}

#[test]
fn runs_are_limited_and_bytes_behind_the_end_are_dirty() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let bitmap = clean(&options(&folder), SIZE);
    bitmap.mark(BLOCK, 1);
    bitmap.mark(130 * BLOCK, 1);
    let all = [(BLOCK, false), (BLOCK, true), (128 * BLOCK, false), (BLOCK, true)];
    assert_eq!(bitmap.runs(0, SIZE, 4), all);
    assert_eq!(bitmap.runs(BLOCK + 1, 4 * BLOCK, 9), [(BLOCK - 1, true), (3 * BLOCK + 1, false)]);
    let grown = bitmap.runs(SIZE - BLOCK, 3 * BLOCK, 9);
    assert_eq!(grown, [(BLOCK, false), (2 * BLOCK, true)]);
}

#[test]
fn backup_keeps_later_writes_for_the_next_one() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let bitmap = clean(&options(&folder), SIZE);
    bitmap.mark(0, BLOCK);
    bitmap.step(BackupStep::Freeze).unwrap();
    bitmap.mark(8 * BLOCK, BLOCK);
    assert_eq!(dirty(&bitmap), [(0, BLOCK)], "clients see the blocks of the backup");
    let status = bitmap.status();
    assert_eq!((status.dirty_bytes, status.backup.unwrap().bytes), (BLOCK, BLOCK));
    end(&bitmap, BackupStep::Failed);
    assert_eq!(dirty(&bitmap), [(0, BLOCK), (8 * BLOCK, BLOCK)], "nothing is lost");
    bitmap.step(BackupStep::Freeze).unwrap();
    end(&bitmap, BackupStep::Done);
    assert_eq!(dirty(&bitmap), []);
}

#[test]
fn steps_out_of_order_are_refused_and_change_nothing() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let bitmap = clean(&options(&folder), SIZE);
    bitmap.mark(0, BLOCK);
    let id = bitmap.step(BackupStep::Freeze).unwrap();
    assert!(bitmap.step(BackupStep::Freeze).unwrap_err().contains(&format!("`done {id}`")));
    let other = BackupId(id.0 ^ 1);
    for step in [BackupStep::Done, BackupStep::Failed] {
        assert!(bitmap.step(step(other)).unwrap_err().contains(&format!("{id} runs")));
        assert_eq!(bitmap.status().backup.unwrap().id, id);
    }
    assert_eq!(dirty(&bitmap), [(0, BLOCK)]);
    end(&bitmap, BackupStep::Failed);
    for step in [BackupStep::Done, BackupStep::Failed] {
        assert!(bitmap.step(step(id)).unwrap_err().contains("none runs"));
    }
    assert_eq!(dirty(&bitmap), [(0, BLOCK)]);
}

#[test]
fn bits_outlast_a_close_in_order_and_a_backup_that_was_not_confirmed() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let options = options(&folder);
    let bitmap = clean(&options, SIZE);
    bitmap.mark(3 * BLOCK, BLOCK);
    bitmap.step(BackupStep::Freeze).unwrap();
    bitmap.mark(SIZE - 1, 1);
    drop(bitmap);
    let bitmap = open(&options.clone().granularity(None), SIZE).unwrap();
    assert_eq!(dirty(&bitmap), [(3 * BLOCK, BLOCK), (SIZE - BLOCK, BLOCK)]);
}

#[test]
fn killed_server_leaves_a_volume_that_is_dirty_as_a_whole() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let options = options(&folder);
    drop(clean(&options, SIZE));
    kill(open(&options, SIZE).unwrap(), &folder);
    let bitmap = open(&options, SIZE).unwrap();
    assert_eq!(dirty(&bitmap), [(0, SIZE)]);
}

#[test]
fn damaged_file_means_that_all_is_dirty_or_is_refused() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let options = options(&folder);
    let path = folder.path().join("bitmap");
    drop(clean(&options, SIZE));
    let good = fs::read(&path).unwrap();
    assert_eq!(good.len(), HEADER_BYTES + 32);
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        match open(&options, SIZE) {
            Ok(bitmap) => {
                assert_eq!(dirty(&bitmap), [(0, SIZE)], "byte {at}");
                drop(bitmap);
            }
            Err(_) => assert!(at < 40 && fs::read(&path).unwrap() == bytes, "byte {at}"),
        }
    }
    for len in [HEADER_BYTES, HEADER_BYTES + 31] {
        fs::write(&path, &good[..len]).unwrap();
        assert_eq!(dirty(&open(&options, SIZE).unwrap()), [(0, SIZE)], "{len} bytes");
    }
    fs::write(&path, [&good[..], &[0]].concat()).unwrap();
    assert_eq!(dirty(&open(&options, SIZE).unwrap()), [(0, SIZE)]);
}

#[test]
fn failed_read_of_the_bits_leaves_the_file_as_it_is() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let options = options(&folder);
    let path = folder.path().join("bitmap");
    let bitmap = clean(&options, SIZE);
    bitmap.mark(SIZE - 1, 1);
    drop(bitmap);
    let file = BitmapFile::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(HEADER_BYTES as u64).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(DirtyBitmap::in_file(file, &options, tracked(SIZE)).is_err());
    assert!(fs::read(&path).unwrap() == before, "all would be clean at the next start");
}

#[test]
fn file_of_something_else_is_refused_and_not_changed() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let options = options(&folder);
    let path = folder.path().join("bitmap");
    let refused = |options: &DirtyBitmapOptions, why: &str| {
        let before = fs::read(&path).unwrap();
        let said = open(options, SIZE).err().unwrap().to_string();
        assert!(said.contains(why), "{said}");
        assert!(fs::read(&path).unwrap() == before);
    };
    fs::write(&path, "a letter").unwrap();
    refused(&options, "no dirty bitmap");
    fs::write(&path, vec![0; 1 << 16]).unwrap();
    refused(&options, "no dirty bitmap");
    fs::remove_file(&path).unwrap();
    drop(clean(&options, SIZE));
    refused(&options.clone().identity("luks:2"), "another volume");
    refused(&options.clone().granularity(Some(8192)), "blocks of 4096 bytes");
    let user = open(&options, SIZE).unwrap();
    let said = open(&options, SIZE).err().unwrap().to_string();
    assert!(said.contains("in use"), "{said}");
    drop(user);
    let device = DirtyBitmapOptions::new("daily", "/dev/null");
    assert!(open(&device, SIZE).err().unwrap().to_string().contains("regular file"));
    let tiny = DirtyBitmapOptions::new("daily", folder.path().join("new"));
    let said = open(&tiny.granularity(Some(4096)), 1 << 50).err().unwrap().to_string();
    assert!(said.contains("longer blocks"), "{said}");
}

#[test]
fn volume_of_another_size_keeps_its_bits_and_its_new_area_is_dirty() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let options = options(&folder);
    let bitmap = clean(&options, SIZE + 512);
    bitmap.mark(0, 1);
    drop(bitmap);
    let bitmap = open(&options, 2 * SIZE).unwrap();
    assert_eq!(dirty(&bitmap), [(0, BLOCK), (SIZE, SIZE)], "the block of the old end too");
    drop(bitmap);
    let bitmap = open(&options, SIZE).unwrap();
    assert_eq!(dirty(&bitmap), [(0, BLOCK)]);
    assert_eq!(bitmap.status().dirty_bytes, BLOCK);
}

#[test]
fn lost_writes_leave_a_volume_that_is_dirty_as_a_whole() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let options = options(&folder);
    drop(clean(&options, SIZE));
    let durability: Arc<Durability> = Arc::default();
    let volume = Tracked { durability: Arc::clone(&durability), ..tracked(SIZE) };
    let bitmap = DirtyBitmap::open(&options, volume).unwrap();
    assert_eq!(dirty(&bitmap), []);
    durability.lose("disk".into(), "a flush failed".into(), BlkStatus::IoError);
    drop(bitmap);
    assert_eq!(dirty(&open(&options, SIZE).unwrap()), [(0, SIZE)]);
}

fn served(image: &NamedTempFile, folder: &TempDir) -> Arc<Volume> {
    let file = DeviceFile::open(image.path(), Access::ReadWrite, false).unwrap();
    let dirty_bitmap = Some(options(folder));
    let settings = VolumeOptions { dirty_bitmap, ..VolumeOptions::default() };
    Arc::new(Volume::from_file(file, &settings).unwrap())
}

/// Writes the number of the request into each word.
struct Stamps;

impl Bytes for Stamps {
    fn fill(&mut self, user: u64, bytes: &mut [u8]) {
        bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = user.to_le_bytes());
    }

    fn check(&mut self, _: u64, _: &[u8]) {}
}

fn run(client: &mut Client, op: Op, user: u64, range: (u64, u64)) -> BlkStatus {
    let request = Request { user, op, offset_bytes: range.0, len_bytes: range.1, sync: false };
    client.submit_bytes(request, &mut Stamps);
    let mut done: Vec<Done> = Vec::new();
    client.wait_bytes(1, &mut done, &mut Stamps);
    done[0].status
}

#[test]
fn every_change_of_a_volume_is_dirty_also_one_that_fails() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let image = NamedTempFile::new().unwrap();
    image.as_file().set_len(SIZE).unwrap();
    // The last block of the volume fails.
    let text = format!("0 2040 linear {} 0\n2040 8 error\n", image.path().display());
    let dirty_bitmap = Some(options(&folder));
    let settings = VolumeOptions { dirty_bitmap, ..VolumeOptions::default() };
    let text = SecretBytes::copy_of(text.as_bytes());
    let volume = Arc::new(Volume::from_table(&text, &settings).unwrap());
    let bitmap = volume.parts.dirty.as_ref().unwrap();
    let mut client = Client::new(&volume, Priority::default()).unwrap();
    let mut check = |what: &str, change: &mut dyn FnMut(&mut Client), expected: &[(u64, u64)]| {
        bitmap.step(BackupStep::Freeze).unwrap();
        end(bitmap, BackupStep::Done);
        change(&mut client);
        assert_eq!(dirty(bitmap), expected, "{what}");
    };
    let range = (8 * BLOCK, BLOCK);
    for op in [Op::Write, Op::WriteZeroes, Op::Discard] {
        check(&format!("{op:?}"), &mut |client| _ = run(client, op, 1, range), &[range]);
    }
    check("read", &mut |client| _ = run(client, Op::Read, 1, range), &[]);
    let part = Part { user: 1, offset_bytes: 8 * BLOCK + 3, len_bytes: 9, bytes: None };
    let change = &mut |client: &mut Client| {
        client.submit_part(part, &mut Stamps);
        client.wait_bytes(1, &mut Vec::new(), &mut Stamps);
    };
    check("part of a sector", change, &[range]);
    let broken = (SIZE - BLOCK, BLOCK);
    let fails = &mut |client: &mut Client| {
        assert_eq!(run(client, Op::Write, 1, broken), BlkStatus::IoError);
    };
    check("write that fails", fails, &[broken]);
}

/// Copies the dirty blocks again and again, while clients write each block twice. A block that a
/// freeze misses is not written again, so it stays different.
#[test]
fn backups_beside_writes_have_all_blocks_in_the_end() {
    const WRITERS: u64 = 3;
    const BYTES: u64 = 32 << 20;
    const BACKUPS: u32 = 20;
    for folder_of_image in ["/dev/shm", "."] {
        let folder = TempDir::new_in("/dev/shm").unwrap();
        let image = NamedTempFile::new_in(folder_of_image).unwrap();
        image.as_file().set_len(BYTES).unwrap();
        let volume = served(&image, &folder);
        let bitmap = volume.parts.dirty.as_ref().unwrap();
        let mut copy = vec![0; BYTES as usize];
        let back_up = |copy: &mut [u8]| {
            bitmap.step(BackupStep::Freeze).unwrap();
            for (start, len) in dirty(bitmap) {
                let to = &mut copy[start as usize..][..len as usize];
                image.as_file().read_exact_at(to, start).unwrap();
            }
        };
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (volume, is_over) = (&volume, &is_over);
                scope.spawn(move || {
                    let mut client = Client::new(volume, Priority::default()).unwrap();
                    for user in 1.. {
                        for block in (writer..BYTES / BLOCK).step_by(WRITERS as usize) {
                            if is_over.load(Ordering::Relaxed) {
                                return;
                            }
                            let range = (block * BLOCK, BLOCK);
                            assert_eq!(run(&mut client, Op::Write, user, range), BlkStatus::Ok);
                        }
                    }
                });
            }
            for round in 1..=BACKUPS {
                back_up(&mut copy);
                let step = if round % 5 == 0 { BackupStep::Failed } else { BackupStep::Done };
                end(bitmap, step);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        back_up(&mut copy);
        assert!(copy == fs::read(image.path()).unwrap(), "a block is missing in {folder_of_image}");
    }
}
