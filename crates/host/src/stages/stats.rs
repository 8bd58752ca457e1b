//! The records of all connections of a volume, added up by whoever asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockyard_engine::histogram::Histogram;
use blockyard_engine::time::Nanos;

use super::record::Record;
use super::{Kind, Stage, now};
use crate::threads::Usage;

/// How finely times are kept.
#[derive(Clone, Copy, Debug)]
pub struct Resolution;

impl Resolution {
    /// 16 buckets for each power of two: a percentile is at most 3 % off.
    pub const SUB_BITS: u32 = 4;
}

/// The times of one stage.
pub type Times = Histogram<{ Resolution::SUB_BITS }>;

/// Of one kind of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindTimes {
    /// In the order of [`Stage::ALL`]. Each has every request that was sampled, also as zero: their
    /// means add up to that of the whole.
    pub stages: [Times; Stage::ALL.len()],
    /// The whole.
    pub total: Times,
}

/// What is known of the time of a volume's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// In the order of [`Kind::ALL`].
    pub kinds: [KindTimes; Kind::ALL.len()],
    /// One request of so many was sampled, in the mean.
    pub every: u32,
    /// How long it had a connection at least.
    pub occupied: Nanos,
    /// How long its connections have been there, all together.
    pub connected: Nanos,
}

/// The records of the connections of a volume, and the sums of those that have ended.
pub(crate) struct StageStats {
    /// One request of so many is sampled, in the mean; zero samples nothing.
    every: u32,
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    open: Vec<Arc<Record>>,
    /// When the first of those that are open came.
    occupied_from: Nanos,
    ended: StageTimes,
    usage: Usage,
}

impl StageStats {
    pub(crate) fn new(every: u32) -> Self {
        Self { every, records: Mutex::default() }
    }

    pub(super) fn every(&self) -> u32 {
        self.every
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection begins.
    pub(super) fn open(&self) -> Arc<Record> {
        let record = Arc::new(Record::new());
        let mut records = self.records();
        if records.open.is_empty() {
            records.occupied_from = now();
        }
        records.open.push(Arc::clone(&record));
        record
    }

    /// It ends, on its own thread.
    pub(super) fn close(&self, record: &Arc<Record>) {
        let mut records = self.records();
        records.open.retain(|open| !Arc::ptr_eq(open, record));
        record.read(&mut records.ended);
        records.usage.add(&record.usage());
        if records.open.is_empty() {
            records.ended.occupied = records.ended.occupied + now().since(records.occupied_from);
        }
    }

    /// All that was recorded so far.
    pub(crate) fn read(&self) -> StageTimes {
        let records = self.records();
        let mut all = StageTimes { every: self.every, ..records.ended.clone() };
        records.open.iter().for_each(|record| record.read(&mut all));
        if !records.open.is_empty() {
            all.occupied = all.occupied + now().since(records.occupied_from);
        }
        all
    }

    /// What the threads of connections have used so far, and how many there are.
    pub(crate) fn usage(&self) -> (Usage, usize) {
        let records = self.records();
        let mut all = records.usage;
        records.open.iter().for_each(|record| all.add(&record.usage()));
        (all, records.open.len())
    }
}
