//! What a queue is told about its device and its clock (`struct queue_limits`,
//! `/sys/block/*/queue`).

use crate::elevator::Generation;
use crate::time::Nanos;

/// When requests of a submitter are held back so that they can be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlugRule {
    /// Never: every bio is unplugged at once.
    Off,
    /// Each submitter has a plug of its own (`struct blk_plug`, since 2.6.39).
    PerContext,
    /// The whole queue is plugged when it was empty, and unplugged at 4 requests or after 3 ms
    /// (2.6.30; both numbers from memory).
    PerQueue,
}

/// How large a request may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest read or write (`max_sectors_kb`, doubled).
    pub max_sectors: u32,
    /// Most pieces of memory (`max_segments`). A bio is one piece.
    pub max_segments: u16,
}

/// A queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Which block layer it behaves like. It need not be the elevator's own.
    pub generation: Generation,
    /// CPUs that submit; larger numbers count from zero again.
    pub cpus: u16,
    /// Hardware queues; one in the single-queue generation.
    pub hw_queues: u16,
    /// Driver tags per hardware queue: how many requests the device has at a time.
    pub queue_depth: u32,
    /// Requests that may exist: per hardware queue with an elevator of the multi-queue generation;
    /// for synchronous and for asynchronous I/O each in the single-queue generation.
    pub nr_requests: u32,
    /// Size of a request.
    pub limits: Limits,
    /// The device seeks.
    pub rotational: bool,
    /// The device has a volatile cache: flushes mean something.
    pub write_cache: bool,
    /// The device can make one write stable by itself.
    pub fua: bool,
    /// When requests are held back.
    pub plug: PlugRule,
    /// What the elevator's clock advances by; 1 ns is exact (`HZ`).
    pub tick: Nanos,
    /// How long the device may take for a request.
    pub timeout: Option<Nanos>,
}

impl QueueConfig {
    /// The usual queue of a generation.
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

    /// `nr_requests` if nothing is said (`BLKDEV_DEFAULT_RQ`): 128, or, with tags, twice what the
    /// device takes but no more than 256 (from memory).
    #[must_use]
    pub fn usual_nr_requests(generation: Generation, queue_depth: u32) -> u32 {
        match generation {
            Generation::Single => 128,
            Generation::Multi => 2 * queue_depth.min(128),
        }
    }

    /// The hardware queue of a CPU: neighbours share one, as evenly as whole numbers allow
    /// (`blk_mq_map_queues` of 2014, without its look at hyper-threads).
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

/// The usual queue of the multi-queue generation.
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
        // Two CPUs each, and the fourth queue gets none: what rounding up means.
        assert_eq!(map(6, 4), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn usual_number_of_requests_is_twice_the_depth_or_128() {
        assert_eq!(QueueConfig::default().nr_requests, 64);
        assert_eq!(QueueConfig::usual_nr_requests(Generation::Multi, 1024), 256);
        assert_eq!(QueueConfig::of(Generation::Single).nr_requests, 128);
    }
}
