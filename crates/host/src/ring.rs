//! io_uring for blocking operations: direct reads and writes, reads that miss the page cache,
//! flushes.
//!
//! An operation owns its entry in [`Ring::pending`] and its memory until its completion. Short
//! transfers continue here, so the executor sees one completion per operation.
//!
//! A ring can do more than a server needs: open files, delete them, connect. So it is created
//! disabled, restricted to the operations of [`FileOpKind`] on the files of its volume, and only
//! then enabled (`IORING_REGISTER_RESTRICTIONS`, Linux 5.10). The kernel never lifts a restriction,
//! and client data cannot influence them. If the kernel has restrictions, every ring has them:
//! without them the ring is not used, and plain calls replace it.
//!
//! Under the sandbox no thread creates a ring: an attacker's would not be restricted, and seccomp
//! does not see its operations. So rings are made before ([`reserve`]), and are used again.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use blockyard_engine::slab::Slab;
use io_uring::register::Restriction;
use io_uring::{Builder, IoUring, opcode, squeue, types};
use rustix::process::{Resource, getrlimit};

use crate::file_op::{FileOp, FileOpKind, PIECES_MAX, PUNCH_HOLE, advance, behind_end};

/// Pause before an operation is offered to a kernel without memory again. Ours.
const SHORTAGE: std::time::Duration = std::time::Duration::from_millis(1);

/// Submission entries, and half of the completion entries.
const ENTRIES_MIN: u32 = 128;

/// Descriptors of which none is for a ring in reserve: with so few, clients come first.
const RESERVE_ABOVE: u64 = 256;
/// Of those above, one in this number may be: with the usual limit of 1024, rings for 64
/// connections and for the 64 queues of a virtual machine's disk.
const RESERVE_SHARE: u64 = 6;

/// Enabled rings without files, after [`reserve`].
static RESERVE: Mutex<Option<Vec<Spare>>> = Mutex::new(None);

/// A ring in reserve.
struct Spare {
    ring: IoUring,
    is_restricted: bool,
}

fn spare_rings() -> MutexGuard<'static, Option<Vec<Spare>>> {
    RESERVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the last rings of this process, as many as are used at a time. If the system has fewer,
/// plain calls do the work of the others.
pub(crate) fn reserve(count: usize) {
    let _ = ring_kind();
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let spare = descriptors.saturating_sub(RESERVE_ABOVE) / RESERVE_SHARE;
    let count = count.min(usize::try_from(spare).unwrap_or(usize::MAX));
    let made = (0..count).map_while(|_| Spare::new(ENTRIES_MIN).ok());
    *spare_rings() = Some(made.collect());
}

impl Spare {
    fn new(entries: u32) -> io::Result<Self> {
        let usual: Builder = IoUring::builder();
        // Linux 5.19; the alternative is for older kernels. No single issuer: a client may go from
        // one thread to another.
        let ring = restricted(usual.clone().setup_coop_taskrun(), entries)
            .or_else(|_| restricted(&usual, entries));
        let (ring, is_restricted) = or_unrestricted(ring, || usual.build(entries))?;
        Ok(Self { ring, is_restricted })
    }
}

/// An operation in flight; the kernel may read `memory` until its completion.
struct Pending<T: Copy> {
    op: FileOp<T>,
    memory: Vec<libc::iovec>,
}

/// A ring and its operations in flight. `T` is the user data of each completion.
pub(crate) struct Ring<T: Copy> {
    ring: ManuallyDrop<IoUring>,
    is_restricted: bool,
    /// It goes back into the reserve.
    is_reserved: bool,
    /// Registered files; their index is the ring's number for them.
    files: Vec<RawFd>,
    pending: Slab<Pending<T>>,
    /// Vectors for reuse, so that nothing allocates after the first rounds.
    spare: Vec<Vec<libc::iovec>>,
}

// SAFETY: the pointers in `pending` and `spare` are only passed to the kernel; the memory behind
// them belongs to the operations.
unsafe impl<T: Copy + Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// A ring for one thread at a time and these files, with room for at least `depth` operations.
    ///
    /// # Errors
    /// The system has no rings, or no memory for one.
    pub(crate) fn new(depth: u32, files: Vec<RawFd>) -> io::Result<Self> {
        let (Spare { ring, is_restricted }, is_reserved) = match &mut *spare_rings() {
            Some(spare) => (spare.pop().ok_or_else(|| io::Error::other("all are in use"))?, true),
            None => (Spare::new(depth.max(ENTRIES_MIN))?, false),
        };
        let ring = ManuallyDrop::new(ring);
        let pending = Slab::default();
        let ring = Self { ring, is_restricted, is_reserved, files, pending, spare: Vec::new() };
        if !ring.files.is_empty() {
            ring.ring.submitter().register_files(&ring.files)?;
        }
        Ok(ring)
    }

    /// Queues an operation; [`Ring::submit`] starts it.
    ///
    /// # Safety
    /// The memory stays valid, and unaliased by Rust references, until the completion was returned
    /// or the ring is dropped.
    pub(crate) unsafe fn push(&mut self, op: FileOp<T>, memory: &[libc::iovec]) {
        let mut owned = self.spare.pop().unwrap_or_default();
        owned.extend_from_slice(memory);
        let index = self.pending.insert(Pending { op, memory: owned });
        // SAFETY: guaranteed by the caller.
        unsafe { self.push_pending(index) };
    }

    /// # Safety
    /// See [`Ring::push`].
    unsafe fn push_pending(&mut self, index: u32) {
        let pending = self.pending.get(index);
        let file = self.files.iter().position(|file| *file == pending.op.fd);
        let file = types::Fixed(file.expect("a file of the ring's volume") as u32);
        let entry = entry(file, pending).user_data(u64::from(index));
        loop {
            // SAFETY: the caller keeps the memory valid until the completion; the vector that
            // describes it lies in `pending` until then.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            let _ = self.ring.submit();
        }
    }

    /// Starts the queued operations.
    pub(crate) fn submit(&mut self) {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel has no memory for an operation, and does not tell when it has some.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(SHORTAGE);
                }
                // On EBUSY the rest waits until completions are taken, which makes the ring ready.
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }

    /// Waits for a completion.
    pub(crate) fn wait(&mut self) {
        let _ = self.ring.submit_and_wait(1);
    }

    /// Moves completions to the end of `out`.
    pub(crate) fn take(&mut self, out: &mut Vec<(T, io::Result<()>)>) {
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            let index = u32::try_from(entry.user_data()).expect("an index of `pending`");
            let pending = self.pending.at(index);
            match outcome(&pending.op.kind, &pending.memory, entry.result()) {
                Outcome::Ended(result) => {
                    let Pending { op, mut memory } = self.pending.remove(index);
                    memory.clear();
                    self.spare.push(memory);
                    out.push((op.user, result));
                }
                Outcome::Continue { done_bytes } => {
                    pending.op.kind = pending.op.kind.after(done_bytes);
                    advance(&mut pending.memory, done_bytes);
                    // SAFETY: the rest of an operation that still owns its memory.
                    unsafe { self.push_pending(index) };
                }
            }
        }
        self.submit();
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

impl<T: Copy> AsFd for Ring<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl<T: Copy> Drop for Ring<T> {
    /// Waits for all completions, because memory belongs to the operations until then.
    fn drop(&mut self) {
        let mut dropped = Vec::new();
        while self.in_flight() > 0 {
            self.wait();
            self.take(&mut dropped);
        }
        // The kernel ends a ring later; this releases the files and their locks now.
        let _ = self.ring.submitter().unregister_files();
        // SAFETY: the ring is taken once, and not used afterwards.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        if self.is_reserved
            && let Some(spare) = &mut *spare_rings()
        {
            spare.push(Spare { ring, is_restricted: self.is_restricted });
        }
    }
}

/// `IORING_REGISTER_FILES` and `IORING_UNREGISTER_FILES` of `linux/io_uring.h`.
const REGISTER_FILES: u8 = 2;
const UNREGISTER_FILES: u8 = 3;
/// `IOSQE_FIXED_FILE`.
const FIXED_FILE: u8 = 1;

/// A ring that is restricted to the operations of [`FileOpKind`] on registered files.
fn restricted(builder: &Builder, entries: u32) -> io::Result<IoUring> {
    let ring: IoUring = builder.clone().setup_r_disabled().build(entries)?;
    let operations = [
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    let mut restrictions: Vec<_> = operations.map(Restriction::sqe_op).into();
    restrictions.push(Restriction::sqe_flags_required(FIXED_FILE));
    // Files that are open already: this process reads and writes them by plain calls too.
    restrictions.push(Restriction::register_op(REGISTER_FILES));
    restrictions.push(Restriction::register_op(UNREGISTER_FILES));
    ring.submitter().register_restrictions(&mut restrictions)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// Creates the ring; returns whether it is restricted. An unrestricted ring is used only if the
/// kernel does not know restrictions, not for lack of descriptors, memory or permission.
fn or_unrestricted<T>(
    restricted: io::Result<T>,
    unrestricted: impl FnOnce() -> io::Result<T>,
) -> io::Result<(T, bool)> {
    match restricted {
        Ok(ring) => Ok((ring, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok((unrestricted()?, false)),
        Err(error) => Err(error),
    }
}

/// Capability of this process's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// Only the data path's operations, on the files of a volume.
    Restricted,
    /// All operations of the kernel's rings: it has no restrictions (before Linux 5.10).
    Unrestricted,
    /// No rings; plain calls replace them.
    Unavailable,
}

/// The capability, which is tested once.
#[must_use]
pub fn ring_kind() -> RingKind {
    static KIND: OnceLock<RingKind> = OnceLock::new();
    *KIND.get_or_init(|| match Spare::new(ENTRIES_MIN) {
        Ok(ring) if ring.is_restricted => RingKind::Restricted,
        Ok(_) => RingKind::Unrestricted,
        Err(_) => RingKind::Unavailable,
    })
}

fn entry<T: Copy>(fd: types::Fixed, pending: &Pending<T>) -> squeue::Entry {
    let memory = &pending.memory;
    let count = memory.len().min(PIECES_MAX) as u32;
    match pending.op.kind {
        FileOpKind::Read { offset_bytes } => match memory[..] {
            [vec] => opcode::Read::new(fd, vec.iov_base.cast(), vec.iov_len as u32)
                .offset(offset_bytes)
                .build(),
            _ => opcode::Readv::new(fd, memory.as_ptr(), count).offset(offset_bytes).build(),
        },
        FileOpKind::Write { offset_bytes, fua } => {
            let flags = if fua { libc::RWF_DSYNC } else { 0 };
            match memory[..] {
                [vec] => opcode::Write::new(fd, vec.iov_base.cast(), vec.iov_len as u32)
                    .offset(offset_bytes)
                    .rw_flags(flags)
                    .build(),
                _ => opcode::Writev::new(fd, memory.as_ptr(), count)
                    .offset(offset_bytes)
                    .rw_flags(flags)
                    .build(),
            }
        }
        FileOpKind::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        FileOpKind::PunchHole { offset_bytes, len_bytes } => {
            opcode::Fallocate::new(fd, len_bytes).offset(offset_bytes).mode(PUNCH_HOLE).build()
        }
    }
}

enum Outcome {
    Ended(io::Result<()>),
    Continue { done_bytes: usize },
}

/// Interprets a completion: done, failed, or to be continued after a short transfer.
fn outcome(kind: &FileOpKind, memory: &[libc::iovec], result: i32) -> Outcome {
    if matches!(-result, libc::EINTR | libc::EAGAIN) {
        return Outcome::Continue { done_bytes: 0 };
    }
    if result < 0 {
        return Outcome::Ended(Err(io::Error::from_raw_os_error(-result)));
    }
    let wanted: usize = match kind {
        FileOpKind::Read { .. } | FileOpKind::Write { .. } => {
            memory.iter().map(|vec| vec.iov_len).sum()
        }
        FileOpKind::Flush | FileOpKind::PunchHole { .. } => 0,
    };
    match result as usize {
        done_bytes if done_bytes >= wanted => Outcome::Ended(Ok(())),
        // End of file: another program truncated it.
        0 => Outcome::Ended(Err(behind_end())),
        done_bytes => Outcome::Continue { done_bytes },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use blockyard_engine::bio::BlkStatus;

    use super::*;
    use crate::file_op::{iovec, status};

    #[test]
    fn scattered_read_that_meets_the_end_of_the_file_fails_and_a_whole_one_does_not() {
        let file = tempfile::tempfile().unwrap();
        let Ok(mut ring) = Ring::new(1, vec![file.as_raw_fd()]) else { return };
        file.write_all_at(b"abcdefgh", 0).unwrap();
        let mut first = [0u8; 4];
        let mut second = [0u8; 4];
        let memory = [iovec(first.as_mut_ptr(), 4), iovec(second.as_mut_ptr(), 4)];
        let mut answers = Vec::new();
        for offset_bytes in [0, 2] {
            let kind = FileOpKind::Read { offset_bytes };
            let op = FileOp { user: offset_bytes, fd: file.as_raw_fd(), kind };
            // SAFETY: both arrays outlive the operation, whose end the test awaits.
            unsafe { ring.push(op, &memory) };
            ring.submit();
            while ring.in_flight() > 0 {
                ring.wait();
                ring.take(&mut answers);
            }
            if offset_bytes == 0 {
                assert_eq!((&first, &second), (b"abcd", b"efgh"));
            }
        }
        let answers = answers.into_iter().map(|(user, result)| (user, status(result)));
        let answers: Vec<_> = answers.collect();
        assert_eq!(answers, [(0, BlkStatus::Ok), (2, BlkStatus::IoError)]);
    }

    #[test]
    fn ring_goes_from_one_thread_to_another() {
        let file = tempfile::tempfile().unwrap();
        let Ok(mut ring) = Ring::new(1, vec![file.as_raw_fd()]) else { return };
        file.write_all_at(b"abcd", 0).unwrap();
        for user in 0..2u32 {
            let fd = file.as_raw_fd();
            let used = std::thread::spawn(move || {
                let mut bytes = [0u8; 4];
                let kind = FileOpKind::Read { offset_bytes: 0 };
                let memory = [iovec(bytes.as_mut_ptr(), 4)];
                // SAFETY: the array outlives the operation, whose end the thread awaits.
                unsafe { ring.push(FileOp { user, fd, kind }, &memory) };
                ring.submit();
                let mut answers = Vec::new();
                // A refused submission would be repeated for ever.
                for _ in 0..100 {
                    if ring.in_flight() > 0 {
                        ring.wait();
                        ring.take(&mut answers);
                    }
                }
                if ring.in_flight() > 0 {
                    std::mem::forget(ring);
                    panic!("thread {user} cannot submit");
                }
                assert_eq!((&bytes, answers.len()), (b"abcd", 1));
                ring
            });
            ring = used.join().unwrap();
        }
    }

    /// The kernel's reply to an entry that the server never makes.
    fn answer_to(ring: &mut Ring<()>, entry: &squeue::Entry) -> i32 {
        // SAFETY: the memory behind the entry lives until its completion, which the test awaits.
        unsafe { ring.ring.submission().push(entry) }.unwrap();
        ring.ring.submit_and_wait(1).unwrap();
        ring.ring.completion().next().unwrap().result()
    }

    #[test]
    fn ring_opens_and_deletes_nothing_and_reads_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "precious").unwrap();
        let served = tempfile::tempfile().unwrap();
        let Ok(mut ring) = Ring::new(1, vec![served.as_raw_fd()]) else { return };
        if !ring.is_restricted {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
            let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
            let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
            assert!(version < (5, 10), "Linux {release} has restrictions");
            return;
        }
        let other = std::fs::File::open(&path).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let mut bytes = [0u8; 8];
        let cwd = types::Fd(libc::AT_FDCWD);
        let entries = [
            opcode::OpenAt::new(cwd, name.as_ptr()).build(),
            opcode::UnlinkAt::new(cwd, name.as_ptr()).build(),
            opcode::UnlinkAt::new(cwd, name.as_ptr()).build().flags(squeue::Flags::FIXED_FILE),
            opcode::Read::new(types::Fd(other.as_raw_fd()), bytes.as_mut_ptr(), 8).build(),
            opcode::Nop::new().build(),
        ];
        for entry in entries {
            assert_eq!(answer_to(&mut ring, &entry), -libc::EACCES, "{entry:?}");
        }
        assert_eq!((std::fs::read(&path).unwrap(), bytes), (b"precious".into(), [0; 8]));
        let more = ring.ring.submitter().register_files_update(0, &[other.as_raw_fd()]);
        assert_eq!(more.unwrap_err().raw_os_error(), Some(libc::EACCES));
    }

    /// The test runs itself again as a child process, because the reserve is that of a process.
    #[test]
    fn rings_in_reserve_are_used_again_for_other_files_and_there_are_no_more() {
        const IS_CHILD: &str = "BLOCKYARD_TEST_RESERVE";
        let name =
            "ring::tests::rings_in_reserve_are_used_again_for_other_files_and_there_are_no_more";
        if std::env::var_os(IS_CHILD).is_none() {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact"]).env(IS_CHILD, "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        if ring_kind() == RingKind::Unavailable {
            return;
        }
        reserve(2);
        for content in [b"abcd", b"efgh"] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(content, 0).unwrap();
            let fd = file.as_raw_fd();
            let mut ring = Ring::new(1000, vec![fd]).unwrap();
            let second = Ring::<()>::new(0, Vec::new()).unwrap();
            assert!(Ring::<()>::new(0, Vec::new()).is_err(), "a third ring");
            let mut bytes = [0u8; 4];
            let op = FileOp { user: (), fd, kind: FileOpKind::Read { offset_bytes: 0 } };
            // SAFETY: the array outlives the operation, whose end the test awaits.
            unsafe { ring.push(op, &[iovec(bytes.as_mut_ptr(), 4)]) };
            let mut answers = Vec::new();
            while answers.is_empty() {
                ring.wait();
                ring.take(&mut answers);
            }
            assert_eq!(&bytes, content);
            let nop = opcode::Nop::new().build();
            let expected = if ring.is_restricted { -libc::EACCES } else { 0 };
            assert_eq!(answer_to(&mut ring, &nop), expected);
            drop((ring, second));
        }
    }

    #[test]
    fn ring_that_cannot_be_restricted_for_want_of_something_is_not_made() {
        let failed = |errno| Err(io::Error::from_raw_os_error(errno));
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EPERM, libc::EACCES] {
            let refused = or_unrestricted(failed(errno), || Ok("unrestricted")).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(errno));
        }
        let before_5_10 = or_unrestricted(failed(libc::EINVAL), || Ok("unrestricted"));
        assert_eq!(before_5_10.unwrap(), ("unrestricted", false));
        assert_eq!(or_unrestricted(Ok("restricted"), || panic!()).unwrap(), ("restricted", true));
    }

    #[test]
    fn file_is_let_go_with_the_ring() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let open = || crate::file::DeviceFile::open(&path, crate::file::Access::ReadWrite, false);
        for _ in 0..20 {
            // This would wait for the previous lock.
            let file = open().unwrap();
            let Ok(ring) = Ring::<()>::new(1, vec![file.data_fd()]) else { return };
            drop((file, ring));
            let again = std::fs::File::open(&path).unwrap();
            let mut range = whole_file();
            range.l_type = libc::F_RDLCK as i16;
            // SAFETY: F_OFD_SETLK reads a `flock` from the pointer, which outlives the call.
            let locked =
                unsafe { libc::fcntl(again.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
            assert_eq!(locked, 0, "a closed file still has its lock");
        }
    }

    fn whole_file() -> libc::flock {
        // SAFETY: all-zero bytes are a valid `flock`: the whole file, pid 0.
        unsafe { std::mem::zeroed() }
    }
}
