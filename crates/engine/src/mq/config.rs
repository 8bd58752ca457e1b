//! Configuration of a queue: its device and its clock (`struct queue_limits`,
//! `/sys/block/*/queue`).

use crate::elevator::Generation;
use crate::time::Nanos;

/// Plugging: holding a submitter's requests for merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlugRule {
    /// No plugging: every bio is unplugged at once.
    Off,
    /// Each submitter has its own plug (`struct blk_plug`, since 2.6.39).
    PerContext,
    /// The queue is plugged when it becomes non-empty, and unplugged at 4 requests or after 3 ms
    /// (2.6.30; both numbers from memory).
    PerQueue,
}

/// Limits of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest read or write in sectors (`max_sectors_kb`, doubled).
    pub max_sectors: u32,
    /// Greatest number of segments (`max_segments`). A bio is one segment.
    pub max_segments: u16,
}

/// Configuration of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Generation of the block layer. It may differ from the elevator's.
    pub generation: Generation,
    /// Number of submitting CPUs; higher CPU numbers wrap around.
    pub cpus: u16,
    /// Number of hardware queues; one in the single-queue generation.
    pub hw_queues: u16,
    /// Driver tags per hardware queue: greatest number of requests at the device.
    pub queue_depth: u32,
    /// Greatest number of requests: per hardware queue with an elevator of the multi-queue
    /// generation, separately for synchronous and asynchronous I/O in the single-queue generation.
    pub nr_requests: u32,
    /// Limits of a request.
    pub limits: Limits,
    /// Whether the device seeks.
    pub rotational: bool,
    /// Whether the device has a volatile write cache, so that flushes have an effect.
    pub write_cache: bool,
    /// Whether the device supports FUA.
    pub fua: bool,
    /// Plugging.
    pub plug: PlugRule,
    /// Tick of the elevator's clock; 1 ns is exact (`HZ`).
    pub tick: Nanos,
    /// Longest time of a request at the device.
    pub timeout: Option<Nanos>,
}

impl QueueConfig {
    /// The default queue of a generation.
    #[must_use]
    pub fn of(generation: Generation) -> Self {
        let queue_depth = 32;
        Self {
            generation,
            cpus: 1,
            hw_queues: 1,
            queue_depth,
            nr_requests: Self::usual_nr_requests(generation, queue_depth),
            limits: Limits { max_sectors: 2560, max_segments: 128 },
            rotational: true,
            write_cache: true,
            fua: false,
            plug: PlugRule::PerContext,
            tick: Nanos(1),
            timeout: None,
        }
    }

    /// Default of `nr_requests` (`BLKDEV_DEFAULT_RQ`): 128, or, with tags, twice the device's
    /// depth, at most 256 (from memory).
    #[must_use]
    pub fn usual_nr_requests(generation: Generation, queue_depth: u32) -> u32 {
        match generation {
            Generation::Single => 128,
            Generation::Multi => 2 * queue_depth.min(128),
        }
    }

    /// The hardware queue of a CPU: neighbours share one, as evenly as integers allow
    /// (`blk_mq_map_queues` of 2014, without hyper-threads).
    #[must_use]
    pub fn hctx_of(&self, cpu: u16) -> u16 {
        self.cpu_of(cpu) / self.cpus.div_ceil(self.hw_queues)
    }

    /// The software queue of a CPU.
    pub(super) fn cpu_of(&self, cpu: u16) -> u16 {
        if cpu < self.cpus { cpu } else { cpu % self.cpus }
    }

    /// # Panics
    /// When no request could ever pass.
    pub(super) fn check(&self) {
        assert!(self.cpus > 0 && self.hw_queues > 0, "there is a CPU and a hardware queue");
        assert!(self.queue_depth > 0 && self.nr_requests > 0, "the device takes a request");
        assert!(
            self.limits.max_sectors > 0 && self.limits.max_segments > 0,
            "a request has a size"
        );
        assert!(self.tick.0 > 0, "the clock advances");
        let single = self.generation == Generation::Single;
        assert!(!single || self.hw_queues == 1, "a single queue has one hardware queue");
    }
}

/// The default queue of the multi-queue generation.
impl Default for QueueConfig {
    fn default() -> Self {
        Self::of(Generation::Multi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(cpus: u16, hw_queues: u16) -> alloc::vec::Vec<u16> {
        let config = QueueConfig { cpus, hw_queues, ..QueueConfig::default() };
        (0..cpus).map(|cpu| config.hctx_of(cpu)).collect()
    }

    #[test]
    fn neighbouring_cpus_share_a_hardware_queue() {
        assert_eq!(map(4, 1), [0, 0, 0, 0]);
        assert_eq!(map(4, 2), [0, 0, 1, 1]);
        assert_eq!(map(4, 4), [0, 1, 2, 3]);
        assert_eq!(map(2, 4), [0, 1]);
        // Two CPUs each, and the fourth queue gets none: an effect of rounding up.
        assert_eq!(map(6, 4), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn usual_number_of_requests_is_twice_the_depth_or_128() {
        assert_eq!(QueueConfig::default().nr_requests, 64);
        assert_eq!(QueueConfig::usual_nr_requests(Generation::Multi, 1024), 256);
        assert_eq!(QueueConfig::of(Generation::Single).nr_requests, 128);
    }
}
