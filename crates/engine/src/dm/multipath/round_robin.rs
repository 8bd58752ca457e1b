//! `round-robin`: each path in turn (`dm-ps-round-robin.c`).
//!
//! ```text
//! live  a b c      b c a      c a b      b c fails: c leaves the list, d reinstated: d is next
//! next  a          b          c
//! ```
//! Of n live paths, each gets one of any n successive I/Os: none starves. The cost of an I/O is
//! ignored.

use alloc::string::String;

use super::selector::{Ask, LivePaths, PathSelector, Served};

/// Words in a status line.
pub(super) const INFO_ARGS: usize = 0;

/// The round-robin selector.
#[derive(Debug)]
pub struct RoundRobin {
    /// Live paths, the next one first.
    live: LivePaths,
}

impl RoundRobin {
    /// Creates a selector of `count` paths.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { live: LivePaths::new(count) }
    }
}

impl PathSelector for RoundRobin {
    fn choose(&mut self, _: &Ask) -> Option<usize> {
        self.live.rotate()
    }

    fn start(&mut self, _: usize, _: u64) {}

    fn end(&mut self, _: usize, _: &Served) {}

    fn fail(&mut self, path: usize) {
        self.live.remove(path);
    }

    fn reinstate(&mut self, path: usize) {
        self.live.push_front(path);
    }

    fn info(&self, _: usize, _: &mut String) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ask, choices};
    use super::*;

    #[test]
    fn paths_take_turns() {
        let mut selector = RoundRobin::new(3);
        assert_eq!(choices(&mut selector, 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn failed_path_has_no_turn_and_a_reinstated_one_is_next() {
        let mut selector = RoundRobin::new(3);
        assert_eq!(choices(&mut selector, 1), [0]);
        selector.fail(1);
        assert_eq!(choices(&mut selector, 4), [2, 0, 2, 0]);
        selector.reinstate(1);
        assert_eq!(choices(&mut selector, 4), [1, 2, 0, 1]);
        (0..3).for_each(|path| selector.fail(path));
        assert_eq!(selector.choose(&ask(0)), None);
    }
}
