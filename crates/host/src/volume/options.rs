//! Options for opening a volume.

use std::fmt;
use std::ops::RangeInclusive;

use blockyard_engine::dm::crypt::pipeline::{PRESETS, Pipeline, Preset};
use blockyard_engine::dm::registry::TargetType;
use blockyard_engine::elevator::ElevatorSpec;

use crate::dirty_bitmap::DirtyBitmapOptions;
use crate::pages::BounceChoice;

/// The layer between a volume and its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduling {
    /// Elevator; `None` chooses by the kind of device.
    pub elevator: Option<ElevatorSpec>,
    /// Requests at a device at a time; with `none`, per connection. The default is 32 for an
    /// elevator, the depth of native command queueing, which leaves the elevator a choice; and 128
    /// for `none`, twice the demand of a connection's buffers.
    pub queue_depth: Option<u32>,
    /// Limit of merging; longer requests are split.
    pub max_sectors: u32,
}

impl Scheduling {
    /// Valid `queue_depth`: up to the capacity of a ring.
    pub const QUEUE_DEPTHS: RangeInclusive<u32> = 1..=1024;
    /// Valid `max_sectors`, in steps of a page.
    pub const MAX_SECTORS: RangeInclusive<u32> = 8..=65_528;

    /// Describes an invalid value.
    pub(super) fn problem(&self) -> Option<String> {
        let depths = Self::QUEUE_DEPTHS;
        let sectors = Self::MAX_SECTORS;
        if let Some(depth) = self.queue_depth.filter(|depth| !depths.contains(depth)) {
            return Some(format!(
                "the queue depth is {depth}; it must be {} to {}",
                depths.start(),
                depths.end()
            ));
        }
        // A request is split at whole encryption sectors, of at most 4096 bytes.
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
    /// 512 KiB. Decryption starts at the end of a request: with Linux's 1280 KiB, sequential reads
    /// of a direct file dropped to 0.68 of their speed, because disk and cipher alternated; with 64
    /// KiB writes dropped to 0.81.
    fn default() -> Self {
        Self { elevator: None, queue_depth: None, max_sectors: 1024 }
    }
}

/// Pipeline: placement of ciphers, submitter of encrypted writes, their order and io-context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineChoice {
    /// Chosen by the length of a batch, and by the costs of cipher and hand-over on this machine.
    #[default]
    Adaptive,
    /// Linux's pipeline for the volume's flags, or for the table line's options.
    Linux,
    /// This pipeline.
    Fixed(Pipeline),
}

impl PipelineChoice {
    /// Named choices, each with a one-line description.
    pub fn named() -> impl Iterator<Item = (&'static str, &'static str, Self)> {
        let ours = [
            (
                "adaptive",
                "short parts inline, long ones on workers if the cipher is slow",
                Self::Adaptive,
            ),
            (
                "linux",
                "Linux's pipeline for the volume's flags or the table's options",
                Self::Linux,
            ),
        ];
        let preset = |preset: &Preset| (preset.name, preset.about, Self::Fixed(preset.pipeline));
        ours.into_iter().chain(PRESETS.iter().map(preset))
    }

    /// The choice with this name, or the pipeline with these fields ([`Pipeline::parse`]).
    ///
    /// # Errors
    /// The text is neither; the message lists all names, or the valid fields.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some((.., choice)) = Self::named().find(|(name, ..)| *name == text) {
            return Ok(choice);
        }
        match Pipeline::parse(text) {
            Ok(pipeline) => Ok(Self::Fixed(pipeline)),
            Err(error) if text.contains('=') => Err(error.to_string()),
            Err(_) => {
                let names: Vec<&str> = Self::named().map(|(name, ..)| name).collect();
                Err(format!(
                    "{text:?} is no pipeline; pipelines are {}, or fields as in \
                     place=same,submit=thread,sort=off",
                    names.join(", ")
                ))
            }
        }
    }
}

/// The first name, or the fields of a pipeline without one.
impl fmt::Display for PipelineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adaptive => f.write_str("adaptive"),
            Self::Linux => f.write_str("linux"),
            Self::Fixed(pipeline) => match pipeline.name() {
                Some(name) => f.write_str(name),
                None => pipeline.fmt(f),
            },
        }
    }
}

/// Options for opening a volume.
// 13 fields: one for each option.
#[derive(Clone, Debug, Default)]
pub struct VolumeOptions {
    /// Open read-only.
    pub read_only: bool,
    /// Other programs may write to the same files, if they open them shared too.
    pub shared: bool,
    /// Bypass the page cache for regular files too.
    pub direct: bool,
    /// Pass TRIM down, in addition to the header's flag.
    pub allow_discards: bool,
    /// Number of crypto workers besides the connections' threads. Volumes of a process with equal
    /// numbers and pipelines share their workers. Zero excludes pipelines that need
    /// workers. `None` measures the cipher: a slow one gets a worker for each other core.
    pub worker_threads: Option<usize>,
    /// Placement of ciphers, and submitter.
    pub pipeline: PipelineChoice,
    /// Bounce memory of writes.
    pub bounce: BounceChoice,
    /// Queues and elevators of the devices below.
    pub scheduling: Scheduling,
    /// Minimum block for clients. `None` means one byte, or the sector of a cipher that a torn
    /// write would destroy as a whole.
    pub minimum_block_bytes: Option<u32>,
    /// The volume can be suspended, and its keys changed ([`super::Volume::suspend`]).
    pub controlled: bool,
    /// Mean sampling interval in requests ([`crate::stages`]); zero disables sampling. `None`: the
    /// default sampling rate.
    pub sample_every: Option<u32>,
    /// Targets of the program, for the lines of a table.
    pub targets: Vec<&'static TargetType>,
    /// Track the blocks that are written. Not with `shared`: the writes of others are not seen.
    pub dirty_bitmap: Option<DirtyBitmapOptions>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_printed_and_read_back() {
        let fields = "read=inline,write=any,submit=thread,sort=on,context=client";
        let others = PipelineChoice::parse(fields).unwrap();
        assert_eq!(others.to_string(), fields);
        for choice in PipelineChoice::named().map(|(.., choice)| choice).chain([others]) {
            assert_eq!(PipelineChoice::parse(&choice.to_string()), Ok(choice));
        }
        let said = PipelineChoice::parse("fast").unwrap_err();
        assert!(said.contains("adaptive") && said.contains("place="), "{said}");
    }
}
