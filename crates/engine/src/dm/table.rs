//! A dm table with open devices and keyed ciphers, from which each shard builds its targets.
//!
//! The text form, with names and keys, is in [`super::line`]; a world converts it.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::crypt::{Crypt, CryptSpec};
use super::delay::{Delay, DelaySpec};
use super::error::Error;
use super::flakey::{Flakey, FlakeySpec};
use super::linear::Linear;
use super::log_writes::{LogWrites, LogWritesSpec};
use super::loop_file::Loop;
use super::multipath::requests::RequestTarget;
use super::multipath::target::{MultipathTarget, MultipathTargetSpec};
use super::null::{Null, NullOptions};
use super::ram::Ram;
use super::striped::{Striped, StripedSpec};
use super::zero::Zero;
use super::{Leg, Target};
use crate::bio::Sector;
use crate::sq::DevId;

/// Arguments of a line, without runtime state.
#[derive(Clone, Debug)]
pub enum TargetSpec {
    /// `linear`.
    Linear {
        /// The device below.
        dev: DevId,
        /// Start of the range on the device.
        start: Sector,
    },
    /// `zero`.
    Zero,
    /// `error`.
    Error,
    /// `ram`.
    Ram {
        /// Memory of the line's length.
        dev: DevId,
    },
    /// `null`.
    Null {
        /// Options of the line.
        options: NullOptions,
        /// With `memory_backed`, memory of the line's length.
        memory: Option<DevId>,
    },
    /// `loop`.
    Loop(Leg<DevId>),
    /// `striped`.
    Striped(StripedSpec<DevId>),
    /// `delay`.
    Delay(DelaySpec<DevId>),
    /// `flakey`.
    Flakey(FlakeySpec<DevId>),
    /// `log-writes`.
    LogWrites(LogWritesSpec),
    /// `multipath`.
    Multipath(MultipathTargetSpec),
    /// `crypt`.
    Crypt(CryptSpec),
}

impl TargetSpec {
    /// Creates the target for one shard. `number` is its place in the table, `slots` its bounce
    /// slots.
    #[must_use]
    pub fn build(&self, number: u16, slots: Range<u32>, slot_bytes: u32) -> Box<dyn Target> {
        match self {
            &Self::Linear { dev, start } => Box::new(Linear { dev, start }),
            Self::Zero => Box::new(Zero { number }),
            Self::Error => Box::new(Error),
            &Self::Ram { dev } => Box::new(Ram { dev }),
            Self::Null { options, memory } => Box::new(Null::new(options.clone(), *memory, number)),
            &Self::Loop(leg) => Box::new(Loop { leg }),
            Self::Striped(spec) => Box::new(Striped::new(spec.clone())),
            Self::Delay(spec) => Box::new(Delay::new(spec.clone(), number)),
            Self::Flakey(spec) => Box::new(Flakey::new(spec.clone(), number)),
            &Self::LogWrites(spec) => Box::new(LogWrites::new(spec, number)),
            Self::Multipath(spec) if spec.requests.is_some() => {
                Box::new(RequestTarget::new(spec.clone(), number))
            }
            Self::Multipath(spec) => Box::new(MultipathTarget::new(spec.clone(), number)),
            &Self::Crypt(spec) => Box::new(Crypt::new(spec, number, slots, slot_bytes)),
        }
    }

    /// Whether the target needs bounce slots: a crypt target whose device does not fuse.
    #[must_use]
    pub fn bounces(&self) -> bool {
        matches!(self, Self::Crypt(spec) if !spec.fuses_cipher)
    }

    /// Devices that a flush goes to without the target's `map`.
    fn flushed_devices(&self) -> Vec<DevId> {
        match self {
            Self::Linear { dev, .. } => vec![*dev],
            Self::Loop(leg) => vec![leg.dev],
            Self::Striped(spec) => spec.legs.iter().map(|leg| leg.dev).collect(),
            Self::Crypt(spec) => vec![spec.dev],
            Self::Zero | Self::Error | Self::Ram { .. } | Self::Null { .. } => vec![],
            Self::Delay(_) | Self::Flakey(_) | Self::LogWrites(_) | Self::Multipath(_) => vec![],
        }
    }

    /// Whether the target maps flushes itself.
    #[must_use]
    pub fn maps_flushes(&self) -> bool {
        matches!(self, Self::Delay(_) | Self::Flakey(_) | Self::LogWrites(_) | Self::Multipath(_))
    }

    /// Whether the target needs the time.
    #[must_use]
    pub fn reads_clock(&self) -> bool {
        matches!(self, Self::Flakey(_) | Self::Multipath(_))
    }

    /// Whether the target has delays: a bio may be in flight while no device has it.
    #[must_use]
    pub fn waits(&self) -> bool {
        match self {
            Self::Delay(_) | Self::Multipath(_) => true,
            Self::Null { options, .. } => options.timer.is_some(),
            _ => false,
        }
    }

    /// The target's window on one device, if its sectors are contiguous and unencrypted there, so
    /// that a read of the device gives the same data.
    #[must_use]
    pub fn window(&self) -> Option<Leg<DevId>> {
        match self {
            &Self::Linear { dev, start } => Some(Leg { dev, start }),
            Self::Ram { dev } | Self::LogWrites(LogWritesSpec { dev, .. }) => {
                Some(Leg { dev: *dev, start: Sector(0) })
            }
            Self::Loop(leg) => Some(*leg),
            _ => None,
        }
    }

    /// Alignment of the target's bios.
    fn sector_size_bytes(&self) -> u32 {
        match self {
            Self::Crypt(spec) => spec.sector_size_bytes,
            Self::Null { options, .. } => options.block_size_bytes,
            _ => 512,
        }
    }
}

/// A target and its range of the mapped device.
#[derive(Clone, Debug)]
pub struct TableExtent {
    /// First sector.
    pub start: Sector,
    /// Length, at least one sector.
    pub len: Sector,
    /// The target.
    pub target: TargetSpec,
}

/// A table: extents in order, without gaps, from sector zero.
#[derive(Clone, Debug)]
pub struct Table {
    extents: Vec<TableExtent>,
    /// Tables of the mapped devices below, each above those that it names.
    below: Vec<Table>,
}

impl Table {
    /// Creates a table of these extents.
    ///
    /// # Panics
    /// When they have gaps or overlaps or there are none: [`super::line::parse`] reports that to
    /// the user first.
    #[must_use]
    pub fn new(extents: Vec<TableExtent>) -> Self {
        assert!(!extents.is_empty() && extents.len() <= super::line::LINES_MAX);
        let mut next = Sector(0);
        for extent in &extents {
            assert!(extent.start == next && extent.len.0 > 0, "extents follow each other");
            next = next + extent.len;
        }
        Self { extents, below: Vec::new() }
    }

    /// Puts the table on top of others, which are its devices [`DevId::mapped`], counted from zero.
    /// Each of them may name earlier ones.
    #[must_use]
    pub fn over(self, below: Vec<Self>) -> Self {
        assert!(below.iter().all(|table| table.below.is_empty()), "the list is flat");
        Self { below, ..self }
    }

    /// The tables below, and then the table itself.
    pub fn layers(&self) -> impl Iterator<Item = &Self> {
        self.below.iter().chain(core::iter::once(self))
    }

    /// The extents.
    #[must_use]
    pub fn extents(&self) -> &[TableExtent] {
        &self.extents
    }

    /// Length of the mapped device.
    #[must_use]
    pub fn len(&self) -> Sector {
        self.extents.last().map_or(Sector(0), |last| last.start + last.len)
    }

    /// Always false: a table has an extent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Number of targets that need bounce slots, without the tables below.
    #[must_use]
    pub fn bounce_users(&self) -> u32 {
        self.extents.iter().map(|extent| u32::from(extent.target.bounces())).sum()
    }

    /// Devices directly below that flushes go to without a target's `map`, each once.
    #[must_use]
    pub fn devices(&self) -> Vec<DevId> {
        let of = |extent: &TableExtent| extent.target.flushed_devices();
        let mut devices: Vec<DevId> = self.extents.iter().flat_map(of).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Numbers of the targets that map flushes themselves.
    #[must_use]
    pub fn flushed(&self) -> Vec<u16> {
        let numbers = (0_u16..).zip(&self.extents);
        numbers.filter(|(_, extent)| extent.target.maps_flushes()).map(|(at, _)| at).collect()
    }

    /// Whether a target has delays.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.layers().any(|layer| layer.extents.iter().any(|extent| extent.target.waits()))
    }

    /// Whether a target needs the time; otherwise a world need not read its clock.
    #[must_use]
    pub fn reads_clock(&self) -> bool {
        self.layers().any(|layer| layer.extents.iter().any(|extent| extent.target.reads_clock()))
    }

    /// Alignment of requests: the largest encryption sector size.
    #[must_use]
    pub fn sector_size_bytes(&self) -> u32 {
        let extents = self.layers().flat_map(|layer| &layer.extents);
        let sizes = extents.map(|extent| extent.target.sector_size_bytes());
        sizes.max().unwrap_or(512)
    }
}
