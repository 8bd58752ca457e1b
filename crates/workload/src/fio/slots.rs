//! The blocks of a clone in flight, and how many of them a call submits or reaps.
//!
//! As in fio, a prepared block counts for the depth. It waits in the program until `iodepth_batch`
//! of them are there, or until another call comes. A clone reaps when its depth is full: at least
//! `iodepth_batch_complete_min`, at most `iodepth_batch_complete_max`, and again until only
//! `iodepth_low` are left.

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::job::{Batching, Job};
use super::lens::Direction;
use super::verify::Stamp;

/// A block in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) direction: Direction,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    /// Identity of the generated or verified bytes.
    pub(super) stamp: Option<Stamp>,
    pub(super) priority: Option<Priority>,
    pub(super) started: Nanos,
    pub(super) submitted: Nanos,
}

/// The blocks in flight, by request id.
#[derive(Debug)]
pub(super) struct Slots {
    blocks: Vec<Option<Block>>,
    free_ids: Vec<u32>,
    rule: Batching,
    /// Blocks that wait for their submit call.
    waiting: Vec<u32>,
    /// The depth was full, and is not yet down to `iodepth_low`.
    sinks: bool,
}

impl Slots {
    /// The slots of a job's clone. A buffered job has one, if it trims.
    pub(super) fn of(job: &Job) -> Self {
        let depth = if job.submission.direct {
            job.submission.iodepth
        } else {
            u32::from(job.shape.rw.trims())
        };
        Self {
            blocks: vec![None; depth as usize],
            free_ids: (0..depth).rev().collect(),
            rule: job.submission.batching.within(depth),
            waiting: Vec::new(),
            sinks: false,
        }
    }

    /// Number of blocks in flight, prepared ones included.
    pub(super) fn in_use(&self) -> u32 {
        (self.blocks.len() - self.free_ids.len()) as u32
    }

    fn are_full(&self) -> bool {
        !self.blocks.is_empty() && self.free_ids.is_empty()
    }

    /// A block is in flight now; its id, and whether it waits for more.
    pub(super) fn insert(&mut self, block: Block) -> (u32, bool) {
        let id = self.free_ids.pop().expect("fewer than `iodepth` are in flight");
        self.blocks[id as usize] = Some(block);
        let waits = self.waiting.len() + 1 < self.rule.submit as usize && !self.are_full();
        (id, waits)
    }

    pub(super) fn get(&self, id: u32) -> Option<Block> {
        self.blocks.get(id as usize).copied().flatten()
    }

    /// The block is not in flight any more.
    pub(super) fn take(&mut self, id: u32) -> Option<Block> {
        self.free_ids.push(id);
        self.blocks[id as usize].take()
    }

    /// The prepared block waits for more.
    pub(super) fn wait(&mut self, id: u32) {
        self.waiting.push(id);
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// All waiting blocks, and this one, were submitted; their number.
    pub(super) fn submitted(&mut self, now: Nanos, id: Option<u32>) -> usize {
        self.waiting.extend(id);
        for id in &self.waiting {
            let block = self.blocks[*id as usize].as_mut();
            block.expect("it was just submitted").submitted = now;
        }
        let submitted = self.waiting.len();
        self.waiting.clear();
        submitted
    }

    /// The least and the greatest number to reap before the next block; `None` if none is due.
    pub(super) fn due(&mut self) -> Option<(u32, u32)> {
        let in_use = self.in_use();
        self.sinks = self.are_full() || (self.sinks && in_use > self.rule.low);
        let polls = self.rule.reap_min == 0 && self.rule.reap_max == 0 && in_use > 0;
        (self.sinks || polls).then(|| self.rule.reaps(in_use))
    }

    /// The numbers to reap before a sync: as in fio's `libaio`, it also waits until one of those
    /// blocks has ended that wait for their submit call.
    pub(super) fn due_before_sync(&mut self) -> Option<(u32, u32)> {
        let waits = self.has_waiting().then(|| self.rule.reaps(self.in_use()));
        self.due().or(waits)
    }
}
