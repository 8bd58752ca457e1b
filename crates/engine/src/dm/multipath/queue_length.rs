//! `queue-length`: chooses the path with the fewest I/Os in flight (`dm-ps-queue-length.c`).
//!
//! The first path of the list with the least number wins, and goes to the end of the list. So among
//! equal paths the one chosen longest ago wins. While I/Os end, no path starves: a path that is
//! never chosen keeps its number while the others' grow.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write as _;

use super::selector::{Ask, LivePaths, PathSelector, Served};

/// Words in a status line: I/Os in flight.
pub(super) const INFO_ARGS: usize = 1;

/// The queue-length selector.
#[derive(Debug)]
pub struct QueueLength {
    /// Live paths, the preferred one first.
    live: LivePaths,
    /// I/Os in flight of each path, failed paths included.
    in_flight: Vec<u32>,
}

impl QueueLength {
    /// Creates a selector of `count` paths.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { live: LivePaths::new(count), in_flight: vec![0; count] }
    }
}

impl PathSelector for QueueLength {
    fn choose(&mut self, _: &Ask) -> Option<usize> {
        let best = self.live.iter().min_by_key(|path| self.in_flight[*path])?;
        self.live.move_to_tail(best);
        Some(best)
    }

    fn start(&mut self, path: usize, _: u64) {
        self.in_flight[path] += 1;
    }

    fn end(&mut self, path: usize, _: &Served) {
        let left = self.in_flight[path].checked_sub(1);
        self.in_flight[path] = left.expect("what ends was started");
    }

    fn fail(&mut self, path: usize) {
        self.live.remove(path);
    }

    fn reinstate(&mut self, path: usize) {
        self.live.push_back(path);
    }

    fn info(&self, path: usize, out: &mut String) {
        write!(out, "{} ", self.in_flight[path]).expect("a string never fails");
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ask, choices, served};
    use super::*;

    #[test]
    fn path_with_the_fewest_ios_wins_and_of_equals_the_one_that_waited_longest() {
        let mut selector = QueueLength::new(3);
        selector.start(0, 4096);
        selector.start(0, 4096);
        selector.start(1, 1 << 20);
        assert_eq!(choices(&mut selector, 2), [2, 2]);
        selector.start(2, 512);
        assert_eq!(choices(&mut selector, 3), [1, 2, 1], "a count, whatever the length");
        selector.end(0, &served(4096, 0, 0));
        selector.end(0, &served(4096, 0, 0));
        assert_eq!(choices(&mut selector, 1), [0]);
    }

    #[test]
    fn no_path_starves_while_ios_are_never_ended() {
        let mut selector = QueueLength::new(4);
        for _ in 0..40 {
            let path = selector.choose(&ask(512)).unwrap();
            selector.start(path, 512);
        }
        assert_eq!(selector.in_flight, [10; 4]);
    }

    #[test]
    fn requests_of_a_failed_path_are_counted_until_they_end() {
        let mut selector = QueueLength::new(2);
        selector.start(0, 512);
        selector.fail(0);
        assert_eq!(choices(&mut selector, 2), [1, 1]);
        selector.reinstate(0);
        assert_eq!(choices(&mut selector, 2), [1, 1]);
        selector.end(0, &served(512, 0, 0));
        assert_eq!(choices(&mut selector, 2), [0, 1]);
        let mut info = String::new();
        selector.info(0, &mut info);
        assert_eq!(info, "0 ");
    }
}
