//! A dm table with open devices and keyed ciphers, from which each shard builds its targets.
//!
//! The text form, with names and keys, is in [`super::line`]; a world converts it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::ops::Range;

use super::{DeviceArea, Target};
use crate::bio::Sector;
use crate::elevator::ElevatorSpec;
use crate::sq::{CipherId, DevId};

/// A target with its devices open, without runtime state.
pub trait TargetSpec: Any + fmt::Debug + Send + Sync {
    /// Facts that hold for all of its targets.
    fn facts(&self) -> TargetFacts;

    /// Creates the target for one shard. `number` is its place in the table.
    fn build(&self, number: u16, reserve: Reserve) -> Box<dyn Target>;
}

impl dyn TargetSpec {
    /// The target as a certain type, if it is of that type.
    #[must_use]
    pub fn downcast<T: TargetSpec>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// Bounce slots of one target, for ciphertext.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Numbers of the slots; empty unless [`TargetFacts::bounces`].
    pub slots: Range<u32>,
    /// Length of a slot.
    pub slot_bytes: u32,
}

/// The way of a flush through a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// To these devices, without the target's `map`. Every device with a write of the target must
    /// be among them; otherwise a flush promises too much.
    To(Vec<DevId>),
    /// Through [`Target::map`], as a part of length zero.
    Mapped,
}

/// Facts about a target, for the table and for the world.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each answers a question of its own")]
pub struct TargetFacts {
    /// The way of flushes.
    pub flushes: Flushes,
    /// Whether the target needs the time ([`super::TargetCx::now`]).
    pub reads_clock: bool,
    /// Whether the target has delays: a bio may be in flight while no device has it.
    pub waits: bool,
    /// Whether the target needs bounce slots.
    pub bounces: bool,
    /// Whether the target has a control path ([`Target::control`]).
    pub has_control: bool,
    /// Whether discards are refused.
    pub refuses_discards: bool,
    /// Whether every read gives zeros.
    pub reads_zeros: bool,
    /// The range of a device that has the target's sectors in their order, if there is one. A read
    /// of the range gives the target's data, or its ciphertext if there is a [`Self::cipher`].
    pub window: Option<DeviceArea<DevId>>,
    /// Devices that are paths to one disk ([`super::registry::Use::Path`]): a flush of one is a
    /// flush of all.
    pub paths: Vec<DevId>,
    /// Cipher of the target, whose key can be changed.
    pub cipher: Option<CipherId>,
    /// Elevator of the target's own queue.
    pub elevator: Option<ElevatorSpec>,
    /// Alignment of the target's bios.
    pub sector_size_bytes: u32,
}

impl TargetFacts {
    /// The facts of a target whose parts are all ended at once or mapped to a device at once.
    #[must_use]
    pub fn new(flushes: Flushes) -> Self {
        Self {
            flushes,
            reads_clock: false,
            waits: false,
            bounces: false,
            has_control: false,
            refuses_discards: false,
            reads_zeros: false,
            window: None,
            paths: Vec::new(),
            cipher: None,
            elevator: None,
            sector_size_bytes: 512,
        }
    }

    /// The window, if a read of it gives the target's data.
    #[must_use]
    pub fn plain_window(&self) -> Option<DeviceArea<DevId>> {
        self.window.filter(|_| self.cipher.is_none())
    }
}

/// A target and its range of the mapped device.
#[derive(Clone, Debug)]
pub struct TableExtent {
    /// First sector.
    pub start: Sector,
    /// Length, at least one sector.
    pub len: Sector,
    target: Arc<dyn TargetSpec>,
    facts: TargetFacts,
}

impl TableExtent {
    /// Creates an extent.
    #[must_use]
    pub fn new(start: Sector, len: Sector, target: Arc<dyn TargetSpec>) -> Self {
        let facts = target.facts();
        Self { start, len, target, facts }
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> &dyn TargetSpec {
        &*self.target
    }

    /// Facts about the target, which are collected once.
    #[must_use]
    pub fn facts(&self) -> &TargetFacts {
        &self.facts
    }
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
        self.extents.iter().map(|extent| u32::from(extent.facts.bounces)).sum()
    }

    /// Devices directly below that flushes go to without a target's `map`, each once.
    #[must_use]
    pub fn devices(&self) -> Vec<DevId> {
        let of = |extent: &'_ TableExtent| match &extent.facts.flushes {
            Flushes::To(devices) => devices.clone(),
            Flushes::Mapped => Vec::new(),
        };
        let mut devices: Vec<DevId> = self.extents.iter().flat_map(of).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Numbers of the targets that map flushes themselves.
    #[must_use]
    pub fn flushed(&self) -> Vec<u16> {
        let numbers = (0_u16..).zip(&self.extents);
        numbers
            .filter(|(_, extent)| extent.facts.flushes == Flushes::Mapped)
            .map(|(at, _)| at)
            .collect()
    }

    /// Whether a target has delays.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.layers().any(|layer| layer.extents.iter().any(|extent| extent.facts.waits))
    }

    /// Whether a target needs the time; otherwise a world need not read its clock.
    #[must_use]
    pub fn reads_clock(&self) -> bool {
        self.layers().any(|layer| layer.extents.iter().any(|extent| extent.facts.reads_clock))
    }

    /// Alignment of requests: the largest encryption sector size.
    #[must_use]
    pub fn sector_size_bytes(&self) -> u32 {
        let extents = self.layers().flat_map(|layer| &layer.extents);
        let sizes = extents.map(|extent| extent.facts.sector_size_bytes);
        sizes.max().unwrap_or(512)
    }
}
