//! The queues of an SSD, from which it takes commands in turn (round robin arbitration of NVMe,
//! with a burst of one). The number of a command tells its queue: each has as many as its depth.

use std::collections::VecDeque;

use super::super::Command;

/// Queues of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Number of queues.
    pub count: u16,
    /// Commands at which the device works at a time; the others wait in their queues. 0: all.
    pub working_max: u32,
}

impl Default for Queues {
    fn default() -> Self {
        Self { count: 1, working_max: 0 }
    }
}

/// Submitted commands that the device has not taken.
#[derive(Debug)]
pub(super) struct Submitted {
    queues: Vec<VecDeque<Command>>,
    depth: u32,
    working_max: u32,
    working: u32,
    waiting: u32,
    /// The queue that is next.
    turn: usize,
}

impl Submitted {
    pub(super) fn new(queues: Queues, depth: u32) -> Self {
        let working_max = if queues.working_max == 0 { u32::MAX } else { queues.working_max };
        let queues = (0..queues.count).map(|_| VecDeque::new()).collect();
        Self { queues, depth, working_max, working: 0, waiting: 0, turn: 0 }
    }

    pub(super) fn put(&mut self, command: Command) {
        let queue = match self.queues.len() {
            1 => 0,
            _ => (command.tag / self.depth) as usize,
        };
        self.queues[queue].push_back(command);
        self.waiting += 1;
    }

    /// Takes the next command, unless the device works on enough of them.
    pub(super) fn take(&mut self) -> Option<Command> {
        if self.waiting == 0 || self.working >= self.working_max {
            return None;
        }
        let queues = self.queues.len();
        let mut turns = (0..queues).map(|step| (self.turn + step) % queues);
        let queue = turns.find(|queue| !self.queues[*queue].is_empty())?;
        self.turn = (queue + 1) % queues;
        self.waiting -= 1;
        self.working += 1;
        self.queues[queue].pop_front()
    }

    /// The device has ended a command.
    pub(super) fn end(&mut self) {
        self.working -= 1;
    }
}
