//! Causes of the time of encrypted I/O: encrypting workers, submitters, order.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_engine::bio::Sector;
use blockyard_engine::pages::Counters;
use blockyard_engine::time::Nanos;

use crate::cpu::{CpuId, ThreadId};
use crate::memory::MemoryCounters;

/// Counters of a mapped device.
// 19 fields: each is one cause that the lab prints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CryptCauses {
    /// Encrypted or decrypted parts.
    pub parts: u64,
    /// Their bytes.
    pub cipher_bytes: u64,
    /// CPU time in the cipher.
    pub cipher_busy: Nanos,
    /// Parts handed to a worker.
    pub hand_overs: u64,
    /// Parts whose cipher cryptd has run.
    pub by_cryptd: u64,
    /// Batches of the writing thread.
    pub batches: u64,
    /// Writes in them.
    pub batched_writes: u64,
    /// Batches with a write before its predecessor.
    pub unsorted_batches: u64,
    /// Pieces of one write that were encrypted after a later piece, counted by neighbours.
    pub out_of_order: u64,
    /// Pairs of neighbouring pieces.
    pub neighbours: u64,
    /// Number of workers that encrypted pieces of one write.
    pub workers_per_write: Spread,
    /// Number of io-contexts in which pieces of one write were submitted.
    pub contexts_per_write: Spread,
    /// Threads that submitted writes.
    pub submitting_threads: BTreeSet<ThreadId>,
    /// Io-contexts in which writes were submitted.
    pub write_contexts: BTreeSet<u32>,
    /// CPUs that encrypted one thread's writes.
    pub cpus_of_writer: BTreeMap<ThreadId, BTreeSet<CpuId>>,
    /// Writes that entered the queue.
    pub write_bios: u64,
    /// Counters of the page allocator, if there is one.
    pub pages: Option<Counters>,
    /// Counters of its memory.
    pub memory: Option<MemoryCounters>,
    /// Time of page allocation and freeing.
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

    /// Counts a batch of the writing thread, in this order.
    pub(in crate::world) fn note_batch(&mut self, sectors: &[Sector]) {
        self.batches += 1;
        self.batched_writes += sectors.len() as u64;
        self.unsorted_batches += u64::from(!sectors.is_sorted());
    }

    /// The largest number of CPUs that encrypted one thread's writes.
    #[must_use]
    pub fn cpus_of_writer_max(&self) -> usize {
        self.cpus_of_writer.values().map(BTreeSet::len).max().unwrap_or(0)
    }
}

/// Distribution of small numbers.
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

    /// Median; 0 without numbers.
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

    /// Mean; 0 without numbers.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let sum: u64 =
            (0..).zip(&self.counts).map(|(number, count): (u64, _)| number * count).sum();
        sum as f64 / all.max(1) as f64
    }
}
