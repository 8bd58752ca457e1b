//! The requests of the kernel for one file.
//!
//! In a directory, the root is the directory and the file is in it; over a file, the root is the
//! file. Its size is fixed, as that of a disk.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::pool::Pool;
use super::{FileOptions, Target};
use crate::volume::Volume;

/// Longest request; the kernel's limit is 256 pages.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// Asynchronous requests in flight.
const BACKGROUND_MAX: u16 = 64;
/// Nothing changes but the content, so the kernel may keep names and attributes.
const UNCHANGED: Duration = Duration::from_secs(24 * 3600);
/// The file in a directory.
const IN_DIRECTORY: INodeNo = INodeNo(2);
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;
/// `fallocate(2)`: modes that make a range read as zeroes.
const ZEROING: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;

/// A volume as a file.
pub(super) struct VolumeFile {
    volume: Arc<Volume>,
    pool: Arc<Pool>,
    /// Inode of the file.
    ino: INodeNo,
    name: OsString,
    /// Start of the file in the volume.
    start_bytes: u64,
    /// Attributes of the file.
    file: FileAttr,
    /// Attributes of the directory.
    directory: FileAttr,
}

impl VolumeFile {
    pub(super) fn new(
        volume: &Arc<Volume>,
        pool: Arc<Pool>,
        target: &Target,
        options: &FileOptions,
    ) -> Self {
        let ino = match target {
            Target::Directory(_) => IN_DIRECTORY,
            Target::File(_) => INodeNo::ROOT,
        };
        let writes = if volume.read_only() { 0o222 } else { 0 };
        let now = SystemTime::now();
        let size = options.range.end - options.range.start;
        let file = FileAttr {
            ino,
            size,
            blocks: size.div_ceil(BLOCK_BYTES),
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: FileType::RegularFile,
            perm: (0o666 & !options.umask & !writes) as u16,
            nlink: 1,
            uid: options.uid,
            gid: options.gid,
            rdev: 0,
            blksize: volume.sector_size_bytes(),
            flags: 0,
        };
        let directory = FileAttr {
            ino: INodeNo::ROOT,
            size: 0,
            blocks: 0,
            kind: FileType::Directory,
            perm: (0o777 & !options.umask & !writes) as u16,
            nlink: 2,
            ..file
        };
        let name = OsString::from(&options.name);
        let start_bytes = options.range.start;
        Self { volume: Arc::clone(volume), pool, ino, name, start_bytes, file, directory }
    }

    fn attributes(&self, ino: INodeNo) -> &FileAttr {
        if ino == self.ino { &self.file } else { &self.directory }
    }

    /// The place in the volume of a range of the file, without what is behind the file's end.
    fn placed(&self, offset: u64, len: u64) -> Range<u64> {
        let size = self.file.size;
        let end = offset.saturating_add(len).min(size);
        self.start_bytes + offset.min(size)..self.start_bytes + end
    }

    fn flush_volume(&self) -> io::Result<()> {
        self.pool.run(|calls| calls.flush())
    }

    fn allocate(&self, offset: u64, len: u64, mode: i32) -> io::Result<()> {
        if mode & !(ZEROING | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let range = self.placed(offset, len);
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        if !keeps_size && offset.saturating_add(len) > self.file.size {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        // The volume has all of its blocks already.
        if mode & ZEROING == 0 || range.is_empty() {
            return Ok(());
        }
        self.pool.run(|calls| calls.zero(&range))
    }

    /// The next data or hole from an offset on; there is a hole behind the end.
    fn seek(&self, offset: i64, whence: i32) -> Option<u64> {
        let size = self.file.size;
        let mut offset = u64::try_from(offset).ok().filter(|offset| *offset < size)?;
        let wants_hole = whence == libc::SEEK_HOLE;
        while offset < size {
            let (len, is_hole) = self.volume.run_at(self.start_bytes + offset, size - offset);
            if is_hole == wants_hole {
                return Some(offset);
            }
            offset += len.max(1);
        }
        wants_hole.then_some(size)
    }
}

/// The kernel's error for a failed request.
fn errno(error: io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        _ => error.into(),
    }
}

fn answer(reply: ReplyEmpty, outcome: io::Result<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |least| io::Error::other(format!("the kernel refuses {least} as a limit"));
        config.set_max_write(TRANSFER_MAX_BYTES).map_err(refused)?;
        config.set_max_background(BACKGROUND_MAX).map_err(|least| refused(least.into()))?;
        // An older kernel has no shared mappings, or waits for each part of a long request.
        for wanted in [InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, InitFlags::FUSE_ASYNC_DIO] {
            let _ = config.add_capabilities(wanted);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && self.ino == IN_DIRECTORY && name == self.name {
            reply.entry(&UNCHANGED, &self.file, Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&UNCHANGED, self.attributes(ino));
    }

    /// Times are accepted and forgotten, for copying programs; a size only if it is the present
    /// one.
    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let is_file = ino == self.ino;
        match size {
            Some(size) if is_file && size > self.file.size => reply.error(Errno::EFBIG),
            Some(size) if !is_file || size < self.file.size => reply.error(Errno::EPERM),
            _ if mode.is_some() || uid.is_some() || gid.is_some() => reply.error(Errno::EPERM),
            _ => reply.attr(&UNCHANGED, self.attributes(ino)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let range = self.placed(offset, size.min(TRANSFER_MAX_BYTES).into());
        if range.is_empty() {
            return reply.data(&[]);
        }
        let mut reply = Some(reply);
        let mut send = |bytes: &[u8]| {
            if let Some(reply) = reply.take() {
                reply.data(bytes);
            }
        };
        let outcome = self.pool.run(|calls| calls.read_into(range, &mut send));
        if let (Err(error), Some(reply)) = (outcome, reply) {
            reply.error(errno(error));
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let range = self.placed(offset, data.len() as u64);
        let len = (range.end - range.start) as usize;
        if len == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        let is_synchronous = flags.0 & libc::O_DSYNC != 0;
        let outcome = self.pool.run(|calls| calls.write(&data[..len], range.start));
        let outcome =
            outcome.and_then(|()| if is_synchronous { self.flush_volume() } else { Ok(()) });
        match outcome {
            Ok(()) => reply.written(len as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// A close, which flushes nothing.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.flush_volume());
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.flush_volume());
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [
            (INodeNo::ROOT, FileType::Directory, OsStr::new(".")),
            (INodeNo::ROOT, FileType::Directory, OsStr::new("..")),
            (self.ino, FileType::RegularFile, self.name.as_os_str()),
        ];
        for (next, (ino, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let block = self.file.blksize;
        let blocks = self.file.size / u64::from(block);
        reply.statfs(blocks, 0, 0, 1, 0, block, 255, block);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.allocate(offset, length, mode));
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.seek(offset, whence) {
            Some(offset) => reply.offset(offset as i64),
            None => reply.error(Errno::ENXIO),
        }
    }
}
