//! io_uring for what would block: reads and writes past the page cache, reads that miss it,
//! flushes.
//!
//! An operation owns its place in [`Ring::pending`] until its completion, and its memory belongs to
//! the operation until then. Short transfers are continued here, so the executor sees each
//! operation once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::slab::Slab;
use io_uring::{IoUring, opcode, types};

/// The storage of a range is freed, its length stays.
pub(crate) const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
/// So many pieces go into one call (`UIO_MAXIOV`); the rest follows as after a short transfer.
pub(crate) const PIECES_MAX: usize = 1024;
/// Places for what is submitted in one go, and half of those for what has completed.
const ENTRIES_MIN: u32 = 128;

/// An operation on a file. Which memory a transfer fills or empties goes beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOp<T> {
    /// Given back with the answer.
    pub(crate) user: T,
    pub(crate) fd: i32,
    pub(crate) kind: FileOpKind,
}

/// The operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileOpKind {
    Read { offset_bytes: u64 },
    Write { offset_bytes: u64, fua: bool },
    Flush,
    PunchHole { offset_bytes: u64, len_bytes: u64 },
}

impl FileOpKind {
    /// The rest of it, `done_bytes` in.
    pub(crate) fn after(self, done_bytes: usize) -> Self {
        let done_bytes = done_bytes as u64;
        match self {
            Self::Read { offset_bytes } => Self::Read { offset_bytes: offset_bytes + done_bytes },
            Self::Write { offset_bytes, fua } => {
                Self::Write { offset_bytes: offset_bytes + done_bytes, fua }
            }
            Self::Flush | Self::PunchHole { .. } => self,
        }
    }
}

/// A piece of memory as the system describes it.
pub(crate) fn iovec(base: *mut u8, len_bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len_bytes }
}

/// Takes the first `done_bytes` off a transfer's memory.
pub(crate) fn advance(memory: &mut Vec<libc::iovec>, mut done_bytes: usize) {
    let mut whole = 0;
    while memory.get(whole).is_some_and(|vec| vec.iov_len <= done_bytes) {
        done_bytes -= memory[whole].iov_len;
        whole += 1;
    }
    memory.drain(..whole);
    if let Some(first) = memory.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(done_bytes);
        first.iov_len -= done_bytes;
    }
}

/// An operation on its way; the kernel may look at `memory` until its completion.
struct Pending<T: Copy> {
    op: FileOp<T>,
    memory: Vec<libc::iovec>,
}

/// A ring and what is in flight on it. `T` is the word that each answer carries.
pub(crate) struct Ring<T: Copy> {
    ring: IoUring,
    pending: Slab<Pending<T>>,
    /// Vectors that were used before: after the first rounds nothing allocates.
    spare: Vec<Vec<libc::iovec>>,
}

// SAFETY: the pointers in `pending` and `spare` are only passed on to the kernel; what they point
// to belongs to the operations.
unsafe impl<T: Copy + Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// A ring for this thread, with room for so many operations at least.
    pub(crate) fn new(depth: u32) -> io::Result<Self> {
        let entries = depth.max(ENTRIES_MIN);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))?;
        Ok(Self { ring, pending: Slab::default(), spare: Vec::new() })
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
        // SAFETY: as the caller promises.
        unsafe { self.push_pending(index) };
    }

    /// # Safety
    /// As for [`Ring::push`].
    unsafe fn push_pending(&mut self, index: u32) {
        let entry = entry(self.pending.get(index)).user_data(u64::from(index));
        loop {
            // SAFETY: the caller keeps the memory valid until the completion; the vector that
            // describes it lies in `pending` until then.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            let _ = self.ring.submit();
        }
    }

    /// Starts what was queued.
    pub(crate) fn submit(&mut self) {
        if !self.ring.submission().is_empty() {
            // EINTR, EAGAIN, EBUSY: it stays queued and is submitted with the next call.
            let _ = self.ring.submit();
        }
    }

    /// Waits until something has completed.
    pub(crate) fn wait(&mut self) {
        let _ = self.ring.submit_and_wait(1);
    }

    /// Moves the answers to the end of `out`.
    pub(crate) fn take(&mut self, out: &mut Vec<(T, BlkStatus)>) {
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            let index = u32::try_from(entry.user_data()).expect("an index of `pending`");
            let pending = self.pending.at(index);
            match outcome(&pending.op.kind, &pending.memory, entry.result()) {
                Outcome::Ended(status) => {
                    let Pending { op, mut memory } = self.pending.remove(index);
                    memory.clear();
                    self.spare.push(memory);
                    out.push((op.user, status));
                }
                Outcome::Continue { done_bytes } => {
                    pending.op.kind = pending.op.kind.after(done_bytes);
                    advance(&mut pending.memory, done_bytes);
                    // SAFETY: it is the rest of an operation whose memory it still owns.
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
    /// Memory belongs to the operations until these have completed.
    fn drop(&mut self) {
        let mut dropped = Vec::new();
        while self.in_flight() > 0 {
            self.wait();
            self.take(&mut dropped);
        }
    }
}

fn entry<T: Copy>(pending: &Pending<T>) -> io_uring::squeue::Entry {
    let fd = types::Fd(pending.op.fd);
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
    Ended(BlkStatus),
    Continue { done_bytes: usize },
}

/// What a completion means: done, failed, or to be continued after a short transfer.
fn outcome(kind: &FileOpKind, memory: &[libc::iovec], result: i32) -> Outcome {
    if matches!(-result, libc::EINTR | libc::EAGAIN) {
        return Outcome::Continue { done_bytes: 0 };
    }
    if result < 0 {
        return Outcome::Ended(status_of(-result));
    }
    let wanted: usize = match kind {
        FileOpKind::Read { .. } | FileOpKind::Write { .. } => {
            memory.iter().map(|vec| vec.iov_len).sum()
        }
        FileOpKind::Flush | FileOpKind::PunchHole { .. } => 0,
    };
    match result as usize {
        done_bytes if done_bytes >= wanted => Outcome::Ended(BlkStatus::Ok),
        // The end of the file: it was truncated by somebody.
        0 => Outcome::Ended(BlkStatus::IoError),
        done_bytes => Outcome::Continue { done_bytes },
    }
}

/// The block layer's word for an error number (`errno_to_blk_status`).
pub(crate) fn status_of(errno: i32) -> BlkStatus {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => BlkStatus::NoSpace,
        libc::EOPNOTSUPP => BlkStatus::NotSupported,
        libc::EINVAL => BlkStatus::Invalid,
        libc::ENOLINK | libc::ETIMEDOUT => BlkStatus::Transport,
        libc::ENODATA | libc::EREMOTEIO => BlkStatus::Medium,
        _ => BlkStatus::IoError,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn transfer_goes_on_where_a_short_one_ended() {
        let mut bytes = [0u8; 24];
        let base = bytes.as_mut_ptr();
        let at = |memory: &[libc::iovec]| -> Vec<(usize, usize)> {
            let place = |vec: &libc::iovec| (vec.iov_base as usize - base as usize, vec.iov_len);
            memory.iter().map(place).collect()
        };
        let all = || vec![iovec(base, 8), iovec(base.wrapping_add(16), 8)];
        for (done_bytes, left) in [
            (0, vec![(0, 8), (16, 8)]),
            (3, vec![(3, 5), (16, 8)]),
            (8, vec![(16, 8)]),
            (15, vec![(23, 1)]),
        ] {
            let mut memory = all();
            advance(&mut memory, done_bytes);
            assert_eq!(at(&memory), left, "{done_bytes} of 16 bytes were done");
        }
    }

    #[test]
    fn scattered_read_that_meets_the_end_of_the_file_fails_and_a_whole_one_does_not() {
        let Ok(mut ring) = Ring::new(1) else { return };
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"abcdefgh", 0).unwrap();
        let (mut first, mut second) = ([0u8; 4], [0u8; 4]);
        let memory = [iovec(first.as_mut_ptr(), 4), iovec(second.as_mut_ptr(), 4)];
        let mut answers = Vec::new();
        for offset_bytes in [0, 2] {
            let kind = FileOpKind::Read { offset_bytes };
            let op = FileOp { user: offset_bytes, fd: file.as_raw_fd(), kind };
            // SAFETY: both arrays outlive the operation, which is waited for.
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
        assert_eq!(answers, [(0, BlkStatus::Ok), (2, BlkStatus::IoError)]);
    }
}
