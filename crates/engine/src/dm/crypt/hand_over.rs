//! Rules of the hand-over of ciphers to workers: whether a submitter's load of short requests is
//! steady, which job wakes a worker up, and for how long a thread waits without sleep. Each world
//! has its own threads, queue and clock, and asks these rules.
//!
//! ```text
//!   short requests ─ Turn: steady? ─> batch of 32 KiB ─> lane ─ WakeUp: enough? ─> worker
//!   long request ───────────────────> part by part ────> lane ─ WakeUp: always ──> worker
//! ```

use super::pipeline::TOGETHER_MIN_BYTES;
use crate::time::Nanos;

/// A full batch of short ciphers. Ours: 32 requests of 4 KiB are four batches, so each of two
/// threads has one while the next ones are made.
pub const BATCH_BYTES: u64 = 32 << 10;

/// Waiting bytes from which a batch wakes a worker up: two batches, one for the worker and one for
/// the submitter.
pub const WAKES_FROM_BYTES: u64 = TOGETHER_MIN_BYTES;

/// Time to wait for work without sleep, by the time of a hand-over to a sleeping worker and back.
/// Ours: an eighth, so a wait that was in vain adds little to the hand-over.
#[must_use]
pub fn spin_time(hand_over: Nanos) -> Nanos {
    Nanos(hand_over.0 / 8)
}

/// Number of lanes for jobs on so many CPUs. Ours: the lock of a lane is held for some 0.3 us to
/// add a job and to take it, while its cache lines move to another CPU (docs/cores.md), and a full
/// batch takes a CPU 8 us. So four CPUs keep a lane busy for a third of the time at most.
#[must_use]
pub fn lanes(cpus: usize) -> usize {
    cpus.div_ceil(4).max(1)
}

/// When a job wakes a sleeping worker up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeUp {
    /// Always: its submitter waits for it.
    Always,
    /// If at least [`WAKES_FROM_BYTES`] wait, and no worker is about to look for jobs. Otherwise
    /// the submitter runs it.
    ForMany,
}

/// Workers, and the waiting jobs of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Bytes of waiting jobs.
    pub bytes: u64,
    /// Number of workers that look for a job without sleep.
    pub spinning: usize,
    /// Whether a worker was called, and has not come yet.
    pub is_called: bool,
}

impl WakeUp {
    /// Whether a sleeping worker is to be woken up while a job with this wish waits.
    #[must_use]
    pub fn is_due(self, waiting: Waiting) -> bool {
        let Waiting { bytes, spinning, is_called } = waiting;
        self == Self::Always || (!is_called && spinning == 0 && bytes >= WAKES_FROM_BYTES)
    }
}

/// Short requests of a submitter. A *turn* ends when the submitter looks for completions.
#[derive(Debug)]
pub struct Turn {
    /// Bytes whose cipher takes as long as a hand-over to a sleeping worker and back.
    hand_over_bytes: u64,
    /// Bytes of this turn.
    bytes: u64,
    /// Number of requests of this turn.
    requests: u64,
    /// Number of operations at workers when the turn began.
    at_workers: u64,
    /// Bytes since the submitter last slept, without this turn.
    awake_bytes: u64,
    /// Bytes in flight together in the last turn of a steady load, otherwise 0. Also 0 in its first
    /// turn, so that submitters that begin together see each other before they hand something over.
    together_bytes: u64,
    is_steady: bool,
}

impl Turn {
    /// A submitter that is not busy. The cipher takes as long for `hand_over_bytes` as a hand-over
    /// to a sleeping worker and back.
    #[must_use]
    pub fn new(hand_over_bytes: u64) -> Self {
        Self {
            hand_over_bytes,
            bytes: 0,
            requests: 0,
            at_workers: 0,
            awake_bytes: 0,
            together_bytes: 0,
            is_steady: false,
        }
    }

    /// Counts a short request of a submitter that has so many operations at workers.
    #[inline]
    pub fn count(&mut self, len_bytes: u64, at_workers: u64) {
        if self.requests == 0 {
            self.at_workers = at_workers;
        }
        self.bytes += len_bytes;
        self.requests += 1;
    }

    /// Ends the turn. Returns whether the load is or was steady, so that the shard has to know it.
    #[inline]
    pub fn end(&mut self) -> bool {
        self.requests > 0 && self.conclude()
    }

    fn conclude(&mut self) -> bool {
        let together_bytes = self.bytes * (self.requests + self.at_workers) / self.requests;
        self.awake_bytes += self.bytes;
        (self.bytes, self.requests) = (0, 0);
        let was_steady = self.is_steady;
        self.is_steady =
            self.awake_bytes >= self.hand_over_bytes && together_bytes >= TOGETHER_MIN_BYTES;
        self.together_bytes = if self.is_steady && was_steady { together_bytes } else { 0 };
        self.is_steady || was_steady
    }

    /// The submitter is about to sleep. Returns whether the load was steady.
    pub fn sleep(&mut self) -> bool {
        self.awake_bytes = 0;
        self.together_bytes = 0;
        core::mem::take(&mut self.is_steady)
    }

    /// Whether the submitter has been busy with short requests for longer than a hand-over takes.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.is_steady
    }

    /// Bytes in flight together, once the load is steady; before 0.
    #[must_use]
    pub fn together_bytes(&self) -> u64 {
        self.together_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of so many requests of 4 KiB until the load is steady; at most 100.
    fn turns_until_steady(turn: &mut Turn, requests: usize, at_workers: u64) -> usize {
        let mut turns = 0;
        while !turn.is_steady() && turns < 100 {
            (0..requests).for_each(|_| turn.count(4096, at_workers));
            turn.end();
            turns += 1;
        }
        turns
    }

    #[test]
    fn load_is_steady_after_a_hand_over_without_sleep() {
        let mut turn = Turn::new(1 << 20);
        assert_eq!(turns_until_steady(&mut turn, 32, 0), 8);
        assert_eq!(turn.together_bytes(), 0, "another one may begin now");
        (0..32).for_each(|_| turn.count(4096, 0));
        assert!(turn.end());
        assert_eq!(turn.together_bytes(), 32 * 4096);
        assert!(turn.sleep() && !turn.sleep());
        assert_eq!((turn.is_steady(), turn.together_bytes()), (false, 0));
        assert_eq!(turns_until_steady(&mut turn, 32, 0), 8);
    }

    #[test]
    fn requests_at_workers_count_and_a_few_are_never_a_steady_load() {
        let mut turn = Turn::new(4096);
        assert_eq!(turns_until_steady(&mut turn, 8, 0), 100);
        assert_eq!(turns_until_steady(&mut turn, 8, 8), 1);
        turn.count(4096, 14);
        assert!(turn.end(), "the shard has to know");
        assert!(!turn.is_steady());
        assert!(!turn.end(), "there were no requests");
    }

    #[test]
    fn batches_wake_a_worker_for_much_work_that_no_other_one_is_about_to_take() {
        let much = Waiting { bytes: WAKES_FROM_BYTES, spinning: 0, is_called: false };
        assert!(WakeUp::ForMany.is_due(much));
        let others = [
            Waiting { bytes: WAKES_FROM_BYTES - 1, ..much },
            Waiting { spinning: 1, ..much },
            Waiting { is_called: true, ..much },
        ];
        for other in others {
            assert!(!WakeUp::ForMany.is_due(other), "{other:?}");
            assert!(WakeUp::Always.is_due(other), "{other:?}");
        }
    }
}
