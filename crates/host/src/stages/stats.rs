//! Sum of the records of all connections of a volume.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockyard_engine::histogram::Histogram;
use blockyard_engine::time::Nanos;

use super::record::Record;
use super::{RequestKind, Stage, now};
use crate::threads::Usage;

/// Resolution of histograms.
#[derive(Clone, Copy, Debug)]
pub struct Resolution;

impl Resolution {
    /// 16 buckets per power of two: a percentile is at most 3 % off.
    pub const SUB_BITS: u32 = 4;
}

/// Times of one stage.
pub type Times = Histogram<{ Resolution::SUB_BITS }>;

/// Times of one kind of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindTimes {
    /// In the order of [`Stage::ALL`]. Each has every sampled request, possibly with zero, so their
    /// means add up to the mean of the whole.
    pub stages: [Times; Stage::ALL.len()],
    /// Whole times.
    pub total: Times,
}

/// Times of a volume's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// In the order of [`RequestKind::ALL`].
    pub kinds: [KindTimes; RequestKind::ALL.len()],
    /// Each successful flush, from its execution until its outcome.
    pub flushes: Times,
    /// Mean sampling interval in requests.
    pub every: u32,
    /// Time with at least one connection.
    pub occupied: Nanos,
    /// Sum of the times of all connections.
    pub connected: Nanos,
    /// Time in which workers had jobs of any volume, all workers together, while this volume had a
    /// connection.
    pub workers_busy: Nanos,
}

/// Reads the busy time of a volume's workers.
pub(crate) type BusyTime = Box<dyn Fn() -> Nanos + Send + Sync>;

/// Records of a volume's connections, and sums of ended ones.
pub(crate) struct StageStats {
    /// Mean sampling interval in requests; zero samples nothing.
    every: u32,
    workers_busy: Option<BusyTime>,
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    open: Vec<Arc<Record>>,
    /// Start of the first open connection, and the busy time of the workers at that time.
    occupied_from: Nanos,
    workers_busy_from: Nanos,
    ended: StageTimes,
    usage: Usage,
}

impl StageStats {
    pub(crate) fn new(every: u32, workers_busy: Option<BusyTime>) -> Self {
        Self { every, workers_busy, records: Mutex::default() }
    }

    fn workers_busy(&self) -> Nanos {
        self.workers_busy.as_ref().map_or(Nanos(0), |read| read())
    }

    /// Adds the times since the first open connection.
    fn add_occupied(&self, records: &Records, all: &mut StageTimes) {
        all.occupied = all.occupied + now().since(records.occupied_from);
        let busy = self.workers_busy().since(records.workers_busy_from);
        all.workers_busy = all.workers_busy + busy;
    }

    pub(super) fn every(&self) -> u32 {
        self.every
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(super) fn open(&self) -> Arc<Record> {
        let record = Arc::new(Record::new());
        let mut records = self.records();
        if records.open.is_empty() {
            records.occupied_from = now();
            records.workers_busy_from = self.workers_busy();
        }
        records.open.push(Arc::clone(&record));
        record
    }

    /// Removes a connection, on its own thread.
    pub(super) fn close(&self, record: &Arc<Record>) {
        let mut records = self.records();
        records.open.retain(|open| !Arc::ptr_eq(open, record));
        record.read(&mut records.ended);
        records.usage.add(&record.usage());
        if records.open.is_empty() {
            let mut ended = std::mem::take(&mut records.ended);
            self.add_occupied(&records, &mut ended);
            records.ended = ended;
        }
    }

    /// The sum of all records so far.
    pub(crate) fn read(&self) -> StageTimes {
        let records = self.records();
        let mut all = StageTimes { every: self.every, ..records.ended.clone() };
        records.open.iter().for_each(|record| record.read(&mut all));
        if !records.open.is_empty() {
            self.add_occupied(&records, &mut all);
        }
        all
    }

    /// Usage of connection threads so far, and their number.
    pub(crate) fn usage(&self) -> (Usage, usize) {
        let records = self.records();
        let mut all = records.usage;
        records.open.iter().for_each(|record| all.add(&record.usage()));
        (all, records.open.len())
    }
}
