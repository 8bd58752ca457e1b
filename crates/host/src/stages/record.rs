//! Recorded times of one connection. Only its thread writes, any thread reads: without locks or
//! atomic read-modify-writes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use blockyard_engine::time::Nanos;

use super::stats::{Resolution, StageTimes, Times};
use super::{RequestKind, Stage, now};
use crate::threads::{self, Usage};

/// Up to 2^42 ns, which is an hour; longer times fall into the last bucket.
const BUCKETS: usize = 40 << Resolution::SUB_BITS;

/// A histogram.
struct Series {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// Adds without an atomic read-modify-write, because only one thread adds.
fn add(to: &AtomicU64, value: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

impl Series {
    fn new() -> Self {
        let counts = [const { AtomicU64::new(0) }; BUCKETS];
        Self { counts, sum_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) }
    }

    fn record(&self, ns: u64) {
        let bucket = Times::bucket_of(Nanos(ns)).min(BUCKETS - 1);
        add(&self.counts[bucket], 1);
        if ns > 0 {
            add(&self.sum_ns, ns);
        }
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Times {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let sum_ns = &self.sum_ns;
        let max_ns = &self.max_ns;
        Times::of_counts(
            counts,
            sum_ns.load(Ordering::Relaxed),
            Nanos(max_ns.load(Ordering::Relaxed)),
        )
    }
}

/// The stages of one kind, followed by the whole.
type Kinds = [OnceLock<Box<[Series]>>; RequestKind::ALL.len()];

/// Record of one connection.
pub(crate) struct Record {
    /// Allocated at the first sample of a kind: 35 KiB.
    kinds: Kinds,
    /// Each flush; allocated at the first.
    flushes: OnceLock<Box<Series>>,
    /// The writing thread, once known.
    thread: AtomicU32,
    began: Nanos,
}

impl Record {
    pub(super) fn new() -> Self {
        let kinds = Kinds::default();
        let flushes = OnceLock::new();
        Self { kinds, flushes, thread: AtomicU32::new(0), began: now() }
    }

    /// Usage of the writing thread so far.
    pub(super) fn usage(&self) -> Usage {
        threads::of_thread(self.thread.load(Ordering::Relaxed))
    }

    pub(super) fn add(&self, kind: RequestKind, stages: &[u64; Stage::ALL.len()]) {
        let series = self.kinds[kind as usize].get_or_init(|| {
            self.thread.store(threads::this_thread(), Ordering::Relaxed);
            (0..=Stage::ALL.len()).map(|_| Series::new()).collect()
        });
        for (series, ns) in series.iter().zip(stages) {
            series.record(*ns);
        }
        series[Stage::ALL.len()].record(stages.iter().sum());
    }

    pub(super) fn add_flush(&self, time: Nanos) {
        self.flushes.get_or_init(|| Box::new(Series::new())).record(time.0);
    }

    /// Adds the record to a sum.
    pub(super) fn read(&self, all: &mut StageTimes) {
        all.connected = all.connected + now().since(self.began);
        for (kind, into) in self.kinds.iter().zip(&mut all.kinds) {
            let Some(series) = kind.get() else { continue };
            let [.., total] = &series[..] else { unreachable!("the whole is the last") };
            series.iter().zip(&mut into.stages).for_each(|(from, into)| into.add(&from.read()));
            into.total.add(&total.read());
        }
        if let Some(flushes) = self.flushes.get() {
            all.flushes.add(&flushes.read());
        }
    }
}
