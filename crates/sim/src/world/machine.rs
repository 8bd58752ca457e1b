//! The machine above the devices: threads on CPUs, and files in memory.

use super::bandwidth::Bandwidth;
use super::config::Config;
use super::files::Files;
use super::threads::Threads;
use super::trace::Observer;

/// The machine that the devices serve.
pub(super) struct Machine<'a> {
    pub(super) config: &'a Config,
    pub(super) threads: Threads<'a>,
    pub(super) files: Files<'a>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(config: &'a Config, observer: &'a mut dyn Observer) -> Self {
        let mut threads = Threads::new(config.topology, config.costs, observer);
        let limited = |bandwidth| Bandwidth::new(bandwidth, config.topology);
        threads.bandwidth = config.bandwidth.map(limited);
        Self { config, threads, files: Files::new(config) }
    }
}
