//! Timeouts of one executor ([`SqeOp::Timeout`](blockyard_engine::sq::SqeOp::Timeout)).
//!
//! A heap without system timers: a sleeping thread uses the first timeout as its limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::sq::{Cqe, Token};
use blockyard_engine::time::Nanos;

/// Pending timeouts.
#[derive(Default)]
pub(crate) struct Timers {
    /// Earliest first; of equal times, the one started first.
    heap: BinaryHeap<Reverse<(Nanos, u64, Token)>>,
    started: u64,
}

impl Timers {
    pub(crate) fn start(&mut self, at: Nanos, token: Token) {
        self.heap.push(Reverse((at, self.started, token)));
        self.started += 1;
    }

    /// Moves due completions to the end of `cqes`.
    pub(crate) fn take_due(&mut self, now: Nanos, cqes: &mut Vec<Cqe>) {
        while let Some(&Reverse((at, _, token))) = self.heap.peek()
            && at <= now
        {
            self.heap.pop();
            cqes.push(Cqe { token, status: BlkStatus::Ok });
        }
    }

    /// Time of the next timeout.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::sq::Owner;

    use super::*;

    #[test]
    fn timeouts_are_answered_in_the_order_of_their_times_and_not_before() {
        let mut timers = Timers::default();
        for (index, at) in [30, 10, 20, 10].into_iter().enumerate() {
            timers.start(Nanos(at), Token { owner: Owner::Shard, index: index as u32 });
        }
        let mut cqes = Vec::new();
        timers.take_due(Nanos(9), &mut cqes);
        assert_eq!((cqes.len(), timers.next()), (0, Some(Nanos(10))));
        timers.take_due(Nanos(20), &mut cqes);
        let answered: Vec<u32> = cqes.iter().map(|cqe| cqe.token.index).collect();
        assert_eq!((answered, timers.next()), (vec![1, 3, 2], Some(Nanos(30))));
    }
}
