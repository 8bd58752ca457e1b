//! The bytes of a clone's requests: their content, its check, and the work of both.

use super::super::slots::Block;
use super::super::verify::{Stamp, Sum};
use super::{MISMATCH, Thread};
use crate::program::Content;

impl Thread {
    /// Counts the bytes of a request with a stamp, if their sum is computed.
    pub(super) fn sum_up(&mut self, stamp: Option<Stamp>, len_bytes: u64) {
        if stamp.is_some() && self.job.verify.sum.is_some_and(Sum::covers_data) {
            self.progress.summed_bytes += len_bytes;
        }
    }
}

impl Content for Thread {
    fn fill(&mut self, id: u32, bytes: &mut [u8]) {
        let block = self.slots.get(id);
        let Some(Block { stamp, started, offset_bytes, .. }) = block else { return };
        match (stamp, &mut self.source) {
            (Some(stamp), _) => self.job.verify.fill(stamp, self.clone, started, bytes),
            (None, Some(source)) => source.fill(offset_bytes, started, bytes),
            (None, None) => {}
        }
    }

    fn check(&mut self, id: u32, bytes: &[u8]) {
        let block = self.slots.get(id);
        let Some(Block { stamp: Some(stamp), .. }) = block else { return };
        if let Err(mismatch) = self.job.verify.check(stamp, bytes) {
            self.measured.errors.mismatches += 1;
            self.measured.errors.mismatch.get_or_insert(mismatch);
            if self.job.verify.is_fatal {
                self.fail(MISMATCH);
            }
        }
    }

    fn take_summed_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.progress.summed_bytes)
    }
}
