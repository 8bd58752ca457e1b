//! Writes of one batch that are adjacent in a file become one system call. Separate calls would
//! each lock the file, and prepare its page cache page by page instead of in long runs.

use blockyard_engine::bio::{Op, Sample, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::sq::{Cqe, DevId, Sqe, SqeOp};

use super::Executor;
use super::hctx::Hctx;
use crate::file_op::{FileOpKind, iovec};
use crate::stages::{self, Stage};
use crate::sync_io;

/// A write by an immediate plain call.
#[derive(Clone, Copy)]
struct PlainWrite {
    dev: DevId,
    sector: Sector,
    buf: BufRef,
    fua: bool,
}

impl PlainWrite {
    fn end(&self) -> Sector {
        self.sector + Sector::holding(u64::from(self.buf.len_bytes))
    }
}

impl Executor {
    /// Executes the adjacent writes at the head of `sqes`, if there are several; moves their
    /// completions to the end of `cqes`. Returns the number of writes.
    pub(super) fn write_neighbours(&mut self, sqes: &[Sqe], cqes: &mut Vec<Cqe>) -> usize {
        let Some(first) = self.plain_write(&sqes[0]) else { return 0 };
        let mut end = first.end();
        let goes_on = |sqe: &Sqe| {
            let next = self.plain_write(sqe).filter(|write| {
                (write.dev, write.sector, write.fua) == (first.dev, end, first.fua)
            });
            next.map(|write| end = write.end())
        };
        let count = 1 + sqes[1..].iter().map_while(goes_on).count();
        if count == 1 {
            return 0;
        }
        let mut memory = Vec::with_capacity(count);
        for buf in sqes[..count].iter().filter_map(|sqe| self.plain_write(sqe)).map(|w| w.buf) {
            let piece = |base, len_bytes| memory.push(iovec(base, len_bytes));
            // SAFETY: the write has not completed.
            unsafe { self.buffers.memory(buf).each(0, buf.len_bytes as usize, piece) };
        }
        let fd = self.device(first.dev).file.data_fd();
        let kind = FileOpKind::Write { offset_bytes: first.sector.bytes(), fua: first.fua };
        let from = stages::now();
        // SAFETY: `Buffers` checked the memory, which belongs to these writes.
        let result = unsafe { sync_io::execute(fd, kind, &mut memory) };
        let status = self.device(first.dev).file.ended(Op::Write, first.sector, first.fua, result);
        let mut before = Sample::NONE;
        for sample in sqes[..count].iter().map(|sqe| sqe.origin.sample) {
            if sample != before && sample != Sample::NONE {
                self.samples.add_since(sample, Stage::Device, from);
            }
            before = sample;
        }
        cqes.extend(sqes[..count].iter().map(|sqe| Cqe { token: sqe.token, status }));
        count
    }

    fn plain_write(&self, sqe: &Sqe) -> Option<PlainWrite> {
        let SqeOp::Write { dev, sector, buf, fua } = sqe.op else { return None };
        let is_plain = matches!(self.hctxs[usize::from(dev.0)], Hctx::Bypassed);
        (!sqe.linked && is_plain).then_some(PlainWrite { dev, sector, buf, fua })
    }
}
