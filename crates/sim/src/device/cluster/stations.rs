//! Stations of a cluster: whatever is there first is served first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blockyard_engine::time::Nanos;

/// Equal servers with one queue: the CPUs of a host, the channels of a disk, one direction of a
/// link.
///
/// Callers come in the order of time.
#[derive(Debug)]
pub(super) struct Station {
    /// End of each server's work.
    servers: BinaryHeap<Reverse<Nanos>>,
}

impl Station {
    pub(super) fn new(servers: u32) -> Self {
        Self { servers: (0..servers).map(|_| Reverse(Nanos(0))).collect() }
    }

    /// Serves a caller; returns the end.
    pub(super) fn serve(&mut self, now: Nanos, takes: Nanos) -> Nanos {
        let mut first = self.servers.peek_mut().expect("a station has a server");
        first.0 = first.0.max(now) + takes;
        first.0
    }
}

/// A link of full duplex.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) into: Station,
    pub(super) out: Station,
}

impl Link {
    pub(super) fn new() -> Self {
        Self { into: Station::new(1), out: Station::new(1) }
    }
}

/// A journal that commits all that waits at once (`kv_sync_thread` of BlueStore).
#[derive(Debug, Default)]
pub(super) struct Journal<T> {
    waiting: Vec<T>,
    waiting_sectors: u64,
    committing: Vec<T>,
}

impl<T> Journal<T> {
    /// Adds a record of some sectors; returns whether the journal is idle.
    pub(super) fn add(&mut self, record: T, sectors: u64) -> bool {
        self.waiting.push(record);
        self.waiting_sectors += sectors;
        self.committing.is_empty()
    }

    /// Begins the commit of all that waits; returns its sectors, if there are records.
    pub(super) fn begin(&mut self) -> Option<u64> {
        std::mem::swap(&mut self.waiting, &mut self.committing);
        (!self.committing.is_empty()).then(|| std::mem::take(&mut self.waiting_sectors))
    }

    /// Ends the commit; returns its records.
    pub(super) fn end(&mut self) -> Vec<T> {
        std::mem::take(&mut self.committing)
    }
}
