//! The requests of the kernel.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

use super::FatOptions;
use super::nodes::{Attributes, Listed, NewTimes, Nodes};

/// Longest write; the kernel's limit is 256 pages.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// Attributes change by requests of this session only.
const ATTRIBUTES_TTL: Duration = Duration::from_secs(1);
/// A removed name may have been looked up in another case, so the kernel asks for each name again.
const NAME_TTL: Duration = Duration::ZERO;
/// Number of an entry that was not looked up, as libfuse has it.
const UNKNOWN_NUMBER: INodeNo = INodeNo(0xffff_ffff);
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;
/// Longest name, in characters.
const NAME_MAX: u32 = 255;

/// A session; its requests come one at a time.
pub(super) struct FatSession {
    nodes: Arc<Mutex<Nodes>>,
    options: FatOptions,
    /// Open folders: their entries at the time of opening.
    folders: Mutex<(u64, HashMap<u64, Vec<Listed>>)>,
}

impl FatSession {
    pub(super) fn new(nodes: Arc<Mutex<Nodes>>, options: FatOptions) -> Self {
        Self { nodes, options, folders: Mutex::default() }
    }

    /// Runs an operation, and writes what it has changed.
    fn run<T>(&self, call: impl FnOnce(&mut Nodes) -> io::Result<T>) -> Result<T, Errno> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = call(&mut nodes);
        let committed = nodes.commit();
        let outcome = outcome.and_then(|value| committed.map(|()| value));
        // A damaged file system has no number of its own.
        outcome.map_err(|error| error.raw_os_error().map_or(Errno::EIO, |_| error.into()))
    }

    fn folders(&self) -> MutexGuard<'_, (u64, HashMap<u64, Vec<Listed>>)> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attr(&self, found: &Attributes) -> FileAttr {
        let seconds = Duration::from_secs(found.modified.max(0).cast_unsigned());
        let time = UNIX_EPOCH + seconds;
        let no_writes = if found.is_read_only && !found.is_folder { 0o222 } else { 0 };
        FileAttr {
            ino: INodeNo(found.number),
            size: found.len,
            blocks: found.len.div_ceil(BLOCK_BYTES),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if found.is_folder { FileType::Directory } else { FileType::RegularFile },
            perm: (0o777 & !self.options.umask & !no_writes) as u16,
            nlink: if found.is_folder { 2 } else { 1 },
            uid: self.options.uid,
            gid: self.options.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn entry(&self, found: Result<Attributes, Errno>, reply: ReplyEntry) {
        match found {
            Ok(found) => {
                let attr = self.attr(&found);
                reply.entry_with_ttls(&ATTRIBUTES_TTL, &NAME_TTL, &attr, Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }
}

/// Names of FAT are UTF-16.
fn text(name: &OsStr) -> io::Result<&str> {
    name.to_str().ok_or_else(|| rustix::io::Errno::ILSEQ.into())
}

fn answer(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn seconds(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed())
}

impl Filesystem for FatSession {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |least| io::Error::other(format!("the kernel refuses {least} as a limit"));
        config.set_max_write(TRANSFER_MAX_BYTES).map_err(refused)?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.run(|nodes| nodes.lookup(parent.0, text(name)?)), reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        let _ = self.run(|nodes| {
            nodes.forget(ino.0, lookups);
            Ok(())
        });
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.run(|nodes| nodes.attributes(ino.0)) {
            Ok(found) => reply.attr(&ATTRIBUTES_TTL, &self.attr(&found)),
            Err(errno) => reply.error(errno),
        }
    }

    /// Owner and permissions are accepted and forgotten, for copying programs, as ntfs-3g does.
    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changed = self.run(|nodes| {
            if let Some(size) = size {
                nodes.resize(ino.0, size)?;
            }
            if atime.is_some() || mtime.is_some() {
                let times = NewTimes { modified: mtime.map(seconds), accessed: atime.map(seconds) };
                nodes.set_times(ino.0, times)?;
            }
            nodes.attributes(ino.0)
        });
        match changed {
            Ok(found) => reply.attr(&ATTRIBUTES_TTL, &self.attr(&found)),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        self.entry(self.run(|nodes| nodes.create(parent.0, text(name)?, true)), reply);
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::RegularFile {
            return reply.error(Errno::EPERM);
        }
        self.entry(self.run(|nodes| nodes.create(parent.0, text(name)?, false)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.run(|nodes| nodes.unlink(parent.0, text(name)?, false)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.run(|nodes| nodes.unlink(parent.0, text(name)?, true)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let may_replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        answer(
            reply,
            self.run(|nodes| {
                nodes.rename((parent.0, text(name)?), (to.0, text(new_name)?), may_replace)
            }),
        );
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let created = self.run(|nodes| {
            let found = nodes.create(parent.0, text(name)?, false)?;
            nodes.open(found.number)?;
            Ok(found)
        });
        match created {
            Ok(found) => {
                let attr = self.attr(&found);
                let flags = FopenFlags::empty();
                reply.created(&NAME_TTL, &attr, Generation(0), FileHandle(0), flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.run(|nodes| nodes.open(ino.0)) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = size.min(TRANSFER_MAX_BYTES) as usize;
        match self.run(|nodes| nodes.read(ino.0, offset, len)) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_synchronous = flags.0 & rustix::fs::OFlags::DSYNC.bits().cast_signed() != 0;
        let written = self.run(|nodes| {
            nodes.write(ino.0, data, offset)?;
            if is_synchronous { nodes.sync(ino.0) } else { Ok(()) }
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    /// A close, which reports the errors of the writes.
    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        answer(reply, self.run(|nodes| nodes.settle(ino.0)));
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.run(|nodes| nodes.close(ino.0)));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.run(|nodes| nodes.sync(ino.0)));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.run(|nodes| nodes.sync(ino.0)));
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.run(|nodes| nodes.list(ino.0)) {
            Ok(listed) => {
                let mut folders = self.folders();
                folders.0 += 1;
                let handle = folders.0;
                folders.1.insert(handle, listed);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let folders = self.folders();
        let Some(listed) = folders.1.get(&handle.0) else { return reply.error(Errno::EBADF) };
        let own = [(ino, true, "."), (ino, true, "..")].into_iter();
        let listed = listed.iter().map(|it| (UNKNOWN_NUMBER, it.is_folder, it.name.as_str()));
        for (next, (number, is_folder, name)) in (1..).zip(own.chain(listed)).skip(offset as usize)
        {
            let kind = if is_folder { FileType::Directory } else { FileType::RegularFile };
            if reply.add(number, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.folders().1.remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.run(Nodes::space) {
            Ok((blocks, free, bytes)) => {
                reply.statfs(blocks, free, free, 0, 0, bytes as u32, NAME_MAX, bytes as u32);
            }
            Err(errno) => reply.error(errno),
        }
    }
}
