//! `deadline`: batches in sector order, with a deadline for each request
//! (`block/deadline-iosched.c` of Linux 2.6.30).
//!
//! Reads and writes wait separately, each sorted by sector and by deadline. The disk works upward
//! through the sectors of one direction for a batch of requests. Between two batches the policy
//! chooses the next direction, and checks for expired deadlines.
//!
//! ```text
//!            ┌─ next in sort order, batch not used up ──> it
//!   dispatch ┤
//!            └─ new batch: reads, unless writes were passed over writes_starved times
//!                          └─ oldest late, or no next one ──> the oldest
//!                             else ───────────────────────> on from the next one
//! ```
//!
//! Deadlines are soft: they determine where a batch starts, not when a request is done.
//!
//! Bound: after its deadline, a request is among the next `N` dispatched ones, where `A` is the
//! number of requests of its direction with a deadline no later than its own (itself included):
//!
//! ```text
//!   write   N = A * (writes_starved + 1) * fifo_batch
//!   read    N = (A + 1 + (A - 1) / writes_starved) * fifo_batch
//! ```
//!
//! After the deadline every batch of the direction starts with the oldest request, so `A` batches
//! suffice. Between them lie the batches of the other direction, and before them the rest of the
//! running batch. Requests pushed out by an alias (`Deadline::make_room`) do not count.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::deadline_queue::DataDirection::{Read, Write};
use super::deadline_queue::{DataDirection, DeadlineQueue};
use super::{Attached, Candidate, Elevator, ElevatorType, Facts, Generation, Merged, Side};
use super::{Tunable, Tunables, Work};
use crate::bio::IoContext;
use crate::request::{RequestId, Requests};
use crate::time::Nanos;

/// The elevator's type.
pub static DEADLINE: ElevatorType = ElevatorType {
    name: "deadline",
    about: "sorted batches, reads before writes, a deadline for each; for disks and databases",
    generation: Generation::Single,
    tunables: &[
        Tunable {
            name: "read_expire",
            default: 500,
            min: 1,
            // Ten minutes: longer than any client waits.
            max: 600_000,
            unit: "ms",
            about: "a read that has waited this long starts the next batch of reads",
        },
        Tunable {
            name: "write_expire",
            default: 5000,
            min: 1,
            max: 600_000,
            unit: "ms",
            about: "a write that has waited this long starts the next batch of writes",
        },
        Tunable {
            name: "writes_starved",
            default: 2,
            // With 0, reads would wait as long as there are writes, without a bound.
            min: 1,
            max: 100,
            unit: "",
            about: "batches of reads that may pass waiting writes",
        },
        Tunable {
            name: "fifo_batch",
            default: 16,
            // The kernel's 0 means 1: a batch has at least its first request.
            min: 1,
            // More than a queue holds: a batch would end only with its direction.
            max: 4096,
            unit: "",
            about: "requests of a batch",
        },
        Tunable {
            name: "front_merges",
            default: 1,
            min: 0,
            max: 1,
            unit: "",
            about: "1: bios are also merged to the front of a request",
        },
    ],
    attach,
};

fn attach(tunables: &Tunables<'_>, _: Facts) -> Attached {
    let tuning = Tuning {
        read_expire: Nanos::from_ms(tunables.value("read_expire")),
        write_expire: Nanos::from_ms(tunables.value("write_expire")),
        writes_starved: tunables.value("writes_starved"),
        fifo_batch: tunables.value("fifo_batch"),
        front_merges: tunables.value("front_merges") == 1,
    };
    Attached { policy: Some(Box::new(Deadline::new(tuning))), async_depth: None }
}

/// Values of the tunables.
#[derive(Clone, Copy, Debug)]
struct Tuning {
    read_expire: Nanos,
    write_expire: Nanos,
    writes_starved: u64,
    fifo_batch: u64,
    front_merges: bool,
}

/// The deadline policy.
#[derive(Debug)]
pub struct Deadline {
    tuning: Tuning,
    reads: DeadlineQueue,
    writes: DeadlineQueue,
    /// Next request of the batch (`next_rq`), determined when the last one was taken. A later
    /// insertion in between is not part of this batch.
    next: Option<RequestId>,
    /// Number of requests in the running batch (`batching`).
    batch_len: u64,
    /// Number of read batches that passed waiting writes (`starved`).
    starved: u64,
    /// Requests that aliases pushed out of the sort order; they are dispatched first.
    pushed_out: VecDeque<RequestId>,
}

impl Deadline {
    fn new(tuning: Tuning) -> Self {
        Self {
            tuning,
            reads: DeadlineQueue::default(),
            writes: DeadlineQueue::default(),
            next: None,
            batch_len: 0,
            starved: 0,
            pushed_out: VecDeque::new(),
        }
    }

    fn queue(&self, direction: DataDirection) -> &DeadlineQueue {
        match direction {
            Read => &self.reads,
            Write => &self.writes,
        }
    }

    /// Queue of a request.
    fn queue_of(&mut self, requests: &Requests, id: RequestId) -> &mut DeadlineQueue {
        match DataDirection::of(requests[id].op) {
            Read => &mut self.reads,
            Write => &mut self.writes,
        }
    }

    fn waits(&self, requests: &Requests, id: RequestId) -> bool {
        self.queue(DataDirection::of(requests[id].op)).contains(id)
    }

    /// Takes a request; the batch continues after it (`deadline_move_request`).
    fn take(&mut self, requests: &Requests, id: RequestId) {
        let queue = self.queue_of(requests, id);
        let len = queue.len();
        self.next = queue.remove(id);
        requests.visit(1);
        requests.search(len);
    }

    /// Pushes out an alias. The sort trees of 2.6.30 held only one request per start sector. The
    /// older one, the alias, went to the device at once, out of turn, and the batch continued after
    /// it in either direction.
    fn make_room(&mut self, requests: &Requests, id: RequestId) {
        let sector = requests[id].sector;
        let len = self.queue_of(requests, id).len();
        requests.search(len);
        while let Some(alias) = self.queue_of(requests, id).at(requests, sector) {
            self.take(requests, alias);
            self.pushed_out.push_back(alias);
        }
    }
}

impl Elevator for Deadline {
    fn allow_merge(&self, requests: &Requests, request: RequestId, candidate: &Candidate) -> bool {
        // Pushed-out requests count as dispatched.
        let waits = |id| self.waits(requests, id);
        waits(request)
            && candidate.request.is_none_or(waits)
            && (candidate.side == Side::Back || self.tuning.front_merges)
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.make_room(requests, request);
        let Tuning { read_expire, write_expire, .. } = self.tuning;
        let expire = match DataDirection::of(requests[request].op) {
            Read => read_expire,
            Write => write_expire,
        };
        let sector = requests[request].sector;
        let queue = self.queue_of(requests, request);
        queue.insert(request, sector, now + expire);
        let len = queue.len();
        requests.visit(1);
        requests.search(len);
    }

    fn merged(&mut self, _: Nanos, requests: &Requests, request: RequestId, how: Merged) {
        match how {
            Merged::Back => {}
            Merged::Front => {
                self.queue_of(requests, request).unsort(request);
                self.make_room(requests, request);
                let sector = requests[request].sector;
                self.queue_of(requests, request).sort(request, sector);
            }
            Merged::Absorbed(absorbed) => {
                let behind = self.queue_of(requests, absorbed).absorb(request, absorbed);
                if self.next == Some(absorbed) {
                    self.next = behind;
                }
            }
        }
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        if let Some(alias) = self.pushed_out.pop_front() {
            return Some(alias);
        }
        let Tuning { writes_starved, fifo_batch, .. } = self.tuning;
        requests.visit(1);
        let chosen = match self.next {
            Some(next) if self.batch_len < fifo_batch => next,
            next => {
                let reads = !self.reads.is_empty();
                let writes = !self.writes.is_empty();
                let starved = reads && writes && self.starved >= writes_starved;
                let direction = match (reads, writes) {
                    (false, false) => return None,
                    (true, _) if !starved => {
                        // Reads pass no writes if none wait.
                        self.starved += u64::from(writes);
                        Read
                    }
                    _ => {
                        self.starved = 0;
                        Write
                    }
                };
                self.batch_len = 0;
                // Both directions, and the oldest request.
                requests.visit(3);
                let queue = self.queue(direction);
                let goes_on = next.filter(|id| DataDirection::of(requests[*id].op) == direction);
                // Not from the lowest sector, which may belong to a new request.
                queue.expired(now).or(goes_on).or(queue.oldest())?
            }
        };
        self.batch_len += 1;
        self.take(requests, chosen);
        Some(chosen)
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        let waits =
            !self.pushed_out.is_empty() || !self.reads.is_empty() || !self.writes.is_empty();
        if waits { Work::Now } else { Work::None }
    }
}

#[cfg(test)]
mod tests;
