//! A dm table with its devices opened and its keys turned into ciphers: ready to be built, per
//! shard.
//!
//! The text form, with names and keys, is in [`super::line`]; a world turns one into the other.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use super::Target;
use super::crypt::{Crypt, CryptSpec};
use super::error::Error;
use super::linear::Linear;
use super::zero::Zero;
use crate::bio::Sector;
use crate::sq::DevId;

/// What a line says, without what it takes to run it.
#[derive(Clone, Copy, Debug)]
pub enum TargetSpec {
    /// `linear`.
    Linear {
        /// The device below.
        dev: DevId,
        /// Where the range starts on it.
        start: Sector,
    },
    /// `zero`.
    Zero,
    /// `error`.
    Error,
    /// `crypt`.
    Crypt(CryptSpec),
}

impl TargetSpec {
    /// A target for one shard. `number` is its place in the table, `slots` its bounce slots.
    #[must_use]
    pub fn build(&self, number: u16, slots: Range<u32>, slot_bytes: u32) -> Box<dyn Target> {
        match *self {
            Self::Linear { dev, start } => Box::new(Linear { dev, start }),
            Self::Zero => Box::new(Zero { number }),
            Self::Error => Box::new(Error),
            Self::Crypt(spec) => Box::new(Crypt::new(spec, number, slots, slot_bytes)),
        }
    }

    /// Whether it needs bounce slots: a crypt target whose device does not fuse.
    #[must_use]
    pub fn bounces(&self) -> bool {
        matches!(self, Self::Crypt(spec) if !spec.fuses_cipher)
    }

    /// The device below, if there is one.
    #[must_use]
    pub fn device(&self) -> Option<DevId> {
        match self {
            Self::Linear { dev, .. } => Some(*dev),
            Self::Crypt(spec) => Some(spec.dev),
            Self::Zero | Self::Error => None,
        }
    }
}

impl TargetSpec {
    /// Whether it maps flushes itself, and they do not go past it to its device.
    #[must_use]
    pub fn maps_flushes(&self) -> bool {
        match self {
            Self::Linear { .. } | Self::Zero | Self::Error | Self::Crypt(_) => false,
        }
    }

    /// Whether it asks what time it is.
    #[must_use]
    pub fn reads_clock(&self) -> bool {
        match self {
            Self::Linear { .. } | Self::Zero | Self::Error | Self::Crypt(_) => false,
        }
    }
}

/// One target and where it lies on the mapped device.
#[derive(Clone, Copy, Debug)]
pub struct TableExtent {
    /// First sector.
    pub start: Sector,
    /// Length, at least one sector.
    pub len: Sector,
    /// What serves it.
    pub target: TargetSpec,
}

/// A table: extents in order, without gaps, from sector zero.
#[derive(Clone, Debug)]
pub struct Table {
    extents: Vec<TableExtent>,
}

impl Table {
    /// A table of these extents.
    ///
    /// # Panics
    /// When they have gaps or overlaps or there is none: [`super::line::parse`] reports that to the
    /// user before.
    #[must_use]
    pub fn new(extents: Vec<TableExtent>) -> Self {
        assert!(!extents.is_empty() && extents.len() <= super::line::LINES_MAX);
        let mut next = Sector(0);
        for extent in &extents {
            assert!(extent.start == next && extent.len.0 > 0, "extents follow each other");
            next = next + extent.len;
        }
        Self { extents }
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

    /// Never: a table has an extent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// How many targets need bounce slots.
    #[must_use]
    pub fn bounce_users(&self) -> u32 {
        self.extents.iter().map(|extent| u32::from(extent.target.bounces())).sum()
    }

    /// The devices below that flushes go to past their targets, each once.
    #[must_use]
    pub fn devices(&self) -> Vec<DevId> {
        let past = self.extents.iter().filter(|extent| !extent.target.maps_flushes());
        let mut devices: Vec<DevId> = past.filter_map(|extent| extent.target.device()).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The numbers of the targets that map flushes themselves.
    #[must_use]
    pub fn flushed(&self) -> Vec<u16> {
        let numbers = (0_u16..).zip(&self.extents);
        numbers.filter(|(_, extent)| extent.target.maps_flushes()).map(|(at, _)| at).collect()
    }

    /// Whether a target asks what time it is; otherwise a world may save itself the question.
    #[must_use]
    pub fn reads_clock(&self) -> bool {
        self.extents.iter().any(|extent| extent.target.reads_clock())
    }

    /// The largest encryption sector size: what requests must be aligned to.
    #[must_use]
    pub fn sector_size_bytes(&self) -> u32 {
        let sizes = self.extents.iter().map(|extent| match extent.target {
            TargetSpec::Crypt(spec) => spec.sector_size_bytes,
            _ => 512,
        });
        sizes.max().unwrap_or(512)
    }
}
