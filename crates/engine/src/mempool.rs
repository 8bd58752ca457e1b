//! A fixed reserve of slots and a FIFO of waiters (`mm/mempool.c`).
//!
//! An empty pool is not an error: the caller parks its work, and a returned slot goes to the oldest
//! waiter. One slot suffices for progress, because every holder returns its slot without needing a
//! second one.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Slots numbered from zero, and their waiters.
#[derive(Debug)]
pub struct Mempool<W> {
    /// LIFO: the last used slot is most likely still in the cache.
    free: Vec<u32>,
    waiters: VecDeque<W>,
    slots: u32,
}

impl<W> Mempool<W> {
    /// A pool of `slots` slots. A pool without slots is for users that never take one: a parked
    /// waiter would wait forever.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self { free: (0..slots).rev().collect(), waiters: VecDeque::new(), slots }
    }

    /// Takes a slot, unless none is free or others have waited longer.
    pub fn get(&mut self) -> Option<u32> {
        if self.waiters.is_empty() { self.free.pop() } else { None }
    }

    /// Queues a waiter after [`Mempool::get`] had no slot.
    pub fn park(&mut self, waiter: W) {
        self.waiters.push_back(waiter);
    }

    /// Returns a slot. If there are waiters, the slot goes to the oldest one at once.
    pub fn put(&mut self, slot: u32) -> Option<(W, u32)> {
        assert!(slot < self.slots, "the slot is of this pool");
        debug_assert!(!self.free.contains(&slot), "the slot was taken");
        if let Some(waiter) = self.waiters.pop_front() {
            return Some((waiter, slot));
        }
        self.free.push(slot);
        None
    }

    /// Number of waiters.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.waiters.len()
    }

    /// Whether all slots are free and there are no waiters.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots as usize && self.waiters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_get_slots_in_the_order_they_parked() {
        let mut pool = Mempool::new(1);
        let slot = pool.get().unwrap();
        assert_eq!(pool.get(), None);
        pool.park('a');
        pool.park('b');
        assert_eq!(pool.put(slot), Some(('a', slot)));
        assert_eq!(pool.put(slot), Some(('b', slot)));
        assert_eq!(pool.put(slot), None);
        assert!(pool.is_idle());
    }

    #[test]
    fn slot_given_back_last_is_taken_first() {
        let mut pool: Mempool<()> = Mempool::new(3);
        let a = pool.get().unwrap();
        let b = pool.get().unwrap();
        pool.put(b);
        pool.put(a);
        assert_eq!(pool.get(), Some(a));
    }
}
