//! Backing files and devices: their kind, length and exclusive use.
//!
//! | kind | how it is read and written |
//! |---|---|
//! | [`BackingKind::Tmpfs`] | through a mapping ([`mapping`]), else `pread`, `pwrite` |
//! | [`BackingKind::Cached`] | page cache: `preadv2(RWF_NOWAIT)`, then the ring; `pwrite` |
//! | [`BackingKind::Direct`] | `O_DIRECT` through a queue (module `disk`) and a ring |
//! | [`BackingKind::Remote`] | an NBD export or an image of a Ceph cluster (module `remote`) |
//!
//! A lone synchronous operation is one blocking system call instead of a ring entry.

mod claim;
mod errors;
mod exclusive;
pub mod extents;
mod facts;
mod header_lock;
mod id;
pub mod mapping;
mod names;
pub(crate) mod sigbus;
pub(crate) mod sysfs;
pub mod uncached;
mod under;

pub use crate::access::Access;
pub use exclusive::{OutputLock, lock_output};
pub(crate) use facts::Facts;
pub use header_lock::{HeaderLock, LOCK_FOLDER};
pub use id::FileId;

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use blockyard_crypt::source::{HeaderSink, HeaderSource, SourceError};
use blockyard_engine::bio::{BlkStatus, Op, Sector};
use rustix::fs::{AtFlags, FallocateFlags, MemfdFlags, SeekFrom, StatxFlags, memfd_create};

use crate::Error;
use crate::canary::{Canary, is_planted};
use crate::durability::Durability;
use crate::file_op;
use crate::remote::{self, RemoteDisk};
use crate::sync_io;

use errors::{LoggedErrors, failed};

/// Alignment of direct I/O where the system does not report it (Linux before 6.1).
const DIRECT_UNIT_BYTES: u32 = 4096;
/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The cheapest way to read and write a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingKind {
    /// A file whose pages are its storage.
    Tmpfs,
    /// A regular file behind the page cache.
    Cached,
    /// A block device, or a file opened with `--direct`: bypasses the page cache. Also memory that
    /// stands for a device.
    Direct,
    /// An export of an NBD server, or an image of a Ceph cluster.
    Remote,
}

/// Place of the bytes.
#[derive(Debug)]
enum Storage {
    /// A local file, opened for buffered access: headers of files, unaligned pieces.
    Local(File),
    /// A disk on a server.
    Remote(RemoteDisk),
}

/// An open and locked file or block device, an export of a server, which cannot be locked, or an
/// image of a Ceph cluster.
// 14 fields: its descriptors, and facts about the file, which are read once.
#[derive(Debug)]
pub struct DeviceFile {
    storage: Storage,
    /// Locked files and devices under a loop device, from the next one down to the file.
    files_under: Vec<File>,
    /// Descriptor with `O_DIRECT`, for [`BackingKind::Direct`], and for headers of devices.
    direct: Option<File>,
    path: PathBuf,
    len_bytes: u64,
    /// The part of the disk that headers and volumes see, in bytes; `None`: all of it.
    part: Option<Range<u64>>,
    kind: BackingKind,
    access: Access,
    is_block_device: bool,
    /// Number of the device: the file itself, or the device of its file system.
    device: u64,
    /// A second descriptor without reads or writes, for files whose writes can fail after their
    /// completion. Direct I/O needs it too, because a file system may fall back to the page cache.
    witness: Option<Mutex<File>>,
    /// The file is one of several paths to a disk.
    is_path: bool,
    /// The latch of its volume.
    durability: Arc<Durability>,
    said: LoggedErrors,
}

/// Places in which an opened block device is looked up later: its folders of sysfs, and the file
/// under a loop device. Empty for a regular file.
#[must_use]
pub fn behind(path: &Path) -> Vec<PathBuf> {
    let device = std::fs::metadata(path).ok().filter(|found| found.file_type().is_block_device());
    device.map_or_else(Vec::new, |device| sysfs::behind(device.rdev()))
}

/// The error of a path that does not exist, perhaps because its begin is a volume.
fn missing(path: &Path, error: io::Error) -> Error {
    let is_below_file = error.kind() == io::ErrorKind::NotADirectory;
    let volume = path.ancestors().find(|above| is_below_file && above.is_file());
    match volume.and_then(|volume| Some((volume, path.strip_prefix(volume).ok()?))) {
        Some((volume, inner)) => {
            let (volume, inner) = (volume.display(), inner.display());
            let problem = format!("{volume} is a file; a file in this volume is {volume}:/{inner}");
            Error::parameter(path.display(), problem)
        }
        None => Error::io(path, "open", error),
    }
}

impl DeviceFile {
    /// Opens and locks a file or block device, or connects to the export of a URI. With `direct`,
    /// regular files bypass the page cache too; block devices always do.
    ///
    /// # Errors
    /// The file cannot be opened, is neither a regular file nor a block device, or is in use.
    pub fn open(path: &Path, access: Access, direct: bool) -> Result<Self, Error> {
        if let Some(name) = remote::name_of(path) {
            return Ok(Self::of_remote(path, RemoteDisk::open(name, access)?, access));
        }
        // Check before opening: opening a FIFO would wait for a writer.
        let before = std::fs::metadata(path).map_err(|error| missing(path, error))?;
        check_type(path, &before)?;
        let is_block_device = before.file_type().is_block_device();
        let file = exclusive::open(path, access, is_block_device)?;
        let metadata = file.metadata().map_err(|error| Error::io(path, "look at it", error))?;
        check_type(path, &metadata)?;
        if metadata.file_type().is_block_device() != is_block_device {
            return Err(replaced(path));
        }
        let files_under = exclusive::lock_under(path, &file, access)?;
        let writes = access.writes();
        let own = std::iter::once(&file).chain(&files_under);
        own.for_each(|file| header_lock::forget_cache(file, writes));
        let len_bytes = rustix::fs::seek(&file, SeekFrom::End(0))
            .map_err(|error| Error::io(path, "find its length", error))?;
        let is_tmpfs =
            !is_block_device && rustix::fs::fstatfs(&file).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC);
        let kind = match (is_block_device || direct, is_tmpfs) {
            (_, true) => BackingKind::Tmpfs,
            (true, false) => BackingKind::Direct,
            (false, false) => BackingKind::Cached,
        };
        let path = path.to_owned();
        let device = if is_block_device { metadata.rdev() } else { metadata.dev() };
        let storage = Storage::Local(file);
        let opened = Self {
            storage,
            files_under,
            direct: None,
            path,
            len_bytes,
            part: None,
            kind,
            access,
            is_block_device,
            device,
            witness: None,
            is_path: false,
            durability: Arc::default(),
            said: LoggedErrors::default(),
        };
        match kind {
            BackingKind::Direct => opened.with_direct(),
            BackingKind::Cached => opened.with_witness(),
            BackingKind::Tmpfs | BackingKind::Remote => Ok(opened),
        }
    }

    /// Like [`DeviceFile::open`], for a path of a multipath line; the server of an export may be
    /// away.
    ///
    /// # Errors
    /// See [`DeviceFile::open`].
    pub(crate) fn open_path(path: &Path, access: Access, direct: bool) -> Result<Self, Error> {
        match remote::name_of(path) {
            Some(name) => Ok(Self::of_remote(path, RemoteDisk::open_path(name, access)?, access)),
            None => Self::open(path, access, direct),
        }
    }

    fn of_remote(path: &Path, remote: RemoteDisk, access: Access) -> Self {
        Self {
            len_bytes: remote.len_bytes(),
            storage: Storage::Remote(remote),
            files_under: Vec::new(),
            direct: None,
            path: path.to_owned(),
            part: None,
            kind: BackingKind::Remote,
            access,
            is_block_device: false,
            device: 0,
            witness: None,
            is_path: false,
            durability: Arc::default(),
            said: LoggedErrors::default(),
        }
    }

    /// A private device in memory, filled with zeroes. It has a queue, like `brd`.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn in_memory(len_bytes: u64) -> Result<Self, Error> {
        let path = PathBuf::from("memory");
        Self::of_memory(path, len_bytes, BackingKind::Direct)
    }

    /// Memory of zeroes, without a queue and without a name for tables.
    pub(crate) fn ram(len_bytes: u64) -> Result<Self, Error> {
        Self::of_memory(PathBuf::new(), len_bytes, BackingKind::Tmpfs)
    }

    fn of_memory(path: PathBuf, len_bytes: u64, kind: BackingKind) -> Result<Self, Error> {
        let make = || {
            let file = File::from(memfd_create("blockyard", MemfdFlags::CLOEXEC)?);
            file.set_len(len_bytes)?;
            let device = file.metadata()?.dev();
            io::Result::Ok((file, device))
        };
        let failed = |error| Error::io(Path::new("memory"), "allocate", error);
        let (file, device) = make().map_err(failed)?;
        Ok(Self {
            storage: Storage::Local(file),
            files_under: Vec::new(),
            direct: None,
            path,
            len_bytes,
            part: None,
            kind,
            access: Access::ReadWrite,
            is_block_device: false,
            device,
            witness: None,
            is_path: false,
            durability: Arc::default(),
            said: LoggedErrors::default(),
        })
    }

    /// Limits the disk to a part, in bytes: headers and volumes see nothing else of it. The start
    /// is a multiple of 512.
    #[must_use]
    pub fn part(mut self, bytes: Range<u64>) -> Self {
        self.part = Some(bytes);
        self
    }

    /// Start of the part on the disk.
    #[must_use]
    pub fn start_bytes(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.start)
    }

    /// The whole disk again.
    pub(crate) fn whole(mut self) -> Self {
        self.part = None;
        self
    }

    /// The place of a range of the part on the disk.
    fn place_of(&self, offset_bytes: u64, len: usize) -> Result<u64, SourceError> {
        let len_bytes = len as u64;
        let device_len_bytes = self.len_bytes();
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > device_len_bytes) {
            return Err(SourceError::BehindEnd { offset_bytes, len_bytes, device_len_bytes });
        }
        Ok(self.start_bytes() + offset_bytes)
    }

    /// Treats a file in memory (tmpfs) as a device: gives it a queue.
    #[must_use]
    pub fn as_device(mut self) -> Self {
        if self.kind == BackingKind::Tmpfs {
            self.kind = BackingKind::Direct;
        }
        self
    }

    /// Whether the name of a local file or device still leads to it.
    #[must_use]
    pub fn is_what_its_name_leads_to(&self) -> bool {
        let Some(id) = self.id() else { return true };
        std::fs::metadata(&self.path).is_ok_and(|found| FileId::of(&found) == id)
    }

    /// Identity of a local file or device.
    pub(crate) fn id(&self) -> Option<FileId> {
        self.local()?.metadata().ok().map(|metadata| FileId::of(&metadata))
    }

    /// Path of the file or device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Access method.
    #[must_use]
    pub fn kind(&self) -> BackingKind {
        self.kind
    }

    /// Permitted access.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The server's knowledge of a range, from its start on: lengths, and whether they read as
    /// zeroes. May be empty.
    #[must_use]
    pub fn remote_runs(&self, offset_bytes: u64, len_bytes: u64) -> Vec<(u64, bool)> {
        let place = self.start_bytes() + offset_bytes;
        self.remote().map_or_else(Vec::new, |remote| remote.runs_at(place, len_bytes))
    }

    /// The present length of a file, device or image, which may have grown since it was opened.
    ///
    /// # Errors
    /// The system does not tell; `Unsupported` for an export of a server, whose length is that of
    /// its connection.
    pub(crate) fn present_len_bytes(&self) -> io::Result<u64> {
        match &self.storage {
            Storage::Local(file) => Ok(rustix::fs::seek(file, SeekFrom::End(0))?),
            Storage::Remote(remote) => remote.present_len_bytes(),
        }
    }

    /// Bytes after which an image of a cluster uses the same objects again; one for other disks.
    #[must_use]
    pub fn stripe_period_bytes(&self) -> u64 {
        self.remote().map_or(1, RemoteDisk::stripe_period_bytes)
    }

    /// Extends a regular file to this length, with zeroes, or truncates it. Remote disks, parts
    /// and other files keep their length.
    ///
    /// # Errors
    /// The file cannot have this length.
    pub fn set_len(&mut self, len_bytes: u64) -> io::Result<()> {
        let (Storage::Local(file), None) = (&self.storage, &self.part) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        file.set_len(len_bytes)?;
        self.len_bytes = len_bytes;
        file.sync_all()
    }

    /// Descriptor of the data path.
    pub(crate) fn data_fd(&self) -> i32 {
        self.direct.as_ref().unwrap_or_else(|| self.file()).as_raw_fd()
    }

    /// Another descriptor of the file, unless it is a device or remote.
    pub(crate) fn image(&self) -> Option<Result<File, Error>> {
        let failed = |error| Error::io(&self.path, "look at it", error);
        let file = self.local()?;
        match file.metadata() {
            Ok(metadata) if !metadata.is_file() => None,
            Ok(_) => Some(file.try_clone().map_err(failed)),
            Err(error) => Some(Err(failed(error))),
        }
    }

    /// The file behind the page cache.
    ///
    /// # Panics
    /// The disk is remote.
    pub(crate) fn file(&self) -> &File {
        self.local().expect("a remote disk has a queue and no file")
    }

    /// The file behind the page cache, if it is local.
    pub(crate) fn local(&self) -> Option<&File> {
        match &self.storage {
            Storage::Local(file) => Some(file),
            Storage::Remote(_) => None,
        }
    }

    /// The export, if the disk is remote.
    pub(crate) fn remote(&self) -> Option<&RemoteDisk> {
        match &self.storage {
            Storage::Local(_) => None,
            Storage::Remote(remote) => Some(remote),
        }
    }

    /// Whether ciphertext that starts at this sector, in sectors of this size, can use direct I/O:
    /// some disks and file systems need units of 4096 bytes.
    pub(crate) fn direct_fits(&self, start_sectors: u64, sector_size_bytes: u32) -> bool {
        let unit_bytes = self.direct_unit_bytes();
        (start_sectors * 512).is_multiple_of(unit_bytes)
            && u64::from(sector_size_bytes).is_multiple_of(unit_bytes)
    }

    /// Alignment of direct I/O; one byte without direct I/O.
    pub(crate) fn direct_unit_bytes(&self) -> u64 {
        let Some(direct) = &self.direct else { return 1 };
        let unit_bytes = if self.is_block_device {
            rustix::fs::ioctl_blksszget(direct).ok()
        } else {
            let asked = rustix::fs::statx(direct, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
            asked.ok().map(|file| file.stx_dio_offset_align).filter(|unit| *unit > 0)
        };
        u64::from(unit_bytes.unwrap_or(DIRECT_UNIT_BYTES))
    }

    /// Descriptor for headers of a block device.
    fn uncached(&self) -> Option<&File> {
        self.direct.as_ref().filter(|_| self.is_block_device)
    }

    /// Whether the disk is a block device, not a file on one.
    pub(crate) fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Facts from the system about the device below.
    pub(crate) fn facts(&self) -> Facts {
        match &self.storage {
            Storage::Local(_) => Facts::of(self.device, self.is_block_device),
            Storage::Remote(remote) => {
                Facts { rotational: remote.rotational(), kernel_scheduler: None }
            }
        }
    }

    /// Turns direct I/O on.
    pub(crate) fn with_direct(mut self) -> Result<Self, Error> {
        let failed = |error| Error::io(&self.path, "open for direct I/O", error);
        self.direct = Some(self.opened_again(libc::O_DIRECT, &failed)?);
        self.kind = BackingKind::Direct;
        self.with_witness()
    }

    /// Turns direct I/O off.
    pub(crate) fn without_direct(mut self) -> Result<Self, Error> {
        self.direct = None;
        if self.kind != BackingKind::Direct {
            return Ok(self);
        }
        self.kind = BackingKind::Cached;
        self.with_witness()
    }

    fn with_witness(mut self) -> Result<Self, Error> {
        let failed = |error| Error::io(&self.path, "open again", error);
        let witness = self.opened_again(0, &failed)?;
        // An earlier error is not this volume's. File systems that do not answer report none.
        let _ = reported(&witness);
        self.witness = reported(&witness).is_ok().then(|| Mutex::new(witness));
        Ok(self)
    }

    /// Opens the file a second time; fails if its name now leads to another file.
    fn opened_again(&self, flags: i32, failed: &dyn Fn(io::Error) -> Error) -> Result<File, Error> {
        let mut options = OpenOptions::new();
        options.read(true).write(self.access.writes()).custom_flags(flags);
        let again = options.open(&self.path).map_err(failed)?;
        let before = self.file().metadata().map_err(failed)?;
        let now = again.metadata().map_err(failed)?;
        if FileId::of(&before) != FileId::of(&now) {
            return Err(replaced(&self.path));
        }
        Ok(again)
    }

    /// Joins the volume with this latch; `is_path`: the device is one of several paths to a disk.
    pub(crate) fn watched_by(mut self, durability: &Arc<Durability>, is_path: bool) -> Self {
        (self.durability, self.is_path) = (Arc::clone(durability), is_path);
        self
    }

    /// Flushes: all acknowledged writes are on stable storage when this returns. After an error,
    /// acknowledged writes may be lost.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match &self.storage {
            Storage::Local(_) if is_planted(Canary::Fdatasync) => Ok(()),
            // The descriptor of the data path: an error that it has reported is not reported again.
            Storage::Local(_) => {
                self.heard(Op::Flush, Sector(0), false, sync_io::sync_data(self.data_fd()))
            }
            Storage::Remote(remote) => remote.flush(),
        }
    }

    /// The status of a local file's operation, after the volume has learned of losses.
    #[inline]
    pub(crate) fn ended(
        &self,
        op: Op,
        sector: Sector,
        fua: bool,
        result: io::Result<()>,
    ) -> BlkStatus {
        match (op, result) {
            (Op::Read | Op::Write | Op::Discard | Op::WriteZeroes, Ok(())) if !fua => BlkStatus::Ok,
            (op, result) => file_op::status(self.heard(op, sector, fua, result)),
        }
    }

    fn heard(&self, op: Op, sector: Sector, fua: bool, result: io::Result<()>) -> io::Result<()> {
        let result = if op == Op::Flush || fua {
            result.and_then(|()| self.ask_witness(op, fua))
        } else {
            result
        };
        if let Err(error) = &result
            && !self.latch(op, fua, error)
        {
            self.said.say(&self.path, self.is_path, (op, sector), error);
        }
        result
    }

    /// The system reports a failed write-back to each descriptor once. Flushes and FUA writes of
    /// all connections share one descriptor: of two that wait for the same write-back only one gets
    /// the error, and its thread may not have handled it when the other one succeeds. So each
    /// success also asks a separate descriptor under a lock, and the error is latched before the
    /// lock is released.
    fn ask_witness(&self, op: Op, fua: bool) -> io::Result<()> {
        let Some(witness) = &self.witness else { return Ok(()) };
        let witness = witness.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = reported(&witness);
        if let Err(error) = &asked {
            self.latch(op, fua, error);
        }
        asked
    }

    /// Latches a failed flush or FUA write, after which the state of acknowledged writes is
    /// unknown. Returns whether it did.
    fn latch(&self, op: Op, fua: bool, error: &io::Error) -> bool {
        let status = file_op::status(Err(io::Error::from_raw_os_error(file_op::errno(error))));
        let is_refused = matches!(status, BlkStatus::Invalid | BlkStatus::NotSupported);
        let loses = match op {
            Op::Flush => true,
            // Nothing was written.
            _ => fua && !is_refused,
        };
        // A lost path does not lose the disk and its caches: another path reaches them.
        let is_way = self.is_path && status == BlkStatus::Transport;
        let loses = loses && !is_way;
        if loses {
            let problem = failed(op, fua, error);
            self.durability.lose(self.path.display().to_string(), problem, status);
        }
        loses
    }

    /// Descriptor of the witness.
    #[cfg(test)]
    pub(crate) fn witness_fd(&self) -> Option<i32> {
        let witness = self.witness.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(witness.as_raw_fd())
    }

    /// Discards pending reports of earlier errors, which the operator knows. Requires that nothing
    /// is in flight.
    pub(crate) fn forget_errors(&self) {
        if self.local().is_some() {
            let _ = sync_io::sync_data(self.data_fd());
        }
        if let Some(witness) = &self.witness {
            let _ = reported(&witness.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Frees the storage of a range; its content is undefined afterwards.
    pub(crate) fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        if self.is_block_device {
            let range = [offset_bytes, len_bytes];
            // SAFETY: BLKDISCARD reads two u64 from the pointer, which outlives the call.
            let done =
                unsafe { libc::ioctl(self.file().as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
            return if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self.file(), flags, offset_bytes, len_bytes)?)
    }

    /// Makes a range read as zeroes, in the cheapest way of the file.
    pub(crate) fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        if self.is_block_device {
            let range = [offset_bytes, len_bytes];
            // SAFETY: BLKZEROOUT reads two u64 from the pointer, which outlives the call.
            let done =
                unsafe { libc::ioctl(self.file().as_raw_fd(), BLKZEROOUT as _, range.as_ptr()) };
            return if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(self.file(), flags, offset_bytes, len_bytes).is_ok() {
            return Ok(());
        }
        let zeros = [0u8; 64 << 10];
        let mut done = 0;
        while done < len_bytes {
            let piece = (len_bytes - done).min(zeros.len() as u64);
            self.file().write_all_at(&zeros[..piece as usize], offset_bytes + done)?;
            done += piece;
        }
        Ok(())
    }
}

/// Asks for failed write-backs of the file that were not reported to this descriptor.
fn reported(file: &File) -> io::Result<()> {
    // Past every page, so the call waits for nothing.
    let offset = i64::MAX - 1;
    let len_bytes = 1;
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // SAFETY: sync_file_range takes any descriptor and touches no memory of ours.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len_bytes, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Refuses files that cannot be a volume.
fn check_type(path: &Path, metadata: &Metadata) -> Result<(), Error> {
    let file_type = metadata.file_type();
    if file_type.is_file() || file_type.is_block_device() {
        return Ok(());
    }
    Err(Error::volume(path, "is neither a regular file nor a block device"))
}

fn replaced(path: &Path) -> Error {
    Error::volume(path, "another file has taken its place since it was opened; start again")
}

/// `_IO(0x12, 119)` and `_IO(0x12, 127)` of `linux/fs.h`.
const BLKDISCARD: u32 = 0x1277;
const BLKZEROOUT: u32 = 0x127f;

impl HeaderSource for DeviceFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let place = self.place_of(offset_bytes, buf.len())?;
        match &self.storage {
            Storage::Local(file) => match self.uncached() {
                Some(device) => uncached::read_exact_at(device, buf, place)?,
                None => file.read_exact_at(buf, place)?,
            },
            Storage::Remote(remote) => remote.read_at(place, buf)?,
        }
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        match &self.part {
            None => self.len_bytes,
            Some(part) => part.end.min(self.len_bytes).saturating_sub(part.start),
        }
    }
}

impl HeaderSink for DeviceFile {
    fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), SourceError> {
        let place = match &self.part {
            None => offset_bytes,
            Some(_) => self.place_of(offset_bytes, bytes.len())?,
        };
        let file = match &self.storage {
            Storage::Local(file) => file,
            Storage::Remote(remote) => return Ok(remote.write_at(place, bytes)?),
        };
        match self.uncached() {
            Some(device) => uncached::write_all_at(device, bytes, place)?,
            None => file.write_all_at(bytes, place)?,
        }
        if !self.is_block_device && self.part.is_none() {
            self.len_bytes = self.len_bytes.max(offset_bytes + bytes.len() as u64);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SourceError> {
        if is_planted(Canary::HeaderSync) {
            return Ok(());
        }
        match &self.storage {
            Storage::Local(file) => Ok(file.sync_data()?),
            Storage::Remote(remote) => Ok(remote.flush()?),
        }
    }
}
