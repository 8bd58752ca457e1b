//! Short ciphers that go to a worker together.
//!
//! A hand-over takes some microseconds of both threads, and a cipher of 4 KiB less than one. So
//! several of them are one job, with one look at the queue, and one at the completions.

use std::sync::Arc;

use blockyard_engine::bio::{BlkStatus, Sample};
use blockyard_engine::dm::crypt::hand_over::{BATCH_BYTES, WakeUp};
use blockyard_engine::sq::{Cqe, Sqe, Token};
use blockyard_engine::time::Nanos;

use super::{Executor, time_of};
use crate::backend::Backend;
use crate::fused::{Calls, Fused, Run};
use crate::memory::{Address, Memory};
use crate::stages::Stage;
use crate::workers::{Job, Task};

/// A cipher, alone or with a read or write.
pub(super) enum Work {
    Crypt { run: Run, src: Address, dst: Memory },
    Fused(Fused),
}

impl Work {
    fn run(&self) -> &Run {
        match self {
            Self::Crypt { run, .. } => run,
            Self::Fused(fused) => &fused.run,
        }
    }
}

/// An operation of a batch.
struct Item {
    token: Token,
    sample: Sample,
    /// Time of its arrival, if it is sampled.
    gathered: Nanos,
    work: Work,
}

impl Item {
    fn execute(&self, backend: &Backend, task: &mut Task) -> BlkStatus {
        task.timed_until = self.gathered;
        task.lap(self.sample, Stage::CipherWait);
        match &self.work {
            Work::Crypt { run, src, dst } => {
                // SAFETY: the ranges are checked, and the same or disjoint; the buffers outlive the
                // job, because an executor waits for its workers before it is dropped.
                unsafe { run.into_memory(backend, src.get(), *dst) };
                task.lap(self.sample, Stage::Cipher);
                BlkStatus::Ok
            }
            Work::Fused(fused) => {
                let mut calls = Calls::of(self.sample);
                // SAFETY: the buffer is checked, and outlives the job like those of a cipher alone.
                let status = unsafe { fused.execute(backend, &mut task.scratch, &mut calls) };
                let spans = calls.spans(fused.run.direction, task.timed_until);
                for span in spans.into_iter().flatten() {
                    task.lap_until(self.sample, span.stage, span.to);
                }
                status
            }
        }
    }
}

/// The next batch.
#[derive(Default)]
pub(super) struct Batch {
    items: Vec<Item>,
    len_bytes: u64,
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }
}

impl Executor {
    /// Adds a cipher to the batch, and hands over a full one.
    pub(super) fn gather(&mut self, sqe: &Sqe, work: Work) {
        let sample = sqe.origin.sample;
        self.batch.len_bytes += work.run().len_bytes as u64;
        let gathered = time_of(sample);
        self.batch.items.push(Item { token: sqe.token, sample, gathered, work });
        if self.batch.len_bytes >= BATCH_BYTES {
            self.hand_over_batch();
        }
    }

    /// Hands the batch over to a worker, if there is one.
    pub(super) fn hand_over_batch(&mut self) {
        let Batch { items, len_bytes } = std::mem::take(&mut self.batch);
        if items.is_empty() {
            return;
        }
        let workers = self.workers.as_ref().expect("only a volume with workers fans out");
        let completions =
            self.handed_over.completions.as_ref().expect("made together with the workers");
        let backend = Arc::clone(&self.backend);
        let operations = items.len();
        self.handed_over.to_workers += operations;
        let job = Job {
            run: Box::new(move |task| {
                for item in items {
                    let status = item.execute(&backend, task);
                    task.cqes.push(Cqe { token: item.token, status });
                }
            }),
            completions: Arc::clone(completions),
            operations: operations as u16,
            len_bytes: len_bytes as u32,
            wake: WakeUp::ForMany,
        };
        workers.submit(job, &mut self.helper);
    }
}
