//! Observable facts of a volume: times of its requests, its threads, its devices.

use std::path::PathBuf;

use super::Volume;
use crate::backend::Device;
use crate::file::BackingKind;
use crate::recording::Recording;
use crate::stages::{StageTimes, Threads, Work};
use crate::threads::Usage;

/// A file, device or export of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Name; empty for memory.
    pub path: PathBuf,
    /// Actual access method, which may differ from the requested one.
    pub kind: BackingKind,
    /// Whether it is a block device.
    pub is_block_device: bool,
}

impl Volume {
    /// Its devices, in the order of the table.
    #[must_use]
    pub fn backings(&self) -> Vec<Backing> {
        let backing = |device: &Device| Backing {
            path: device.file.path().to_owned(),
            kind: device.file.kind(),
            is_block_device: device.file.is_block_device(),
        };
        self.parts.backend.devices.iter().map(backing).collect()
    }

    /// Stages of its requests since it was opened.
    #[must_use]
    pub fn stage_times(&self) -> StageTimes {
        self.parts.stage_stats.read()
    }

    /// Starts to record its bios; `None` if a recording runs.
    #[must_use]
    pub fn record(&self) -> Option<Recording> {
        Recording::begin(&self.parts.switch)
    }

    /// Whether requests pass a device queue, with elevator and tags.
    #[must_use]
    pub fn has_device_queue(&self) -> bool {
        self.parts.backend.devices.iter().any(Device::has_queue)
    }

    /// Usage of its threads since it was opened.
    #[must_use]
    pub fn threads(&self) -> Vec<Threads> {
        let (usage, threads) = self.parts.stage_stats.usage();
        let mut all = vec![Threads { work: Work::Connections, threads, usage, pool: None }];
        if let Some(workers) = &self.parts.workers {
            let (usage, threads) = workers.usage();
            let pool = Some(workers.pool());
            all.push(Threads { work: Work::Workers, threads, usage, pool });
        }
        let usage = Usage::default();
        let mut disks = Threads { work: Work::Disks, threads: 0, usage, pool: None };
        for disk in self.parts.backend.device_threads() {
            disks.threads += 1;
            disks.usage.add(&disk.usage());
        }
        all.extend((disks.threads > 0).then_some(disks));
        all
    }
}
