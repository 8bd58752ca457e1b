//! A device with its queue: the only one, or a member of a RAID.

use blockyard_engine::mq::QueueConfig;
use blockyard_engine::time::Nanos;

use super::super::config::Config;
use super::elevator::ElevatorWork;
use super::interrupts::Submitters;
use super::transfers::Transfers;
use crate::block::BlockDevice;
use crate::device::Device;

/// A device with its queue.
pub(super) struct Member {
    pub(super) block: BlockDevice<Box<dyn Device>>,
    pub(super) elevator: ElevatorWork,
    pub(super) submitters: Submitters,
    /// Stays empty without a limit of memory.
    pub(super) transfers: Transfers,
}

impl Member {
    pub(super) fn new(config: &Config, number: u16) -> Self {
        let queue = QueueConfig { hw_queues: 1, ..config.queue };
        let device = config.device.build(number, config.seed);
        Self {
            block: BlockDevice::new(queue, &config.elevator, device),
            elevator: ElevatorWork::new(config.elevator_costs, 1),
            submitters: Submitters::default(),
            transfers: Transfers::default(),
        }
    }

    /// CPU time of the elevator's work since the last call, which begins at this time.
    pub(super) fn elevator_work(&mut self, at: Nanos) -> Nanos {
        let steps = self.block.queue().steps();
        self.elevator.take(steps, at, 0)
    }
}
