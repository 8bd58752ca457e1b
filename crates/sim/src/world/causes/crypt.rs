//! Why encrypted I/O took as long as it did: who encrypted, who submitted, in which order.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_engine::bio::Sector;
use blockyard_engine::pages::Counters;
use blockyard_engine::time::Nanos;

use crate::cpu::{CpuId, ThreadId};
use crate::memory::MemoryCounters;

/// Counters of a mapped device.
///
/// It has 18 fields: each is one cause that the lab prints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CryptCauses {
    /// Parts that the cipher has been through.
    pub parts: u64,
    /// Their bytes.
    pub cipher_bytes: u64,
    /// Time of all CPUs in the cipher.
    pub cipher_busy: Nanos,
    /// Parts that were given to a worker.
    pub hand_overs: u64,
    /// Batches that the writing thread took.
    pub batches: u64,
    /// Writes in them.
    pub batched_writes: u64,
    /// Batches in which a write lies before the one ahead of it.
    pub unsorted_batches: u64,
    /// Pieces of one write whose encryption ended later than that of a piece behind them, which was
    /// the last to end.
    pub out_of_order: u64,
    /// Pieces that were not the first to end.
    pub neighbours: u64,
    /// Workers that encrypted pieces of one write.
    pub workers_per_write: Spread,
    /// Io-contexts in which pieces of one write were submitted.
    pub contexts_per_write: Spread,
    /// Threads that submitted writes.
    pub submitting_threads: BTreeSet<ThreadId>,
    /// Io-contexts in which writes were submitted.
    pub write_contexts: BTreeSet<u32>,
    /// CPUs that encrypted what one thread wrote.
    pub cpus_of_writer: BTreeMap<ThreadId, BTreeSet<CpuId>>,
    /// Writes that entered the queue.
    pub write_bios: u64,
    /// Of the page allocator, if there is one.
    pub pages: Option<Counters>,
    /// Of the memory that it takes pages from.
    pub memory: Option<MemoryCounters>,
    /// Time in which pages were allocated and freed.
    pub allocation_busy: Nanos,
}

impl CryptCauses {
    /// Pieces of a write were encrypted; where they begin in it, in that order.
    pub(in crate::world) fn note_order(&mut self, pieces: &[u64]) {
        for pair in pieces.windows(2) {
            self.neighbours += 1;
            self.out_of_order += u64::from(pair[1] < pair[0]);
        }
    }

    /// The writing thread has taken these, in this order.
    pub(in crate::world) fn note_batch(&mut self, sectors: &[Sector]) {
        self.batches += 1;
        self.batched_writes += sectors.len() as u64;
        self.unsorted_batches += u64::from(!sectors.is_sorted());
    }

    /// CPUs that encrypted what one thread wrote, of the thread with most of them.
    #[must_use]
    pub fn cpus_of_writer_max(&self) -> usize {
        self.cpus_of_writer.values().map(BTreeSet::len).max().unwrap_or(0)
    }
}

/// How often each small number came out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    counts: Vec<u64>,
}

impl Spread {
    /// Counts a number.
    pub(in crate::world) fn add(&mut self, number: usize) {
        if self.counts.len() <= number {
            self.counts.resize(number + 1, 0);
        }
        self.counts[number] += 1;
    }

    /// The number that half of them do not exceed; 0 if there is none.
    #[must_use]
    pub fn median(&self) -> usize {
        let half = self.counts.iter().sum::<u64>().div_ceil(2);
        let mut so_far = 0;
        let reaches = |count: &u64| {
            so_far += count;
            so_far >= half
        };
        self.counts.iter().position(reaches).unwrap_or(0)
    }

    /// Their mean; 0 if there is none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let sum: u64 =
            (0..).zip(&self.counts).map(|(number, count): (u64, _)| number * count).sum();
        sum as f64 / all.max(1) as f64
    }
}
