//! `adios`: a deadline for each request that includes its predicted time at the device, learned
//! from the sizes and times of earlier ones (`block/adios.c` of the adios project, version 0.8.4,
//! out of the kernel's tree).
//!
//! ```text
//!   deadline = insertion + target(operation) + predicted(operation, size)
//!
//!                by deadline          next page            current page
//!   insert ──>  9 ── 12 ── 15  ──>   [r r][w][ ][ ]  ──>  [r][w w][ ][ ]  ──> device
//!                     while the predicted time fits the window        reads first
//! ```
//!
//! The earliest deadlines fill a page of four lists, one for each operation. A page is served from
//! reads to other operations; then the next page is. A page is filled in advance when the predicted
//! time of all requests in pages and at the device falls below a share of the window.
//!
//! Bound: of the requests that are inserted after the deadline of another one, only those pass it
//! that are in the same page: at most the sum of the batch limits (97 by default).
//!
//! Our choices: a request that grows at either end gets a new prediction and its place by it (in
//! adios only at the front, so the model takes a long request for a short one); a request that
//! absorbs an older one takes over its insertion; the model is updated at the first insertion or
//! completion after its time; a refused request's time at the device starts at its first dispatch.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::fifo::Fifo;
use super::sort::SortTree;
use super::{Attached, Candidate, Elevator, ElevatorType, Facts, Generation, Merged};
use super::{Tunable, Tunables, Work};
use crate::bio::{IoContext, Op, Sector};
use crate::request::{RequestId, Requests};
use crate::time::Nanos;
use model::Model;

mod model;

const fn time(name: &'static str, default_ms: u64, about: &'static str) -> Tunable {
    Tunable {
        name,
        default: default_ms * 1_000_000,
        min: 0,
        max: i64::MAX as u64,
        unit: "ns",
        about,
    }
}

const fn batch(name: &'static str, default: u64, about: &'static str) -> Tunable {
    Tunable { name, default, min: 1, max: u32::MAX as u64, unit: "requests", about }
}

/// The elevator's type.
pub static ADIOS: ElevatorType = ElevatorType {
    name: "adios",
    about: "deadlines from learned latencies, in batches that fit a time window; for fast disks",
    generation: Generation::Multi,
    tunables: &[
        time("lat_target_read", 2, "added to a read's predicted time: its deadline"),
        time("lat_target_write", 750, "added to a write's predicted time: its deadline"),
        time("lat_target_discard", 5000, "added to a discard's predicted time: its deadline"),
        batch("batch_size_limit_read", 64, "reads in a page"),
        batch("batch_size_limit_write", 32, "writes in a page"),
        batch("batch_size_limit_discard", 1, "discards in a page"),
        time("global_latency_window", 60, "predicted time of all requests in pages and in flight"),
        Tunable {
            name: "bq_refill_below_ratio",
            default: 15,
            min: 0,
            max: 100,
            unit: "%",
            about: "share of the window below which the next page is filled in advance",
        },
    ],
    attach,
};

/// Kinds of operations: reads, writes, discards, others.
const KINDS: usize = 4;

fn attach(tunables: &Tunables<'_>, _: Facts) -> Attached {
    let value = |name| tunables.value(name);
    let window = Nanos(value("global_latency_window"));
    let refill_ns = u128::from(window.0) * u128::from(value("bq_refill_below_ratio")) / 100;
    let policy = Adios {
        targets: [
            Nanos(value("lat_target_read")),
            Nanos(value("lat_target_write")),
            Nanos(value("lat_target_discard")),
            Nanos(0),
        ],
        limits: [
            value("batch_size_limit_read"),
            value("batch_size_limit_write"),
            value("batch_size_limit_discard"),
            1,
        ],
        window,
        refill_below: Nanos(u64::try_from(refill_ns).unwrap_or(u64::MAX)),
        models: Default::default(),
        update_at: None,
        by_deadline: SortTree::default(),
        entries: Vec::new(),
        pages: Default::default(),
        current: 0,
        is_next_ready: false,
        predicted: Nanos(0),
        batched: 0,
    };
    Attached { policy: Some(Box::new(policy)), async_depth: None }
}

fn kind_of(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Discard => 2,
        Op::WriteZeroes | Op::Flush => 3,
    }
}

/// Data of a request.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    inserted: Nanos,
    dispatched: Nanos,
    predicted: Nanos,
    bytes: u64,
}

/// The adios policy.
// 13 fields: the tunables in the units of decisions, the models, and the three places of a request.
#[derive(Debug)]
struct Adios {
    targets: [Nanos; KINDS],
    /// Requests of each kind in a page.
    limits: [u64; KINDS],
    window: Nanos,
    /// Predicted time below which the next page is filled.
    refill_below: Nanos,
    models: [Model; KINDS],
    /// Time of the next update of the models.
    update_at: Option<Nanos>,
    /// Requests by deadline in nanoseconds, which takes the place of the sector.
    by_deadline: SortTree,
    /// By request.
    entries: Vec<Entry>,
    pages: [[Fifo; KINDS]; 2],
    /// Number of the page that is served.
    current: usize,
    is_next_ready: bool,
    /// Predicted time of all requests in pages and at the device.
    predicted: Nanos,
    /// Number of requests in the pages.
    batched: usize,
}

impl Adios {
    /// Puts a request at the place of its deadline.
    fn place(&mut self, requests: &Requests, id: RequestId) {
        let kind = kind_of(requests[id].op);
        let entry = &mut self.entries[id.index()];
        entry.bytes = requests[id].len.bytes();
        entry.predicted = self.models[kind].predict(entry.bytes);
        let deadline = entry.inserted + self.targets[kind] + entry.predicted;
        self.by_deadline.insert(id, Sector(deadline.0));
        // The entry, and the model of its kind.
        requests.visit(2);
        requests.search(self.by_deadline.len());
    }

    fn update(&mut self, now: Nanos) {
        if self.update_at.is_some_and(|time| time <= now) {
            self.update_at = None;
            self.models.iter_mut().for_each(|model| model.update(now));
        }
    }

    /// Moves the earliest deadlines to the next page (`adios_fill_batch_queues`).
    fn fill(&mut self, requests: &Requests) {
        let page = 1 - self.current;
        let mut counts = [0; KINDS];
        while let Some(id) = self.by_deadline.first() {
            let kind = kind_of(requests[id].op);
            let predicted = self.predicted + self.entries[id.index()].predicted;
            let is_full = !self.models[kind].has_learned()
                || counts[kind] >= self.limits[kind]
                || predicted > self.window;
            if self.is_next_ready && is_full {
                break;
            }
            requests.search(self.by_deadline.len());
            requests.visit(2);
            self.by_deadline.remove(id);
            self.pages[page][kind].push_back(id);
            self.predicted = predicted;
            self.batched += 1;
            counts[kind] += 1;
            self.is_next_ready = true;
        }
    }
}

impl Elevator for Adios {
    /// Requests in a page do not grow any more.
    fn allow_merge(&self, _: &Requests, request: RequestId, candidate: &Candidate) -> bool {
        self.by_deadline.contains(request)
            && candidate.request.is_none_or(|other| self.by_deadline.contains(other))
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.update(now);
        if self.entries.len() <= request.index() {
            self.entries.resize(request.index() + 1, Entry::default());
        }
        self.entries[request.index()].inserted = now;
        self.place(requests, request);
    }

    fn merged(&mut self, _: Nanos, requests: &Requests, request: RequestId, how: Merged) {
        self.by_deadline.remove(request);
        if let Merged::Absorbed(absorbed) = how {
            self.by_deadline.remove(absorbed);
            let older = self.entries[absorbed.index()].inserted;
            let entry = &mut self.entries[request.index()];
            entry.inserted = entry.inserted.min(older);
        }
        self.place(requests, request);
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        if !self.is_next_ready && self.predicted < self.refill_below {
            self.fill(requests);
        }
        if self.pages[self.current].iter().all(Fifo::is_empty) {
            if !self.is_next_ready {
                self.fill(requests);
            }
            self.current = 1 - self.current;
            self.is_next_ready = false;
        }
        requests.visit(KINDS as u32);
        let id = self.pages[self.current].iter_mut().find_map(Fifo::pop_front)?;
        self.entries[id.index()].dispatched = now;
        self.batched -= 1;
        Some(id)
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.update(now);
        let entry = self.entries[request.index()];
        self.predicted = self.predicted - entry.predicted;
        let model = &mut self.models[kind_of(requests[request].op)];
        model.learn(now, entry.bytes, now.since(entry.dispatched), entry.predicted);
        self.update_at.get_or_insert(now + model::INTERVAL);
        // The entry, the model, and its next update.
        requests.visit(3);
    }

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        if self.batched == 0 && self.by_deadline.is_empty() { Work::None } else { Work::Now }
    }
}

#[cfg(test)]
mod tests;
