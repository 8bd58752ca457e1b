//! A device with its queue: the only one, or a member of a RAID.

use blockyard_engine::mq::QueueConfig;
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;

use super::super::config::Config;
use super::elevator::ElevatorWork;
use super::interrupts::Submitters;
use super::transfers::Transfers;
use crate::block::BlockDevice;
use crate::cpu::CpuId;
use crate::device::Device;

/// A device with its queue.
pub(super) struct Member {
    pub(super) block: BlockDevice<Box<dyn Device>>,
    queue: QueueConfig,
    pub(super) elevator: ElevatorWork,
    pub(super) submitters: Submitters,
    /// Stays empty without a limit of memory.
    pub(super) transfers: Transfers,
}

impl Member {
    pub(super) fn new(config: &Config, number: u16) -> Self {
        let hw_queues = config.device.hw_queues();
        let queue = QueueConfig { hw_queues, ..config.queue };
        let device = config.device.build(number, config.seed);
        Self {
            block: BlockDevice::new(queue, &config.elevator, device),
            queue,
            elevator: ElevatorWork::new(config.elevator_costs, hw_queues),
            submitters: Submitters::default(),
            transfers: Transfers::default(),
        }
    }

    /// CPU time of the elevator's work since the last call, which begins at this time on this CPU.
    pub(super) fn elevator_work(&mut self, at: Nanos, cpu: CpuId) -> Nanos {
        let steps = self.block.queue().steps();
        self.elevator.take(steps, at, self.queue.hctx_of(cpu.0))
    }

    /// The CPU that the device interrupts for a request: each hardware queue has a vector at the
    /// first of its CPUs. The vectors of a single queue follow the submitters.
    pub(super) fn vector_of(&self, config: &Config, tag: Tag) -> CpuId {
        match self.queue.hw_queues {
            1 => {
                let submitter = self.submitters.of(self.block.number_of(tag));
                config.interrupts.vector_of(submitter, config.topology)
            }
            hw_queues => CpuId(tag.hctx * self.queue.cpus.div_ceil(hw_queues)),
        }
    }
}
