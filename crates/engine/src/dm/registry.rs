//! The targets by name, and the arguments of their lines.
//!
//! ```text
//!   text ── TargetType::parse ──> Arguments ── needs ──> the world opens devices, memory, logs
//!                                     └── open(Opened) ──> TargetSpec ── build ──> Target
//! ```
//! To add a target: a file with a [`TargetType`], and its line in [`TARGETS`]
//! (`docs/targets/adding.md`). A program adds its own without a change here: a world passes them to
//! [`super::line::parse`].

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

use super::crypt::pipeline::Choice;
use super::multipath::line::QueueMode;
use super::multipath::stacked::StackedConfig;
use super::table::TargetSpec;
use super::{
    DeviceArea, delay, error, flakey, linear, log_writes, loop_file, multipath, null, ram, striped,
    zero,
};
use crate::bio::Sector;
use crate::sq::{CipherId, DevId, LogId};

/// The targets of the engine. A world adds those that need more than the engine has: `crypt` has
/// keys.
pub static TARGETS: &[&TargetType] = &[
    &linear::LINEAR,
    &zero::ZERO,
    &error::ERROR,
    &ram::RAM,
    &null::NULL,
    &loop_file::LOOP,
    &striped::STRIPED,
    &delay::DELAY,
    &flakey::FLAKEY,
    &log_writes::LOG_WRITES,
    &multipath::line::MULTIPATH,
];

/// Parses the arguments of a line. Errors never quote a key.
pub type Parse = fn(&[&str], LineRange) -> Result<Arc<dyn Arguments>, String>;

/// Name and parser of a target (`struct target_type`).
#[derive(Debug)]
pub struct TargetType {
    /// Name in a line.
    pub name: &'static str,
    /// Syntax of the arguments; empty if there are none.
    pub arguments: &'static str,
    /// Parser of the arguments.
    pub parse: Parse,
}

impl TargetType {
    /// The error of a line with a wrong number of arguments.
    #[must_use]
    pub fn takes(&self) -> String {
        format!("{} takes `{}`", self.name, self.arguments)
    }
}

/// The range of a line on the mapped device, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRange {
    /// First sector.
    pub start: u64,
    /// Length, at least one sector.
    pub len: u64,
}

/// Whether keys are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// In hex (`dmsetup table --showkeys`). The caller must wipe the output.
    Shown,
    /// As zeroes.
    Hidden,
}

/// The arguments of a line, as its text has them: devices are paths.
pub trait Arguments: Any + fmt::Debug + Send + Sync {
    /// Writes the arguments in the form of `dmsetup table`, each with a space in front. The parser
    /// reads them again.
    ///
    /// # Errors
    /// Errors of `out`.
    fn write(&self, keys: Keys, out: &mut dyn fmt::Write) -> fmt::Result;

    /// The things that the world opens for a line of `len` sectors.
    fn needs(&self, len: Sector) -> Needs<'_>;

    /// The target with its needs fulfilled.
    ///
    /// # Errors
    /// When the line can be written but not used.
    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String>;
}

impl dyn Arguments {
    /// The arguments as a certain type, if they are of that type.
    #[must_use]
    pub fn downcast<T: Arguments>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// The things that a line needs from the world.
#[derive(Debug, Default)]
pub struct Needs<'a> {
    /// Ranges of devices, which the world opens and checks for their length.
    pub devices: Vec<DeviceNeed<'a>>,
    /// Memory of this length, which reads as zeroes until it is written.
    pub memory: Option<Sector>,
    /// Path of the device or file for a log of the writes to the first device.
    pub log: Option<&'a str>,
    /// Parameters of a cipher, in the world's type.
    pub cipher: Option<&'a dyn Any>,
    /// Whether requests choose between the devices, in a queue over their queues.
    pub queue: bool,
}

impl<'a> Needs<'a> {
    /// `len` sectors of each device, for the buffers of the submitters.
    pub fn of(areas: impl IntoIterator<Item = &'a DeviceArea<String>>, len: Sector) -> Self {
        let need = |area: &'a DeviceArea<String>| DeviceNeed {
            path: &area.dev,
            start: area.start,
            len,
            using: Use::Passed,
        };
        Self { devices: areas.into_iter().map(need).collect(), ..Self::default() }
    }

    /// The paths of all devices, with repetitions, and of the log.
    pub fn paths(&self) -> impl Iterator<Item = &'a str> {
        self.devices.iter().map(|need| need.path).chain(self.log)
    }
}

/// A range of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNeed<'a> {
    /// Path of the device or file, or another name that the world can open.
    pub path: &'a str,
    /// First sector on the device.
    pub start: Sector,
    /// Length.
    pub len: Sector,
    /// Buffers that the device gets.
    pub using: Use,
}

/// Buffers that a device gets from a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Those of the submitters. Their addresses may not suit direct I/O.
    Passed,
    /// Those of the submitters, on one of several paths to one disk. With [`QueueMode::Request`],
    /// the line has the elevator.
    Path(QueueMode),
    /// Those of a cipher, in sectors of this many bytes.
    Encrypted(u32),
}

/// The things that the world has opened for a line, as [`Needs`] lists them.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Devices, in the order of the needs.
    pub devs: Vec<DevId>,
    /// Memory.
    pub memory: Option<DevId>,
    /// Log.
    pub log: Option<LogId>,
    /// Cipher.
    pub cipher: Option<OpenedCipher>,
    /// Configuration of the queue over the devices' queues.
    pub queue: Option<StackedConfig>,
}

impl Opened {
    /// Only devices.
    #[must_use]
    pub fn devices(devs: Vec<DevId>) -> Self {
        Self { devs, ..Self::default() }
    }

    /// The range on the device with this place in the needs.
    #[must_use]
    pub fn area(&self, place: usize, area: &DeviceArea<String>) -> DeviceArea<DevId> {
        DeviceArea { dev: self.devs[place], start: area.start }
    }
}

/// A cipher with its key, and how the line uses it.
#[derive(Clone, Copy, Debug)]
pub struct OpenedCipher {
    /// The cipher.
    pub id: CipherId,
    /// Whether discards are passed down.
    pub allow_discards: bool,
    /// Whether the device runs the cipher straight into and out of its pages.
    pub fuses: bool,
    /// Where the cipher runs, and which thread submits.
    pub pipeline: Choice,
}

/// Checks that each target has a name of its own.
///
/// # Errors
/// The name that two have.
pub(super) fn check_names(own: &[&'static TargetType]) -> Result<(), String> {
    let is_taken = |(place, target): &(usize, &&TargetType)| {
        TARGETS.iter().chain(&own[..*place]).any(|other| other.name == target.name)
    };
    match own.iter().enumerate().find(is_taken) {
        None => Ok(()),
        Some((_, target)) => Err(format!("two targets have the name `{}`", target.name)),
    }
}

/// Finds a target by name.
pub(super) fn named(name: &str, own: &[&'static TargetType]) -> Option<&'static TargetType> {
    TARGETS.iter().chain(own).find(|target| target.name == name).copied()
}
