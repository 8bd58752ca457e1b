//! When a clone pauses before a block: `thinktime`, `rate`, `rate_iops`.
//!
//! As in fio (`handle_thinktime`, `usec_for_io`): it first waits for what is in flight, so that
//! latencies do not contain the pause; a rate is kept for reads and for writes, each from the start
//! on, and what was missed is made up for.

use blockyard_engine::time::Nanos;

use super::job::Job;

/// What a clone has started.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    thinktime: Nanos,
    thinktime_blocks: u64,
    /// Bytes a second of each direction.
    rate_bytes_s: Option<u64>,
    block_bytes: u64,
    /// Blocks since it last thought.
    since_think: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Pace {
    pub(super) fn of(job: &Job) -> Self {
        let by_ios = job.rate_iops.map(|ios| ios.saturating_mul(job.block_bytes));
        Self {
            thinktime: job.thinktime,
            thinktime_blocks: job.thinktime_blocks.into(),
            rate_bytes_s: job.rate_bytes_s.or(by_ios),
            block_bytes: job.block_bytes,
            since_think: 0,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    /// The pause that is due before the next block, which is a read or a write; `elapsed` since the
    /// clone started.
    pub(super) fn pause(&self, elapsed: Nanos, is_read: bool) -> Option<Nanos> {
        if self.thinks_now() {
            return Some(self.thinktime);
        }
        let bytes = if is_read { self.read_bytes } else { self.written_bytes };
        let due_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate_bytes_s?);
        let due = Nanos(u64::try_from(due_ns).unwrap_or(u64::MAX));
        (due > elapsed).then(|| due - elapsed)
    }

    /// A block is started.
    pub(super) fn started(&mut self, is_read: bool) {
        self.since_think += 1;
        let bytes = if is_read { &mut self.read_bytes } else { &mut self.written_bytes };
        *bytes = bytes.saturating_add(self.block_bytes);
    }

    fn thinks_now(&self) -> bool {
        self.thinktime > Nanos(0) && self.since_think >= self.thinktime_blocks
    }

    /// A pause is over. One for the rate is no thinking.
    pub(super) fn paused(&mut self) {
        if self.thinks_now() {
            self.since_think = 0;
        }
    }

    /// What is started from now on counts: the ramp is over.
    pub(super) fn restart(&mut self) {
        (self.read_bytes, self.written_bytes) = (0, 0);
    }
}
