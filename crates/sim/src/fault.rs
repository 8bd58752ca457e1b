//! A faulty device: errors, stalls, reordered completions, hung commands.
//!
//! [`Faulty`] wraps any model of a device. A separate stream of random numbers determines the fault
//! of each command at its start, so a seed identifies all faults. A refused command
//! (`BLK_STS_RESOURCE`) never reaches the model: the caller asks [`Faulty::refuses`] first. The
//! content of the medium after a power cut is in `oracle::stamps`, because models keep no contents.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use crate::device::{Command, Device};

/// Frequency of each fault, per thousand commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Errors. A failed write may have written some sectors.
    pub errors: u32,
    /// Late ends, by up to [`Faults::stall_max`].
    pub stalls: u32,
    /// The longest stall.
    pub stall_max: Nanos,
    /// Slightly late ends, by up to [`Faults::reorder_max`], after later commands.
    pub reorders: u32,
    /// The longest of these delays.
    pub reorder_max: Nanos,
    /// Hung commands, which end only by [`Faulty::abort`].
    pub hangs: u32,
    /// Refused commands.
    pub refusals: u32,
}

impl Faults {
    /// No faults.
    pub const NONE: Self = Self {
        errors: 0,
        stalls: 0,
        stall_max: Nanos(0),
        reorders: 0,
        reorder_max: Nanos(0),
        hangs: 0,
        refusals: 0,
    };
}

/// Numbers of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Commands that ended with an error, including aborted ones.
    pub errors: u64,
    /// Stalled and reordered commands.
    pub delays: u64,
    /// Hung commands.
    pub hangs: u64,
    /// Refused commands.
    pub refusals: u64,
}

/// Outcome of a command.
#[derive(Clone, Copy, Debug)]
struct Fate {
    status: BlkStatus,
    delay: Nanos,
    hangs: bool,
}

/// A device with faults.
pub struct Faulty<D> {
    device: D,
    faults: Faults,
    random: Random,
    /// Outcomes by tag, until the status is taken.
    fates: BTreeMap<u32, Fate>,
    /// Commands that ended in the device but not yet for the caller: time, order, tag.
    held: BTreeSet<(Nanos, u64, u32)>,
    /// Hung commands.
    hung: BTreeSet<u32>,
    arrivals: u64,
    counters: FaultCounters,
    /// Emptied after each use; kept for its memory.
    ended: Vec<(Nanos, u32)>,
}

/// Whether an event of probability `per_mille` occurs. Draws no number if the probability is zero.
pub(crate) fn chance(random: &mut Random, per_mille: u32) -> bool {
    per_mille > 0 && random.below(1000) < u64::from(per_mille)
}

impl<D: Device> Faulty<D> {
    /// A device with faults determined by the seed.
    #[must_use]
    pub fn new(device: D, faults: Faults, random: Random) -> Self {
        Self {
            device,
            faults,
            random,
            fates: BTreeMap::new(),
            held: BTreeSet::new(),
            hung: BTreeSet::new(),
            arrivals: 0,
            counters: FaultCounters::default(),
            ended: Vec::new(),
        }
    }

    /// The device itself.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Numbers of faults so far.
    #[must_use]
    pub fn counters(&self) -> FaultCounters {
        self.counters
    }

    /// Whether the device refuses the next command.
    pub fn refuses(&mut self) -> bool {
        let refuses = chance(&mut self.random, self.faults.refusals);
        self.counters.refusals += u64::from(refuses);
        refuses
    }

    /// Takes the status of a command that [`Device::advance`] has returned.
    ///
    /// # Panics
    /// The command has not ended, or its status was taken before.
    pub fn take_status(&mut self, tag: u32) -> BlkStatus {
        let fate = self.fates.remove(&tag).expect("the command has ended and is asked for once");
        self.counters.errors += u64::from(fate.status != BlkStatus::Ok);
        fate.status
    }

    /// Aborts a command after a timeout. A hung command ends now with an error; a command in work
    /// continues.
    pub fn abort(&mut self, now: Nanos, tag: u32) {
        if self.hung.remove(&tag) {
            self.fates.get_mut(&tag).expect("a hung command has an outcome").status =
                BlkStatus::IoError;
            self.hold(now, tag);
        }
    }

    /// Changes the faults.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Disables faults; hung commands end.
    pub fn calm(&mut self, now: Nanos) {
        self.faults = Faults::NONE;
        for tag in std::mem::take(&mut self.hung) {
            self.fates.get_mut(&tag).expect("a hung command has an outcome").status =
                BlkStatus::IoError;
            self.hold(now, tag);
        }
    }

    /// Whether no command is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fates.is_empty()
    }

    fn draw(&mut self) -> Fate {
        let random = &mut self.random;
        let faults = self.faults;
        let status = if chance(random, faults.errors) { BlkStatus::IoError } else { BlkStatus::Ok };
        let mut delay = Nanos(0);
        for (per_mille, max) in
            [(faults.stalls, faults.stall_max), (faults.reorders, faults.reorder_max)]
        {
            if chance(random, per_mille) {
                delay = delay + Nanos(random.below(max.0.max(1)));
            }
        }
        Fate { status, delay, hangs: chance(random, faults.hangs) }
    }

    fn hold(&mut self, until: Nanos, tag: u32) {
        self.held.insert((until, self.arrivals, tag));
        self.arrivals += 1;
    }
}

impl<D: Device> Device for Faulty<D> {
    fn start(&mut self, now: Nanos, command: Command) {
        let fate = self.draw();
        self.counters.delays += u64::from(fate.delay > Nanos(0));
        self.counters.hangs += u64::from(fate.hangs);
        let before = self.fates.insert(command.tag, fate);
        assert!(before.is_none(), "a tag names one command at a time");
        self.device.start(now, command);
    }

    fn next_event(&self) -> Option<Nanos> {
        let held = self.held.first().map(|(until, ..)| *until);
        held.into_iter().chain(self.device.next_event()).min()
    }

    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>) {
        let mut inner = std::mem::take(&mut self.ended);
        self.device.advance(now, &mut inner);
        for (at, tag) in inner.drain(..) {
            let Fate { delay, hangs, .. } = self.fates[&tag];
            if hangs {
                self.hung.insert(tag);
            } else {
                self.hold(at + delay, tag);
            }
        }
        self.ended = inner;
        while let Some((until, _, tag)) = self.held.first().copied()
            && until <= now
        {
            self.held.pop_first();
            ended.push((until, tag));
        }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::Sector;

    use super::*;
    use crate::device::CommandOp;
    use crate::device::memory::{Memory, MemoryConfig};

    /// Each command takes 10 ns; all run in parallel.
    fn memory(faults: Faults) -> Faulty<Memory> {
        let config =
            MemoryConfig { sectors: 1 << 10, command: Nanos(10), sector: Nanos(0), lanes: 64 };
        Faulty::new(Memory::new(config), faults, Random::new(1, 0))
    }

    fn reads(device: &mut Faulty<Memory>, count: u32) {
        for tag in 0..count {
            let op = CommandOp::Read;
            device.start(Nanos(0), Command { tag, op, sector: Sector(0), sectors: 1 });
        }
    }

    fn ended(device: &mut Faulty<Memory>, now: u64) -> Vec<(u64, u32)> {
        let mut ended = Vec::new();
        device.advance(Nanos(now), &mut ended);
        ended.iter().map(|(at, tag)| (at.0, *tag)).collect()
    }

    #[test]
    fn device_without_faults_is_the_device_itself() {
        let mut device = memory(Faults::NONE);
        reads(&mut device, 3);
        assert_eq!(device.next_event(), Some(Nanos(10)));
        assert_eq!(ended(&mut device, 10), [(10, 0), (10, 1), (10, 2)]);
        assert!((0..3).all(|tag| device.take_status(tag) == BlkStatus::Ok));
        assert!(device.is_empty() && !device.refuses());
    }

    #[test]
    fn delayed_commands_end_behind_others_and_all_of_them_end() {
        let reorder_max = Nanos(1_000);
        let mut device = memory(Faults { reorders: 500, reorder_max, ..Faults::NONE });
        reads(&mut device, 60);
        let order: Vec<u32> = ended(&mut device, 2_000).into_iter().map(|(_, tag)| tag).collect();
        assert_eq!(order.len(), 60);
        assert!(!order.is_sorted(), "{order:?}");
    }

    #[test]
    fn hanging_command_ends_when_it_is_aborted_and_others_do_not_mind() {
        let mut device = memory(Faults { hangs: 1000, ..Faults::NONE });
        reads(&mut device, 2);
        assert_eq!(ended(&mut device, 1_000), []);
        assert_eq!(device.next_event(), None);
        device.abort(Nanos(1_000), 1);
        assert_eq!(ended(&mut device, 1_000), [(1_000, 1)]);
        assert_eq!(device.take_status(1), BlkStatus::IoError);
        assert!(!device.is_empty());
        device.calm(Nanos(2_000));
        assert_eq!(ended(&mut device, 2_000), [(2_000, 0)]);
    }

    #[test]
    fn command_that_is_aborted_while_the_device_works_on_it_goes_on() {
        let mut device = memory(Faults::NONE);
        reads(&mut device, 1);
        device.abort(Nanos(5), 0);
        assert_eq!(ended(&mut device, 10), [(10, 0)]);
        assert_eq!(device.take_status(0), BlkStatus::Ok);
    }
}
