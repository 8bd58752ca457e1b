//! The file of a volume beside a copy of its bytes in memory: random calls with any offset and
//! length, shared mappings, holes, and several threads with neighbours in one sector.
//!
//! A failure prints its seed. `BLOCKYARD_SOAK` makes a million calls with a new seed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::Error;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::fuse::{FileMount, FileOptions, LastUse, Target};
use blockyard_host::volume::{Volume, VolumeOptions};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{getegid, geteuid};

/// The last sector is cut off.
const SIZE_BYTES: u64 = (1 << 20) + 3 * 512;
const TRANSFER_MAX_BYTES: u64 = 300_000;
const THREADS: u64 = 4;
/// Bytes of a thread between those of the others: sectors have several owners.
const STRIPE_BYTES: u64 = 1000;

/// A mounted volume, and its folder.
struct Mounted {
    mount: FileMount,
    path: PathBuf,
    dir: tempfile::TempDir,
}

impl Mounted {
    /// `None` where this machine refuses FUSE.
    fn new(place: &str, read_only: bool) -> Option<Self> {
        let dir = tempfile::tempdir_in(place).unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(SIZE_BYTES).unwrap();
        let options = VolumeOptions { read_only, ..VolumeOptions::default() };
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let key = SecretBytes::copy_of(&[7; 64]);
        let mut params = CryptParams::new("aes-xts-plain64", key);
        params.sector_size_bytes = 512;
        let file = DeviceFile::open(&image, access, false).unwrap();
        let volume = Arc::new(Volume::from_crypt(file, &params, &options).unwrap());
        let target = dir.path().join("above/target");
        fs::create_dir_all(&target).unwrap();
        let options = FileOptions {
            name: "volume".into(),
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            umask: 0o077,
            threads: THREADS as usize,
            range: 0..volume.size_bytes(),
            others: false,
        };
        match FileMount::new(&volume, Target::check(&target).unwrap(), &options) {
            Ok(mount) => Some(Self { path: mount.path(), mount, dir }),
            Err(error) => {
                assert!(is_refusal(&error), "{error}");
                println!("skipped, because this machine refuses FUSE: {error}");
                None
            }
        }
    }

    fn open(&self) -> File {
        File::options().read(true).write(true).open(&self.path).unwrap()
    }
}

/// A container may lack the device, the program or the permission.
fn is_refusal(error: &Error) -> bool {
    let text = error.to_string();
    text.contains("/dev/fuse") || text.contains("fusermount3")
}

/// xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// A range with bytes; many are short.
    fn range(&mut self, size: u64) -> (u64, usize) {
        let offset = self.below(size);
        let longest = if self.below(4) == 0 { TRANSFER_MAX_BYTES } else { 5000 };
        (offset, 1 + self.below(longest.min(size - offset)) as usize)
    }
}

/// Rounds of a campaign, and its seed.
fn extent(rounds: u64) -> (u64, u64) {
    match std::env::var_os("BLOCKYARD_SOAK") {
        None => (rounds, 0x5eed),
        Some(_) => {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            (1_000_000, now.as_nanos() as u64 | 1)
        }
    }
}

/// Calls on the whole file by one thread.
struct Exerciser<'a> {
    mounted: &'a Mounted,
    file: File,
    copy: Vec<u8>,
    random: Random,
}

impl Exerciser<'_> {
    fn step(&mut self) {
        let (offset, len) = self.random.range(SIZE_BYTES);
        let fill = self.random.below(256) as u8;
        let place = offset as usize..offset as usize + len;
        match self.random.below(10) {
            0..=2 => {
                let bytes: Vec<u8> = (0..len).map(|at| fill.wrapping_add(at as u8)).collect();
                self.file.write_all_at(&bytes, offset).unwrap();
                self.copy[place].copy_from_slice(&bytes);
            }
            3..=5 => {
                let mut bytes = vec![0; len];
                self.file.read_exact_at(&mut bytes, offset).unwrap();
                assert!(bytes == self.copy[place], "read {len} bytes at {offset}");
            }
            6 => {
                let mode = [
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ][usize::from(fill & 1)];
                fallocate(&self.file, mode, offset, len as u64).unwrap();
                self.copy[place].fill(0);
            }
            7 => self.change_mapping(place, fill),
            8 => self.file.sync_data().unwrap(),
            _ => self.file = self.mounted.open(),
        }
    }

    /// Reads and writes a shared mapping of the whole file.
    fn change_mapping(&mut self, place: std::ops::Range<usize>, fill: u8) {
        let len = SIZE_BYTES as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the mapping is new and of this function only; the file keeps its size, and other
        // threads do not use it.
        unsafe {
            let base =
                mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &self.file, 0).unwrap();
            let bytes = std::slice::from_raw_parts_mut(base.cast::<u8>(), len);
            assert!(bytes[place.clone()] == self.copy[place.clone()], "mapped {place:?}");
            bytes[place.clone()].fill(fill);
            msync(base, len, MsyncFlags::SYNC).unwrap();
            munmap(base, len).unwrap();
        }
        self.copy[place].fill(fill);
    }
}

#[test]
fn random_calls_leave_the_same_bytes_as_in_memory_and_in_the_next_mount() {
    for place in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let Some(mounted) = Mounted::new(place, false) else { return };
        let (rounds, seed) = extent(1500);
        println!("seed {seed}");
        let file = mounted.open();
        let mut copy = vec![0; SIZE_BYTES as usize];
        file.read_exact_at(&mut copy, 0).unwrap();
        let mut exerciser = Exerciser { mounted: &mounted, file, copy, random: Random(seed) };
        (0..rounds).for_each(|_| exerciser.step());
        let Exerciser { copy, file, .. } = exerciser;
        let mut bytes = vec![0; SIZE_BYTES as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == copy, "at the end");
        drop(file);
        assert_eq!(mounted.mount.end().unwrap(), LastUse::Closed);
        assert_eq!(fs::read_dir(mounted.dir.path().join("above/target")).unwrap().count(), 0);
    }
}

#[test]
fn threads_that_write_neighbours_in_a_sector_lose_nothing() {
    let Some(mounted) = Mounted::new("/dev/shm", false) else { return };
    let (rounds, seed) = extent(2000);
    println!("seed {seed}");
    let stripes = SIZE_BYTES / STRIPE_BYTES / THREADS;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = mounted.open();
            scope.spawn(move || {
                let mut random = Random(seed + thread);
                let mut last = vec![None; stripes as usize];
                for _ in 0..rounds {
                    let stripe = random.below(stripes);
                    let offset = (stripe * THREADS + thread) * STRIPE_BYTES;
                    let known = &mut last[stripe as usize];
                    if let Some(fill) = *known {
                        let mut bytes = [0; STRIPE_BYTES as usize];
                        file.read_exact_at(&mut bytes, offset).unwrap();
                        assert!(bytes == [fill; STRIPE_BYTES as usize], "stripe at {offset}");
                    }
                    let fill = random.below(4) as u8;
                    if fill == 0 {
                        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                        fallocate(&file, hole, offset, STRIPE_BYTES).unwrap();
                    } else {
                        file.write_all_at(&[fill; STRIPE_BYTES as usize], offset).unwrap();
                    }
                    *known = Some(fill);
                }
            });
        }
    });
    mounted.mount.end().unwrap();
}

#[test]
fn file_has_the_size_and_the_refusals_of_a_disk() {
    let Some(mounted) = Mounted::new("/dev/shm", false) else { return };
    let file = mounted.open();
    let status = file.metadata().unwrap();
    assert_eq!((status.len(), status.mode() & 0o777, status.blksize()), (SIZE_BYTES, 0o600, 512));
    let errno = |result: io::Result<()>| result.unwrap_err().raw_os_error();
    file.set_len(SIZE_BYTES).unwrap();
    assert_eq!(errno(file.set_len(SIZE_BYTES - 1)), Some(rustix::io::Errno::PERM.raw_os_error()));
    assert_eq!(errno(file.set_len(SIZE_BYTES + 1)), Some(rustix::io::Errno::FBIG.raw_os_error()));
    assert_eq!(file.write_at(&[1; 100], SIZE_BYTES - 40).unwrap(), 40, "the end cuts a write");
    assert_eq!(file.write_at(&[1], SIZE_BYTES).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.read_at(&mut [0; 100], SIZE_BYTES - 40).unwrap(), 40);
    assert_eq!(file.read_at(&mut [0; 100], SIZE_BYTES).unwrap(), 0);
    assert_eq!(seek(&file, SeekFrom::Hole(5)).unwrap(), SIZE_BYTES, "ciphertext has no holes");
    assert_eq!(seek(&file, SeekFrom::Data(5)).unwrap(), 5);
    assert!(File::create(mounted.path.with_file_name("other")).is_err());
    drop(file);
    mounted.mount.end().unwrap();
}

#[test]
fn read_only_volume_refuses_writes_and_an_end_while_it_is_open_cuts_off_the_reader() {
    let Some(mounted) = Mounted::new("/dev/shm", true) else { return };
    let opened = File::options().write(true).open(&mounted.path);
    assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    let file = File::open(&mounted.path).unwrap();
    file.read_exact_at(&mut [0; 100], 50).unwrap();
    assert_eq!(mounted.mount.end().unwrap(), LastUse::StillOpen);
    assert!(file.read_at(&mut [0; 100], 50).is_err(), "the volume is closed");
}

/// Another user may own the folder above a mount point of root.
#[test]
fn end_unmounts_no_other_file_system_in_place_of_the_mount() {
    let Some(mounted) = Mounted::new("/dev/shm", false) else { return };
    let path = |name: &str| mounted.dir.path().join(name);
    fs::create_dir_all(path("other/target")).unwrap();
    let none = MountFlags::empty();
    if !geteuid().is_root() || mount("none", path("other/target"), "tmpfs", none, None).is_err() {
        println!("skipped: only root mounts a tmpfs");
        mounted.mount.end().unwrap();
        return;
    }
    fs::write(path("other/target/kept"), "").unwrap();
    fs::rename(path("above"), path("moved")).unwrap();
    std::os::unix::fs::symlink("other", path("above")).unwrap();
    assert_eq!(mounted.mount.end().unwrap(), LastUse::StillOpen);
    let is_kept = mounted.dir.path().join("other/target/kept").exists();
    for place in ["moved/target", "other/target"] {
        let _ = unmount(mounted.dir.path().join(place), UnmountFlags::DETACH);
    }
    assert!(is_kept);
}

#[test]
fn unsuitable_targets_are_refused_with_their_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let refusal = |target: &Path| Target::check(target).unwrap_err().to_string();
    fs::create_dir(path("full")).unwrap();
    fs::write(path("full/file"), "x").unwrap();
    assert!(refusal(&path("full")).contains("not empty"), "{}", refusal(&path("full")));
    assert!(refusal(&path("missing")).contains("`mkdir "));
    assert!(refusal(Path::new("/dev/null")).contains("a character device"));
    assert!(refusal(Path::new("/proc")).contains("mounted here already"));
    assert!(matches!(Target::check(&path("full/file")).unwrap(), Target::File(_)));
}

/// FUSE does not say whether its locks are the disk's. Here they are not.
#[test]
fn header_in_a_file_of_fuse_is_written_by_one_program_at_a_time() {
    let Some(mounted) = Mounted::new("/dev/shm", false) else { return };
    let open = || DeviceFile::open(&mounted.path, Access::ReadWrite, false).unwrap();
    let other = mounted.open();
    other.try_lock().unwrap();
    let device = open();
    assert!(matches!(device.lock_header(), Err(Error::HeaderLocked { .. })));
    drop(device.lock_header_to_read().expect("a lock like this may be the volume's own"));
    other.unlock().unwrap();
    let lock = device.lock_header_to_read().unwrap();
    assert!(other.try_lock().is_err(), "the header is being read");
    drop(lock);
    other.try_lock().unwrap();
    other.unlock().unwrap();
    drop(device.lock_header().unwrap());
    assert!(other.try_lock_shared().is_err(), "the device is open");
    drop(device);
    other.try_lock().unwrap();
    drop((other, open().lock_header_to_read().unwrap()));
    mounted.mount.end().unwrap();
}
