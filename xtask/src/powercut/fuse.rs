//! A mounted directory over a [`Disk`] whose power can be cut.
//!
//! The kernel's FUSE protocol 7.31 (`include/uapi/linux/fuse.h`), served by one thread.
//! `fusermount3` mounts it, so it needs no privilege. Writes pass through the page cache at once:
//! FUSE's write-back cache stays off. FSYNC makes data stable, and so do the `O_DSYNC` and `O_SYNC`
//! flags of a WRITE. Some syncs are completed late, so that other requests come in between. While
//! the power is off all requests fail with EIO.

use super::disk::{Disk, Dropped, Ino, ROOT};
use crate::random::Random;
use crate::tools;
use anyhow::{Context, Result, ensure};
use nix::unistd::Uid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::fs::File;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest WRITE and READ; the kernel allows at most 1 MiB in 256 pages.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// Length of the longest request with its header.
const REQUEST_MAX_BYTES: usize = TRANSFER_MAX_BYTES as usize + 4096;
/// Time limit for the kernel to close the last descriptor of a killed server.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);
/// Wait of a late sync for other requests: long enough for a round trip of a client.
const LATE_SYNC: Timespec = Timespec { tv_sec: 0, tv_nsec: 700_000 };

const EIO: i32 = 5;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;
/// `O_DSYNC`; `O_SYNC` contains it.
const O_DSYNC: u32 = 0o10000;

/// Supported requests, by their numbers in `fuse.h`.
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RENAME: u32 = 12;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const CREATE: u32 = 35;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const RENAME2: u32 = 45;
}

/// A sync without an answer yet.
struct LateSync {
    unique: u64,
    ino: Ino,
    /// The newest change that the sync covers.
    up_to: u64,
    /// Number of requests before its answer.
    after: u64,
}

/// The disk and its power.
struct State {
    disk: Disk,
    is_off: bool,
    /// Number of further operations until the power is cut.
    cut_after: Option<u64>,
    /// Number of changing operations and syncs since the disk was armed.
    operations: u64,
    syncs: u64,
    random: Random,
    late_syncs: Vec<LateSync>,
    open_handles: u64,
}

/// The state, and a condition variable for its changes.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Answer to a request.
enum Answer {
    Bytes(Vec<u8>),
    Error(i32),
    /// No answer, now or later.
    Silence,
}

/// The mounted directory; unmounted on drop.
pub(super) struct PowerDisk {
    shared: Arc<Shared>,
    dir: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl PowerDisk {
    /// Mounts an empty disk on an empty directory.
    pub(super) fn mount(dir: &Path) -> Result<PowerDisk> {
        let channel = open_channel(dir)?;
        let state = State {
            disk: Disk::default(),
            is_off: false,
            cut_after: None,
            operations: 0,
            syncs: 0,
            random: Random::new(0),
            late_syncs: Vec::new(),
            open_handles: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || own.serve(channel));
        Ok(PowerDisk { shared, dir: dir.to_owned(), thread: Some(thread) })
    }

    /// Path of a file on it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Accesses the disk behind the kernel's back: only while no file is open.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Disk) -> T) -> T {
        work(&mut self.shared.lock().disk)
    }

    /// Sets the seed of all random choices, and with `cut_after` the number of operations until the
    /// power is cut.
    pub(super) fn arm(&self, seed: u64, cut_after: Option<u64>) {
        let mut state = self.shared.lock();
        state.random = Random::new(seed);
        (state.cut_after, state.operations, state.syncs) = (cut_after, 0, 0);
    }

    /// Cuts the power if it is on.
    pub(super) fn cut(&self) {
        self.shared.lock().is_off = true;
        self.shared.changed.notify_all();
    }

    pub(super) fn is_off(&self) -> bool {
        self.shared.lock().is_off
    }

    /// Numbers of operations and syncs since the disk was armed.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.operations, state.syncs)
    }

    /// Waits until the power is off; returns whether it is.
    pub(super) fn wait_off(&self, limit: Duration) -> bool {
        self.shared.wait(limit, |state| state.is_off)
    }

    /// After all open files are closed: drops unstable changes, and turns the power on.
    pub(super) fn restore(&self) -> Result<Dropped> {
        ensure!(
            self.shared.wait(RELEASE_LIMIT, |state| state.open_handles == 0),
            "a file on the disk is still open after the power cut"
        );
        let mut state = self.shared.lock();
        let State { disk, random, .. } = &mut *state;
        let dropped = disk.cut(random);
        (state.is_off, state.cut_after) = (false, None);
        Ok(dropped)
    }
}

impl Drop for PowerDisk {
    fn drop(&mut self) {
        self.cut();
        let _ = tools::run(tools::tool("fusermount3").args(["-u", "-z", "-q"]).arg(&self.dir));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Checks the requirements of this machine.
///
/// # Errors
/// The missing program, and its package.
pub(super) fn check_machine() -> Result<()> {
    tools::need("fusermount3")?;
    ensure!(
        Path::new("/dev/fuse").exists(),
        "/dev/fuse is missing, and power cuts need FUSE: modprobe fuse; for a container, start it \
         with --device /dev/fuse --cap-add SYS_ADMIN"
    );
    Ok(())
}

/// Lets `fusermount3` mount the directory and receives its channel.
fn open_channel(dir: &Path) -> Result<File> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None)?;
    // Other users than the mounting one have access only with root's permission.
    let others = if Uid::effective().is_root() { ",allow_other" } else { "" };
    let mut mount = tools::tool("fusermount3");
    mount.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    mount.args(["-o", &format!("rw,nosuid,nodev,fsname=powercut{others}"), "--"]).arg(dir);
    tools::run(&mut mount).context("a power cut needs a FUSE file system")?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let channel: Option<OwnedFd> = received.find_map(|mut descriptors| descriptors.next());
    Ok(File::from(channel.context("fusermount3 sent no channel")?))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, limit: Duration, yes: impl Fn(&State) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            if yes(&state) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Serves the kernel until the directory is unmounted.
    fn serve(&self, mut channel: File) {
        let mut buffer = vec![0; REQUEST_MAX_BYTES];
        loop {
            if !self.lock().late_syncs.is_empty() && !is_readable(&channel) {
                self.end_syncs(&mut channel, true);
                continue;
            }
            let len = match channel.read(&mut buffer) {
                Ok(len) => len,
                // The request was cancelled, or a signal came.
                Err(error) if matches!(error.raw_os_error(), Some(ENOENT)) => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // ENODEV: unmounted.
                Err(_) => return,
            };
            let request = Request { bytes: &buffer[..len] };
            let answer = self.lock().answer(&request);
            self.changed.notify_all();
            reply(&mut channel, request.unique(), answer);
            self.end_syncs(&mut channel, false);
        }
    }

    /// Answers the late syncs that are due.
    fn end_syncs(&self, channel: &mut File, all: bool) {
        let mut state = self.lock();
        let State { late_syncs, disk, is_off, .. } = &mut *state;
        late_syncs.retain_mut(|sync| {
            sync.after = sync.after.saturating_sub(1);
            if sync.after > 0 && !all && !*is_off {
                return true;
            }
            let answer = if *is_off {
                Answer::Error(EIO)
            } else {
                disk.sync(sync.ino, sync.up_to);
                Answer::Bytes(Vec::new())
            };
            reply(channel, sync.unique, answer);
            false
        });
    }
}

fn is_readable(channel: &File) -> bool {
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    poll(&mut fds, Some(&LATE_SYNC)).is_ok_and(|ready| ready > 0)
}

fn reply(channel: &mut File, unique: u64, answer: Answer) {
    let (error, bytes) = match answer {
        Answer::Bytes(bytes) => (0, bytes),
        Answer::Error(error) => (-error, Vec::new()),
        Answer::Silence => return,
    };
    let len = u32::try_from(16 + bytes.len()).expect("an answer has at most a transfer's length");
    let mut message = Out::default();
    message.u32(len).u32(error as u32).u64(unique);
    message.0.extend(bytes);
    // ENOENT: the kernel has cancelled the request.
    let _ = channel.write_all(&message.0);
}

/// A request in the buffer: 40 bytes of header, then a body by opcode.
struct Request<'a> {
    bytes: &'a [u8],
}

impl<'a> Request<'a> {
    const HEADER_BYTES: usize = 40;

    fn opcode(&self) -> u32 {
        self.at_u32(4)
    }

    fn unique(&self) -> u64 {
        self.at_u64(8)
    }

    fn node(&self) -> Ino {
        self.at_u64(16)
    }

    fn at_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }

    fn at_u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// A number of the body.
    fn u32(&self, at: usize) -> u32 {
        self.at_u32(Self::HEADER_BYTES + at)
    }

    fn u64(&self, at: usize) -> u64 {
        self.at_u64(Self::HEADER_BYTES + at)
    }

    fn size(&self, at: usize) -> usize {
        usize::try_from(self.u64(at)).expect("offsets fit")
    }

    fn data(&self, at: usize) -> &'a [u8] {
        &self.bytes[Self::HEADER_BYTES + at..]
    }

    /// The NUL-terminated names after the body's first bytes.
    fn names(&self, at: usize) -> Vec<String> {
        let names = self.data(at).split(|byte| *byte == 0);
        names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }
}

/// An answer under construction.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u32(&mut self, word: u32) -> &mut Self {
        self.0.extend(word.to_ne_bytes());
        self
    }

    fn u64(&mut self, word: u64) -> &mut Self {
        self.0.extend(word.to_ne_bytes());
        self
    }

    fn answer(&mut self) -> Answer {
        Answer::Bytes(std::mem::take(&mut self.0))
    }
}

impl State {
    fn answer(&mut self, request: &Request<'_>) -> Answer {
        match request.opcode() {
            opcode::INIT => return init(request),
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::DESTROY => {
                return Answer::Silence;
            }
            opcode::RELEASE => {
                self.open_handles -= 1;
                return Answer::Bytes(Vec::new());
            }
            opcode::RELEASEDIR | opcode::FLUSH => return Answer::Bytes(Vec::new()),
            _ => {}
        }
        if self.counts_as_operation(request) {
            self.operations += 1;
            if self.cut_after.is_some_and(|cut_after| self.operations >= cut_after) && !self.is_off
            {
                self.is_off = true;
                // The write is in flight: the disk may keep some of it.
                if request.opcode() == opcode::WRITE {
                    self.write(request);
                }
            }
        }
        if self.is_off { Answer::Error(EIO) } else { self.execute(request) }
    }

    fn counts_as_operation(&self, request: &Request<'_>) -> bool {
        let changes = [
            opcode::SETATTR,
            opcode::UNLINK,
            opcode::RENAME,
            opcode::RENAME2,
            opcode::WRITE,
            opcode::FSYNC,
            opcode::FSYNCDIR,
            opcode::CREATE,
            opcode::FALLOCATE,
        ];
        changes.contains(&request.opcode())
    }

    fn execute(&mut self, request: &Request<'_>) -> Answer {
        let node = request.node();
        match request.opcode() {
            opcode::LOOKUP => match self.disk.lookup(&request.names(0)[0]) {
                Some(ino) => self.entry(ino).answer(),
                None => Answer::Error(ENOENT),
            },
            opcode::GETATTR => self.attributes(node),
            opcode::SETATTR => {
                const SIZE: u32 = 1 << 3;
                if request.u32(0) & SIZE != 0 {
                    self.disk.set_len(node, request.size(16));
                }
                self.attributes(node)
            }
            opcode::UNLINK if self.disk.unlink(&request.names(0)[0]) => Answer::Bytes(Vec::new()),
            opcode::RENAME => self.rename(&request.names(8)),
            opcode::RENAME2 => {
                const NOREPLACE: u32 = 1;
                let names = request.names(16);
                if request.u32(8) & NOREPLACE != 0 && self.disk.lookup(&names[1]).is_some() {
                    return Answer::Error(EEXIST);
                }
                self.rename(&names)
            }
            opcode::OPEN => {
                self.open_handles += 1;
                Out::default().u64(0).u64(0).answer()
            }
            opcode::CREATE => {
                let ino = self.disk.create(&request.names(16)[0]);
                self.open_handles += 1;
                self.entry(ino).u64(0).u64(0).answer()
            }
            opcode::READ => {
                let offset = request.size(8);
                let len = request.u32(16) as usize;
                Answer::Bytes(self.disk.read(node, offset, len).to_vec())
            }
            opcode::WRITE => self.write(request),
            opcode::FALLOCATE => self.allocate(request),
            opcode::FSYNC => self.sync(request),
            opcode::FSYNCDIR => {
                self.disk.sync_directory();
                Answer::Bytes(Vec::new())
            }
            opcode::OPENDIR => Out::default().u64(0).u64(0).answer(),
            opcode::READDIR => Answer::Bytes(Vec::new()),
            opcode::STATFS => {
                // No blocks, block size 4096, names of 255 bytes.
                let mut out = Out(vec![0; 40]);
                out.u32(4096).u32(255).u32(4096);
                out.0.resize(80, 0);
                out.answer()
            }
            _ => Answer::Error(ENOSYS),
        }
    }

    fn rename(&mut self, names: &[String]) -> Answer {
        if self.disk.rename(&names[0], &names[1]) {
            Answer::Bytes(Vec::new())
        } else {
            Answer::Error(ENOENT)
        }
    }

    fn write(&mut self, request: &Request<'_>) -> Answer {
        let offset = request.size(8);
        let len = request.u32(16);
        let bytes = &request.data(40)[..len as usize];
        if request.u32(32) & O_DSYNC != 0 && !self.is_off {
            self.syncs += 1;
            self.disk.write_stable(request.node(), offset, bytes);
        } else {
            self.disk.write(request.node(), offset, bytes);
        }
        Out::default().u32(len).u32(0).answer()
    }

    fn allocate(&mut self, request: &Request<'_>) -> Answer {
        const KEEP_SIZE: u32 = 1;
        const PUNCH_HOLE: u32 = 2;
        const ZERO_RANGE: u32 = 16;
        let offset = request.size(8);
        let len = request.size(16);
        let mode = request.u32(24);
        match mode & !KEEP_SIZE {
            PUNCH_HOLE | ZERO_RANGE => self.disk.zero(request.node(), offset, len),
            0 => {}
            _ => return Answer::Error(EOPNOTSUPP),
        }
        Answer::Bytes(Vec::new())
    }

    /// Answers every third sync late: after some other requests, or when none comes.
    fn sync(&mut self, request: &Request<'_>) -> Answer {
        self.syncs += 1;
        let unique = request.unique();
        let ino = request.node();
        let up_to = self.disk.newest_change();
        if self.random.below(3) == 0 {
            let after = 2 + self.random.below(6);
            self.late_syncs.push(LateSync { unique, ino, up_to, after });
            return Answer::Silence;
        }
        self.disk.sync(ino, up_to);
        Answer::Bytes(Vec::new())
    }

    fn attributes(&self, ino: Ino) -> Answer {
        if ino != ROOT && self.disk.len_bytes(ino).is_none() {
            return Answer::Error(ENOENT);
        }
        // No cache validity, because a power cut changes lengths.
        let mut out = Out::default();
        out.u64(0).u64(0);
        self.attr(&mut out, ino);
        out.answer()
    }

    /// `struct fuse_entry_out` without cache validity.
    fn entry(&self, ino: Ino) -> Out {
        let mut out = Out::default();
        out.u64(ino).u64(0).u64(0).u64(0).u64(0);
        self.attr(&mut out, ino);
        out
    }

    /// `struct fuse_attr`: a file or the directory, with access for everybody.
    fn attr(&self, out: &mut Out, ino: Ino) {
        const DIRECTORY: u32 = 0o040_777;
        const FILE: u32 = 0o100_666;
        let len_bytes = self.disk.len_bytes(ino).unwrap_or(0);
        let mode = if ino == ROOT { DIRECTORY } else { FILE };
        out.u64(ino).u64(len_bytes).u64(len_bytes.div_ceil(512)).u64(0).u64(0).u64(0);
        out.u32(0).u32(0).u32(0).u32(mode).u32(1).u32(0).u32(0).u32(0).u32(4096).u32(0);
    }
}

/// Negotiates the protocol.
fn init(request: &Request<'_>) -> Answer {
    const ASYNC_READ: u32 = 1;
    const BIG_WRITES: u32 = 1 << 5;
    const ASYNC_DIO: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    let wanted = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES;
    let flags = request.u32(12) & wanted;
    if request.u32(0) != 7 {
        return Answer::Error(EINVAL);
    }
    let mut out = Out::default();
    let background = 64 | 48 << 16;
    let pages = TRANSFER_MAX_BYTES / 4096;
    out.u32(7).u32(31).u32(request.u32(8)).u32(flags).u32(background);
    out.u32(TRANSFER_MAX_BYTES).u32(1).u32(pages);
    out.0.resize(64, 0);
    out.answer()
}
