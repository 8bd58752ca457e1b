//! The turns of a submitter ([`hand_over::Turn`]), and the CPU that a steady load keeps busy.

use std::sync::Arc;

use blockyard_engine::dm::crypt::hand_over;

use crate::workers::{Busy, Workers};

/// Short requests of a submitter.
pub(super) struct Turn {
    workers: Arc<Workers>,
    turn: hand_over::Turn,
    /// Exists while the load is steady: other submitters count this CPU as busy.
    busy: Option<Busy>,
}

impl Turn {
    pub(super) fn new(workers: &Arc<Workers>, hand_over_bytes: u64) -> Self {
        let turn = hand_over::Turn::new(hand_over_bytes);
        Self { workers: Arc::clone(workers), turn, busy: None }
    }

    /// Counts a short request.
    #[inline]
    pub(super) fn count(&mut self, len_bytes: u64, at_workers: usize) {
        self.turn.count(len_bytes, at_workers as u64);
    }

    /// Ends the turn. Returns whether the shard needs to know the load.
    #[inline]
    pub(super) fn end(&mut self) -> bool {
        self.turn.end() && self.mark()
    }

    /// The submitter is about to sleep. Returns whether the shard needs to know the load.
    pub(super) fn sleep(&mut self) -> bool {
        self.turn.sleep() && self.mark()
    }

    /// Marks the CPU as busy or not; returns true.
    fn mark(&mut self) -> bool {
        if self.turn.is_steady() != self.busy.is_some() {
            self.busy = self.turn.is_steady().then(|| self.workers.busy());
        }
        true
    }

    pub(super) fn is_steady(&self) -> bool {
        self.turn.is_steady()
    }

    pub(super) fn together_bytes(&self) -> u64 {
        self.turn.together_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus;
    use crate::workers::{Unbound, WorkerConfig};

    #[test]
    fn steady_submitter_keeps_a_cpu_busy() {
        let unbound = Unbound::Number(cpus::allowed().len());
        let workers = Workers::start(WorkerConfig { unbound, bound: false });
        let idle_cpus = || workers.load_now().idle_cpus;
        let before = idle_cpus();
        let mut turn = Turn::new(&workers, 4096);
        let ends = |turn: &mut Turn, requests: usize| {
            (0..requests).for_each(|_| turn.count(4096, 0));
            turn.end()
        };
        assert!(ends(&mut turn, 32));
        assert_eq!(idle_cpus(), before - 1);
        assert!(ends(&mut turn, 1), "the shard has to know");
        assert_eq!(idle_cpus(), before);
        assert!(ends(&mut turn, 32));
        assert_eq!(idle_cpus(), before - 1);
        assert!(turn.sleep());
        assert_eq!(idle_cpus(), before);
    }
}
