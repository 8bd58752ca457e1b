//! io_uring for what would block: reads and writes past the page cache, reads that miss it,
//! flushes.
//!
//! An operation owns its place in [`Ring::pending`] until its completion, and its buffer belongs to
//! the operation until then. Short transfers are continued here, so the executor sees each
//! operation once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::slab::Slab;
use blockyard_engine::sq::{Cqe, Token};
use io_uring::{IoUring, opcode, types};

/// More operations in flight than a connection can have buffers.
const ENTRIES: u32 = 128;

/// What is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOp {
    pub(crate) token: Token,
    pub(crate) fd: i32,
    pub(crate) kind: FileOpKind,
}

/// The operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileOpKind {
    Read { offset_bytes: u64, base: *mut u8, len_bytes: usize },
    Write { offset_bytes: u64, base: *const u8, len_bytes: usize, fua: bool },
    Flush,
}

/// A ring and what is in flight on it.
pub(crate) struct Ring {
    ring: IoUring,
    pending: Slab<FileOp>,
}

impl Ring {
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(ENTRIES)
            .or_else(|_| IoUring::new(ENTRIES))?;
        Ok(Self { ring, pending: Slab::default() })
    }

    /// Queues an operation; [`Ring::submit`] starts it.
    ///
    /// # Safety
    /// The buffer stays valid, and unaliased by Rust references, until the completion was returned
    /// or the ring is dropped.
    pub(crate) unsafe fn push(&mut self, op: FileOp) {
        let index = self.pending.insert(op);
        let entry = entry(&op).user_data(u64::from(index));
        loop {
            // SAFETY: the caller keeps the buffer valid until the completion.
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
    pub(crate) fn take(&mut self, out: &mut Vec<Cqe>) {
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            let index = u32::try_from(entry.user_data()).expect("an index of `pending`");
            let op = self.pending.remove(index);
            match outcome(&op, entry.result()) {
                Outcome::Ended(status) => out.push(Cqe { token: op.token, status }),
                // SAFETY: it is the rest of an operation whose buffer is still owned by it.
                Outcome::Continue(rest) => unsafe { self.push(rest) },
            }
        }
        self.submit();
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Ring {
    /// Buffers belong to their operations until these have completed.
    fn drop(&mut self) {
        let mut dropped = Vec::new();
        while self.in_flight() > 0 {
            self.wait();
            self.take(&mut dropped);
        }
    }
}

fn entry(op: &FileOp) -> io_uring::squeue::Entry {
    let fd = types::Fd(op.fd);
    match op.kind {
        FileOpKind::Read { offset_bytes, base, len_bytes } => {
            opcode::Read::new(fd, base, len_bytes as u32).offset(offset_bytes).build()
        }
        FileOpKind::Write { offset_bytes, base, len_bytes, fua } => {
            let flags = if fua { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(fd, base, len_bytes as u32)
                .offset(offset_bytes)
                .rw_flags(flags)
                .build()
        }
        FileOpKind::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
    }
}

enum Outcome {
    Ended(BlkStatus),
    Continue(FileOp),
}

/// What a completion means: done, failed, or to be continued after a short transfer.
fn outcome(op: &FileOp, result: i32) -> Outcome {
    if matches!(-result, libc::EINTR | libc::EAGAIN) {
        return Outcome::Continue(*op);
    }
    if result < 0 {
        return Outcome::Ended(status_of(-result));
    }
    let done = result as usize;
    let kind = match op.kind {
        FileOpKind::Read { offset_bytes, base, len_bytes } if done < len_bytes => {
            FileOpKind::Read {
                offset_bytes: offset_bytes + done as u64,
                base: base.wrapping_add(done),
                len_bytes: len_bytes - done,
            }
        }
        FileOpKind::Write { offset_bytes, base, len_bytes, fua } if done < len_bytes => {
            FileOpKind::Write {
                offset_bytes: offset_bytes + done as u64,
                base: base.wrapping_add(done),
                len_bytes: len_bytes - done,
                fua,
            }
        }
        _ => return Outcome::Ended(BlkStatus::Ok),
    };
    if done == 0 {
        // The end of the file: it was truncated by somebody.
        return Outcome::Ended(BlkStatus::IoError);
    }
    Outcome::Continue(FileOp { kind, ..*op })
}

/// The block layer's word for an error number (`errno_to_blk_status`).
pub(crate) fn status_of(errno: i32) -> BlkStatus {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => BlkStatus::NoSpace,
        libc::EOPNOTSUPP => BlkStatus::NotSupported,
        libc::EINVAL => BlkStatus::Invalid,
        _ => BlkStatus::IoError,
    }
}
