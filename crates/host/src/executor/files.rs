//! Reads, writes and flushes of files without a queue: through a mapping, from the page cache, or
//! with a blocking operation.

use blockyard_engine::bio::{BlkStatus, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::sq::{DevId, Token};

use super::Executor;
use super::blocking::User;
use crate::canary::{Canary, is_planted};
use crate::file::BackingKind;
use crate::file_op::{self, FileOp, FileOpKind, iovec};
use crate::sync_io::{read_all, read_cached, write_memory};

impl Executor {
    pub(super) fn read(
        &mut self,
        token: Token,
        dev: DevId,
        sector: Sector,
        buf: BufRef,
    ) -> Option<BlkStatus> {
        let base = self.buffers.at(buf);
        let offset_bytes = sector.bytes();
        let len_bytes = buf.len_bytes as usize;
        let device = self.device(dev);
        let fd = device.file.data_fd();
        match device.file.kind() {
            BackingKind::Tmpfs => {
                if let Some(mapping) = &device.mapping
                    && let Some(pages) = mapping.readable(offset_bytes, len_bytes as u64)
                {
                    // SAFETY: the pages are mapped, the buffer is this SQE's; they are disjoint.
                    unsafe { pages.copy_to_nonoverlapping(base, len_bytes) };
                    if !mapping.is_broken() {
                        return Some(BlkStatus::Ok);
                    }
                }
                let read = read_all(fd, offset_bytes, base, len_bytes);
                Some(device.file.ended(Op::Read, sector, false, read))
            }
            BackingKind::Cached if self.is_alone => {
                let read = read_all(fd, offset_bytes, base, len_bytes);
                Some(device.file.ended(Op::Read, sector, false, read))
            }
            // Cached bytes are copied at once; the rest would block.
            BackingKind::Cached => {
                let done = read_cached(fd, offset_bytes, base, len_bytes);
                if done == len_bytes {
                    return Some(BlkStatus::Ok);
                }
                let kind = FileOpKind::Read { offset_bytes: offset_bytes + done as u64 };
                let rest = iovec(base.wrapping_add(done), len_bytes - done);
                let user = User::Sqe(token, dev, Op::Read, sector);
                self.start(FileOp { user, fd, kind }, &[rest])
            }
            BackingKind::Direct | BackingKind::Remote => unreachable!("it passes a queue"),
        }
    }

    pub(super) fn write(
        &mut self,
        dev: DevId,
        sector: Sector,
        buf: BufRef,
        fua: bool,
    ) -> Option<BlkStatus> {
        let memory = self.buffers.memory(buf);
        let len_bytes = buf.len_bytes as usize;
        let device = self.device(dev);
        if let Some(mapping) = &device.mapping
            && let Some(mut pages) = mapping.rewritable(sector.bytes(), len_bytes as u64)
        {
            // SAFETY: the memory is this SQE's, which is not completed yet; the pages are mapped
            // for as many bytes; they are disjoint.
            unsafe {
                memory.each(0, len_bytes, |base, len_bytes| {
                    pages.copy_from_nonoverlapping(base, len_bytes);
                    pages = pages.add(len_bytes);
                });
            }
            if !mapping.is_broken() {
                return Some(BlkStatus::Ok);
            }
        }
        let fd = device.file.data_fd();
        // SAFETY: the memory is this SQE's, which is not completed yet.
        let written = unsafe { write_memory(fd, sector.bytes(), memory, len_bytes, fua) };
        Some(device.file.ended(Op::Write, sector, fua, written))
    }

    pub(super) fn flush(&mut self, token: Token, dev: DevId) -> Option<BlkStatus> {
        #[cfg(feature = "canaries")]
        if let Some(lie) = self.flushes.flush(&self.backend, dev) {
            return Some(lie);
        }
        if is_planted(Canary::Fdatasync) {
            return Some(BlkStatus::Ok);
        }
        let device = self.device(dev);
        match device.file.kind() {
            BackingKind::Tmpfs => Some(file_op::status(device.file.flush())),
            BackingKind::Cached => {
                let fd = device.file.data_fd();
                let kind = FileOpKind::Flush;
                let user = User::Sqe(token, dev, Op::Flush, Sector(0));
                self.start(FileOp { user, fd, kind }, &[])
            }
            BackingKind::Direct | BackingKind::Remote => unreachable!("it passes a queue"),
        }
    }

    /// Starts an operation on this executor's buffers; `Some` if it has already ended.
    fn start(&mut self, op: FileOp<User>, memory: &[libc::iovec]) -> Option<BlkStatus> {
        let User::Sqe(_, dev, what, sector) = op.user else {
            unreachable!("requests of a queue are started by `dispatch`");
        };
        // SAFETY: buffers live as long as the executor, whose drop waits for every completion
        // first.
        let ended = unsafe { self.blocking.start(op, memory) };
        ended.map(|result| self.device(dev).file.ended(what, sector, false, result))
    }
}
