//! Events ordered by time; events of equal time in the order of scheduling.
//!
//! The virtual clock is the time of the last taken event. It never goes back. The heap holds keys
//! and the numbers of events, because it moves its entries often and events may be large.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blockyard_engine::slab::Slab;
use blockyard_engine::time::Nanos;

/// An event heap and the clock that it drives.
#[derive(Debug)]
pub struct EventHeap<E> {
    /// Times, orders of scheduling, numbers of events.
    heap: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    events: Slab<E>,
    now: Nanos,
    arrivals: u64,
}

impl<E> Default for EventHeap<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), events: Slab::default(), now: Nanos(0), arrivals: 0 }
    }
}

impl<E> EventHeap<E> {
    /// Schedules an event.
    ///
    /// # Panics
    /// Its time has passed.
    pub fn schedule(&mut self, at: Nanos, event: E) {
        assert!(at >= self.now, "nothing happens in the past");
        let arrival = self.arrivals;
        self.arrivals += 1;
        let number = self.events.insert(event);
        self.heap.push(Reverse((at, arrival, number)));
    }

    /// Takes the next event and advances the clock to its time.
    pub fn take(&mut self) -> Option<(Nanos, E)> {
        let Reverse((at, _, number)) = self.heap.pop()?;
        self.now = at;
        Some((at, self.events.remove(number)))
    }

    /// Time of the next event.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_moment_keep_their_order_of_arrival() {
        let mut heap = EventHeap::default();
        for (at, event) in [(30, 'd'), (10, 'a'), (20, 'b'), (20, 'c'), (10, 'x')] {
            heap.schedule(Nanos(at), event);
        }
        let order: String = std::iter::from_fn(|| heap.take().map(|(_, event)| event)).collect();
        assert_eq!((order.as_str(), heap.now()), ("axbcd", Nanos(30)));
    }

    #[test]
    #[should_panic(expected = "in the past")]
    fn the_past_cannot_be_changed() {
        let mut heap = EventHeap::default();
        heap.schedule(Nanos(5), ());
        heap.take();
        heap.schedule(Nanos(4), ());
    }
}
