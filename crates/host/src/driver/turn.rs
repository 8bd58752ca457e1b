//! Turns of a submitter: the short requests that it has together, and for how long it has been busy
//! with them.

use std::sync::Arc;

use blockyard_engine::dm::crypt::pipeline::TOGETHER_MIN_BYTES;

use crate::workers::{Busy, Workers};

/// Short requests of a submitter. A turn ends when the submitter looks for completions.
pub(super) struct Turn {
    workers: Arc<Workers>,
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
    /// Exists while the load is steady: other submitters count this CPU as busy.
    busy: Option<Busy>,
}

impl Turn {
    pub(super) fn new(workers: &Arc<Workers>, hand_over_bytes: u64) -> Self {
        Self {
            workers: Arc::clone(workers),
            hand_over_bytes,
            bytes: 0,
            requests: 0,
            at_workers: 0,
            awake_bytes: 0,
            together_bytes: 0,
            busy: None,
        }
    }

    /// Counts a short request.
    #[inline]
    pub(super) fn count(&mut self, len_bytes: u64, at_workers: usize) {
        if self.requests == 0 {
            self.at_workers = at_workers as u64;
        }
        self.bytes += len_bytes;
        self.requests += 1;
    }

    /// Ends the turn. Returns whether the shard needs to know the load.
    #[inline]
    pub(super) fn end(&mut self) -> bool {
        self.requests > 0 && self.conclude()
    }

    fn conclude(&mut self) -> bool {
        let together_bytes = self.bytes * (self.requests + self.at_workers) / self.requests;
        self.awake_bytes += self.bytes;
        (self.bytes, self.requests) = (0, 0);
        let was_steady = self.is_steady();
        let is_steady =
            self.awake_bytes >= self.hand_over_bytes && together_bytes >= TOGETHER_MIN_BYTES;
        self.together_bytes = if is_steady && was_steady { together_bytes } else { 0 };
        if is_steady != was_steady {
            self.busy = is_steady.then(|| self.workers.busy());
        }
        is_steady || was_steady
    }

    /// The submitter is about to sleep. Returns whether the shard needs to know the load.
    pub(super) fn sleep(&mut self) -> bool {
        self.awake_bytes = 0;
        self.together_bytes = 0;
        self.busy.take().is_some()
    }

    /// Whether the submitter has been busy with short requests for longer than a hand-over takes.
    pub(super) fn is_steady(&self) -> bool {
        self.busy.is_some()
    }

    /// Bytes in flight together, once the load is steady; before 0.
    pub(super) fn together_bytes(&self) -> u64 {
        self.together_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus;
    use crate::workers::WorkerConfig;

    /// Turns of so many requests of 4 KiB until the load is steady; at most 100.
    fn turns_until_steady(turn: &mut Turn, requests: usize, at_workers: usize) -> usize {
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
        let workers = Workers::start(WorkerConfig::default());
        let mut turn = Turn::new(&workers, 1 << 20);
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
        let workers = Workers::start(WorkerConfig::default());
        let mut turn = Turn::new(&workers, 4096);
        assert_eq!(turns_until_steady(&mut turn, 8, 0), 100);
        assert_eq!(turns_until_steady(&mut turn, 8, 8), 1);
        turn.count(4096, 14);
        assert!(turn.end(), "the shard has to know");
        assert!(!turn.is_steady());
        assert!(!turn.end(), "there were no requests");
    }

    #[test]
    fn steady_submitter_keeps_a_cpu_busy() {
        let unbound = cpus::allowed().len();
        let workers = Workers::start(WorkerConfig { unbound, bound: false });
        let idle_cpus = || workers.load_now().idle_cpus;
        let before = idle_cpus();
        let mut turn = Turn::new(&workers, 4096);
        turns_until_steady(&mut turn, 32, 0);
        assert_eq!(idle_cpus(), before - 1);
        turn.sleep();
        assert_eq!(idle_cpus(), before);
    }
}
