//! Events ordered by time; events of equal time in the order of scheduling.
//!
//! The virtual clock is the time of the last taken event. It never goes back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blockyard_engine::time::Nanos;

/// An event heap and the clock that it drives.
#[derive(Debug)]
pub struct EventHeap<E> {
    heap: BinaryHeap<Reverse<Scheduled<E>>>,
    now: Nanos,
    arrivals: u64,
}

#[derive(Debug)]
struct Scheduled<E> {
    at: Nanos,
    arrival: u64,
    event: E,
}

impl<E> Scheduled<E> {
    fn key(&self) -> (Nanos, u64) {
        (self.at, self.arrival)
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for EventHeap<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), now: Nanos(0), arrivals: 0 }
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
        self.heap.push(Reverse(Scheduled { at, arrival, event }));
    }

    /// Takes the next event and advances the clock to its time.
    pub fn take(&mut self) -> Option<(Nanos, E)> {
        let Reverse(next) = self.heap.pop()?;
        self.now = next.at;
        Some((next.at, next.event))
    }

    /// Time of the next event.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(next)| next.at)
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
