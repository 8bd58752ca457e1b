//! `kyber`: a limit on the requests at the device for each kind of operation, which follows the
//! measured latencies (`block/kyber-iosched.c`).
//!
//! ```text
//!            staged by CPU       ready           tokens     batch
//!   read     [0 ....][1 ..] ──>  .....  ──┐      256        16    ──┐
//!   write    [0 ..][1 .....] ─>  ...    ──┤      128         8      ├─ round robin ──> device
//!   discard  [0 .][1 ]       ─>  .      ──┤       64         1      │
//!   other    [0 ][1 ]        ─>         ──┘       16         1    ──┘
//! ```
//!
//! Nothing is sorted, and priorities have no effect. A request needs a token of its domain until it
//! ends. Bios merge with staged requests of their CPU only, and requests never merge with each
//! other. When a domain has no ready request, all of its staged ones become ready, in the order of
//! the CPUs. `latency.rs` changes the number of tokens.
//!
//! Bound: when a request becomes ready with `k` ready ones of its domain ahead, and its domain
//! lacks no token, at most `(k / b + 1) * (26 - b)` requests of other domains pass it, with the
//! batch `b` of its domain (the division rounds down). Each domain keeps at least one token, so a
//! domain without a free token waits for one completion of its own. While its domain has ready
//! requests a staged request waits, and others of its CPU cannot pass it.
//!
//! Our choices: one round for all hardware queues, where the kernel has one for each; tokens are
//! counted, so a reduced domain has none free until enough of its requests have ended; the time at
//! the device starts with the dispatch, and the total time with the insertion.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::fifo::Fifo;
use super::{Attached, Candidate, Elevator, ElevatorType, Facts, Generation, Merged};
use super::{Tunable, Tunables, Work};
use crate::bio::{IoContext, Op};
use crate::request::{RequestId, Requests};
use crate::time::Nanos;
use latency::{Clocks, Control};

mod latency;

/// The elevator's type.
pub static KYBER: ElevatorType = ElevatorType {
    name: "kyber",
    about: "limits each kind of operation at the device by measured latencies; does not sort",
    generation: Generation::Multi,
    tunables: &[
        Tunable {
            name: "read_lat_nsec",
            default: 2_000_000,
            min: 0,
            max: u64::MAX,
            unit: "ns",
            about: "target latency of reads",
        },
        Tunable {
            name: "write_lat_nsec",
            default: 10_000_000,
            min: 0,
            max: u64::MAX,
            unit: "ns",
            about: "target latency of writes",
        },
    ],
    attach,
};

/// Share of the queue's requests that may be asynchronous (`KYBER_ASYNC_PERCENT`).
const ASYNC_PERCENT: u64 = 75;

fn attach(tunables: &Tunables<'_>, facts: Facts) -> Attached {
    let async_depth = u64::from(facts.nr_requests) * ASYNC_PERCENT / 100;
    let targets = ["read_lat_nsec", "write_lat_nsec"].map(|name| Nanos(tunables.value(name)));
    let policy = Kyber {
        domains: DEPTHS.map(Domain::new),
        control: Control::new(targets),
        current: 0,
        batching: 0,
        waiting: 0,
        clocks: Vec::new(),
        by_cpu: Vec::new(),
    };
    let async_depth = u32::try_from(async_depth).unwrap_or(u32::MAX).max(1);
    Attached { policy: Some(Box::new(policy)), async_depth: Some(async_depth) }
}

/// Number of domains.
const DOMAINS: usize = 4;

/// Greatest number of tokens (`kyber_depth`).
const DEPTHS: [u32; DOMAINS] = [256, 128, 64, 16];

/// Requests of one domain in a row (`kyber_batch_size`).
const BATCHES: [u32; DOMAINS] = [16, 8, 1, 1];

/// The domain of an operation (`kyber_sched_domain`).
fn domain_of(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Discard => 2,
        Op::WriteZeroes | Op::Flush => 3,
    }
}

/// Requests of one kind of operation.
#[derive(Debug)]
struct Domain {
    /// Requests that may still grow, in the order of arrival (`kcqs`).
    staged: Fifo,
    /// Requests that only lack a token (`rqs`).
    ready: Fifo,
    /// Number of tokens.
    depth: u32,
    /// Number of tokens in use.
    used: u32,
}

impl Domain {
    fn new(depth: u32) -> Self {
        Self { staged: Fifo::default(), ready: Fifo::default(), depth, used: 0 }
    }

    fn is_waiting(&self) -> bool {
        !self.ready.is_empty() || !self.staged.is_empty()
    }

    fn may_dispatch(&self) -> bool {
        self.is_waiting() && self.used < self.depth
    }
}

/// The kyber policy.
#[derive(Debug)]
struct Kyber {
    domains: [Domain; DOMAINS],
    control: Control,
    /// Domain of the batch.
    current: usize,
    /// Number of requests in the batch so far.
    batching: u32,
    waiting: usize,
    /// Start of the wait and of the time at the device, by request.
    clocks: Vec<Clocks>,
    /// Requests that become ready: CPU, order of arrival, request.
    by_cpu: Vec<(u16, u32, RequestId)>,
}

impl Kyber {
    /// Makes all staged requests of a domain ready, in the order of their CPUs
    /// (`kyber_flush_busy_kcqs`).
    fn make_ready(&mut self, domain: usize, requests: &Requests) {
        let Domain { staged, ready, .. } = &mut self.domains[domain];
        self.by_cpu.clear();
        while let Some(id) = staged.pop_front() {
            self.by_cpu.push((requests[id].origin.cpu, self.by_cpu.len() as u32, id));
        }
        self.by_cpu.sort_unstable();
        self.by_cpu.iter().for_each(|(_, _, id)| ready.push_back(*id));
    }

    /// Takes a request of the current domain (`kyber_dispatch_cur_domain`).
    fn take(&mut self, requests: &Requests) -> Option<RequestId> {
        requests.visit(1);
        if !self.domains[self.current].may_dispatch() {
            return None;
        }
        if self.domains[self.current].ready.is_empty() {
            self.make_ready(self.current, requests);
            requests.visit(self.by_cpu.len() as u32);
        }
        let domain = &mut self.domains[self.current];
        domain.used += 1;
        requests.visit(1);
        self.batching += 1;
        domain.ready.pop_front()
    }

    fn adjust(&mut self, now: Nanos) {
        let depths = self.control.adjust(now, self.domains.each_ref().map(|domain| domain.depth));
        for (domain, depth) in self.domains.iter_mut().zip(depths) {
            domain.depth = depth;
        }
    }
}

impl Elevator for Kyber {
    fn allow_merge(&self, requests: &Requests, request: RequestId, candidate: &Candidate) -> bool {
        candidate.request.is_none()
            && requests[request].origin.cpu == candidate.origin.cpu
            && self.domains[domain_of(candidate.op)].staged.contains(request)
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.adjust(now);
        if self.clocks.len() <= request.index() {
            self.clocks.resize(request.index() + 1, Clocks::default());
        }
        self.clocks[request.index()].inserted = now;
        self.domains[domain_of(requests[request].op)].staged.push_back(request);
        requests.visit(2);
        self.waiting += 1;
    }

    fn merged(&mut self, _: Nanos, _: &Requests, _: RequestId, how: Merged) {
        assert!(!matches!(how, Merged::Absorbed(_)), "requests do not merge with each other");
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        let mut next = None;
        if self.batching < BATCHES[self.current] {
            next = self.take(requests);
        }
        if next.is_none() {
            self.batching = 0;
            for _ in 0..DOMAINS {
                self.current = (self.current + 1) % DOMAINS;
                next = self.take(requests);
                if next.is_some() {
                    break;
                }
            }
        }
        let request = next?;
        self.waiting -= 1;
        self.clocks[request.index()].dispatched = now;
        Some(request)
    }

    /// The request keeps its token, as on the kernel's dispatch list.
    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.adjust(now);
        let domain = domain_of(requests[request].op);
        self.domains[domain].used -= 1;
        self.control.add(domain, now, self.clocks[request.index()]);
        // The tokens, the clocks, and the histograms of both times.
        requests.visit(4);
    }

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        match self.waiting {
            0 => Work::None,
            _ if self.domains.iter().any(Domain::may_dispatch) => Work::Now,
            _ => Work::AfterCompletion,
        }
    }
}

#[cfg(test)]
mod tests;
