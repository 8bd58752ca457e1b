//! What a volume says of the time of its requests, of its threads, and of what it lies on.

use std::path::PathBuf;

use super::Volume;
use crate::backend::Device;
use crate::file::Kind;
use crate::recording::Recording;
use crate::stages::{StageTimes, Threads, Work};
use crate::threads::Usage;

/// A file, device or export that a volume lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Its name; empty for memory.
    pub path: PathBuf,
    /// How it is read and written, which need not be how it was asked for.
    pub kind: Kind,
    /// It is a block device.
    pub is_block_device: bool,
}

impl Volume {
    /// What it lies on, in the order of its table.
    #[must_use]
    pub fn backings(&self) -> Vec<Backing> {
        let backing = |device: &Device| Backing {
            path: device.file.path().to_owned(),
            kind: device.file.kind(),
            is_block_device: device.file.is_block_device(),
        };
        self.parts.backend.devices.iter().map(backing).collect()
    }

    /// Where the time of its requests went, since it was opened.
    #[must_use]
    pub fn stage_times(&self) -> StageTimes {
        self.parts.stage_stats.read()
    }

    /// Begins to record the bios that come into it; nothing if a recording goes on.
    #[must_use]
    pub fn record(&self) -> Option<Recording> {
        Recording::begin(&self.parts.switch)
    }

    /// Whether requests pass the queue of a device, with its elevator and its tags.
    #[must_use]
    pub fn has_device_queue(&self) -> bool {
        self.parts.backend.devices.iter().any(Device::has_queue)
    }

    /// What its threads have used since it was opened.
    #[must_use]
    pub fn threads(&self) -> Vec<Threads> {
        let (usage, threads) = self.parts.stage_stats.usage();
        let mut all = vec![Threads { work: Work::Connections, threads, usage }];
        if let Some(workers) = &self.parts.workers {
            let (usage, threads) = workers.usage();
            all.push(Threads { work: Work::Workers, threads, usage });
        }
        let mut disks = Threads { work: Work::Disks, threads: 0, usage: Usage::default() };
        for disk in self.parts.backend.device_threads() {
            disks.threads += 1;
            disks.usage.add(&disk.usage());
        }
        all.extend((disks.threads > 0).then_some(disks));
        all
    }
}
