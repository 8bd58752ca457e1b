//! Ciphers, alone or linked with a read or a write: on this thread or on a worker.

use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Op, Sample};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::crypt::hand_over::WakeUp;
use blockyard_engine::sq::{Cqe, Place, Sqe, SqeOp};

use super::batch::Work;
use super::hctx::{Hctx, named};
use super::{Executor, time_of};
use crate::backend::Backend;
use crate::device_thread::DeviceBio;
use crate::fused::{Calls, Fused, Run};
use crate::memory::{Address, Memory};
use crate::stages::{Stage, Timed};
use crate::sync_io::write_memory;
use crate::workers::{Job, Task};

impl Executor {
    /// Runs a cipher between two buffers, here or on a worker.
    pub(super) fn crypt(&mut self, sqe: &Sqe, src: *const u8, dst: Memory) -> Option<BlkStatus> {
        let SqeOp::Crypt { cipher, direction, iv_sector, src: buf, place, .. } = sqe.op else {
            unreachable!("the caller matched a cipher");
        };
        let run = Run { cipher, direction, iv_sector, len_bytes: buf.len_bytes as usize };
        match place {
            Place::Inline => {
                // SAFETY: both ranges were checked by `Buffers`, belong to this SQE, and are the
                // same or disjoint, as the engine promises.
                unsafe { run.into_memory(&self.backend, src, dst) };
                Some(BlkStatus::Ok)
            }
            Place::UnboundBatch => {
                let src = Address(src.cast_mut());
                self.gather(sqe, Work::Crypt { run, src, dst });
                None
            }
            Place::SameCpu | Place::Unbound => {
                let src = Address(src.cast_mut());
                let sample = sqe.origin.sample;
                self.hand_over(place, sqe, run.len_bytes, move |backend, task| {
                    // SAFETY: the ranges are checked, and the same or disjoint; the buffers outlive
                    // the job, because an executor waits for its workers before it is dropped.
                    unsafe { run.into_memory(backend, src.get(), dst) };
                    task.lap(sample, Stage::Cipher);
                    BlkStatus::Ok
                });
                None
            }
        }
    }

    /// Executes a cipher linked with a read or write as one operation.
    pub(super) fn execute_pair(
        &mut self,
        first: &Sqe,
        second: &Sqe,
        cqes: &mut Vec<Cqe>,
    ) -> Option<BlkStatus> {
        if let SqeOp::Write { buf, .. } = second.op
            && buf.slot != BufRef::LINKED_SLOT
        {
            return self.encrypt_and_write(first, second, cqes);
        }
        let (crypt, dev, sector, buf, fua) = match (first.op, second.op) {
            (SqeOp::Read { dev, sector, .. }, crypt @ SqeOp::Crypt { dst, .. }) => {
                (crypt, dev, sector, dst, false)
            }
            (crypt @ SqeOp::Crypt { src, .. }, SqeOp::Write { dev, sector, fua, .. }) => {
                (crypt, dev, sector, src, fua)
            }
            _ => unreachable!("the crypt target links a cipher with a read or a write"),
        };
        let SqeOp::Crypt { cipher, direction, iv_sector, place, .. } = crypt else {
            unreachable!("matched above");
        };
        let run = Run { cipher, direction, iv_sector, len_bytes: buf.len_bytes as usize };
        let fused = Fused { run, dev, sector, base: Address(self.buffers.at(buf)), fua };
        let sample = first.origin.sample;
        match place {
            Place::Inline => {
                if sample != Sample::NONE {
                    return Some(self.execute_fused_timed(&fused, sample));
                }
                let scratch = &mut self.helper.scratch;
                // SAFETY: `Buffers::at` checked the buffer, which belongs to this pair; the scratch
                // memory belongs to this thread.
                Some(unsafe { fused.execute(&self.backend, scratch, &mut Calls::Untimed) })
            }
            Place::UnboundBatch => {
                self.gather(first, Work::Fused(fused));
                None
            }
            Place::SameCpu | Place::Unbound => {
                self.hand_over(place, first, run.len_bytes, move |backend, task| {
                    let mut calls = Calls::of(sample);
                    // SAFETY: the buffer is checked; the buffers outlive the job, because an
                    // executor waits for its workers before it is dropped.
                    let status = unsafe { fused.execute(backend, &mut task.scratch, &mut calls) };
                    for span in calls.spans(direction, task.timed_until).into_iter().flatten() {
                        task.lap_until(sample, span.stage, span.to);
                    }
                    status
                });
                None
            }
        }
    }

    /// Executes a cipher of a sampled bio, linked with a read or write, with its spans.
    #[cold]
    fn execute_fused_timed(&mut self, fused: &Fused, sample: Sample) -> BlkStatus {
        let from = time_of(sample);
        let mut calls = Calls::of(sample);
        let scratch = &mut self.helper.scratch;
        // SAFETY: as in `execute_pair`, whose pair this is.
        let status = unsafe { fused.execute(&self.backend, scratch, &mut calls) };
        for span in calls.spans(fused.run.direction, from).into_iter().flatten() {
            self.samples.add(Timed { sample, span });
        }
        status
    }

    /// Encrypts into a bounce slot and submits the write, both in one task.
    fn encrypt_and_write(
        &mut self,
        encrypt: &Sqe,
        write: &Sqe,
        cqes: &mut Vec<Cqe>,
    ) -> Option<BlkStatus> {
        let (
            SqeOp::Crypt { cipher, direction, iv_sector, src, dst, place },
            SqeOp::Write { dev, sector, fua, .. },
        ) = (encrypt.op, write.op)
        else {
            unreachable!("the crypt target links a cipher with a write");
        };
        let run = Run { cipher, direction, iv_sector, len_bytes: src.len_bytes as usize };
        let src = Address(self.buffers.at(src));
        let dst = self.buffers.memory(dst);
        // SAFETY: `Buffers` checked both ranges, which belong to this pair and are disjoint. They
        // outlive a job, because an executor waits for its workers before it is dropped.
        let encrypt = move |backend: &Backend| unsafe {
            run.into_memory(backend, src.get().cast_const(), dst);
        };
        let sample = write.origin.sample;
        if place == Place::Inline {
            let from = time_of(sample);
            encrypt(&self.backend);
            if sample != Sample::NONE {
                self.samples.add_since(sample, Stage::Cipher, from);
            }
            return match self.device_bio(write) {
                Some((dev, bio)) => self.plug(dev, bio, cqes),
                None if sample == Sample::NONE => self.execute_one(write),
                None => self.execute_timed(write),
            };
        }
        let queued = self.device_bio(write);
        let shared = matches!(self.hctxs[usize::from(dev.0)], Hctx::Shared(_));
        let Some((_, bio)) = queued.filter(|_| shared) else {
            // Without a queue, or with one that belongs to this thread's ring, the worker writes
            // itself.
            self.hand_over(place, write, run.len_bytes, move |backend, task| {
                encrypt(backend);
                task.lap(sample, Stage::Cipher);
                let file = &backend.device(dev).file;
                let at = sector.bytes();
                // SAFETY: the memory belongs to this pair and outlives the job.
                let written = unsafe { write_memory(file.data_fd(), at, dst, run.len_bytes, fua) };
                task.lap(sample, Stage::Device);
                file.ended(Op::Write, sector, fua, written)
            });
            return None;
        };
        let origin = write.origin;
        self.handed_over.to_devices += 1;
        self.hand_over_job(place, sample, run.len_bytes, move |backend, task| {
            encrypt(backend);
            task.lap(sample, Stage::Cipher);
            let thread = backend.device(dev).thread().expect("its way is shared");
            let origin = named(origin, task.io_context);
            let submitted = task.timed_until;
            let write = Bio { origin, ..bio.bio };
            thread.send(&mut vec![DeviceBio { bio: write, submitted, ..bio }]);
            None
        });
        None
    }

    fn hand_over(
        &mut self,
        place: Place,
        sqe: &Sqe,
        len_bytes: usize,
        run: impl FnOnce(&Backend, &mut Task) -> BlkStatus + Send + 'static,
    ) {
        let token = sqe.token;
        let sample = sqe.origin.sample;
        let run =
            move |backend: &Backend, task: &mut Task| Cqe { token, status: run(backend, task) };
        self.hand_over_job(place, sample, len_bytes, move |backend, task| Some(run(backend, task)));
    }

    fn hand_over_job(
        &mut self,
        place: Place,
        sample: Sample,
        len_bytes: usize,
        run: impl FnOnce(&Backend, &mut Task) -> Option<Cqe> + Send + 'static,
    ) {
        let workers = self.workers.as_ref().expect("only a volume with workers fans out");
        let completions =
            self.handed_over.completions.as_ref().expect("made together with the workers");
        let backend = Arc::clone(&self.backend);
        self.handed_over.to_workers += 1;
        let handed_over = time_of(sample);
        let job = Job {
            run: Box::new(move |task| {
                task.timed_until = handed_over;
                task.lap(sample, Stage::CipherWait);
                let cqe = run(&backend, task);
                task.cqes.extend(cqe);
            }),
            completions: Arc::clone(completions),
            operations: 1,
            len_bytes: len_bytes as u32,
            wake: WakeUp::Always,
        };
        match place {
            Place::SameCpu => workers.submit_here(job, &mut self.helper),
            Place::Inline | Place::Unbound | Place::UnboundBatch => {
                workers.submit(job, &mut self.helper);
            }
        }
    }
}
