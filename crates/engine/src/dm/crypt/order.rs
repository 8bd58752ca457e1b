//! The batch of encrypted writes that waits for the writing thread (`write_tree` of dm-crypt).
//!
//! The thread takes the whole batch at once, and later arrivals are the next batch: no position is
//! kept between batches. Sorting is by sector, equal sectors in the order of arrival, so that of
//! two writes to one place the later one stays later.
//!
//! ```text
//!   arrive: 40 8 24      taken, Fifo:   40 8 24
//!                        taken, Sorted: 8 24 40        next batch: from its own lowest sector
//! ```

use alloc::vec::Vec;

use super::pipeline::Order;
use crate::bio::Sector;

/// Encrypted writes that wait for the writing thread.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Sector, number of arrival, index.
    writes: Vec<(Sector, u32, u32)>,
    /// Whether a write asked for order by sector.
    sorted: bool,
}

impl Batch {
    /// Adds a write. Returns true if the batch was empty: the thread must be woken.
    pub(super) fn add(&mut self, order: Order, sector: Sector, index: u32) -> bool {
        let was_empty = self.writes.is_empty();
        let arrival = self.writes.len() as u32;
        self.writes.push((sector, arrival, index));
        self.sorted |= order == Order::Sorted;
        was_empty
    }

    /// Moves the batch to `out`, in the order of submission.
    pub(super) fn take(&mut self, out: &mut Vec<u32>) {
        if core::mem::take(&mut self.sorted) {
            self.writes.sort_unstable(); // in place: a stable sort allocates
        }
        out.extend(self.writes.drain(..).map(|(.., index)| index));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn taken(order: Order, sectors: &[u64]) -> Vec<u32> {
        let mut batch = Batch::default();
        for (index, sector) in sectors.iter().enumerate() {
            assert_eq!(batch.add(order, Sector(*sector), index as u32), index == 0);
        }
        let mut out = Vec::new();
        batch.take(&mut out);
        assert!(batch.is_empty());
        out
    }

    #[test]
    fn batch_goes_by_sector_and_equal_ones_by_arrival() {
        let sectors = [40, 8, 24, 8, 40];
        assert_eq!(taken(Order::Sorted, &sectors), vec![1, 3, 2, 0, 4]);
        assert_eq!(taken(Order::Fifo, &sectors), vec![0, 1, 2, 3, 4]);
    }

    #[test]
    fn next_batch_starts_anew() {
        let mut batch = Batch::default();
        let mut out = Vec::new();
        batch.add(Order::Sorted, Sector(100), 0);
        batch.take(&mut out);
        assert!(batch.add(Order::Fifo, Sector(50), 1), "the thread is woken again");
        batch.add(Order::Fifo, Sector(10), 2);
        batch.take(&mut out);
        assert_eq!(out, [0, 1, 2], "and is not asked to sort any more");
    }
}
