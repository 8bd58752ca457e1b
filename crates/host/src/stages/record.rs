//! What one connection has recorded. Its thread alone writes, anybody reads: no lock, and no
//! operation that another CPU's cache has to agree to.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use blockyard_engine::time::Nanos;

use super::stats::{Resolution, StageTimes, Times};
use super::{Kind, Stage, now};
use crate::threads::{self, Usage};

/// Up to 2^42 ns, which is an hour; longer ones are with the last.
const BUCKETS: usize = 40 << Resolution::SUB_BITS;

/// One histogram.
struct Series {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// Only one thread adds.
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
        let (sum_ns, max_ns) = (&self.sum_ns, &self.max_ns);
        Times::of_counts(
            counts,
            sum_ns.load(Ordering::Relaxed),
            Nanos(max_ns.load(Ordering::Relaxed)),
        )
    }
}

/// The stages of one kind, and behind them the whole.
type Kinds = [OnceLock<Box<[Series]>>; Kind::ALL.len()];

/// Of one connection.
pub(crate) struct Record {
    /// Made when the first of its kind comes: 35 KiB.
    kinds: Kinds,
    /// The thread that writes, once it has.
    thread: AtomicU32,
    began: Nanos,
}

impl Record {
    pub(super) fn new() -> Self {
        Self { kinds: Kinds::default(), thread: AtomicU32::new(0), began: now() }
    }

    /// What the thread has used that writes here, so far.
    pub(super) fn usage(&self) -> Usage {
        threads::of_thread(self.thread.load(Ordering::Relaxed))
    }

    pub(super) fn add(&self, kind: Kind, stages: &[u64; Stage::ALL.len()]) {
        let series = self.kinds[kind as usize].get_or_init(|| {
            self.thread.store(threads::this_thread(), Ordering::Relaxed);
            (0..=Stage::ALL.len()).map(|_| Series::new()).collect()
        });
        for (series, ns) in series.iter().zip(stages) {
            series.record(*ns);
        }
        series[Stage::ALL.len()].record(stages.iter().sum());
    }

    /// Adds it to those of others.
    pub(super) fn read(&self, all: &mut StageTimes) {
        all.connected = all.connected + now().since(self.began);
        for (kind, into) in self.kinds.iter().zip(&mut all.kinds) {
            let Some(series) = kind.get() else { continue };
            let [.., total] = &series[..] else { unreachable!("the whole is the last") };
            series.iter().zip(&mut into.stages).for_each(|(from, into)| into.add(&from.read()));
            into.total.add(&total.read());
        }
    }
}
