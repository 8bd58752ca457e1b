//! A fixed reserve of slots and a FIFO of waiters (`mm/mempool.c`).
//!
//! Running out is no error: the caller parks what it wanted to do, and whoever gives a slot back
//! gets the oldest waiter to run with it. One slot is enough for progress, since every holder gives
//! its slot back without needing a second one.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Slots numbered from zero, and what waits for them.
#[derive(Debug)]
pub struct Mempool<W> {
    /// LIFO: the slot used last is the one still in the cache.
    free: Vec<u32>,
    waiters: VecDeque<W>,
    slots: u32,
}

impl<W> Mempool<W> {
    /// A pool of `slots` slots. Without a single one, whoever parks waits for ever: only a user
    /// that never gets may have such a pool.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self { free: (0..slots).rev().collect(), waiters: VecDeque::new(), slots }
    }

    /// A slot, unless there is none, or others have waited longer.
    pub fn get(&mut self) -> Option<u32> {
        if self.waiters.is_empty() { self.free.pop() } else { None }
    }

    /// Queues what [`Mempool::get`] had no slot for.
    pub fn park(&mut self, waiter: W) {
        self.waiters.push_back(waiter);
    }

    /// Gives a slot back. With somebody waiting, the slot goes to the oldest waiter at once.
    pub fn put(&mut self, slot: u32) -> Option<(W, u32)> {
        assert!(slot < self.slots, "the slot is of this pool");
        debug_assert!(!self.free.contains(&slot), "the slot was taken");
        if let Some(waiter) = self.waiters.pop_front() {
            return Some((waiter, slot));
        }
        self.free.push(slot);
        None
    }

    /// How many wait.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.waiters.len()
    }

    /// Whether every slot is back and nobody waits.
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
        let (a, b) = (pool.get().unwrap(), pool.get().unwrap());
        pool.put(b);
        pool.put(a);
        assert_eq!(pool.get(), Some(a));
    }
}
