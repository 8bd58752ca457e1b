//! On which CPU a request is ended (`blk_mq_complete_request_remote`): one decision, a pure
//! function, which a world that has CPUs asks.
//!
//! What surprises: with a single hardware queue even a completion on the right CPU takes the way
//! through the softirq; only with several queues it is ended on the spot.

/// `rq_affinity`: how much it matters that a request ends where it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RqAffinity {
    /// 0: not at all.
    Off,
    /// 1: on a CPU that shares a cache with that one.
    Group,
    /// 2: on that very CPU.
    Force,
}

/// What the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The queue's setting.
    pub rq_affinity: RqAffinity,
    /// The CPU that submitted.
    pub submitted_on: u16,
    /// The CPU that the device interrupted.
    pub completed_on: u16,
    /// Whether the two share a cache.
    pub shares_cache: bool,
    /// Hardware queues of the device.
    pub hw_queues: u16,
    /// The submitter looked for the completion itself.
    pub polled: bool,
}

/// Where a request is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteOn {
    /// On the spot.
    Here,
    /// In the softirq of this CPU.
    Softirq,
    /// In the softirq of the CPU that submitted, which is interrupted for it.
    Ipi,
}

impl Completion {
    /// Where.
    #[must_use]
    pub fn place(&self) -> CompleteOn {
        if self.polled {
            return CompleteOn::Here;
        }
        let elsewhere = self.completed_on != self.submitted_on;
        let sends = match self.rq_affinity {
            RqAffinity::Off => false,
            RqAffinity::Group => elsewhere && !self.shares_cache,
            RqAffinity::Force => elsewhere,
        };
        match (sends, self.hw_queues) {
            (true, _) => CompleteOn::Ipi,
            (false, 1) => CompleteOn::Softirq,
            (false, _) => CompleteOn::Here,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns: rq_affinity, completing CPU (0 submitted), shares cache, hardware queues, polled.
    #[test]
    fn completion_goes_where_the_table_says() {
        use CompleteOn::{Here, Ipi, Softirq};
        use RqAffinity::{Force, Group, Off};
        let table = [
            // The right CPU: a single queue takes the softirq all the same.
            (Group, 0, true, 1, false, Softirq),
            (Group, 0, true, 4, false, Here),
            (Force, 0, true, 1, false, Softirq),
            // A neighbour: good enough, unless the very CPU is wanted.
            (Group, 1, true, 1, false, Softirq),
            (Group, 1, true, 4, false, Here),
            (Force, 1, true, 4, false, Ipi),
            (Force, 1, true, 1, false, Ipi),
            // Another socket.
            (Group, 8, false, 1, false, Ipi),
            (Group, 8, false, 4, false, Ipi),
            (Off, 8, false, 1, false, Softirq),
            (Off, 8, false, 4, false, Here),
            // Polling ends where it looks, always.
            (Force, 8, false, 1, true, Here),
        ];
        for (rq_affinity, completed_on, shares_cache, hw_queues, polled, expected) in table {
            let submitted_on = 0;
            let completion = Completion {
                rq_affinity,
                submitted_on,
                completed_on,
                shares_cache,
                hw_queues,
                polled,
            };
            assert_eq!(completion.place(), expected, "{completion:?}");
        }
    }
}
