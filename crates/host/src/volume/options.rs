//! How to open a volume.

use std::ops::RangeInclusive;

use blockyard_engine::dm::crypt::pipeline::{PRESETS, Pipeline, Preset};
use blockyard_engine::elevator::ElevatorSpec;

use crate::pages::BounceChoice;

/// What stands between a volume and its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduling {
    /// Which request a device gets next; `None` chooses by what the device is.
    pub elevator: Option<ElevatorSpec>,
    /// Requests with a device at a time; with `none`, of each connection. `None` is 32 for an
    /// elevator, as a disk with native command queueing takes and few enough to leave it a choice,
    /// and with `none` 128, as many as buffers of a connection can ask for twice over.
    pub queue_depth: Option<u32>,
    /// A request is not made longer by merging, and longer ones are split.
    pub max_sectors: u32,
}

impl Scheduling {
    /// What `queue_depth` may be: as much as a ring can hold.
    pub const QUEUE_DEPTHS: RangeInclusive<u32> = 1..=1024;
    /// What `max_sectors` may be, in steps of a page.
    pub const MAX_SECTORS: RangeInclusive<u32> = 8..=65_528;

    /// What is wrong with it.
    pub(super) fn problem(&self) -> Option<String> {
        let (depths, sectors) = (Self::QUEUE_DEPTHS, Self::MAX_SECTORS);
        if let Some(depth) = self.queue_depth.filter(|depth| !depths.contains(depth)) {
            return Some(format!(
                "the queue depth is {depth}; it must be {} to {}",
                depths.start(),
                depths.end()
            ));
        }
        // A request is cut at whole encryption sectors, of 4096 bytes at most.
        (!sectors.contains(&self.max_sectors) || !self.max_sectors.is_multiple_of(8)).then(|| {
            format!(
                "the longest request has {} sectors; it must be a multiple of 8, {} to {}",
                self.max_sectors,
                sectors.start(),
                sectors.end()
            )
        })
    }
}

impl Default for Scheduling {
    /// 512 KiB. Decryption starts when a request has ended: at Linux's 1280 KiB, sequential reads
    /// of a direct file had 0.68 of their speed, because disk and cipher took turns; at 64 KiB
    /// writes had 0.81.
    fn default() -> Self {
        Self { elevator: None, queue_depth: None, max_sectors: 1024 }
    }
}

/// Where ciphers run, who submits encrypted writes, in which order and in whose name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineChoice {
    /// Decided by what comes at once, and by what cipher and hand-over cost here.
    #[default]
    Adaptive,
    /// What Linux makes of the volume's own flags, or of the table line's options.
    Linux,
    /// This one.
    Fixed(Pipeline),
}

impl PipelineChoice {
    /// Those that have a name, each with one line about it.
    pub fn named() -> impl Iterator<Item = (&'static str, &'static str, Self)> {
        let ours = [
            (
                "adaptive",
                "small parts at once, long ones by workers if the cipher is slow",
                Self::Adaptive,
            ),
            ("linux", "what Linux makes of the volume's flags or the table's options", Self::Linux),
        ];
        let preset = |preset: &Preset| (preset.name, preset.about, Self::Fixed(preset.pipeline));
        ours.into_iter().chain(PRESETS.iter().map(preset))
    }

    /// The one with this name.
    ///
    /// # Errors
    /// The names that there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::named().find(|(known, ..)| *known == name);
        found.map(|(.., choice)| choice).ok_or_else(|| {
            let names: Vec<&str> = Self::named().map(|(name, ..)| name).collect();
            format!("{name:?} is no pipeline; there are {}", names.join(", "))
        })
    }
}

/// How to open a volume.
#[derive(Clone, Debug, Default)]
pub struct VolumeOptions {
    /// Nothing may be written.
    pub read_only: bool,
    /// Others may write to the same files, if they say so too.
    pub shared: bool,
    /// Bypass the page cache for regular files too.
    pub direct: bool,
    /// Pass TRIM down, besides what the header says.
    pub allow_discards: bool,
    /// Crypto workers beside the connections' own threads. Zero refuses pipelines that hand ciphers
    /// over. `None` measures the cipher: a slow one gets a worker for each other core.
    pub worker_threads: Option<usize>,
    /// Where ciphers run, and who submits.
    pub pipeline: PipelineChoice,
    /// What writes are encrypted into.
    pub bounce: BounceChoice,
    /// Queues and elevators of the devices below.
    pub scheduling: Scheduling,
    /// The unit that clients are told to read and write in. `None` is one byte, or the sector of a
    /// cipher whose sectors a torn change would garble as a whole.
    pub minimum_block_bytes: Option<u32>,
    /// It can be suspended, and its keys changed ([`super::Volume::suspend`]).
    pub controlled: bool,
    /// Time is kept of one request of so many ([`crate::stages`]); zero keeps none. `None` is as
    /// many as cost nothing that anybody would notice.
    pub sample_every: Option<u32>,
}
