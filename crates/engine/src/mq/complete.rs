//! CPU of a request's completion (`blk_mq_complete_request_remote`): a pure function for worlds
//! with CPUs.
//!
//! A surprising rule: with a single hardware queue even a completion on the right CPU goes through
//! the softirq; only with several queues it is done directly.

/// `rq_affinity`: where a request is completed relative to its submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RqAffinity {
    /// 0: anywhere.
    Off,
    /// 1: on a CPU that shares a cache with the submitting one.
    Group,
    /// 2: on the submitting CPU.
    Force,
}

/// Inputs of the decision.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The queue's setting.
    pub rq_affinity: RqAffinity,
    /// The submitting CPU.
    pub submitted_on: u16,
    /// The interrupted CPU.
    pub completed_on: u16,
    /// Whether the two share a cache.
    pub shares_cache: bool,
    /// Number of hardware queues.
    pub hw_queues: u16,
    /// Whether the submitter polled for the completion.
    pub polled: bool,
}

/// Context of the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteOn {
    /// Directly, on this CPU.
    Here,
    /// In the softirq of this CPU.
    Softirq,
    /// The softirq of the submitting CPU, by an interrupt.
    Ipi,
}

impl Completion {
    /// The context of the completion.
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
            // The right CPU, but a single queue uses the softirq.
            (Group, 0, true, 1, false, Softirq),
            (Group, 0, true, 4, false, Here),
            (Force, 0, true, 1, false, Softirq),
            // A neighbour: sufficient, unless the exact CPU is demanded.
            (Group, 1, true, 1, false, Softirq),
            (Group, 1, true, 4, false, Here),
            (Force, 1, true, 4, false, Ipi),
            (Force, 1, true, 1, false, Ipi),
            // Another socket.
            (Group, 8, false, 1, false, Ipi),
            (Group, 8, false, 4, false, Ipi),
            (Off, 8, false, 1, false, Softirq),
            (Off, 8, false, 4, false, Here),
            // Polled completions always end on the polling CPU.
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
