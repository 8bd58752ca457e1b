//! Devices without mechanics: null (`null_blk`) and ram (`brd`).
//!
//! A command takes a fixed time and a time per sector; `lanes` of them run in parallel, the others
//! wait in order. The null device has no time per sector: it moves no bytes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blockyard_engine::time::Nanos;

use super::{Command, Device};

/// Parameters of a memory device.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// Size in sectors.
    pub sectors: u64,
    /// Time per command.
    pub command: Nanos,
    /// Time per sector.
    pub sector: Nanos,
    /// Number of parallel commands.
    pub lanes: u32,
}

/// The device.
#[derive(Debug)]
pub struct Memory {
    config: MemoryConfig,
    /// End of each lane's work.
    lanes: Vec<Nanos>,
    /// Commands by end, then by arrival.
    running: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    arrivals: u64,
}

impl Memory {
    /// An idle device.
    ///
    /// # Panics
    /// The device has no lane.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        assert!(config.lanes > 0);
        let lanes = vec![Nanos(0); config.lanes as usize];
        Self { config, lanes, running: BinaryHeap::new(), arrivals: 0 }
    }
}

impl Device for Memory {
    fn start(&mut self, now: Nanos, command: Command) {
        assert!(command.sector.0 + u64::from(command.sectors) <= self.config.sectors);
        let lane = self.lanes.iter_mut().min().expect("there is a lane");
        let sectors = Nanos(self.config.sector.0 * u64::from(command.sectors));
        *lane = now.max(*lane) + self.config.command + sectors;
        self.running.push(Reverse((*lane, self.arrivals, command.tag)));
        self.arrivals += 1;
    }

    fn next_event(&self) -> Option<Nanos> {
        self.running.peek().map(|Reverse((ends, ..))| *ends)
    }

    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>) {
        while self.next_event().is_some_and(|ends| ends <= now) {
            let Reverse((ends, _, tag)) = self.running.pop().expect("just looked");
            ended.push((ends, tag));
        }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::Sector;

    use super::*;
    use crate::device::CommandOp;

    #[test]
    fn lanes_work_side_by_side_and_the_rest_waits_in_order() {
        let command = Nanos(100);
        let sector = Nanos(10);
        let mut ram = Memory::new(MemoryConfig { sectors: 1 << 20, command, sector, lanes: 2 });
        for tag in 0..4 {
            let op = CommandOp::Read;
            let at = Sector(u64::from(tag) * 8);
            ram.start(Nanos(0), Command { tag, op, sector: at, sectors: 8 });
        }
        let mut ended = Vec::new();
        ram.advance(Nanos(1_000), &mut ended);
        let times: Vec<(u64, u32)> = ended.iter().map(|(at, tag)| (at.0, *tag)).collect();
        assert_eq!(times, [(180, 0), (180, 1), (360, 2), (360, 3)]);
        assert_eq!(ram.next_event(), None);
    }
}
